//! Commands that are printed for a shell, to be copied as they are.

use std::path::Path;

/// One word of a shell's line that means this text.
pub fn word(text: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(harmless) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// As this program was called.
pub fn program() -> String {
    std::env::args().next().map_or_else(|| "perdura".to_owned(), |name| word(&name))
}

/// One word that means this path to every program: no option, and nothing on a host.
pub fn path(path: &Path) -> String {
    let text = path.display().to_string();
    let (first, _) = text.split_once('/').unwrap_or((&text, ""));
    match first.starts_with('-') || first.contains(':') {
        true => word(&format!("./{text}")),
        false => word(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_they_say() {
        assert_eq!(word("a/b-1"), "a/b-1");
        assert_eq!(word(""), "''");
        assert_eq!(word("sp a'ce"), r"'sp a'\''ce'");
        assert_eq!(word("root@[fe80::1]:/"), "'root@[fe80::1]:/'");
        assert_eq!(word("~"), "'~'");
        for (given, wanted) in [
            ("prod", "prod"),
            ("my prod/x", "'my prod/x'"),
            ("-prod", "./-prod"),
            ("a:b/c", "./a:b/c"),
            ("a/b:c", "a/b:c"),
            ("/a:b", "/a:b"),
        ] {
            assert_eq!(path(Path::new(given)), wanted);
        }
    }
}
