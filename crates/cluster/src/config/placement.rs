//! On which servers the members of each partition's group are.
//!
//! Members go to the servers in turn, one partition after the other, so that each server has as many as any other, or one more.
//! A group of n then has n servers in a row. Which of these has its replica 0, the first leader, is chosen by who leads least.

/// The servers of each partition's members, by replica id: `members` of them in each of `partitions` groups, on `servers` servers, of
/// which there are at least as many.
///
/// # Panics
/// When there are fewer servers than members of a group.
#[must_use]
pub fn place(partitions: usize, members: usize, servers: usize) -> Vec<Vec<usize>> {
    assert!(members <= servers, "no server has two members of a group");
    let mut leads = vec![0; servers];
    let place = |partition: usize| {
        let in_turn = |index: usize| (partition * members + index) % servers;
        // Of equals, one that leads later in the row is as good; the first is the one to be expected.
        let first = (0..members).min_by_key(|index| leads[in_turn(*index)]).unwrap_or_default();
        leads[in_turn(first)] += 1;
        (0..members).map(|index| in_turn((first + index) % members)).collect()
    };
    (0..partitions).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: impl Iterator<Item = usize>, servers: usize) -> (usize, usize) {
        let mut count = vec![0; servers];
        of.for_each(|server| count[server] += 1);
        (*count.iter().min().unwrap(), *count.iter().max().unwrap())
    }

    #[test]
    fn servers_have_as_many_members_and_first_leaders_as_each_other_or_one_more() {
        for members in 1..=10 {
            for servers in members..=20 {
                for partitions in 1..=64 {
                    let placed = place(partitions, members, servers);
                    let told = format!("{partitions} of {members} on {servers}: {placed:?}");
                    for group in &placed {
                        let mut own = group.clone();
                        own.sort_unstable();
                        own.dedup();
                        assert_eq!(own.len(), members, "{told}");
                    }
                    let (least, most) = counts(placed.iter().flatten().copied(), servers);
                    assert!(most - least <= 1, "{told}");
                    let (least, most) = counts(placed.iter().map(|group| group[0]), servers);
                    assert!(most - least <= 1, "{told}");
                }
            }
        }
    }

    #[test]
    fn one_server_for_each_member_has_all_partitions() {
        assert_eq!(place(2, 3, 3), [[0, 1, 2], [1, 2, 0]]);
        assert_eq!(place(2, 3, 4), [[0, 1, 2], [3, 0, 1]]);
    }
}
