//! Keys and signatures.
//!
//! Ed25519 by the rules of ZIP 215, under which single and batch verification agree on every
//! input (rule A5): a batch that fails is verified one by one, and no replica can be made to see
//! another verdict than its peers. The keyed hash exists for the simulator, where it is a
//! thousand times cheaper; it is no cryptography: its "signatures" can be made by whoever knows
//! the public key, and tell apart all messages that differ by accident.

mod ed25519;

use crate::ids::{from_hex, hex_text, to_hex};
use ed25519_zebra::{SigningKey, VerificationKeyBytes};
use std::fmt;

/// A public key, 32 bytes; it identifies a replica's incarnation, a client or the administrator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);
hex_text!(PublicKey, 32);

impl PublicKey {
    /// Whether anybody can sign under this key: it stands for a point of small order, in whichever encoding ZIP 215 takes. For the tools
    /// that register keys: what replicas accept is agreed on between versions, and is not held against this.
    #[must_use]
    pub fn is_anybodys(self) -> bool {
        ed25519::is_of_small_order(self)
    }
}

/// A signature, 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(pub [u8; 64]);
hex_text!(Signature, 64);

impl Signature {
    /// Stands where a signature is switched off (client frames when r = 0).
    pub const NONE: Signature = Signature([0; 64]);
}

/// How statements are signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Scheme {
    /// RFC 8032 signatures, verified by ZIP 215.
    Ed25519,
    /// A hash with the public key in it; for simulations only.
    KeyedHash,
}

/// A secret key with its scheme. Never printed.
#[derive(Clone)]
pub struct SecretKey {
    seed: [u8; 32],
    public: PublicKey,
    signing: Option<SigningKey>,
}

impl SecretKey {
    /// The key that `seed`, 32 secret random bytes, stands for.
    #[must_use]
    pub fn from_seed(scheme: Scheme, seed: [u8; 32]) -> SecretKey {
        match scheme {
            Scheme::Ed25519 => {
                let signing = SigningKey::from(seed);
                let public = PublicKey(VerificationKeyBytes::from(&signing).into());
                SecretKey { seed, public, signing: Some(signing) }
            }
            Scheme::KeyedHash => {
                let public = PublicKey(*blake3::hash(&seed).as_bytes());
                SecretKey { seed, public, signing: None }
            }
        }
    }

    /// An Ed25519 key from the hexadecimal text in a configuration file; `None` if it is not one.
    #[must_use]
    pub fn from_text(text: &str) -> Option<SecretKey> {
        from_hex(text).map(|seed| SecretKey::from_seed(Scheme::Ed25519, seed))
    }

    /// The text for a configuration file, which must be readable by its owner only.
    #[must_use]
    pub fn to_secret_text(&self) -> String {
        to_hex(&self.seed)
    }

    /// The 32 secret bytes, for a library that speaks TLS with this key.
    #[must_use]
    pub fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Signature {
        match &self.signing {
            Some(signing) => Signature(signing.sign(message).to_bytes()),
            None => keyed_hash(self.public, message),
        }
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {:?})", self.public)
    }
}

fn keyed_hash(public: PublicKey, message: &[u8]) -> Signature {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut lanes = [0; 4];
    let length = (message.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (lane, bytes) in lanes.iter_mut().zip(public.0.chunks(8)) {
        *lane = word(bytes) ^ length;
    }
    // Two independent chains of multiplications over all words.
    for pair in message.chunks(16) {
        let (low, high) = pair.split_at(pair.len().min(8));
        let (low, high) = (word(low), word(high));
        lanes[0] = folded_product(lanes[0] ^ low, high ^ 0x9e37_79b9_7f4a_7c15);
        lanes[1] = folded_product(lanes[1] ^ high, low ^ 0xbf58_476d_1ce4_e5b9);
        lanes[2] = lanes[2].rotate_left(23) ^ lanes[0];
        lanes[3] = lanes[3].rotate_left(31) ^ lanes[1];
    }
    let mut signature = [0u8; 64];
    for (out, lane) in signature.chunks_mut(8).zip(lanes) {
        out.copy_from_slice(&lane.to_le_bytes());
    }
    signature[32..].copy_from_slice(&public.0);
    Signature(signature)
}

/// Both halves of the product of two words, as one word.
fn folded_product(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product ^ (product >> 64)) as u64
}

/// A signature to verify: by whom, over what.
#[derive(Clone, Debug)]
pub struct Claim<M> {
    /// The alleged signer.
    pub key: PublicKey,
    /// The signed bytes.
    pub message: M,
    /// The signature.
    pub signature: Signature,
}

impl Scheme {
    /// Whether `signature` over `message` is `key`'s.
    #[must_use]
    pub fn verify(self, key: PublicKey, message: &[u8], signature: Signature) -> bool {
        match self {
            Scheme::Ed25519 => ed25519::verify(key, message, signature),
            Scheme::KeyedHash => keyed_hash(key, message) == signature,
        }
    }

