//! What stands behind Retwis' keys, as JSON.

use anyhow::{Context, Result};
use bytes::Bytes;
use perdura_buzzer::network::{Failure, Name, NewPost, Post, PostId, Session};
use serde::{Deserialize, Serialize};

/// A post.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PostValue {
    pub id: PostId,
    pub text: String,
    /// What it answers, with that one's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<(u64, PostId)>,
}

/// A session.
#[derive(Serialize, Deserialize)]
struct SessionValue {
    owner: Name,
    expires_ms: u64,
    content: String,
}

fn broken(error: &dyn std::error::Error) -> Failure {
    Failure::Broken(format!("what is in Redis cannot be read: {error}"))
}

impl PostValue {
    pub fn new(author: &Name, new: &NewPost, answered: Option<u64>) -> PostValue {
        PostValue {
            id: PostId { author: author.clone(), key: new.key },
            text: new.text.as_str().to_owned(),
            answers: answered.zip(new.answers.clone()),
        }
    }

    pub fn write(&self) -> Result<Vec<u8>, Failure> {
        serde_json::to_vec(self).map_err(|error| broken(&error))
    }

    pub fn read(bytes: &[u8]) -> Result<PostValue, Failure> {
        serde_json::from_slice(bytes).map_err(|error| broken(&error))
    }

    pub fn into_post(self) -> Post {
        Post { id: self.id, text: self.text, answers: self.answers.map(|(_, id)| id) }
    }
}

pub fn write_session(session: &Session) -> Result<Vec<u8>, Failure> {
    let write = || {
        let content =
            String::from_utf8(session.content.to_vec()).context("a session is no text")?;
        let owner = session.owner.clone();
        let value = SessionValue { owner, expires_ms: session.expires_ms, content };
        Ok(serde_json::to_vec(&value)?)
    };
    write().map_err(|error: anyhow::Error| Failure::Broken(format!("{error:#}")))
}

pub fn read_session(bytes: &[u8]) -> Result<Session, Failure> {
    let value: SessionValue = serde_json::from_slice(bytes).map_err(|error| broken(&error))?;
    let (owner, expires_ms) = (value.owner, value.expires_ms);
    Ok(Session { owner, expires_ms, content: Bytes::from(value.content) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let answered: PostId = "bob/0123456789abcdef0123".parse().unwrap();
        let id = "amy/1123456789abcdef0123".parse().unwrap();
        let post = PostValue { id, text: "a \"b\"\n<c>".to_owned(), answers: Some((7, answered)) };
        assert_eq!(PostValue::read(&post.write().unwrap()).unwrap(), post);
        let owner = Name::new("alice").unwrap();
        let session = Session { owner, expires_ms: 9, content: Bytes::from_static(b"{\"a\":1}") };
        assert_eq!(read_session(&write_session(&session).unwrap()).unwrap(), session);
        assert!(PostValue::read(b"{").is_err());
    }
}
