//! A second replica with the same key, which keeps everything in memory: its disk never fails
//! and is never slow, and it forgets everything when it starts.

use bytes::Bytes;
use perdura_replica::node::{Boot, BootError, Input, Node, Now, Output, Peer};
use std::collections::VecDeque;

/// A replica behind a liar.
pub trait Shadow {
    /// It hears something; returns what it wants to say to whom.
    fn hear(&mut self, now: Now, input: Input) -> Vec<(Vec<Peer>, Bytes)>;

    /// Time passes.
    fn tick(&mut self, now: Now) -> Vec<(Vec<Peer>, Bytes)>;
}

/// A real replica without a disk.
pub struct Twin {
    node: Node,
}

impl Twin {
    /// Starts on nothing.
    ///
    /// # Errors
    /// When the genesis does not fit, as for any replica.
    pub fn new(boot: Boot, now: Now) -> Result<Twin, BootError> {
        Ok(Twin { node: Node::boot(boot, now)? })
    }

    fn round(&mut self, now: Now) -> Vec<(Vec<Peer>, Bytes)> {
        let mut said = Vec::new();
        let mut inputs = VecDeque::new();
        self.node.flush(now);
        loop {
            while let Some(output) = self.node.next_output() {
                match output {
                    Output::Send { peers, bytes, .. } => said.push((peers, bytes)),
                    Output::Append { mark, .. } => inputs.push_back(Input::Persisted(mark)),
                    Output::DigestState { snapshot } => {
                        let manifest = snapshot.manifest();
                        let digest = manifest.digest();
                        inputs.push_back(Input::StateDigested { manifest, digest });
                    }
                    Output::StoreCheckpoint { snapshot, .. } => {
                        let manifest = snapshot.manifest();
                        inputs.push_back(Input::CheckpointStored { manifest });
                    }
                    Output::RestoreState(restoration) => {
                        restoration.run();
                        inputs.push_back(Input::StateRestored);
                    }
                    Output::InstallCheckpoint { manifest, .. } => {
                        inputs.push_back(Input::CheckpointStored { manifest });
                    }
                    Output::ReadDecisions { to, .. } => {
                        inputs.push_back(Input::DecisionsRead { to, decisions: Vec::new() });
                    }
                    // It executes itself.
                    Output::Stage(_)
                    | Output::Read(_)
                    | Output::Scrub { .. }
                    | Output::LetGo(_)
                    | Output::Truncate(_)
                    | Output::Members(_)
                    | Output::Misbehaved { .. }
                    | Output::Suspects { .. }
                    | Output::Diverged { .. }
                    | Output::Notice(_)
                    | Output::Alarm(_)
                    | Output::Halt(_)
                    | Output::TakenBack(_) => {}
                }
            }
            let Some(input) = inputs.pop_front() else { return said };
            self.node.handle(now, input);
            self.node.flush(now);
        }
    }
}

impl Shadow for Twin {
    fn hear(&mut self, now: Now, input: Input) -> Vec<(Vec<Peer>, Bytes)> {
        self.node.handle(now, input);
        self.round(now)
    }

    fn tick(&mut self, now: Now) -> Vec<(Vec<Peer>, Bytes)> {
        self.round(now)
    }
}
