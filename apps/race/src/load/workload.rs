//! What callers call: as in the paper, where the mix is 85% timelines, 7.5% posts and 7.5% follows.

use super::super::social::Social;
use anyhow::{Context, Result};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Of a thousand calls of the mix.
const TIMELINES: u32 = 850;
/// As above.
const POSTS: u32 = 75;

/// A kind of load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Everybody posts; nobody follows anybody
    Post,
    /// Everybody follows others; nobody did before
    Follow,
    /// Everybody looks at his timeline
    Timeline,
    /// 85% timelines, 7.5% posts, 7.5% follows
    Mix,
}

impl Workload {
    /// All, in their order.
    pub const ALL: [Workload; 4] =
        [Workload::Post, Workload::Follow, Workload::Timeline, Workload::Mix];

    /// As it is given.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::Post => "post",
            Workload::Follow => "follow",
            Workload::Timeline => "timeline",
            Workload::Mix => "mix",
        }
    }

    /// Whether the network is loaded before.
    #[must_use]
    pub fn needs_relations(self) -> bool {
        matches!(self, Workload::Timeline | Workload::Mix)
    }
}

/// A call, by users' numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Post { who: u32 },
    Follow { who: u32, whom: u32 },
    Timeline { who: u32 },
}

/// Draws the calls of one caller.
pub struct Drawing {
    pub rng: SmallRng,
    workload: Workload,
    social: Arc<Social>,
    /// Users who call.
    among: Arc<Vec<u32>>,
}

impl Drawing {
    #[must_use]
    pub fn new(
        workload: Workload,
        social: Arc<Social>,
        among: Arc<Vec<u32>>,
        seed: u64,
    ) -> Drawing {
        Drawing { rng: SmallRng::seed_from_u64(seed), workload, social, among }
    }

    /// The next call.
    ///
    /// # Errors
    /// When everybody follows as many as he may.
    pub fn draw(&mut self) -> Result<Call> {
        let of_thousand = self.rng.random_range(0..1000);
        let workload = match self.workload {
            Workload::Mix if of_thousand < TIMELINES => Workload::Timeline,
            Workload::Mix if of_thousand < TIMELINES + POSTS => Workload::Post,
            Workload::Mix => Workload::Follow,
            one => one,
        };
        let who = self.among[self.rng.random_range(0..self.among.len())];
        Ok(match workload {
            Workload::Post => Call::Post { who },
            Workload::Timeline => Call::Timeline { who },
            Workload::Follow | Workload::Mix => {
                let pair = self.social.draw_pair(&mut self.rng, &self.among);
                let (who, whom) = pair.context(
                    "all follow as many as they may: take more --users, more --sessions, or a shorter time",
                )?;
                Call::Follow { who, whom }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_that_of_the_paper() {
        let (social, among) = (Social::strangers(2_000), (0..2_000).collect());
        let mut drawing = Drawing::new(Workload::Mix, Arc::new(social), Arc::new(among), 1);
        let mut counts = [0_u32; 3];
        for _ in 0..20_000 {
            match drawing.draw().unwrap() {
                Call::Timeline { .. } => counts[0] += 1,
                Call::Post { .. } => counts[1] += 1,
                Call::Follow { .. } => counts[2] += 1,
            }
        }
        assert!((16_700..17_300).contains(&counts[0]), "{counts:?}");
        assert!((1_350..1_650).contains(&counts[1]), "{counts:?}");
        assert!((1_350..1_650).contains(&counts[2]), "{counts:?}");
    }
}
