//! A browser without script: it follows redirects, keeps cookies, and sends forms as they stand in pages.

use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

/// Redirects that are followed.
const REDIRECTS: usize = 5;

/// A page that was shown.
#[derive(Clone, Debug)]
pub struct Page {
    pub status: u16,
    pub text: String,
    pub headers: Vec<(String, String)>,
}

impl Page {
    fn of(mut response: Response<Body>) -> Page {
        let header = |(name, value): (&ureq::http::HeaderName, &ureq::http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let headers = response.headers().iter().map(header).collect();
        let status = response.status().as_u16();
        Page { status, headers, text: response.body_mut().read_to_string().unwrap() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// That it has this status.
    #[track_caller]
    pub fn is(self, status: u16) -> Page {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// That these stand in it.
    #[track_caller]
    pub fn has(self, all: &[&str]) -> Page {
        for words in all {
            assert!(self.text.contains(words), "no {words:?} in {}", self.text);
        }
        self
    }

    /// That these do not.
    #[track_caller]
    pub fn has_not(self, all: &[&str]) -> Page {
        for words in all {
            assert!(!self.text.contains(words), "{words:?} in {}", self.text);
        }
        self
    }

    /// The fields of the form with this action, with what stands in them.
    #[track_caller]
    pub fn form(&self, action: &str) -> Form {
        let at = self.text.find(&format!("action=\"{action}\""));
        let rest = &self.text[at.unwrap_or_else(|| panic!("no form {action} in {}", self.text))..];
        let form = &rest[..rest.find("</form>").unwrap()];
        let mut fields = Vec::new();
        for tag in form.split("<input ").skip(1) {
            let tag = &tag[..tag.find('>').unwrap()];
            let value = attribute(tag, "value").unwrap_or_default();
            fields.push((attribute(tag, "name").unwrap(), value));
        }
        for area in form.split("<textarea ").skip(1) {
            let (tag, rest) = area.split_once('>').unwrap();
            let text = &rest[..rest.find("</textarea>").unwrap()];
            fields.push((attribute(tag, "name").unwrap(), plain(text)));
        }
        Form { action: action.to_owned(), fields }
    }

    /// The address of a link with this relation.
    pub fn link(&self, relation: &str) -> Option<String> {
        let at = self.text.find(&format!("rel=\"{relation}\""))?;
        attribute(&self.text[at..], "href")
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let begin = format!("{name}=\"");
    let rest = &tag[tag.find(&begin)? + begin.len()..];
    Some(plain(&rest[..rest.find('"')?]))
}

/// Without its tags.
fn untagged(markup: &str) -> String {
    let mut parts = markup.split('<');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('>').unwrap().1)
}

/// Without the escapes of HTML.
fn plain(text: &str) -> String {
    let escapes = [("&#60;", "<"), ("&#62;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&#38;", "&")];
    escapes.iter().fold(text.to_owned(), |text, (escape, one)| text.replace(escape, one))
}

/// A form to be sent.
#[derive(Clone, Debug)]
pub struct Form {
    pub action: String,
    pub fields: Vec<(String, String)>,
}

impl Form {
    pub fn get(&self, name: &str) -> &str {
        &self.fields.iter().find(|(of, _)| of == name).unwrap().1
    }

    /// With something typed into a field.
    pub fn with(mut self, name: &str, value: &str) -> Form {
        self.fields.retain(|(of, _)| of != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// One person's browser.
pub struct Browser {
    agent: Agent,
    url: String,
    /// What a proxy says of where he is.
    from: Option<String>,
}

impl Browser {
    /// One whose requests a proxy says to be from this address.
    pub fn from(url: &str, address: &str) -> Browser {
        Browser { from: Some(address.to_owned()), ..Browser::new(url) }
    }

    pub fn new(url: &str) -> Browser {
        let config = Agent::config_builder().http_status_as_error(false).max_redirects(0);
        let agent = config.max_redirects_will_error(false).build().into();
        Browser { agent, url: url.to_owned(), from: None }
    }

    fn address(&self, path: &str) -> String {
        if path.starts_with('?') {
            format!("{}/{path}", self.url)
        } else {
            format!("{}{path}", self.url)
        }
    }

    fn forwarded<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.from {
            Some(address) => request.header("x-forwarded-for", address),
            None => request,
        }
    }

    pub fn get(&self, path: &str) -> Page {
        self.follow(self.get_only(path, &[]))
    }

    /// With more headers, and without going where it leads.
    pub fn get_only(&self, path: &str, headers: &[(&str, &str)]) -> Page {
        let mut request = self.forwarded(self.agent.get(self.address(path)));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Page::of(request.call().unwrap())
    }

    fn follow(&self, mut page: Page) -> Page {
        for _ in 0..REDIRECTS {
            let Some(to) = page.header("location").map(str::to_owned) else { return page };
            page = self.get_only(&to, &[]);
        }
        panic!("redirected too often: {page:?}");
    }

    /// Sends a form, and does not follow where that leads.
    pub fn send_only(&self, form: &Form, headers: &[(&str, &str)]) -> Page {
        let mut request = self.forwarded(self.agent.post(self.address(&form.action)));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Page::of(
            request
                .send_form(form.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())))
                .unwrap(),
        )
    }

    pub fn send(&self, form: &Form) -> Page {
        self.follow(self.send_only(form, &[]))
    }

    /// A request to the API.
    pub fn api(&self, method: &str, path: &str, body: Option<Value>) -> Page {
        let address = self.address(&format!("/api/v1{path}"));
        let agent = &self.agent;
        let response = match (method, body) {
            ("GET", _) => self.forwarded(agent.get(address)).call(),
            ("DELETE", None) => self.forwarded(agent.delete(address)).call(),
            ("DELETE", Some(body)) => {
                self.forwarded(agent.delete(address)).force_send_body().send_json(body)
            }
            ("PUT", None) => self.forwarded(agent.put(address)).send_empty(),
            ("PUT", Some(body)) => self.forwarded(agent.put(address)).send_json(body),
            (_, body) => self.forwarded(agent.post(address)).send_json(body.unwrap_or_default()),
        };
        Page::of(response.unwrap())
    }

    /// Makes an account, in the way that people do.
    #[track_caller]
    pub fn sign_up(&self, name: &str) {
        let form = self.get("/signup").is(200).form("/signup");
        let form = form.with("name", name).with("password", &password_of(name));
        self.send(&form).is(200).has(&["What is new?", &format!("@{name}")]);
    }

    pub fn log_in(&self, name: &str, password: &str) -> Page {
        let form = self.get("/login").is(200).form("/login");
        self.send(&form.with("name", name).with("password", password))
    }

    /// Posts something on the first page.
    #[track_caller]
    pub fn post(&self, text: &str) {
        let form = self.get("/").is(200).form("/post");
        self.send(&form.with("text", text)).is(200);
    }

    #[track_caller]
    pub fn follow_user(&self, name: &str) {
        let form = self.get(&format!("/u/{name}")).is(200).form(&format!("/u/{name}/follow"));
        self.send(&form).is(200).has(&["Unfollow"]);
    }
}

/// The password of a user of tests.
pub fn password_of(name: &str) -> String {
    format!("correct horse of {name}")
}

/// The texts of posts on a page, in their order.
pub fn texts(page: &Page) -> Vec<String> {
    let cards = page.text.split("<article class=\"card\"").skip(1);
    let text = |card: &str| {
        let card = &card[..card.find("</article>").unwrap()];
        let own = card.rsplit("<p class=\"text\">").next().unwrap();
        plain(&untagged(&own[..own.find("</p>").unwrap()]))
    };
    cards.map(text).collect()
}
