//! What passes, what does not, and that nothing else changes.

use super::*;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

#[derive(Serialize, Deserialize, PartialEq, Debug)]
enum Formula {
    True,
    Not(Box<Formula>),
    All(Vec<Formula>),
}

/// Each way in which one thing may stand within another.
#[derive(Serialize, Deserialize, PartialEq, Clone, Default, Debug)]
struct Nested {
    unit: (),
    numbers: (u8, i16, u32, i64, u128, i128, f32, f64, bool, char),
    texts: Vec<String>,
    pairs: BTreeMap<String, Option<Nested>>,
    kinds: Vec<CallKind>,
    array: [Option<u16>; 3],
    newtype: Newtype,
    set: BTreeSet<Option<bool>>,
}

#[derive(Serialize, Deserialize, PartialEq, Clone, Default, Debug)]
struct Newtype(Vec<Vec<u8>>);

#[derive(Serialize, Deserialize, PartialEq, Clone, Debug)]
enum CallKind {
    Unit,
    One(Box<Nested>),
    Two(u8, Option<Box<CallKind>>),
    Fields { text: String, inner: Result<(), Box<CallKind>> },
}

/// Choices that are as good as any (SplitMix64).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn list<T>(&mut self, mut of: impl FnMut(&mut Choices) -> T) -> Vec<T> {
        (0..self.below(3)).map(|_| of(self)).collect()
    }

    fn text(&mut self) -> String {
        "text\u{e4}\0".repeat(self.below(4) as usize)
    }

    fn nested(&mut self, depth: usize) -> Nested {
        let number = self.below(u64::MAX);
        let deeper = |choices: &mut Choices| match depth {
            0 => None,
            _ => (choices.below(3) > 0).then(|| choices.nested(depth - 1)),
        };
        Nested {
            unit: (),
            numbers: (
                number as u8,
                number as i16,
                number as u32,
                number as i64,
                u128::from(number) << 60,
                i128::from(number) * -7,
                number as f32,
                number as f64,
                number.is_multiple_of(2),
                char::from(number as u8),
            ),
            texts: self.list(Choices::text),
            pairs: self.list(|choices| (choices.text(), deeper(choices))).into_iter().collect(),
            kinds: self.list(|choices| choices.kind(depth)),
            array: [None, Some(number as u16), None],
            newtype: Newtype(self.list(|choices| choices.list(|choices| choices.0 as u8))),
            set: [Some(true), None, Some(false)].into_iter().take(number as usize % 4).collect(),
        }
    }

    fn kind(&mut self, depth: usize) -> CallKind {
        let Some(depth) = depth.checked_sub(1) else { return CallKind::Unit };
        match self.below(4) {
            0 => CallKind::Unit,
            1 => CallKind::One(Box::new(self.nested(depth))),
            2 => CallKind::Two(7, Some(Box::new(self.kind(depth)))),
            _ => CallKind::Fields { text: self.text(), inner: Err(Box::new(self.kind(depth))) },
        }
    }
}

fn plain<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

/// Within the bounds it is what `postcard` makes of the bytes, whether they are anything or not.
#[test]
fn what_is_within_the_bounds_decodes_as_without_them() {
    let mut choices = Choices(1);
    let mut malformed = 0;
    for _ in 0..2_000 {
        let value = choices.nested(4);
        let mut bytes = postcard::to_stdvec(&value).unwrap();
        assert_eq!(decode(&bytes, LEVELS), Some(value));
        let place = choices.below(bytes.len() as u64) as usize;
        match choices.below(3) {
            0 => bytes.truncate(place),
            1 => bytes[place] ^= 1 << choices.below(8),
            _ => bytes.insert(place, choices.below(256) as u8),
        }
        // By what they encode to: there are numbers that do not equal themselves.
        let encoded = |value: Option<Nested>| value.map(|one| postcard::to_stdvec(&one).unwrap());
        let found = encoded(decode(&bytes, LEVELS));
        assert_eq!(found, encoded(plain(&bytes)));
        malformed += u64::from(found.is_none());
    }
    assert!((500..2_000).contains(&malformed), "{malformed}");
}

#[test]
fn what_is_nested_deeper_is_none() {
    let nots = |count: usize| [&vec![1; count][..], &[0]].concat();
    assert!(decode::<Formula>(&nots(LEVELS - 1), LEVELS).is_some());
    assert!(decode::<Formula>(&nots(LEVELS), LEVELS).is_none());
    assert!(decode::<Formula>(&nots(ANSWER_LEVELS - 1), ANSWER_LEVELS).is_some());
    // Each list of formulas is two levels more.
    let alls = |count: usize| [&[2, 1].repeat(count)[..], &[0]].concat();
    assert!(decode::<Formula>(&alls(LEVELS / 2 - 1), LEVELS).is_some());
    assert!(decode::<Formula>(&alls(LEVELS / 2), LEVELS).is_none());
    // However many there are.
    for bytes in [vec![1; 4 << 20], vec![2; 4 << 20], [2, 1].repeat(2 << 20)] {
        assert!(decode::<Formula>(&bytes, LEVELS).is_none());
    }
    let wide = [&[2, 200, 1][..], &[0; 200]].concat();
    assert!(decode::<Formula>(&wide, LEVELS).is_some());
}

