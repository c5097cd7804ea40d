//! Keys of a [`crate::Sharded`] map as bytes that are in the same order as the keys.

/// What may be a key. The bytes of two keys compare as the keys do, and none are the beginning of another's, so that keys may stand behind each
/// other: `(A, B)` is a key where `A` and `B` are.
pub trait Key: Ord + Sized {
    /// Appends its bytes; with those of all that stands beside it at most [`perdura_store::limits::KEY_BYTES`].
    fn encode_key(&self, out: &mut Vec<u8>);

    /// Takes it from the front of what [`Key::encode_key`] wrote; none if nothing of the kind stands there.
    fn decode_key(bytes: &mut &[u8]) -> Option<Self>;
}

/// Numbers without a sign are in the order of their bytes, the highest first.
macro_rules! unsigned {
    ($($number:ty),*) => { $(
        impl Key for $number {
            fn encode_key(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode_key(bytes: &mut &[u8]) -> Option<$number> {
                let (number, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$number>::from_be_bytes(*number))
            }
        }
    )* };
}

/// And those with one, when the sign is turned.
macro_rules! signed {
    ($($number:ty, $unsigned:ty);*) => { $(
        impl Key for $number {
            fn encode_key(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ (1 << (<$number>::BITS - 1))).encode_key(out);
            }

            fn decode_key(bytes: &mut &[u8]) -> Option<$number> {
                let turned = <$unsigned>::decode_key(bytes)?;
                Some((turned ^ (1 << (<$number>::BITS - 1))).cast_signed())
            }
        }
    )* };
}

unsigned!(u8, u16, u32, u64, u128);
signed!(i8, u8; i16, u16; i32, u32; i64, u64; i128, u128);

impl Key for bool {
    fn encode_key(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<bool> {
        match u8::decode_key(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Key for () {
    fn encode_key(&self, _: &mut Vec<u8>) {}

    fn decode_key(_: &mut &[u8]) -> Option<()> {
        Some(())
    }
}

impl<const N: usize> Key for [u8; N] {
    fn encode_key(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (array, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*array)
    }
}

/// What follows a zero within bytes, and what ends them: less than all that may follow.
const ZERO: u8 = 0xff;
const END: u8 = 0;

impl Key for Vec<u8> {
    fn encode_key(&self, out: &mut Vec<u8>) {
        encode_bytes(self, out);
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        loop {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            if *byte != 0 {
                found.push(*byte);
                continue;
            }
            let (next, rest) = bytes.split_first()?;
            *bytes = rest;
            match *next {
                ZERO => found.push(0),
                END => return Some(found),
                _ => return None,
            }
        }
    }
}

impl Key for String {
    fn encode_key(&self, out: &mut Vec<u8>) {
        encode_bytes(self.as_bytes(), out);
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<String> {
        String::from_utf8(Vec::decode_key(bytes)?).ok()
    }
}

fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.contains(&0) {
        for byte in bytes {
            out.push(*byte);
            if *byte == 0 {
                out.push(ZERO);
            }
        }
    } else {
        out.extend_from_slice(bytes);
    }
    out.extend_from_slice(&[0, END]);
}

impl<A: Key> Key for Option<A> {
    fn encode_key(&self, out: &mut Vec<u8>) {
        self.is_some().encode_key(out);
        if let Some(key) = self {
            key.encode_key(out);
        }
    }

    fn decode_key(bytes: &mut &[u8]) -> Option<Option<A>> {
        match bool::decode_key(bytes)? {
            true => A::decode_key(bytes).map(Some),
            false => Some(None),
        }
    }
}

macro_rules! tuple {
    ($($part:ident $index:tt),*) => {
        impl<$($part: Key),*> Key for ($($part,)*) {
            fn encode_key(&self, out: &mut Vec<u8>) {
                $(self.$index.encode_key(out);)*
            }

            fn decode_key(bytes: &mut &[u8]) -> Option<($($part,)*)> {
                Some(($($part::decode_key(bytes)?,)*))
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn bytes_of(key: &impl Key) -> Vec<u8> {
        let mut out = Vec::new();
        key.encode_key(&mut out);
        out
    }

    /// All of these, in whatever order, compare as their bytes do, and come back.
    fn keep_their_order<K: Key + Debug>(keys: &[K]) {
        for one in keys {
            let bytes = bytes_of(one);
            let mut rest = &bytes[..];
            assert_eq!(K::decode_key(&mut rest).as_ref(), Some(one));
            assert!(rest.is_empty());
            for short in 0..bytes.len() {
                assert_eq!(K::decode_key(&mut &bytes[..short]), None, "{one:?}");
            }
            for other in keys {
                assert_eq!(bytes.cmp(&bytes_of(other)), one.cmp(other), "{one:?} {other:?}");
                assert_eq!(bytes_of(other).starts_with(&bytes), one == other);
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_bytes() {
        keep_their_order(&[0u64, 1, 255, 256, u64::MAX]);
        keep_their_order(&[i32::MIN, -256, -1, 0, 1, 255, i32::MAX]);
        keep_their_order(&[false, true]);
        keep_their_order(&[[0u8, 1], [0, 2], [1, 0]]);
        let texts = ["", "\0", "\0\0", "\0a", "a", "a\0", "a\0b", "aa", "b", "\u{ff}"];
        let texts: Vec<String> = texts.map(str::to_owned).to_vec();
        keep_their_order(&texts);
        let raw = [&[0xff][..], &[0xff, 0], &[0xff, 0xff], &[0, 0xff], &[0, 0]];
        keep_their_order(&raw.map(<[u8]>::to_vec));
        let mut pairs = Vec::new();
        for text in &texts {
            pairs.extend([None, Some(0u8), Some(255)].map(|number| (text.clone(), number)));
        }
        keep_their_order(&pairs);
        keep_their_order(&[(1u8, 2u16, -3i8, "a".to_owned()), (1, 2, -3, "b".to_owned())]);
    }
}
