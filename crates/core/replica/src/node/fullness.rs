//! How near the service's state is to its limit: told in time, for at the limit commands are refused.

/// From this part of the limit on, in hundredths.
const TOLD_AT: u64 = 80;

/// Below this it is told again when it grows.
const FORGOTTEN_BELOW: u64 = 75;

/// What was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fullness {
    told: bool,
}

impl Fullness {
    /// What an operator should know of a state of this size, if anything.
    pub fn look(&mut self, bytes: u64, limit_bytes: u64) -> Option<String> {
        let reaches =
            |part: u64| u128::from(bytes) * 100 >= u128::from(limit_bytes) * u128::from(part);
        if self.told {
            self.told = reaches(FORGOTTEN_BELOW);
            return None;
        }
        self.told = bytes > 0 && reaches(TOLD_AT);
        self.told.then(|| {
            format!(
                "the state takes {bytes} bytes of the {limit_bytes} that it may have, and what would make it larger than that is \
                 refused: raise the limit with `perdura limit`, or delete something"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_and_again_after_there_was_room() {
        let mut fullness = Fullness::default();
        let told = [0, 79, 80, 99, 100, 75, 85, 74, 79, 80].map(|bytes| {
            let text = fullness.look(bytes, 100);
            text.map(|text| text.contains(&format!("{bytes} bytes of the 100")))
        });
        let (no, yes) = (None, Some(true));
        assert_eq!(told, [no, no, yes, no, no, no, no, no, no, yes]);
        // A limit that was raised makes room too.
        assert_eq!(fullness.look(80, 200), None);
        assert!(fullness.look(160, 200).is_some());
        assert_eq!(Fullness::default().look(0, 0), None);
        assert!(Fullness::default().look(u64::MAX, u64::MAX).is_some());
    }
}
