//! Calls over HTTP, as a program that uses the JSON API makes them.

use super::super::social::{name, new_post};
use super::workload::Call;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, COOKIE};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rand::rngs::SmallRng;
use serde_json::json;
use std::collections::HashMap;

/// Characters of an answer that are told of a failure.
const TOLD: usize = 200;

/// The application, and the cookies of those who are logged in.
pub struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    cookies: HashMap<u32, String>,
}

impl Http {
    pub fn new(url: &str, cookies: HashMap<u32, String>) -> Http {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Http { client, url: url.to_owned(), cookies }
    }

    /// What is answered to a request, which has to be a success.
    async fn send(
        &self,
        method: Method,
        path: &str,
        who: Option<u32>,
        body: Option<String>,
    ) -> Result<Bytes> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(who) = who {
            let cookie = self.cookies.get(&who).context("this user is not logged in")?;
            request = request.header(COOKIE, cookie);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::from(body.unwrap_or_default()))?;
        let response = self.client.request(request).await?;
        let status = response.status();
        let content = response.into_body().collect().await?.to_bytes();
        let told = || String::from_utf8_lossy(&content).chars().take(TOLD).collect::<String>();
        ensure!(status.is_success(), "{status}: {}", told());
        Ok(content)
    }

    /// As [`super::Caller::call`].
    pub async fn call(&self, call: Call, rng: &mut SmallRng, characters: usize) -> Result<usize> {
        match call {
            Call::Post { who } => {
                let new = new_post(rng, characters)?;
                let key = new.key.to_string();
                let body = json!({ "text": new.text.as_str(), "key": key }).to_string();
                self.send(Method::POST, "/api/v1/posts", Some(who), Some(body)).await?;
            }
            Call::Follow { who, whom } => {
                let path = format!("/api/v1/friends/{}", name(whom)?);
                self.send(Method::PUT, &path, Some(who), None).await?;
            }
            Call::Timeline { who } => {
                let page = self.send(Method::GET, "/api/v1/timeline", Some(who), None).await?;
                ensure!(page.starts_with(b"{\"items\":"), "what is answered is no timeline");
                return Ok(posts_in(&page));
            }
        }
        Ok(0)
    }

    /// The sum of counters of the application with these names.
    pub async fn counters(&self, names: &[&str]) -> Result<u64> {
        let page = self.send(Method::GET, "/metrics", None, None).await?;
        counters_in(&String::from_utf8_lossy(&page), names)
    }
}

/// Posts on a page, by the field that each of them has and nothing else: in texts its quotes have backslashes.
fn posts_in(page: &[u8]) -> usize {
    const FIELD: &[u8] = b"\"answers\":";
    page.windows(FIELD.len()).filter(|bytes| *bytes == FIELD).count()
}

fn counters_in(page: &str, names: &[&str]) -> Result<u64> {
    let value = |name: &str| {
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("the application does not count {name}"))?;
        Ok(value.trim().parse::<u64>()?)
    };
    names.iter().map(|name| value(name)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn counters_are_found_among_others() {
        let page = "# HELP a Help.\n# TYPE a counter\na 5\nab 7\nb 2\n";
        assert_eq!(counters_in(page, &["a", "b"]).unwrap(), 7);
        assert!(counters_in(page, &["a", "c"]).is_err());
    }

    #[test]
    fn posts_of_a_page_are_counted() {
        let post = |text: &str, answers: Value| json!({ "text": text, "answers": answers });
        let answered = json!({ "author": "amy", "text": "\"answers\":" });
        let items = [post("\"answers\": 1", Value::Null), post("x", answered)];
        let page = json!({ "items": items, "next": null }).to_string();
        assert_eq!(posts_in(page.as_bytes()), 2);
        assert_eq!(posts_in(b"{\"items\":[]}"), 0);
    }
}
