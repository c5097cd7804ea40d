//! Verification of Ed25519 signatures by the rules of ZIP 215, one or a few at once.
//!
//! The equation is that of ed25519-zebra, which this is tested against, and the arithmetic is
//! curve25519-dalek's. What is our own is what a replica gains from: it hears from the same few signers
//! for years, and a point is decompressed once for each of them (4 of the 22 us of one verification); and
//! where two votes are verified at once, the first one's coefficient is 1, and the base point's multiples are ready.
//! Two votes: 38 -> 28 us. Larger batches go to ed25519-zebra.

use super::{Claim, PublicKey, Signature};
use curve25519_dalek::Scalar;
use curve25519_dalek::constants::ED25519_BASEPOINT_POINT;
use curve25519_dalek::edwards::{
    CompressedEdwardsY, EdwardsPoint, VartimeEdwardsPrecomputation as Precomputed,
};
use curve25519_dalek::traits::{IsIdentity, VartimePrecomputedMultiscalarMul};
use ed25519_zebra::{VerificationKeyBytes, batch};
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha512};
use std::cell::RefCell;
use std::sync::LazyLock;

/// Above so many claims a batch is verified by a method for many points.
const FEW: usize = 32;

/// Signers whose points a thread remembers, 192 bytes each: replicas, and the clients that are busy.
const SIGNERS: usize = 256;

thread_local! {
    static POINTS: RefCell<Vec<Option<(PublicKey, EdwardsPoint)>>> =
        RefCell::new(vec![None; SIGNERS]);
}

static BASE: LazyLock<Precomputed> = LazyLock::new(|| Precomputed::new([ED25519_BASEPOINT_POINT]));

/// The point that a key stands for, negated; `None` if it stands for none. Non-canonical encodings
/// are taken (ZIP 215).
fn negated_point(key: PublicKey) -> Option<EdwardsPoint> {
    let place = usize::from(key.0[0]) % SIGNERS;
    POINTS.with_borrow_mut(|points| {
        let held = &mut points[place];
        if let Some((of, point)) = held
            && *of == key
        {
            return Some(*point);
        }
        let point = -CompressedEdwardsY(key.0).decompress()?;
        *held = Some((key, point));
        Some(point)
    })
}

/// Whether a key stands for one of the eight points whose order divides 8. The equation is multiplied by 8, so that such a key adds
/// nothing to it: R = [s]B holds for any message.
pub(super) fn is_of_small_order(key: PublicKey) -> bool {
    CompressedEdwardsY(key.0).decompress().is_some_and(|point| point.is_small_order())
}

/// A signature's parts, and the hash that it is about.
struct Parts {
    r: EdwardsPoint,
    s: Scalar,
    k: Scalar,
}

impl Parts {
    /// `None` if R is no point, or s not below the group's order.
    fn of(key: PublicKey, message: &[u8], signature: Signature) -> Option<Parts> {
        let (r_bytes, s_bytes) = signature.0.split_first_chunk::<32>()?;
        let r = CompressedEdwardsY(*r_bytes).decompress()?;
        let s = Scalar::from_canonical_bytes(s_bytes.try_into().ok()?).into_option()?;
        let hash = Sha512::new().chain_update(r_bytes).chain_update(key.0).chain_update(message);
        Some(Parts { r, s, k: Scalar::from_hash(hash) })
    }
}

/// Whether \[8\]\[s\]B = \[8\]R + \[8\]\[k\]A.
pub(super) fn verify(key: PublicKey, message: &[u8], signature: Signature) -> bool {
    let parts = Parts::of(key, message, signature).zip(negated_point(key));
    parts.is_some_and(|(Parts { r, s, k }, minus_a)| {
        let expected = EdwardsPoint::vartime_double_scalar_mul_basepoint(&k, &minus_a, &s);
        (r - expected).mul_by_cofactor().is_identity()
    })
}

