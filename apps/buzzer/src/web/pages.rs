//! The pages, as their templates take them. Everything in them is escaped by the templates.

use super::compose::Compose;
use super::links::{Piece, pieces};
use super::visitor::Viewer;
use crate::network::{Count, Failure, Name, Post, Profile, Shown, TEXT_MOST};
use askama::Template;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

const SHOWN: &[BorrowedFormatItem<'_>] =
    format_description!("[day padding:none] [month repr:short] [year], [hour]:[minute] UTC");
const EXACT: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

/// A page as an answer.
pub(crate) fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "a template cannot be filled");
            (StatusCode::INTERNAL_SERVER_ERROR, "This page cannot be made.").into_response()
        }
    }
}

/// A time in words.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) shown: String,
    pub(crate) exact: String,
}

impl Moment {
    pub(crate) fn of(time_ms: u64) -> Moment {
        let seconds = i64::try_from(time_ms / 1000).unwrap_or(0);
        let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let text = |format| at.format(format).unwrap_or_default();
        Moment { shown: text(SHOWN), exact: text(EXACT) }
    }
}

/// What a post answers.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) author: Name,
    pub(crate) key: String,
    /// None if it is deleted.
    pub(crate) text: Option<Vec<Piece>>,
}

/// A post on a page.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) author: Name,
    pub(crate) key: String,
    pub(crate) text: Vec<Piece>,
    pub(crate) at: Moment,
    pub(crate) answered: Option<Answered>,
    /// The token of the form that deletes it, for its author.
    pub(crate) deletable: Option<String>,
}

impl Card {
    pub(crate) fn new(shown: Shown, viewer: Option<&Viewer>) -> Card {
        let Shown { post, answered } = shown;
        let Post { id, text, answers } = post;
        let answered = answers.map(|answers| Answered {
            author: answers.author,
            key: answers.key.to_string(),
            text: answered.map(|post| pieces(&post.text)),
        });
        let own = viewer.filter(|viewer| viewer.name == id.author);
        Card {
            deletable: own.map(|viewer| viewer.csrf.clone()),
            author: id.author,
            key: id.key.to_string(),
            text: pieces(&text),
            at: Moment::of(id.key.time_ms()),
            answered,
        }
    }
}

/// Several of them.
pub(crate) fn cards(all: Vec<Shown>, viewer: Option<&Viewer>) -> Vec<Card> {
    all.into_iter().map(|shown| Card::new(shown, viewer)).collect()
}

/// What answers one post, on the page of that.
pub(crate) fn answers(all: Vec<Shown>, viewer: Option<&Viewer>) -> Vec<Card> {
    let answer = |shown| Card { answered: None, ..Card::new(shown, viewer) };
    all.into_iter().map(answer).collect()
}

/// A number up to a bound, in words.
pub(crate) fn number(count: &Count) -> String {
    let digits = count.counted.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if count.more { text + "+" } else { text }
}

/// A form that can be sent again as it was.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    pub(crate) action: String,
    pub(crate) fields: Vec<(&'static str, String)>,
    /// What was typed, to be changed.
    pub(crate) text: Option<String>,
    pub(crate) button: &'static str,
}

/// Something went wrong.
#[derive(Debug, Template)]
#[template(path = "trouble.html")]
pub(crate) struct ErrorText {
    pub(crate) status: StatusCode,
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) again: Option<Again>,
    /// Whether it helps to look again later.
    pub(crate) look: bool,
    /// After which time that is worth trying, if it is known.
    pub(crate) pause: Option<Duration>,
}

impl ErrorText {
    fn viewer(&self) -> Option<&Viewer> {
        None
    }
}

/// Logging in, or making an account.
#[derive(Template)]
#[template(path = "door.html")]
pub(crate) struct DoorPage {
    /// Whether it is for a new account.
    pub(crate) is_new: bool,
    pub(crate) csrf: String,
    pub(crate) name: String,
    pub(crate) problem: Option<String>,
}

