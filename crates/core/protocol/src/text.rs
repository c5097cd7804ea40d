//! Text from others, for logs and terminals.

use std::fmt::{self, Display, Write};

/// Shows what another process sent as text and never as control: what would move a cursor, begin another line of a log or turn the
/// direction of writing is shown by its number, and a backslash as two, so that what is shown is that of one text only.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

/// Letters that have an effect on those around them, or are not seen.
fn controls(letter: char) -> bool {
    let turns = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}');
    let isolates = matches!(letter, '\u{2066}'..='\u{2069}');
    let breaks = matches!(letter, '\u{2028}' | '\u{2029}');
    let hides =
        matches!(letter, '\u{ad}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    let tags = matches!(letter, '\u{e0000}'..='\u{e007f}');
    letter.is_control() || turns || isolates || breaks || hides || tags
}

/// Whether a text has nothing that would be shown by its number.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    !text.chars().any(controls)
}

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            if controls(letter) || letter == '\\' {
                write!(f, "{}", letter.escape_default())?;
            } else {
                f.write_char(letter)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_controls_a_terminal_is_shown_and_letters_are_letters() {
        let shown = Printable("é\u{1b}[2J\nok\r\u{202e}x\u{9b}\u{200b}").to_string();
        assert_eq!(shown, "é\\u{1b}[2J\\nok\\r\\u{202e}x\\u{9b}\\u{200b}");
        assert!(is_printable("é\\n") && !is_printable("é\n"));
    }

    #[test]
    fn two_texts_are_never_shown_alike() {
        let texts = ["\n", "\\n", "\\\n", "\\\\n", "\u{1b}", "\\u{1b}", "\\", "\\\\"];
        let shown: BTreeSet<String> =
            texts.iter().map(|text| Printable(text).to_string()).collect();
        assert_eq!(shown.len(), texts.len(), "{shown:?}");
    }
}
