//! Links in the text of a post: addresses of the web, and names with an `@` before them.
//!
//! Invariants:
//! - Put together, what is shown of all pieces is the text.
//! - A link leads to what begins with `http://` or `https://`, or to an account by its name; to nothing else, whatever was typed.
//! - No piece is markup: templates escape each of them, in text and attribute.

use crate::network::Name;

/// What an address of the web begins with, in small or capital letters.
const SCHEMES: [&str; 2] = ["https://", "http://"];

/// Other characters of an address than letters and digits (RFC 3986, section 2). Letters and digits may be of any script, as browsers show them.
const OF_ADDRESSES: &str = "-._~:/?#[]@!$&'()*+,;=%";

/// What ends a sentence rather than an address.
const AFTER_ADDRESSES: &str = ".,:;!?'";

/// A part of a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Piece {
    /// No link.
    Plain(String),
    /// An address, as it was typed.
    Address(String),
    /// A name as it was typed, with its `@`, and whose it is.
    Name { shown: String, name: Name },
}

/// A text in pieces.
pub(crate) fn pieces(text: &str) -> Vec<Piece> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let (mut rest, mut before) = (text, None);
    while let Some(first) = rest.chars().next() {
        let link = link_at(rest, before);
        let length = link.as_ref().map_or(first.len_utf8(), |(_, length)| *length);
        let (taken, behind) = rest.split_at(length);
        match link {
            None => plain.push_str(taken),
            Some((piece, _)) => {
                if !plain.is_empty() {
                    pieces.push(Piece::Plain(std::mem::take(&mut plain)));
                }
                pieces.push(piece);
            }
        }
        before = taken.chars().next_back();
        rest = behind;
    }
    if !plain.is_empty() {
        pieces.push(Piece::Plain(plain));
    }
    pieces
}

/// The link that a text begins with, if it does, and its bytes in the text.
fn link_at(text: &str, before: Option<char>) -> Option<(Piece, usize)> {
    if before.is_some_and(|one| one.is_alphanumeric() || one == '_') {
        return None;
    }
    match text.strip_prefix('@') {
        Some(_) if matches!(before, Some('@' | '/')) => None,
        Some(rest) => {
            let name = name_at(rest)?;
            let shown = &text[..1 + name.as_str().len()];
            Some((Piece::Name { shown: shown.to_owned(), name }, shown.len()))
        }
        None => {
            let address = address_at(text)?;
            Some((Piece::Address(address.to_owned()), address.len()))
        }
    }
}

/// The name that a text begins with, if the whole word is one. Of one of another network, as of an address of mail, the part before its `@` is none.
fn name_at(text: &str) -> Option<Name> {
    let is_of_names = |one: char| one.is_ascii_alphanumeric() || one == '_';
    let end = text.find(|one| !is_of_names(one)).unwrap_or(text.len());
    let (name, behind) = text.split_at(end);
    if behind.starts_with(|one: char| one.is_alphanumeric() || one == '@') {
        return None;
    }
    Name::new(name).ok()
}