impl DoorPage {
    fn viewer(&self) -> Option<&Viewer> {
        None
    }
}

/// For those who are not logged in.
#[derive(Template)]
#[template(path = "welcome.html")]
pub(crate) struct WelcomePage {
    /// Said first, if anything.
    pub(crate) note: Option<&'static str>,
}

impl WelcomePage {
    fn viewer(&self) -> Option<&Viewer> {
        None
    }
}

/// A timeline.
#[derive(Template)]
#[template(path = "timeline.html")]
pub(crate) struct TimelinePage {
    pub(crate) logged_in: Viewer,
    /// On the first page.
    pub(crate) compose: Option<Compose>,
    pub(crate) cards: Vec<Card>,
    pub(crate) next: Option<String>,
}

impl TimelinePage {
    fn viewer(&self) -> Option<&Viewer> {
        Some(&self.logged_in)
    }
}

/// The newest posts of all.
#[derive(Template)]
#[template(path = "newest.html")]
pub(crate) struct NewestPage {
    pub(crate) looking: Option<Viewer>,
    pub(crate) is_first: bool,
    pub(crate) cards: Vec<Card>,
    pub(crate) next: Option<String>,
}

impl NewestPage {
    fn viewer(&self) -> Option<&Viewer> {
        self.looking.as_ref()
    }
}

/// What somebody who looks at an account has to do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relation {
    /// He is not logged in.
    Stranger,
    /// It is his.
    Own,
    /// He follows it.
    Follows,
    /// He does not.
    DoesNot,
}

/// An account.
#[derive(Template)]
#[template(path = "profile.html")]
pub(crate) struct ProfilePage {
    pub(crate) looking: Option<Viewer>,
    pub(crate) profile: Profile,
    pub(crate) relation: Relation,
    pub(crate) is_first: bool,
    pub(crate) cards: Vec<Card>,
    pub(crate) next: Option<String>,
}

impl ProfilePage {
    fn viewer(&self) -> Option<&Viewer> {
        self.looking.as_ref()
    }
}

/// Who follows an account, or whom it follows.
#[derive(Template)]
#[template(path = "names.html")]
pub(crate) struct NamesPage {
    pub(crate) looking: Option<Viewer>,
    pub(crate) of: Name,
    pub(crate) are_followers: bool,
    pub(crate) names: Vec<Name>,
    pub(crate) next: Option<Name>,
}

impl NamesPage {
    fn viewer(&self) -> Option<&Viewer> {
        self.looking.as_ref()
    }
}

/// One post, with a form to answer it, and what answers it.
#[derive(Template)]
#[template(path = "post.html")]
pub(crate) struct PostPage {
    pub(crate) looking: Option<Viewer>,
    pub(crate) card: Card,
    pub(crate) is_first: bool,
    /// On the first page, for whoever is logged in.
    pub(crate) compose: Option<Compose>,
    pub(crate) answers: Vec<Card>,
    pub(crate) next: Option<String>,
}

impl PostPage {
    fn viewer(&self) -> Option<&Viewer> {
        self.looking.as_ref()
    }
}

/// A form of a post alone: something is wrong with what was typed.
#[derive(Template)]
#[template(path = "compose_page.html")]
pub(crate) struct ComposePage {
    pub(crate) logged_in: Viewer,
    pub(crate) compose: Option<Compose>,
}

impl ComposePage {
    fn viewer(&self) -> Option<&Viewer> {
        Some(&self.logged_in)
    }
}

/// What one can do with one's account.
#[derive(Template)]
#[template(path = "settings.html")]
pub(crate) struct SettingsPage {
    pub(crate) logged_in: Viewer,
    /// What was done.
    pub(crate) note: Option<&'static str>,
    /// What is wrong with each of the forms.
    pub(crate) password_problem: Option<String>,
    pub(crate) delete_problem: Option<String>,
}

