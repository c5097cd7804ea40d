//! How who finds no way through lets others go on before the next try, which costs all replicas.

use std::time::Duration;
use tokio::time::sleep;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(500);

/// Pauses between tries, each twice as long as the one before, up to half a second.
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn new() -> Pauses {
        Pauses(FIRST)
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }

    pub(crate) async fn rest(&mut self) {
        sleep(self.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let mut pauses = Pauses::new();
        let first = [(); 8].map(|()| pauses.next().as_millis());
        assert_eq!(first, [20, 40, 80, 160, 320, 500, 500, 500]);
    }
}