/// Whether all claims are genuine, but for a chance of 2^-128 that nobody who does not know `entropy` can better.
pub(super) fn verify_batch<M: AsRef<[u8]>>(claims: &[Claim<M>], entropy: [u8; 32]) -> bool {
    let rng = ChaCha20Rng::from_seed(entropy);
    if claims.len() > FEW {
        return verify_many(claims, rng);
    }
    verify_few(claims, rng).unwrap_or(false)
}

/// Whether \[8\] times the sum over all claims, with random coefficients z, of \[z\]([s]B - R - \[k\]A)
/// is the identity. The first z is 1: a sum that is off by the first claim alone is off, and any other is
/// made right only by the one z in 2^128 that fits.
fn verify_few<M: AsRef<[u8]>>(claims: &[Claim<M>], mut rng: ChaCha20Rng) -> Option<bool> {
    let mut base = Scalar::ZERO;
    let mut scalars: Vec<Scalar> = Vec::with_capacity(2 * claims.len());
    let mut points = Vec::with_capacity(2 * claims.len());
    // Where the points of signers are: one that signed more than once is multiplied once.
    let mut signers: Vec<(PublicKey, usize)> = Vec::with_capacity(claims.len());
    let mut first = None;
    for Claim { key, message, signature } in claims {
        let Parts { r, s, k } = Parts::of(*key, message.as_ref(), *signature)?;
        let z = if first.is_none() { Scalar::ONE } else { Scalar::from(coefficient(&mut rng)) };
        base += z * s;
        if let Some((_, at)) = signers.iter().find(|(signer, _)| signer == key) {
            scalars[*at] += z * k;
        } else {
            signers.push((*key, scalars.len()));
            scalars.push(z * k);
            points.push(negated_point(*key)?);
        }
        if first.is_none() {
            first = Some(r);
        } else {
            scalars.push(z);
            points.push(-r);
        }
    }
    let sum = BASE.vartime_mixed_multiscalar_mul([base], scalars, points);
    Some((sum - first?).mul_by_cofactor().is_identity())
}

fn coefficient(rng: &mut ChaCha20Rng) -> u128 {
    let mut bytes = [0; 16];
    rng.fill_bytes(&mut bytes);
    u128::from_le_bytes(bytes)
}

