//! How many calls wait for the store, by what they wait for: so those that wait for a partition that is down leave room for others.

use super::super::error::Failure;
use ::perdura::protocol::PartitionId;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Calls of one partition alone that are under way at a time, for each partition.
const OF_ONE: usize = 256;

/// Calls of several partitions, any of which may be what they wait for. With those of two partitions they are fewer than requests may be.
const OF_SEVERAL: usize = 384;

/// Places for calls.
pub(super) struct Places {
    /// None where there is one partition only, which leaves nothing to keep room for.
    of_one: Vec<Semaphore>,
    of_several: Semaphore,
}

/// A call's place.
pub(super) struct Place<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

impl Places {
    pub(super) fn new(partitions: usize) -> Places {
        let count = if partitions > 1 { partitions } else { 0 };
        let of_one = (0..count).map(|_| Semaphore::new(OF_ONE)).collect();
        Places { of_one, of_several: Semaphore::new(OF_SEVERAL) }
    }

    /// A place among those that need these partitions, or at once none.
    pub(super) fn enter(
        &self,
        partitions: impl IntoIterator<Item = PartitionId>,
    ) -> Result<Place<'_>, Failure> {
        let mut partitions = partitions.into_iter();
        let (first, second) = (partitions.next(), partitions.next());
        let alone = first.and_then(|one| self.of_one.get(usize::from(one.0)));
        let Some(alone) = alone else { return Ok(Place { _permit: None }) };
        let room = if second.is_none() { alone } else { &self.of_several };
        let full = |_| {
            let text = "too many calls wait for the same part of it already".to_owned();
            Failure::Unavailable(text)
        };
        room.try_acquire().map(|permit| Place { _permit: Some(permit) }).map_err(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill<'a>(places: &'a Places, partitions: &[u16]) -> Vec<Place<'a>> {
        let of = || partitions.iter().copied().map(PartitionId);
        std::iter::from_fn(|| places.enter(of()).ok()).take(10_000).collect()
    }

    #[test]
    fn calls_that_wait_leave_room_for_those_of_other_partitions() {
        let places = Places::new(3);
        let held = fill(&places, &[0]);
        assert_eq!(held.len(), OF_ONE);
        assert!(places.enter([PartitionId(0)]).is_err());
        assert!(places.enter([PartitionId(1)]).is_ok());
        let several = fill(&places, &[0, 1]);
        assert_eq!(several.len(), OF_SEVERAL);
        assert!(places.enter([PartitionId(1), PartitionId(2)]).is_err());
        assert_eq!(fill(&places, &[2]).len(), OF_ONE);
        drop((held, several));
        assert_eq!(fill(&places, &[0]).len(), OF_ONE);
    }

    #[test]
    fn one_partition_alone_has_as_many_as_come() {
        let places = Places::new(1);
        assert_eq!(fill(&places, &[0]).len(), 10_000);
    }
}
