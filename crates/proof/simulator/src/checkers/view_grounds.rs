//! Guards A4: a correct replica asks for a view only when another correct one wanted it first, or a
//! later one; m + 1 voices, or r + 1 beside an own suspicion, always hold one that does not lie.
//! Suspicion itself reaches one view further, and those of u leaders who do not keep up.

use crate::violation::{Broken, Check};
use perdura_protocol::{Faults, Message, View};

const RULE: &str = "ViewGrounds (A4)";

/// The checker.
#[derive(Debug)]
pub struct ViewGrounds {
    // The highest view that each correct replica spoke of.
    wanted: Vec<View>,
    // Views further than the current one that a suspicion may name.
    further: u64,
}

impl ViewGrounds {
    /// For a group in view 0.
    #[must_use]
    pub fn new(faults: Faults) -> ViewGrounds {
        ViewGrounds { wanted: vec![View(0); faults.n()], further: faults.u() as u64 + 1 }
    }

    /// `replica`, now in view `current`, says this.
    pub fn speaks(&mut self, replica: usize, message: &Message, current: View) -> Check {
        let fail = |what: String| Err(Broken::new(RULE, format!("replica {replica} wants {what}")));
        let view = match message {
            Message::Suspect { view } if view.0 > current.0 + self.further => {
                return fail(format!("view {view} and is in view {current}"));
            }
            Message::ViewChange(change) => {
                let others = self.wanted.iter().enumerate().filter(|(id, _)| *id != replica);
                let known = others.map(|(_, view)| *view).max().unwrap_or_default();
                if change.view > known {
                    return fail(format!(
                        "view {}; of the other correct ones nobody wants more than {known}",
                        change.view
                    ));
                }
                change.view
            }
            Message::Suspect { view } | Message::Status { view, .. } => *view,
            Message::NewView(new_view) => new_view.view,
            _ => return Ok(()),
        };
        let place = &mut self.wanted[replica];
        *place = view.max(*place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::viewchange::{PrefixCertificate, ViewChange};
    use perdura_protocol::{ReplicaId, Signature};

    #[test]
    fn one_asks_for_what_another_wants() {
        let mut checker = ViewGrounds::new(Faults::new(1, 0).unwrap());
        let asks = |view| {
            Message::ViewChange(Box::new(ViewChange {
                view: View(view),
                sender: ReplicaId(0),
                configuration: 0,
                prefix: PrefixCertificate::genesis(),
                locks: Vec::new(),
                signature: Signature::NONE,
            }))
        };
        let suspects = |view| Message::Suspect { view: View(view) };
        assert!(checker.speaks(0, &asks(1), View(1)).is_err());
        assert!(checker.speaks(0, &suspects(1), View(0)).is_ok());
        assert!(checker.speaks(0, &asks(1), View(1)).is_err());
        assert!(checker.speaks(1, &suspects(3), View(0)).is_err());
        assert!(checker.speaks(1, &suspects(1), View(0)).is_ok());
        assert!(checker.speaks(0, &asks(1), View(1)).is_ok());
        assert!(checker.speaks(0, &asks(2), View(2)).is_err());
        assert!(checker.speaks(1, &suspects(2), View(0)).is_ok());
        assert!(checker.speaks(0, &asks(2), View(2)).is_ok());
    }
}
