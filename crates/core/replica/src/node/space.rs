//! How much room is left on the disk under the data directory: told in time, for a replica that cannot write stops.

use perdura_protocol::vitals::DiskSpace;

/// Above so many hundredths it is told again when it shrinks to a tenth.
const FORGOTTEN_ABOVE: u64 = 12;

/// What is known and was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Space {
    known: Option<DiskSpace>,
    told: bool,
}

impl Space {
    /// So it is now.
    pub fn set(&mut self, space: DiskSpace) {
        self.known = Some(space);
    }

    /// As it was measured last.
    pub fn known(self) -> Option<DiskSpace> {
        self.known
    }

    /// What an operator should know of it, if anything.
    pub fn look(&mut self) -> Option<String> {
        let space = self.known?;
        if self.told {
            let DiskSpace { free_mib, size_mib } = space;
            self.told = u64::from(free_mib) * 100 <= u64::from(size_mib) * FORGOTTEN_ABOVE;
            return None;
        }
        self.told = space.is_nearly_full();
        self.told.then(|| {
            format!(
                "the disk under the data directory is nearly full: {space}. A replica that cannot write stops, and everything acknowledged \
                 stays safe; make room, or give it a larger disk"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_that_is_left_is_told_once_and_again_after_there_was_room() {
        let mut space = Space::default();
        assert_eq!(space.look(), None);
        let told = [500, 101, 100, 50, 0, 119, 100, 121, 100].map(|free_mib| {
            space.set(DiskSpace { free_mib, size_mib: 1_000 });
            space.look().is_some_and(|text| text.contains(&format!("{free_mib} MiB of 1000 MiB")))
        });
        assert_eq!(told, [false, false, true, false, false, false, false, false, true]);
    }
}
