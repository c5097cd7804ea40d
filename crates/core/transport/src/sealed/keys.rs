//! The keys of a link's records: for each direction a chain of secrets, whose first one TLS exports.
//!
//! As in TLS 1.3 (RFC 8446, sections 5.3 and 7.2), but for the labels: HKDF-Expand with SHA-256 (RFC 5869, section 2.3)
//! of a secret gives, each under a label of its own, a key, an IV and the next secret. A record's nonce is the IV
//! xored with the record's number under the key, from 0.
//!
//! Invariants:
//! - No nonce is used twice under a key: numbers only grow, and a key is replaced long before they end.
//! - A secret is gone when what it gives is there, so what is kept of a chain (a key, its IV, the secret after it) tells
//!   nothing of the keys before.
//! - A key that a link does not use any more is not in the link's memory any more. Secrets, IVs and the bytes of
//!   a key are wiped where they stood. `ring` expands a key and does not wipe what it made: that is written over, by the key that
//!   follows or by one of zeros. Not wiped is what the compiler or `ring` keep on the stack while a key is made
//!   or moved; what is called next writes over it.

use ring::aead::{Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use std::fmt;
use std::ops::RangeFrom;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Records and bytes under one key. AES-GCM is far from its limits there: TLS 1.3 allows 2^24.5 records of
/// 2^14 bytes (RFC 8446, section 5.5).
pub(super) const KEY_RECORDS: u64 = 1 << 20;
pub(super) const KEY_BYTES: u64 = 1 << 34;

/// From the first record under a key to the last: whoever steals it reads no more than that.
pub(crate) const KEY_TIME: Duration = Duration::from_secs(3600);

const SECRET_BYTES: usize = 32;

/// Of the ciphers that are in use, the longer keys.
const LONGEST_KEY_BYTES: usize = 32;

/// What a secret is expanded under.
const KEY_LABEL: &[u8] = b"perdura link 4: key";
const IV_LABEL: &[u8] = b"perdura link 4: iv";
const NEXT_LABEL: &[u8] = b"perdura link 4: next secret";

/// A secret of the chain; wiped when it is dropped, like all that comes from it.
pub(super) type Secret = Zeroizing<[u8; SECRET_BYTES]>;

/// What a secret gives.
struct Expanded {
    key: Zeroizing<[u8; LONGEST_KEY_BYTES]>,
    iv: Zeroizing<[u8; NONCE_LEN]>,
    next: Secret,
}

/// How long the output of HKDF is to be, as `ring` wants to be told.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Expanded {
    /// With the first `key_bytes` of the key, as many as the cipher takes.
    fn from_secret(secret: &Secret, key_bytes: usize) -> Result<Expanded, String> {
        let secret = Prk::new_less_safe(HKDF_SHA256, &secret[..]);
        let expand = |label: &[u8], out: &mut [u8]| {
            let length = Length(out.len());
            let filled = secret.expand(&[label], length).and_then(|output| output.fill(out));
            filled.map_err(|_| "a key is too long".to_owned())
        };
        let mut expanded = Expanded {
            key: Zeroizing::default(),
            iv: Zeroizing::default(),
            next: Zeroizing::default(),
        };
        expand(KEY_LABEL, &mut expanded.key[..key_bytes])?;
        expand(IV_LABEL, &mut expanded.iv[..])?;
        expand(NEXT_LABEL, &mut expanded.next[..])?;
        Ok(expanded)
    }
}

fn cipher(algorithm: &'static Algorithm, key: &[u8]) -> Result<LessSafeKey, String> {
    let key = key.get(..algorithm.key_len()).and_then(|key| UnboundKey::new(algorithm, key).ok());
    key.map(LessSafeKey::new).ok_or_else(|| "a key of the wrong length".to_owned())
}

/// A direction's key, and how much of it is used.
pub(super) struct Key {
    algorithm: &'static Algorithm,
    cipher: LessSafeKey,
    pub iv: Zeroizing<[u8; NONCE_LEN]>,
    /// What the key after this one comes from.
    next: Secret,
    pub records: u64,
    pub bytes: u64,
    /// An hour from the first record on; only who seals goes by it.
    until: Option<Instant>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} records)", self.records)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.wipe_cipher();
    }
}

