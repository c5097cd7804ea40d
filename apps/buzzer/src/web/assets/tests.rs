//! That what is shown can be seen: contrasts of the style's colours, as WCAG 2.2 has them (success criteria 1.4.3 and 1.4.11).

use std::collections::HashMap;

const STYLE: &str = include_str!("../../../assets/style.css");

/// What texts need beside what they stand on, and what outlines and edges need beside what they are next to.
const OF_TEXTS: f64 = 4.5;
const OF_EDGES: f64 = 3.0;

/// The colours by their names, of one block of variables.
type Colours = HashMap<&'static str, &'static str>;

fn colours(block: &'static str) -> Colours {
    let block = &block[..block.find('}').unwrap()];
    let declared = block.split(';').filter_map(|one| one.trim().split_once(':'));
    let pair = |(name, value): (&'static str, &'static str)| {
        let name = name.rsplit_once("--")?.1;
        Some((name, value.trim())).filter(|(_, value)| value.starts_with('#'))
    };
    declared.filter_map(pair).collect()
}

/// Those of light pages, and of dark ones, which replace some of them.
fn themes() -> [(&'static str, Colours); 2] {
    let mut blocks = STYLE.split(":root {").skip(1);
    let light = colours(blocks.next().unwrap());
    let mut dark = light.clone();
    let replaced = colours(blocks.next().unwrap());
    assert!(replaced.keys().all(|name| light.contains_key(name)));
    dark.extend(replaced);
    [("light", light), ("dark", dark)]
}

/// How light a colour is, from 0 to 1, as WCAG has it.
fn luminance(colour: &str) -> f64 {
    let digits = colour.trim_start_matches('#');
    let wide = digits.len() == 6;
    let part = |index: usize| {
        let digits = if wide {
            digits[2 * index..2 * index + 2].to_owned()
        } else {
            digits[index..index + 1].repeat(2)
        };
        let part = f64::from(u8::from_str_radix(&digits, 16).unwrap()) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// That each of these is seen beside each of those, light and dark.
#[track_caller]
fn check(these: &[&str], those: &[&str], least: f64) {
    for (theme, colours) in themes() {
        for (one, other) in these.iter().flat_map(|one| those.iter().map(move |other| (one, other)))
        {
            let found = contrast(colours[one], colours[other]);
            assert!(found >= least, "{theme}: {one} beside {other} has {found:.2} of {least}");
        }
    }
}

#[test]
fn contrasts_are_computed_as_they_should_be() {
    assert!((contrast("#000", "#ffffff") - 21.0).abs() < 0.001);
    assert!((contrast("#777", "#fff") - 4.478).abs() < 0.001);
    assert!((contrast("#f5b301", "#f5b301") - 1.0).abs() < 0.001);
}

#[test]
fn texts_can_be_read() {
    check(&["ink", "dim", "link"], &["page", "box", "good-box"], OF_TEXTS);
    check(&["bad"], &["box", "bad-box"], OF_TEXTS);
    check(&["on-strong"], &["strong"], OF_TEXTS);
    // On the button that deletes an account.
    check(&["box"], &["bad"], OF_TEXTS);
}

#[test]
fn what_has_the_focus_and_what_can_be_pressed_can_be_seen() {
    check(&["focus", "edge", "strong-edge", "bad"], &["page", "box"], OF_EDGES);
    // That these are what the rules use.
    for rule in [
        ":focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }",
        "input, textarea { width: 100%; background: var(--page); border: 1px solid var(--edge);",
        "button, a.strong { display: inline-block; border: 1px solid var(--edge);",
        "a.strong, button.strong { background: var(--strong); border-color: var(--strong-edge); color: var(--on-strong); }",
        "button.danger { background: var(--bad); border-color: var(--bad); color: var(--box); }",
        "button.quiet { background: none; font-weight: 400; color: var(--dim);",
    ] {
        assert_eq!(STYLE.matches(rule).count(), 1, "{rule}");
    }
    // And that no other one gives them others.
    let outlines: Vec<&str> = STYLE.lines().filter(|line| line.contains("outline:")).collect();
    assert_eq!(outlines.len(), 2, "{outlines:?}");
    assert!(outlines[1].starts_with("main:focus { outline: none; }"), "{outlines:?}");
    let faint = STYLE.lines().filter(|line| line.contains("var(--line)"));
    for line in faint {
        let selectors = line.split('{').next().unwrap();
        assert!(
            !["input", "textarea", "button", "a.strong"].iter().any(|one| selectors.contains(one)),
            "{line}"
        );
    }
}