impl SettingsPage {
    pub(crate) fn of(logged_in: Viewer) -> SettingsPage {
        SettingsPage { logged_in, note: None, password_problem: None, delete_problem: None }
    }

    fn viewer(&self) -> Option<&Viewer> {
        Some(&self.logged_in)
    }
}

/// The documentation of the JSON API.
#[derive(Template)]
#[template(path = "api.html")]
pub(crate) struct ApiPage {
    pub(crate) looking: Option<Viewer>,
}

impl ApiPage {
    fn viewer(&self) -> Option<&Viewer> {
        self.looking.as_ref()
    }
}

impl Relation {
    pub(crate) fn of(viewer: Option<&Viewer>, name: &Name, follows: bool) -> Relation {
        match viewer {
            None => Relation::Stranger,
            Some(viewer) if viewer.name == *name => Relation::Own,
            Some(_) if follows => Relation::Follows,
            Some(_) => Relation::DoesNot,
        }
    }
}

/// What is needed for a form under a page.
pub(crate) fn compose_for(
    viewer: Option<&Viewer>,
    answers: Option<&crate::network::PostId>,
) -> Result<Option<Compose>, Failure> {
    viewer.map(|viewer| Compose::new(&viewer.csrf, answers)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{PostId, PostKey};

    #[test]
    fn numbers_are_readable() {
        let number = |counted, more| number(&Count { counted, more });
        assert_eq!(number(0, false), "0");
        assert_eq!(number(999, false), "999");
        assert_eq!(number(1000, true), "1,000+");
    }

    #[test]
    fn moments_are_readable() {
        let moment = Moment::of(1_764_324_973_000);
        assert_eq!(moment.shown, "28 Nov 2025, 10:16 UTC");
        assert_eq!(moment.exact, "2025-11-28T10:16:13Z");
    }

    #[test]
    fn markup_is_shown_as_text() {
        let author = Name::new("alice").unwrap();
        let id = PostId { author: author.clone(), key: PostKey::new(1, 2) };
        let text = "<script>alert(\"x\")</script>".to_owned();
        let answers = Some(id.clone());
        let post = Post { id, text: text.clone(), answers };
        let answered = Some(Post { answers: None, ..post.clone() });
        let viewer = Viewer { name: author, csrf: "\"><b>".to_owned() };
        let cards = vec![Card::new(Shown { post, answered }, Some(&viewer))];
        let compose = Compose::new(&viewer.csrf, None).unwrap().with(&text, text.clone());
        let page = TimelinePage { logged_in: viewer, compose: Some(compose), cards, next: None };
        let page = page.render().unwrap();
        assert!(page.contains("&#60;script&#62;"), "{page}");
        assert!(!page.contains("<script>alert") && !page.contains("\"><b>"), "{page}");
    }

    #[test]
    fn links_in_texts_are_markup_and_nothing_else_in_them_is() {
        let id = PostId { author: Name::new("alice").unwrap(), key: PostKey::new(1, 2) };
        let text = "@Bob_1: https://example.org/?a=1&b='x'\" onclick=\"alert(1)\" <b>\njavascript:alert(1)";
        let post = Post { id, text: text.to_owned(), answers: None };
        let card = Card::new(Shown { post, answered: None }, None);
        let page = PostPage {
            looking: None,
            card,
            is_first: true,
            compose: None,
            answers: Vec::new(),
            next: None,
        };
        let page = page.render().unwrap();
        let shown = "<p class=\"text\"><a href=\"/u/bob_1\">@Bob_1</a>: \
            <a href=\"https://example.org/?a=1&#38;b=&#39;x\" rel=\"nofollow noopener noreferrer ugc\">\
            https://example.org/?a=1&#38;b=&#39;x</a>&#39;&#34; onclick=&#34;alert(1)&#34; &#60;b&#62;\n\
            javascript:alert(1)</p>";
        assert!(page.contains(shown), "{page}");
    }
}