    /// Whether all claims are genuine; costs a batch whatever they are, so that a liar gains
    /// nothing by spoiling one of many. `entropy` as in [`Scheme::verify_all`].
    #[must_use]
    pub fn verify_every<M: AsRef<[u8]>>(self, claims: &[Claim<M>], entropy: [u8; 32]) -> bool {
        if self == Scheme::Ed25519 && claims.len() > 1 {
            return ed25519::verify_batch(claims, entropy);
        }
        claims.iter().all(|claim| self.verify(claim.key, claim.message.as_ref(), claim.signature))
    }

    /// Verifies many claims at once; returns a verdict for each. `entropy` must be unpredictable
    /// to whoever made the claims.
    #[must_use]
    pub fn verify_all<M: AsRef<[u8]>>(self, claims: &[Claim<M>], entropy: [u8; 32]) -> Vec<bool> {
        if self == Scheme::Ed25519 && claims.len() > 1 && ed25519::verify_batch(claims, entropy) {
            return vec![true; claims.len()];
        }
        claims
            .iter()
            .map(|claim| self.verify(claim.key, claim.message.as_ref(), claim.signature))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_schemes_accept_their_own_and_nothing_else() {
        for scheme in [Scheme::Ed25519, Scheme::KeyedHash] {
            let key = SecretKey::from_seed(scheme, [7; 32]);
            let other = SecretKey::from_seed(scheme, [8; 32]);
            let signature = key.sign(b"statement");
            assert!(scheme.verify(key.public(), b"statement", signature));
            assert!(!scheme.verify(key.public(), b"statemenT", signature));
            assert!(!scheme.verify(other.public(), b"statement", signature));
        }
    }

    #[test]
    fn the_keyed_hash_tells_messages_apart_by_every_bit_and_by_their_length() {
        let key = SecretKey::from_seed(Scheme::KeyedHash, [7; 32]);
        let message = [0u8; 101];
        let mut seen = vec![key.sign(&message), key.sign(&message[..100]), key.sign(&[])];
        for bit in 0..8 * message.len() {
            let mut other = message;
            other[bit / 8] ^= 1 << (bit % 8);
            seen.push(key.sign(&other));
        }
        let halves = |half: usize| -> std::collections::BTreeSet<Vec<u8>> {
            seen.iter().map(|s| s.0[8 * half..8 * half + 8].to_vec()).collect()
        };
        // Each of the two chains by itself does.
        assert_eq!((halves(0).len(), halves(1).len()), (seen.len(), seen.len()));
    }

    #[test]
    fn one_bad_signature_in_a_batch_is_singled_out() {
        let key = SecretKey::from_seed(Scheme::Ed25519, [1; 32]);
        let mut claims: Vec<Claim<Vec<u8>>> = (0..5u8)
            .map(|i| Claim { key: key.public(), message: vec![i], signature: key.sign(&[i]) })
            .collect();
        assert_eq!(Scheme::Ed25519.verify_all(&claims, [9; 32]), [true; 5]);
        claims[3].message = vec![99];
        let verdicts = Scheme::Ed25519.verify_all(&claims, [9; 32]);
        assert_eq!(verdicts, [true, true, true, false, true]);
    }

    /// The identity point as key and R with s = 0 satisfies the cofactored equation for every
    /// message: strict verifiers refuse it, ZIP 215 accepts it. What matters is that single and
    /// batch verification say the same (rule A5).
    #[test]
    fn single_and_batch_agree_on_small_order_points() {
        let small_order: [[u8; 32]; 3] = [
            {
                let mut identity = [0; 32];
                identity[0] = 1;
                identity
            },
            [0; 32],
            {
                let mut minus_one = [0xff; 32];
                minus_one[0] = 0xec;
                minus_one[31] = 0x7f;
                minus_one
            },
        ];
        for key in small_order {
            for r in small_order {
                let mut bytes = [0; 64];
                bytes[..32].copy_from_slice(&r);
                let claim = Claim {
                    key: PublicKey(key),
                    message: b"any".to_vec(),
                    signature: Signature(bytes),
                };
                let single = Scheme::Ed25519.verify(claim.key, &claim.message, claim.signature);
                let both = Scheme::Ed25519.verify_all(&[claim.clone(), claim], [3; 32]);
                assert_eq!(both, [single, single]);
                assert!(single);
            }
        }
    }

    #[test]
    fn text_form_goes_both_ways() {
        let key = SecretKey::from_seed(Scheme::Ed25519, [5; 32]);
        let back = SecretKey::from_text(&key.to_secret_text()).unwrap();
        assert_eq!(back.public(), key.public());
        assert!(SecretKey::from_text("no key").is_none());
        assert!(!format!("{key:?}").contains("0505"));
    }
}
