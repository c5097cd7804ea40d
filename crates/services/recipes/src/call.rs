//! A command of the tuple spaces, from a client to its reply.

use perdura_client::{CallError, Client, Indeterminacy, Options, Refusal, Reply};
use perdura_protocol::{Decode, Encode, RefusalReason};
use perdura_tuples::{CommandError, Operation, TupleCommand, TupleReply};
use std::time::{Duration, Instant};

/// Why an operation gave nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The call failed: refused for certain, or indeterminate.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The command is beyond the limits, and was not sent; or beyond the version of the rules that the group runs
    /// ([`CommandError::Version`]).
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The reply makes no sense; more than r replicas lie, or run another service.
    #[error("indeterminate: the cluster gave an answer that fits no command of the tuple spaces")]
    UnexpectedReply,
}

impl Error {
    /// Whether it is certain that nothing happened.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Call(error) => error.is_refusal(),
            Error::Command(_) => true,
            Error::UnexpectedReply => false,
        }
    }

    /// The same of a command that followed another one, which was carried out: `begun` says what is the case since. So this is never a
    /// refusal.
    pub(crate) fn after(self, begun: &str) -> Error {
        let text = self.to_string();
        let (reason, detail) = match self {
            Error::Call(CallError::Indeterminate { reason, detail }) => {
                (reason, format!("{detail}; {begun}"))
            }
            Error::UnexpectedReply => (Indeterminacy::UnexpectedReply, format!("; {begun}")),
            Error::Call(CallError::Refused { reason: Refusal::Closed, .. }) => {
                (Indeterminacy::Closed, format!("; {begun} ({text})"))
            }
            Error::Call(CallError::Refused { reason: Refusal::Session(_), .. }) => {
                (Indeterminacy::NoSession, format!("; {begun} ({text})"))
            }
            // Nothing that could still be sent makes up for it in time.
            Error::Call(CallError::Refused { .. }) | Error::Command(_) => {
                (Indeterminacy::DeadlinePassed, format!("; {begun} ({text})"))
            }
        };
        Error::Call(CallError::Indeterminate { reason, detail })
    }

    /// Whether the same command may succeed when it is tried again, as of a group that was not reached.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Error::Call(CallError::Refused { reason, .. }) => {
                !matches!(reason, Refusal::Closed | Refusal::Session(_) | Refusal::Ordered(_))
            }
            Error::Call(CallError::Indeterminate { reason, .. }) => {
                *reason != Indeterminacy::Closed
            }
            Error::Command(_) | Error::UnexpectedReply => false,
        }
    }

    /// It waited, and its wait ended before its time: what it was handed was not taken in time, or nothing was heard of its client.
    fn is_withdrawal(&self) -> bool {
        let withdrawn = Refusal::Ordered(RefusalReason::Withdrawn);
        matches!(self, Error::Call(CallError::Refused { reason, .. }) if *reason == withdrawn)
    }
}

/// How long a command may wait for others; `None` if it does not.
#[must_use]
pub fn wait_of(command: &TupleCommand) -> Option<Duration> {
    let TupleCommand::On { operation, .. } = command else { return None };
    match operation {
        Operation::Rd { wait_ms, .. }
        | Operation::In { wait_ms, .. }
        | Operation::Claim { wait_ms, .. }
        | Operation::Lease { wait_ms, .. } => Some(Duration::from_millis(*wait_ms)),
        _ => None,
    }
    .filter(|wait| !wait.is_zero())
}

/// The same command with another time to wait.
fn waiting(command: &TupleCommand, left_ms: u64) -> TupleCommand {
    let mut command = command.clone();
    if let TupleCommand::On {
        operation:
            Operation::Rd { wait_ms, .. }
            | Operation::In { wait_ms, .. }
            | Operation::Claim { wait_ms, .. }
            | Operation::Lease { wait_ms, .. },
        ..
    } = &mut command
    {
        *wait_ms = left_ms;
    }
    command
}

