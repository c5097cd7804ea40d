//! Where ranges of keys end and go on.

use crate::limits;
use bytes::Bytes;

/// The first key that is behind all with this prefix; none if there is none.
#[must_use]
pub fn beyond_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// The first key behind another one; none behind the last of all.
#[must_use]
pub fn behind(key: &[u8]) -> Option<Bytes> {
    if key.len() < limits::KEY_BYTES {
        return Some([key, &[0]].concat().into());
    }
    beyond_prefix(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KEY_BYTES;

    #[test]
    fn a_prefix_ends_where_the_next_one_begins() {
        assert_eq!(beyond_prefix(b"a").as_deref(), Some(&b"b"[..]));
        assert_eq!(beyond_prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(beyond_prefix(b"\xff"), None);
        assert_eq!(beyond_prefix(b""), None);
    }

    #[test]
    fn nothing_lies_between_a_key_and_what_is_behind_it() {
        assert_eq!(behind(b"a").as_deref(), Some(&b"a\0"[..]));
        assert_eq!(behind(b"").as_deref(), Some(&b"\0"[..]));
        let longest = [&vec![7; KEY_BYTES - 2][..], &[9, 255]].concat();
        assert_eq!(behind(&longest).unwrap(), [&vec![7; KEY_BYTES - 2][..], &[10]].concat());
        assert_eq!(behind(&[255; KEY_BYTES]), None);
    }
}
