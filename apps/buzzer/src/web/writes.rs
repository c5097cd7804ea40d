//! How much an account may write in an hour: posts, follows, and the ends of both. Counted in this process, and before the network is asked: what is sent again since its
//! outcome is not known counts again.

use super::error_page::ErrorPage;
use super::tries::Tries;
use crate::api::ApiError;
use crate::network::{Name, Pause};
use axum::http::StatusCode;
use std::fmt;
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3600);

/// Counts what each account writes.
pub(crate) struct Writes(Tries<Name>);

/// An account wrote as much as it may, and may write again after this time.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TooMuch(Duration);

impl Writes {
    /// So much in an hour.
    pub(super) fn new(most: u32) -> Writes {
        Writes(Tries::new(most, HOUR))
    }

    /// Counts what an account is about to write.
    pub(crate) fn count(&self, who: &Name) -> Result<(), TooMuch> {
        self.0.count(who.clone(), Instant::now()).map_err(TooMuch)
    }
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "You posted, followed and deleted as often as an account may in an hour. Nothing was done. Try again in {}.",
            Pause(self.0)
        )
    }
}

impl From<TooMuch> for ErrorPage {
    fn from(too_much: TooMuch) -> ErrorPage {
        let text = too_much.to_string();
        ErrorPage::later(StatusCode::TOO_MANY_REQUESTS, "Too much in an hour", &text, too_much.0)
    }
}

impl From<TooMuch> for ApiError {
    fn from(too_much: TooMuch) -> ApiError {
        ApiError::too_much(&too_much, too_much.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::header::RETRY_AFTER;
    use axum::response::IntoResponse;

    #[test]
    fn an_account_writes_so_much() {
        let writes = Writes::new(2);
        let [amy, bob] = ["amy", "bob"].map(|name| Name::new(name).unwrap());
        assert_eq!((writes.count(&amy), writes.count(&amy)), (Ok(()), Ok(())));
        let too_much = writes.count(&amy).unwrap_err();
        assert!(too_much.0 <= HOUR && too_much.0 > HOUR / 2);
        assert_eq!(writes.count(&bob), Ok(()));
    }

    #[test]
    fn it_is_told_when_to_go_on() {
        let text = |seconds| TooMuch(Duration::from_secs(seconds)).to_string();
        assert!(text(20).ends_with("in 20 seconds."), "{}", text(20));
        assert!(text(3_599).ends_with("in 60 minutes."), "{}", text(3_599));
        let too_much = || TooMuch(Duration::from_secs(90));
        let page = ErrorPage::from(too_much()).into_response();
        for response in [page, ApiError::from(too_much()).into_response()] {
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()[RETRY_AFTER], "91");
        }
    }
}
