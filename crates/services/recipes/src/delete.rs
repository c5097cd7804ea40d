//! The deletion of a space, in as many commands as it takes.

use crate::call::{Error, call};
use perdura_client::{Client, Options};
use perdura_tuples::{Operation, TupleCommand, TupleReply};
use std::time::Duration;
use tokio::time::sleep;

/// Who deletes a space looks this often whether the last of its tuples are handed over.
const HANDED_OVER: Duration = Duration::from_millis(100);

/// What an error means once the first command was carried out.
const BEGUN: &str = "the space is being deleted and takes nothing else any more: delete it again";

/// Deletes a space with all its tuples. Each of the commands that this takes ends after the time-out.
///
/// # Errors
/// Refused to who may not, with nothing changed. Once the first command was carried out no error is a refusal: tuples are gone, and the
/// space takes nothing but its deletion, which is to be asked for again.
pub async fn delete(client: &Client, space: &str, options: &Options) -> Result<(), Error> {
    let command = TupleCommand::On { space: space.into(), operation: Operation::Delete };
    all_of_it(async || call(client, &command, options).await).await
}

/// A large space goes bit by bit, and what is handed over to somebody just then within a second.
async fn all_of_it(mut bit: impl AsyncFnMut() -> Result<TupleReply, Error>) -> Result<(), Error> {
    let mut before = None;
    loop {
        let reply = match (bit().await, before) {
            (Err(error), Some(_)) => return Err(error.after(BEGUN)),
            (reply, _) => reply?,
        };
        let TupleReply::Deleted { remaining } = reply else { return Err(Error::UnexpectedReply) };
        match before.replace(remaining) {
            _ if remaining == 0 => return Ok(()),
            Some(before) if remaining >= before => sleep(HANDED_OVER).await,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perdura_client::{CallError, Indeterminacy, Refusal};

    fn left(remaining: u64) -> Result<TupleReply, Error> {
        Ok(TupleReply::Deleted { remaining })
    }

    fn late() -> Error {
        let (reason, detail) = (Refusal::DeadlinePassed, "; nobody is there".into());
        Error::Call(CallError::Refused { reason, detail })
    }

    /// What comes of a deletion whose commands are answered so, and how many of the answers it did not ask for.
    fn answered(replies: Vec<Result<TupleReply, Error>>) -> (Result<(), Error>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut replies = replies.into_iter();
        let done = runtime.block_on(all_of_it(async || replies.next().expect("asked on")));
        (done, replies.len())
    }

    #[test]
    fn a_space_is_deleted_until_nothing_remains() {
        assert_eq!(answered(vec![left(0), left(0)]), (Ok(()), 1));
        assert_eq!(answered(vec![left(9), left(1), left(1), left(0)]), (Ok(()), 0));
        assert_eq!(answered(vec![Ok(TupleReply::Created)]), (Err(Error::UnexpectedReply), 0));
    }

    #[test]
    fn a_deletion_that_began_is_never_refused() {
        assert_eq!(answered(vec![Err(late()), left(0)]), (Err(late()), 1));
        let (done, asked_for) = answered(vec![left(9), Err(late()), left(0)]);
        let error = done.unwrap_err();
        assert!(!error.is_refusal() && asked_for == 1, "{error}");
        for words in ["indeterminate: ", "delete it again", &late().to_string()] {
            assert!(error.to_string().contains(words), "{error}");
        }
        // What is indeterminate anyway says the same.
        let (reason, detail) = (Indeterminacy::Closed, String::new());
        let closed = Error::Call(CallError::Indeterminate { reason, detail });
        let error = answered(vec![left(9), Err(closed)]).0.unwrap_err();
        assert!(!error.is_refusal() && error.to_string().contains("delete it again"), "{error}");
    }
}