#[derive(Deserialize)]
struct Link {
    next: Option<Box<Link>>,
}

#[derive(Deserialize)]
struct Through(Vec<Through>);

#[derive(Deserialize)]
struct Mapped {
    entries: BTreeMap<u8, (Mapped,)>,
}

/// Bytes of such a thing within itself, so often; and how many levels each time is.
fn nests<T: DeserializeOwned>(again: &[u8], end: &[u8], levels: usize) {
    let bytes = |times: usize| [&again.repeat(times)[..], end].concat();
    let most = (LEVELS / levels) - 1;
    assert!(decode::<T>(&bytes(most), LEVELS).is_some());
    assert!(decode::<T>(&bytes(most + 1), LEVELS).is_none());
    assert!(decode::<T>(&bytes((4 << 20) / again.len()), LEVELS).is_none());
}

#[test]
fn each_way_to_contain_itself_has_levels() {
    nests::<Link>(&[1], &[0], 2);
    nests::<Through>(&[1], &[0], 2);
    nests::<CallKind>(&[2, 0, 1], &[0], 2);
    nests::<CallKind>(&[3, 0, 1], &[0], 2);
    let bytes = |times: usize| [&[1, 7].repeat(times)[..], &[0]].concat();
    assert!(decode::<Mapped>(&bytes(20), LEVELS).is_some_and(|one| one.entries.len() == 1));
    assert!(decode::<Mapped>(&bytes(22), LEVELS).is_none());
    let link: Link = decode(&[1, 0], LEVELS).unwrap();
    assert!(link.next.is_some_and(|link| link.next.is_none()));
    let through: Through = decode(&[1, 0], LEVELS).unwrap();
    assert_eq!(through.0.len(), 1);
}

#[test]
fn a_list_of_what_takes_no_bytes_is_bounded() {
    let encoded = |count: usize| postcard::to_stdvec(&vec![(); count]).unwrap();
    assert_eq!(decode(&encoded(EMPTY_ELEMENTS), LEVELS), Some(vec![(); EMPTY_ELEMENTS]));
    for count in [10_000, u64::MAX] {
        let bytes = postcard::to_stdvec(&count).unwrap();
        assert_eq!(decode::<Vec<()>>(&bytes, LEVELS), None);
        assert_eq!(decode::<BTreeSet<()>>(&bytes, LEVELS), None);
        assert_eq!(decode::<BTreeMap<(), ((), [(); 3])>>(&bytes, LEVELS), None);
    }
    // Of all of them together.
    let many = vec![vec![(); EMPTY_ELEMENTS]; 100];
    assert_eq!(decode::<Vec<Vec<()>>>(&postcard::to_stdvec(&many).unwrap(), LEVELS), None);
    // What takes bytes is bounded by these.
    let lists: Vec<Vec<(u8, ())>> = vec![vec![(0, ()); 100]; 5_000];
    assert_eq!(decode(&postcard::to_stdvec(&lists).unwrap(), LEVELS), Some(lists));
    let empty: Vec<Vec<u8>> = vec![Vec::new(); 100_000];
    assert_eq!(decode(&postcard::to_stdvec(&empty).unwrap(), LEVELS), Some(empty));
}

/// What is encoded has so many parts, and is decoded up to just as many.
fn has_parts<T: Serialize + DeserializeOwned>(value: &T, parts: u64) {
    let bytes = postcard::to_stdvec(value).unwrap();
    let count = Count::up_to(parts);
    assert!(decode_counted::<T>(&bytes, LEVELS, &count).is_some());
    assert_eq!((count.found(), count.is_exceeded()), (parts, false));
    if let Some(fewer) = parts.checked_sub(1) {
        let count = Count::up_to(fewer);
        assert!(decode_counted::<T>(&bytes, LEVELS, &count).is_none());
        // No more than the first that is too many.
        assert_eq!((count.found(), count.is_exceeded()), (parts, true));
    }
}

#[test]
fn what_is_more_than_a_number_is_counted() {
    has_parts(&7u64, 0);
    has_parts(&(), 0);
    has_parts(&Newtype(vec![]), 1);
    has_parts(&vec![7u8; 1000], 1);
    has_parts(&vec![u128::MAX; 1000], 1);
    has_parts(&vec![String::new(); 1000], 1001);
    has_parts(&vec![None::<u64>; 1000], 1001);
    has_parts(&vec![Some(String::new()); 1000], 2001);
    has_parts(&vec![CallKind::Unit; 1000], 1001);
    has_parts(&vec![(1u8, 2u8); 1000], 1001);
    has_parts(&vec![Newtype(vec![]); 1000], 1001);
    has_parts(
        &[(1u8, "a".to_owned()), (2, String::new())].into_iter().collect::<BTreeMap<_, _>>(),
        3,
    );
    has_parts(&CallKind::Two(7, Some(Box::new(CallKind::Unit))), 3);
    // The struct, its numbers, its four lists and maps, its array of three, and what the newtype has in it.
    has_parts(&Nested::default(), 1 + 1 + 4 + 4 + 1);
}