impl Key {
    /// The first key of a chain.
    pub fn first(algorithm: &'static Algorithm, secret: &Secret) -> Result<Key, String> {
        let Expanded { key, iv, next } = Expanded::from_secret(secret, algorithm.key_len())?;
        let cipher = cipher(algorithm, &key[..])?;
        Ok(Key { algorithm, cipher, iv, next, records: 0, bytes: 0, until: None })
    }

    /// Goes on to the next key, and forgets this one.
    pub fn renew(&mut self) -> Result<(), String> {
        let Expanded { key, iv, next } =
            Expanded::from_secret(&self.next, self.algorithm.key_len())?;
        self.cipher = cipher(self.algorithm, &key[..])?;
        // In place, so that nothing is left where the former ones stood.
        (*self.iv, *self.next) = (*iv, *next);
        (self.records, self.bytes, self.until) = (0, 0, None);
        Ok(())
    }

    /// Whether as much was sealed or opened under it as may be.
    pub fn is_used_up(&self) -> bool {
        self.records >= KEY_RECORDS || self.bytes >= KEY_BYTES
    }

    /// Whether another key is due before the next record.
    pub fn is_due(&self, now: Instant) -> bool {
        self.is_used_up() || self.until.is_some_and(|until| now >= until)
    }

    /// Encrypts the next record, in place.
    pub fn seal(&mut self, header: &[u8], body: &mut [u8], now: Instant) -> Result<Tag, String> {
        self.until.get_or_insert_with(|| now + KEY_TIME);
        let nonce = self.next_nonce(body.len());
        let sealed = self.cipher.seal_in_place_separate_tag(nonce, Aad::from(header), body);
        sealed.map_err(|_| "a record is too long".to_owned())
    }

    /// Decrypts the next record, of so many bytes, which begins there, to the front of its place.
    pub fn open(
        &mut self,
        header: &[u8],
        length: usize,
        place: &mut [u8],
        ciphertext: RangeFrom<usize>,
    ) -> Result<(), String> {
        let nonce = self.next_nonce(length);
        let opened = self.cipher.open_within(nonce, Aad::from(header), place, ciphertext);
        opened.map(|_| ()).map_err(|_| "a record is not genuine".to_owned())
    }