/// The address that a text begins with, without what ends a sentence.
fn address_at(text: &str) -> Option<&str> {
    let begins = |scheme: &&&str| {
        let begin = text.get(..scheme.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
    };
    let scheme = SCHEMES.iter().find(begins)?;
    let is_of_addresses = |one: char| one.is_alphanumeric() || OF_ADDRESSES.contains(one);
    let end = text.find(|one| !is_of_addresses(one)).unwrap_or(text.len());
    let address = without_end(&text[..end]);
    let host = address.get(scheme.len()..)?.split(['/', '?', '#']).next()?;
    // What is before an `@` here is no host, and written to be taken for one.
    let is_host = host.starts_with(char::is_alphanumeric) && !host.contains('@');
    is_host.then_some(address)
}

/// An address without what ends the sentence that it is in, and without brackets around it.
fn without_end(mut address: &str) -> &str {
    let count = |address: &str, one| address.matches(one).count();
    while let Some(last) = address.chars().next_back() {
        let is_end = match last {
            ')' => count(address, ')') > count(address, '('),
            ']' => count(address, ']') > count(address, '['),
            last => AFTER_ADDRESSES.contains(last),
        };
        if !is_end {
            break;
        }
        address = &address[..address.len() - last.len_utf8()];
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The links of a text, as `<address>` and `@shown:name`.
    fn links(text: &str) -> Vec<String> {
        let pieces = pieces(text);
        let shown = |piece: &Piece| match piece {
            Piece::Plain(text) | Piece::Address(text) => text.clone(),
            Piece::Name { shown, .. } => shown.clone(),
        };
        assert_eq!(pieces.iter().map(shown).collect::<String>(), text);
        let link = |piece: Piece| match piece {
            Piece::Plain(_) => None,
            Piece::Address(address) => Some(format!("<{address}>")),
            Piece::Name { shown, name } => Some(format!("{shown}:{name}")),
        };
        pieces.into_iter().filter_map(link).collect()
    }

    #[test]
    fn addresses_are_links() {
        for (text, expected) in [
            ("https://example.org", "<https://example.org>"),
            ("see http://example.org/a?b=c&d=%20#e now", "<http://example.org/a?b=c&d=%20#e>"),
            ("HTTPS://EXAMPLE.ORG/A", "<HTTPS://EXAMPLE.ORG/A>"),
            ("https://[::1]/x https://127.0.0.1:80/", "<https://127.0.0.1:80/>"),
            ("https://münchen.example/straße", "<https://münchen.example/straße>"),
            ("a\nhttps://example.org\nb", "<https://example.org>"),
        ] {
            assert_eq!(links(text), [expected], "{text}");
        }
        assert_eq!(links("http://a.example http://b.example").len(), 2);
    }

    #[test]
    fn what_ends_a_sentence_is_no_part_of_an_address() {
        for text in [
            "https://example.org/a.",
            "https://example.org/a, b",
            "https://example.org/a?!...",
            "(https://example.org/a)",
            "[see https://example.org/a].",
            "\"https://example.org/a\"",
            "'https://example.org/a'",
            "<https://example.org/a>",
            "“https://example.org/a”…",
            "«https://example.org/a»",
            "https://example.org/a\u{202e}gro",
            "https://example.org/a\u{200b}b",
            "https://example.org/a\\b",
        ] {
            assert_eq!(links(text), ["<https://example.org/a>"], "{text}");
        }
        let balanced = "https://example.org/a_(b)";
        assert_eq!(links(&format!("({balanced}).")), [format!("<{balanced}>")]);
    }

    #[test]
    fn other_schemes_and_half_addresses_are_no_links() {
        for text in [
            "javascript:alert(1)",
            "java\nscript:alert(1)",
            "data:text/html,<script>alert(1)</script>",
            "vbscript:x file:///etc/passwd ftp://example.org //example.org",
            "httpx://example.org http:/example.org http:example.org https//example.org",
            "example.org www.example.org",
            "xhttps://example.org _https://example.org",
            "https:// https://. https://) https://?",
            "https://bank.example@evil.example/ https://user:secret@evil.example",
            "https://-example.org https://.example.org https:///example.org",
        ] {
            assert_eq!(links(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn names_are_links() {
        for (text, expected) in [
            ("@alice", "@alice:alice"),
            ("hello @Alice!", "@Alice:alice"),
            ("(@bob_2)", "@bob_2:bob_2"),
            (".@bob, see", "@bob:bob"),
            ("@bob's", "@bob:bob"),
            ("\n@x2345678901234567890\n", "@x2345678901234567890:x2345678901234567890"),
        ] {
            assert_eq!(links(text), [expected], "{text}");
        }
        assert_eq!(links("@amy @bob,@cat"), ["@amy:amy", "@bob:bob", "@cat:cat"]);
    }

    #[test]
    fn what_no_account_can_be_called_is_no_link() {
        for text in [
            "@ab",
            "@x23456789012345678901",
            "@",
            "@@alice",
            "@ alice",
            "@ärger",
            "@aliceä",
            "alice@example.org",
            "ä@alice",
            "_@alice",
            "@alice@example.org",
            "example.org/@alice",
            "@../login",
            "@!l/",
        ] {
            assert_eq!(links(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn names_in_addresses_are_of_these() {
        assert_eq!(links("https://example.org/@alice"), ["<https://example.org/@alice>"]);
        assert_eq!(links("https://example.org/?@alice @bob").len(), 2);
    }

    /// Whatever stands around links, and in them, nothing of it is lost, and every link is of a kind that there is.
    #[test]
    fn anything_is_shown_as_it_is() {
        let parts = [
            "https://",
            "http://",
            "@",
            "alice",
            "a.example",
            "/",
            "(",
            ")",
            "<",
            ">",
            "\"",
            "'",
            "&",
            "&#60;",
            " ",
            "\n",
            "ä",
            "\u{202e}",
            "😀",
            "javascript:",
            ".",
            "_",
            "[",
            "]",
            "?",
            "#",
            "\\",
            "`",
            "{{",
            "}}",
        ];
        for seed in 0..20_000_u64 {
            let draw = |index: u64| (seed * 31 + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let part = |index| parts[draw(index) as usize % parts.len()];
            let text: String = (0..draw(99) % 12).map(part).collect();
            for link in links(&text) {
                let is_address =
                    ["<http://", "<https://"].iter().any(|begin| link.starts_with(begin));
                let is_name = link.split_once(':').is_some_and(|(_, name)| Name::new(name).is_ok());
                assert!(is_address || link.starts_with('@') && is_name, "{text:?}: {link}");
                assert!(
                    !link[1..link.len() - 1].contains(['<', '>', '"', ' ', '\n', '\\']),
                    "{link}"
                );
            }
        }
    }
}