fn verify_many<M: AsRef<[u8]>>(claims: &[Claim<M>], rng: ChaCha20Rng) -> bool {
    let mut verifier = batch::Verifier::new();
    for claim in claims {
        let key = VerificationKeyBytes::from(claim.key.0);
        let signature = ed25519_zebra::Signature::from(claim.signature.0);
        verifier.queue((key, signature, claim.message.as_ref()));
    }
    verifier.verify(rng).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Scheme, SecretKey};

    /// What ed25519-zebra says.
    fn reference(claim: &Claim<Vec<u8>>) -> bool {
        ed25519_zebra::VerificationKey::try_from(claim.key.0)
            .and_then(|key| {
                key.verify(&ed25519_zebra::Signature::from(claim.signature.0), &claim.message)
            })
            .is_ok()
    }

    fn genuine(seed: u8, message: u8) -> Claim<Vec<u8>> {
        let key = SecretKey::from_seed(Scheme::Ed25519, [seed; 32]);
        let message = vec![message; usize::from(message)];
        Claim { key: key.public(), signature: key.sign(&message), message }
    }

    /// Encodings at the edges: points of small order, canonical and not, and what is no point.
    fn odd_points() -> Vec<[u8; 32]> {
        let with = |first: u8, middle: u8, last: u8| {
            let mut bytes = [middle; 32];
            (bytes[0], bytes[31]) = (first, last);
            bytes
        };
        vec![
            with(0, 0, 0),
            with(0, 0, 0x80),
            with(1, 0, 0),
            with(1, 0, 0x80),
            with(2, 0, 0),
            with(0xec, 0xff, 0x7f),
            with(0xec, 0xff, 0xff),
            with(0xed, 0xff, 0x7f),
            with(0xed, 0xff, 0xff),
            with(0xee, 0xff, 0x7f),
            with(0xee, 0xff, 0xff),
            with(0xff, 0xff, 0xff),
        ]
    }

    #[test]
    fn each_bit_of_a_claim_matters_as_it_does_to_the_reference() {
        let claim = genuine(1, 9);
        assert!(reference(&claim) && verify(claim.key, &claim.message, claim.signature));
        for bit in 0..(64 + 32 + 9) * 8 {
            let mut other = claim.clone();
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            match byte {
                0..64 => other.signature.0[byte] ^= mask,
                64..96 => other.key.0[byte - 64] ^= mask,
                _ => other.message[byte - 96] ^= mask,
            }
            assert!(!reference(&other), "bit {bit}");
            assert!(!verify(other.key, &other.message, other.signature), "bit {bit}");
            // As the first and as the last of a batch.
            for pair in [[claim.clone(), other.clone()], [other, claim.clone()]] {
                assert!(!verify_batch(&pair, [bit as u8; 32]), "bit {bit}");
            }
        }
    }

    #[test]
    fn odd_points_are_judged_as_by_the_reference_alone_and_in_batches() {
        let mut taken = 0;
        let scalars = [[0; 32], [1; 32], [0xff; 32]];
        for key in odd_points() {
            for r in odd_points() {
                for s in scalars {
                    let mut signature = [0; 64];
                    signature[..32].copy_from_slice(&r);
                    signature[32..].copy_from_slice(&s);
                    let (key, signature) = (PublicKey(key), Signature(signature));
                    let odd = Claim { key, message: b"any".to_vec(), signature };
                    let expected = reference(&odd);
                    taken += u32::from(expected);
                    assert_eq!(verify(key, &odd.message, signature), expected, "{odd:?}");
                    let batch = [genuine(1, 1), odd.clone(), genuine(2, 2)];
                    assert_eq!(verify_batch(&batch, [3; 32]), expected, "{odd:?}");
                    assert_eq!(
                        verify_batch(std::slice::from_ref(&odd), [4; 32]),
                        expected,
                        "{odd:?}"
                    );
                    let many: Vec<_> = std::iter::repeat_n(odd.clone(), FEW + 1).collect();
                    assert_eq!(verify_batch(&many, [5; 32]), expected, "{odd:?}");
                }
            }
        }
        assert!((10..200).contains(&taken), "{taken}");
    }

    /// All 8 points, and the encodings of them that are not canonical: y is not reduced, or x = 0 has a sign.
    #[test]
    fn keys_of_small_order_are_known_in_each_encoding() {
        let points = curve25519_dalek::constants::EIGHT_TORSION;
        let canonical: Vec<[u8; 32]> = points.iter().map(|one| one.compress().to_bytes()).collect();
        let is_other = |odd: &[u8; 32]| {
            let point = CompressedEdwardsY(*odd).decompress();
            point.is_some_and(|point| points.contains(&point)) && !canonical.contains(odd)
        };
        let others: Vec<[u8; 32]> = odd_points().into_iter().filter(is_other).collect();
        assert_eq!((canonical.len(), others.len()), (8, 6));
        // R is [s]B.
        let s = Scalar::from_bytes_mod_order([7; 32]);
        let mut anybodys = Signature([0; 64]);
        let r = (ED25519_BASEPOINT_POINT * s).compress().to_bytes();
        anybodys.0[..32].copy_from_slice(&r);
        anybodys.0[32..].copy_from_slice(&s.to_bytes());
        for key in canonical.into_iter().chain(others).map(PublicKey) {
            assert!(key.is_anybodys(), "{key}");
            assert!(verify(key, b"any message", anybodys), "{key}");
        }
    }

    #[test]
    fn keys_that_somebody_has_or_nobody_are_not_of_small_order() {
        for seed in 0..64 {
            let key = SecretKey::from_seed(Scheme::Ed25519, [seed; 32]).public();
            assert!(!key.is_anybodys());
        }
        // Of mixed order: what is left of it when it is multiplied by 8 has a secret.
        for torsion in curve25519_dalek::constants::EIGHT_TORSION {
            let point = ED25519_BASEPOINT_POINT + torsion;
            assert!(!PublicKey(point.compress().to_bytes()).is_anybodys());
        }
        let mut no_point = [0; 32];
        no_point[0] = 2;
        assert!(!PublicKey(no_point).is_anybodys());
    }

    /// A genuine signature, but for a point of small order in R, or in the key: the equation holds when it is
    /// multiplied by 8, and only then.
    #[test]
    fn points_of_mixed_order_and_s_beyond_the_order_are_judged_as_by_the_reference() {
        let torsion = curve25519_dalek::constants::EIGHT_TORSION[1];
        let a = Scalar::from_bytes_mod_order([3; 32]);
        let key = ED25519_BASEPOINT_POINT * a;
        for (of_key, of_r) in [(0, 1), (1, 0), (1, 1), (3, 5)] {
            let key = key + Scalar::from(of_key as u64) * torsion;
            let key = PublicKey(key.compress().to_bytes());
            let nonce = Scalar::from_bytes_mod_order([5; 32]);
            let r = ED25519_BASEPOINT_POINT * nonce + Scalar::from(of_r as u64) * torsion;
            let r = r.compress().to_bytes();
            let message = b"mixed".to_vec();
            let hash = Sha512::new().chain_update(r).chain_update(key.0).chain_update(&message);
            let s = nonce + Scalar::from_hash(hash) * a;
            let mut signature = Signature([0; 64]);
            signature.0[..32].copy_from_slice(&r);
            signature.0[32..].copy_from_slice(&s.to_bytes());
            let mixed = Claim { key, message, signature };
            assert!(reference(&mixed) && verify(key, &mixed.message, signature));
            assert!(verify_batch(&[genuine(1, 1), mixed.clone(), mixed.clone()], [6; 32]));
            // The same s, and the group's order more.
            let order = Scalar::ZERO - Scalar::ONE;
            let mut beyond = mixed.clone();
            let mut carry = 1u16;
            for (byte, more) in beyond.signature.0[32..].iter_mut().zip(order.to_bytes()) {
                carry += u16::from(*byte) + u16::from(more);
                *byte = carry as u8;
                carry >>= 8;
            }
            assert!(!reference(&beyond) && !verify(key, &beyond.message, beyond.signature));
            assert!(!verify_batch(&[beyond, mixed], [6; 32]));
        }
    }

    #[test]
    fn errors_that_cancel_out_are_seen_in_a_batch() {
        // Both s are off, by as much in opposite directions: the plain sum would be right.
        let mut pair = [genuine(1, 5), genuine(2, 6)];
        let off = |claim: &mut Claim<Vec<u8>>, by: Scalar| {
            let s: [u8; 32] = claim.signature.0[32..].try_into().unwrap();
            let s = Scalar::from_canonical_bytes(s).unwrap() + by;
            claim.signature.0[32..].copy_from_slice(&s.to_bytes());
        };
        off(&mut pair[0], Scalar::ONE);
        off(&mut pair[1], -Scalar::ONE);
        assert!(!verify_batch(&pair, [7; 32]));
        off(&mut pair[0], -Scalar::ONE);
        off(&mut pair[1], Scalar::ONE);
        assert!(verify_batch(&pair, [7; 32]));
    }

    #[test]
    fn batches_of_every_size_and_many_signers_in_few_places() {
        let claims: Vec<Claim<Vec<u8>>> = (0..=255)
            .map(|seed| genuine(seed, seed % 7))
            .chain((0..3).map(|n| genuine(1, n)))
            .collect();
        for size in [1, 2, 3, FEW - 1, FEW, FEW + 1, claims.len()] {
            assert!(verify_batch(&claims[..size], [1; 32]), "{size}");
            for at in [0, size / 2, size - 1] {
                let mut spoilt = claims[..size].to_vec();
                spoilt[at].message.push(1);
                assert!(!verify_batch(&spoilt, [1; 32]), "{size} {at}");
            }
        }
        assert!(claims.iter().all(|claim| verify(claim.key, &claim.message, claim.signature)));
    }
}
