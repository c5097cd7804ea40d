//! Damage to inputs, for the smoke: deterministic, from a seed. libFuzzer has its own.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    /// So many random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }
}

/// Numbers at which bounds lie.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x100,
    0x3ff,
    0x400,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX - 1,
    u64::MAX,
];

/// One to four changes to one of `seeds`, or at times noise.
pub fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    if seeds.is_empty() || random.below(20) == 0 {
        let length = random.below(300);
        return random.bytes(length);
    }
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let other = &seeds[random.below(seeds.len())];
        change(random, &mut bytes, other);
    }
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        *bytes = random.bytes(8);
        return;
    }
    let at = random.below(bytes.len());
    let end = at + random.below((bytes.len() - at).min(64) + 1);
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.word() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        5 => {
            let count = random.below(16);
            bytes.splice(at..at, random.bytes(count));
        }
        6 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        7 => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => {
            let from = random.below(other.len() + 1);
            let taken = other[from..].iter().take(32).copied().collect::<Vec<u8>>();
            bytes.splice(at..end, taken);
        }
    }
}