    fn next_nonce(&mut self, bytes: usize) -> Nonce {
        let mut nonce = *self.iv;
        if let Some(last) = nonce.last_chunk_mut::<8>() {
            *last = (u64::from_be_bytes(*last) ^ self.records).to_be_bytes();
        }
        self.records += 1;
        self.bytes += bytes as u64;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Writes what a key of zeros gives over what `ring` made of this one.
    fn wipe_cipher(&mut self) {
        if let Ok(zeros) = cipher(self.algorithm, &[0; LONGEST_KEY_BYTES]) {
            self.cipher = zeros;
        }
        // Else the compiler might leave out what nobody reads any more.
        zeroize::optimization_barrier(&self.cipher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::aead::{AES_128_GCM, CHACHA20_POLY1305};
    use zeroize::ZeroizeOnDrop;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Key, IV and next secret of three secrets in a row, as another implementation of HKDF gives them.
    #[test]
    fn what_secrets_give_is_known() {
        let known = [
            [
                "d8e031dae7b0bf53e08922252d759f76e6d14e7206ba44f127c6c327f1e8a142",
                "82f55cc37c58c38284bad1ac",
                "ce9db0b1f5b13fe8e255df1fe7627a170db2f38855f847d9e104fd61cbac1ed0",
            ],
            [
                "1d756afc2f3922e14140ff99f318b6272f739792d558fea62f308e2921667c30",
                "95e12f9ed899e4df9303d32b",
                "14cb2a8cb880d941f3cb17e65d9d5f0897f7873aa62fc59d28cb6d4394a725f6",
            ],
            [
                "bd2f2bd8695d687f64065a8d8be718524c26d37e4e0baa9ed9351ee6189394cb",
                "15c33a8f34af5405a57cf85c",
                "ddaa85ca5d4d197e7af0c7c8c7c52ccaa548aab3b15183c0841a54c53a03ea04",
            ],
        ];
        let first = Secret::new(std::array::from_fn(|at| at as u8));
        for algorithm in [&AES_128_GCM, &CHACHA20_POLY1305] {
            let length = algorithm.key_len();
            let mut secret = first.clone();
            let mut key = Key::first(algorithm, &secret).unwrap();
            for [expected, iv, next] in known {
                let expanded = Expanded::from_secret(&secret, length).unwrap();
                assert_eq!(hex(&expanded.key[..length]), expected[..2 * length]);
                assert_eq!(expanded.key[length..], [0; LONGEST_KEY_BYTES][length..]);
                assert_eq!([hex(&expanded.iv[..]), hex(&expanded.next[..])], [iv, next]);
                assert_eq!([hex(&key.iv[..]), hex(&key.next[..])], [iv, next]);
                secret = expanded.next.clone();
                key.renew().unwrap();
            }
        }
    }

    /// RFC 8446, section 5.3: the number stands at the end, in network byte order.
    #[test]
    fn a_nonce_is_the_iv_xored_with_the_number() {
        let mut key = Key::first(&AES_128_GCM, &Secret::new([3; 32])).unwrap();
        *key.iv = [0xf0; NONCE_LEN];
        for (number, end) in [(0, [0xf0; 4]), (1, [0xf0, 0xf0, 0xf0, 0xf1])] {
            assert_eq!(key.records, number);
            assert_eq!(key.next_nonce(10).as_ref()[8..], end);
        }
        key.records = 0x0102_0304_0506_0708;
        let nonce = key.next_nonce(10);
        let expected = [0xf0, 0xf0, 0xf0, 0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8];
        assert_eq!((nonce.as_ref(), key.bytes), (&expected, 30));
    }

    #[test]
    fn a_key_is_due_by_records_bytes_or_an_hour_after_its_first_record() {
        let begun = Instant::now();
        let new = || Key::first(&CHACHA20_POLY1305, &Secret::new([3; 32])).unwrap();
        let seal = |key: &mut Key, now| assert!(key.seal(&[], &mut [1, 2], now).is_ok());
        let mut key = new();
        // Nothing is sealed under it yet.
        assert!(!key.is_due(begun + 2 * KEY_TIME));
        seal(&mut key, begun + KEY_TIME);
        seal(&mut key, begun + 3 * KEY_TIME / 2);
        assert!(!key.is_due(begun + 2 * KEY_TIME - Duration::from_nanos(1)));
        assert!(key.is_due(begun + 2 * KEY_TIME));
        key.renew().unwrap();
        assert!(!key.is_due(begun + 2 * KEY_TIME));
        key.records = KEY_RECORDS - 1;
        assert!(!key.is_due(begun));
        seal(&mut key, begun);
        assert!(key.is_due(begun));
        let mut key = new();
        key.bytes = KEY_BYTES - 2;
        assert!(!key.is_due(begun));
        seal(&mut key, begun);
        assert!(key.is_due(begun));
    }

    #[test]
    fn nothing_of_a_key_stays_where_it_was() {
        fn wiped(_: &impl ZeroizeOnDrop) {}
        for algorithm in [&AES_128_GCM, &CHACHA20_POLY1305] {
            let secret = Secret::new([3; 32]);
            let expanded = Expanded::from_secret(&secret, algorithm.key_len()).unwrap();
            let mut key = Key::first(algorithm, &secret).unwrap();
            wiped(&secret);
            wiped(&expanded.key);
            wiped(&expanded.iv);
            wiped(&expanded.next);
            wiped(&key.iv);
            wiped(&key.next);
            let sealed = |cipher: &LessSafeKey| {
                let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
                let tag = cipher.seal_in_place_separate_tag(nonce, Aad::from(&[]), &mut []);
                hex(tag.unwrap().as_ref())
            };
            let zeros = sealed(&cipher(algorithm, &[0; LONGEST_KEY_BYTES]).unwrap());
            assert_ne!(sealed(&key.cipher), zeros);
            // As when it is dropped.
            key.wipe_cipher();
            assert_eq!(sealed(&key.cipher), zeros);
        }
    }
}
