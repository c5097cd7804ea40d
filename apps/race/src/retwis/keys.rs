//! Where in Redis what is, as the paper describes Retwis (Augustus, EuroSys 2013, section 4.4): lists, and posts of their own.
//!
//! ```text
//! next_post_id      the counter of all posts
//! post:ID           a post
//! posts:NAME        a list: ids of what a user posted, the newest first
//! timeline:NAME     a list: ids of what a user and those whom he follows posted, the newest first
//! friends:NAME      a list: whom a user follows
//! followers:NAME    a list: who follows a user
//! account:NAME      the hash of a user's password
//! session:KEY       a session
//! ```

use perdura_buzzer::network::{Name, SessionKey};

pub const NEXT_POST_ID: &str = "next_post_id";

pub fn post(id: u64) -> String {
    format!("post:{id}")
}

pub fn posts(name: &Name) -> String {
    format!("posts:{name}")
}

pub fn timeline(name: &Name) -> String {
    format!("timeline:{name}")
}

pub fn friends(name: &Name) -> String {
    format!("friends:{name}")
}

pub fn followers(name: &Name) -> String {
    format!("followers:{name}")
}

pub fn account(name: &Name) -> String {
    format!("account:{name}")
}

pub fn session(key: &SessionKey) -> String {
    format!("session:{key}")
}