/// Carries out a command. It ends after the time-out, and one that waits so much later than its wait. A wait that ends before its time because
/// this process was too slow to take what it was handed, or was not heard of, begins anew for the rest of its time, behind all others.
///
/// # Errors
/// Refused for certain, or indeterminate (rule C1). What the group's rules do not know yet is [`Error::Command`].
pub async fn call(
    client: &Client,
    command: &TupleCommand,
    options: &Options,
) -> Result<TupleReply, Error> {
    command.validate()?;
    let start = Instant::now();
    let mut done = call_once(client, command, options).await;
    let Some(whole) = wait_of(command) else { return done };
    while done.as_ref().is_err_and(Error::is_withdrawal) {
        let left_ms = crate::milliseconds(whole.saturating_sub(start.elapsed()));
        if left_ms == 0 {
            return Ok(in_vain(command));
        }
        done = call_once(client, &waiting(command, left_ms), options).await;
    }
    done
}

/// The reply to a command that waited for nothing.
fn in_vain(command: &TupleCommand) -> TupleReply {
    match command {
        TupleCommand::On { operation: Operation::Lease { .. }, .. } => TupleReply::Leased(None),
        _ => TupleReply::Found(None),
    }
}

async fn call_once(
    client: &Client,
    command: &TupleCommand,
    options: &Options,
) -> Result<TupleReply, Error> {
    let timeout = options.timeout.saturating_add(wait_of(command).unwrap_or_default());
    let options = Options { timeout, ..*options };
    let content = command.to_bytes();
    let reply = match command.is_read() {
        true => client.read(content, &options).await,
        false => client.call(content, &options).await,
    };
    match reply {
        Ok(Reply::Service(bytes)) => {
            TupleReply::from_bytes(bytes).map_err(|_| Error::UnexpectedReply)
        }
        Ok(_) => Err(Error::UnexpectedReply),
        Err(error) => Err(in_words(command, error)),
    }
}

/// A refusal of rules that do not know the command is said as such.
fn in_words(command: &TupleCommand, error: CallError) -> Error {
    let version = match &error {
        CallError::Refused { reason: Refusal::Ordered(RefusalReason::Service(text)), .. } => {
            command.refused_by_version(text)
        }
        _ => None,
    };
    version.map_or(Error::Call(error), Error::Command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_protocol::DecodeError;
    use perdura_tuples::{Entry, Template, Tuple};

    fn on(operation: Operation) -> TupleCommand {
        TupleCommand::On { space: "s".into(), operation }
    }

    fn refused(reason: RefusalReason) -> CallError {
        CallError::Refused { reason: Refusal::Ordered(reason), detail: String::new() }
    }

    #[test]
    fn what_an_older_group_refuses_says_what_to_do() {
        let claim = |wait_ms| {
            let entry = Entry::new(Tuple::new(&["a".into()]).unwrap());
            on(Operation::Claim { key: 1, entry, wait_ms })
        };
        let text = CommandError::Malformed(DecodeError::UnknownTag(14)).to_string();
        let error = in_words(&claim(0), refused(RefusalReason::Service(text.clone())));
        assert_eq!(error, Error::Command(CommandError::Version(2)));
        assert!(error.is_refusal() && error.to_string().contains("perdura upgrade"));
        // The same words about a command that every version knows, and others.
        let plain = refused(RefusalReason::Service(text));
        assert_eq!(in_words(&on(Operation::Describe), plain.clone()), Error::Call(plain));
        let denied = refused(RefusalReason::Service("access denied".into()));
        assert_eq!(in_words(&claim(0), denied.clone()), Error::Call(denied));
        // A claim that only tries does not wait.
        let waits = [claim(0), claim(7)].map(|claim| wait_of(&claim));
        assert_eq!(waits, [None, Some(Duration::from_millis(7))]);
        assert_eq!(waiting(&claim(7), 3), claim(3));
    }

    #[test]
    fn only_a_withdrawn_wait_begins_anew() {
        assert!(Error::from(refused(RefusalReason::Withdrawn)).is_withdrawal());
        let ended = RefusalReason::Service("ended by an operator".into());
        assert!(
            !Error::from(refused(ended)).is_withdrawal() && !Error::UnexpectedReply.is_withdrawal()
        );
        let template = Template { fields: Vec::new() };
        let lease = on(Operation::Lease { template, lease_ms: 1, wait_ms: 1 });
        assert_eq!(in_vain(&lease), TupleReply::Leased(None));
        assert_eq!(in_vain(&on(Operation::Describe)), TupleReply::Found(None));
    }
}
