//! What a service gave as clients receive it.

use bytes::Bytes;
use perdura_protocol::{Outcome, RefusalReason, limits};

/// Bytes of a refusal's text that a client receives, as the codec bounds them.
const REFUSAL_BYTES: usize = 4096;

/// A service's result within the bounds of the codec, under a version of the core's rules.
pub(crate) fn service_outcome(rules: u16, result: Result<Bytes, String>) -> Outcome {
    match result {
        Ok(reply) if reply.len() <= limits::FRAME_BYTES => Outcome::Service(reply),
        Ok(_) if rules == 0 => Outcome::TooOld,
        Ok(reply) => Outcome::TooLarge { bytes: reply.len() as u64 },
        Err(mut text) => {
            text.truncate(text.floor_char_boundary(REFUSAL_BYTES));
            Outcome::Refused(RefusalReason::Service(text))
        }
    }
}

/// The answer to a read. It changed nothing, so that one which is too large is refused.
pub(crate) fn sent_back(answer: Outcome) -> Outcome {
    let Outcome::TooLarge { bytes } = answer else { return answer };
    let most = limits::FRAME_BYTES;
    Outcome::Refused(RefusalReason::Service(format!(
        "the answer has {bytes} bytes, more than the {most} that replicas send; ask for less at a time"
    )))
}
