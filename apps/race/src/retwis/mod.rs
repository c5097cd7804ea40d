//! Retwis' design on Redis (Augustus, EuroSys 2013, section 4.4), as another implementation of the network that Buzzer is made of.
//!
//! Posting takes a number from a counter that all share, and puts it into the lists of the author and of all his followers; following adds to two lists; a timeline
//! is a list and the posts that it names. As in the paper nobody looks whether an account is there, or whether it is followed already, before something is
//! added. Commands that do not need each other's answers go together (a pipeline), without being a transaction.
//!
//! What Retwis has no design for is refused ([`Network::delete_account`]), and a post that is sent again is another one.

pub mod keys;
mod posts;
pub mod values;

use async_trait::async_trait;
use perdura_buzzer::network::{
    COUNTED_FOLLOWERS, COUNTED_POSTS, Changed, Count, CreateError, FRIENDS, Failure, FollowError,
    LoginError, Name, Network, NewPost, Origin, PAGE_MOST, Page, Password, Passwords, PostError,
    PostId, PostKey, Profile, Proof, Session, SessionError, SessionKey, Sessions, Shown,
};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{FromRedisValue, IntoConnectionInfo, Pipeline, RedisError, pipe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Retwis on one server of Redis.
pub struct Retwis {
    /// Calls take turns on them; each carries many at a time.
    connections: Vec<ConnectionManager>,
    next: AtomicUsize,
    passwords: Passwords,
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn not_read(error: &RedisError) -> Failure {
    Failure::Unavailable(error.to_string())
}

fn not_written(error: &RedisError) -> Failure {
    Failure::Indeterminate(error.to_string())
}

fn count(length: u64, most: u32) -> Count {
    let counted = u32::try_from(length).unwrap_or(u32::MAX).min(most);
    Count { counted, more: length > u64::from(most) }
}

/// A limit that can be asked for.
fn limited(limit: u32) -> usize {
    limit.clamp(1, PAGE_MOST) as usize
}

impl Retwis {
    /// On the server at this port of loopback, over so many connections.
    ///
    /// # Errors
    /// When it cannot be connected to, or no password can be hashed.
    pub async fn open(port: u16, connections: usize, timeout: Duration) -> anyhow::Result<Retwis> {
        let address = format!("redis://127.0.0.1:{port}/").into_connection_info()?;
        // As Perdura's connections are: what is small does not wait for what comes before it.
        let client = redis::Client::open(
            address.set_tcp_settings(TcpSettings::default().set_nodelay(true)),
        )?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(timeout))
            .set_connection_timeout(Some(timeout));
        let mut opened = Vec::new();
        for _ in 0..connections {
            opened.push(ConnectionManager::new_with_config(client.clone(), config.clone()).await?);
        }
        let passwords = Passwords::new()?;
        Ok(Retwis { connections: opened, next: AtomicUsize::new(0), passwords })
    }

    /// Carries out commands on the connection whose turn it is.
    pub async fn run<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, RedisError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        commands.query_async(&mut self.connections[turn].clone()).await
    }

    /// Whether the server writes its log anew at this moment, or is about to.
    ///
    /// # Errors
    /// When it does not say.
    pub async fn rewrites(&self) -> Result<bool, RedisError> {
        let (said,): (String,) =
            self.run(&pipe().cmd("INFO").arg("persistence").to_owned()).await?;
        let states = ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1"];
        Ok(said.lines().any(|line| states.contains(&line.trim())))
    }

    async fn read<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, Failure> {
        self.run(commands).await.map_err(|error| not_read(&error))
    }

    async fn write<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, Failure> {
        self.run(commands).await.map_err(|error| not_written(&error))
    }

    /// A page of a list of names, in the order in which they came.
    async fn names(
        &self,
        list: String,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        let start = match after {
            None => 0,
            Some(after) => {
                let look = pipe().cmd("LPOS").arg(&list).arg(after.as_str()).to_owned();
                let (at,): (Option<usize>,) = self.read(&look).await?;
                let Some(at) = at else { return Ok(Page { items: Vec::new(), next: None }) };
                at + 1
            }
        };
        let limit = limited(limit);
        let look = pipe().cmd("LRANGE").arg(&list).arg(start).arg(start + limit).to_owned();
        let (names,): (Vec<String>,) = self.read(&look).await?;
        let more = names.len() > limit;
        let name =
            |text: &String| Name::new(text).map_err(|error| Failure::Broken(error.to_string()));
        let items = names.iter().take(limit).map(name).collect::<Result<Vec<Name>, Failure>>()?;
        let next = items.last().filter(|_| more).cloned();
        Ok(Page { items, next })
    }
}

/// The command that keeps a session until it ends.
fn keep(key: &SessionKey, session: &Session) -> Result<Pipeline, Failure> {
    let left_ms = session.expires_ms.saturating_sub(now_ms()).max(1);
    let mut keep = pipe();
    keep.cmd("SET").arg(keys::session(key)).arg(values::write_session(session)?);
    keep.arg("PX").arg(left_ms);
    Ok(keep)
}

#[async_trait]
impl Sessions for Retwis {
    async fn create_session(
        &self,
        key: &SessionKey,
        session: &Session,
        _proof: Option<&Proof>,
    ) -> Result<(), SessionError> {
        Ok(self.write::<()>(keep(key, session)?.ignore()).await?)
    }

    async fn save_session(&self, key: &SessionKey, session: &Session) -> Result<(), SessionError> {
        let (kept,): (Option<String>,) = self.write(keep(key, session)?.arg("XX")).await?;
        kept.map(|_| ()).ok_or(SessionError::Over)
    }

    async fn load_session(&self, key: &SessionKey) -> Result<Option<Session>, Failure> {
        let look = pipe().cmd("GET").arg(keys::session(key)).to_owned();
        let (value,): (Option<Vec<u8>>,) = self.read(&look).await?;
        value.map(|bytes| values::read_session(&bytes)).transpose()
    }

    async fn delete_session(&self, key: &SessionKey) -> Result<(), Failure> {
        let delete = pipe().cmd("DEL").arg(keys::session(key)).ignore().to_owned();
        self.write::<()>(&delete).await
    }
}

#[async_trait]
impl Network for Retwis {
    async fn create_account(
        &self,
        name: &Name,
        password: &Password,
        _origin: &Origin,
    ) -> Result<Proof, CreateError> {
        let hash = self.passwords.hash(self.passwords.place()?, password).await?;
        let create = pipe().cmd("SETNX").arg(keys::account(name)).arg(&hash).to_owned();
        let (is_new,): (bool,) = self.write(&create).await?;
        if is_new { Ok(Proof::of(hash.as_bytes())) } else { Err(CreateError::Taken) }
    }

    async fn check_password(
        &self,
        name: &Name,
        password: &Password,
        _origin: &Origin,
    ) -> Result<Proof, LoginError> {
        let place = self.passwords.place()?;
        let look = pipe().cmd("GET").arg(keys::account(name)).to_owned();
        let (hash,): (Option<String>,) = self.read(&look).await?;
        let fits = self.passwords.fits(place, password, hash.as_deref()).await?;
        let hash = hash.filter(|_| fits).ok_or(LoginError::Wrong)?;
        Ok(Proof::of(hash.as_bytes()))
    }

    async fn change_password(
        &self,
        _name: &Name,
        _password: &Password,
        _new: &Password,
        _origin: &Origin,
    ) -> Result<Changed, LoginError> {
        Err(Failure::Broken("Retwis does not change passwords".to_owned()).into())
    }

    async fn delete_account(&self, _name: &Name, _proof: &Proof) -> Result<bool, Failure> {
        Err(Failure::Broken("Retwis does not delete accounts".to_owned()))
    }

    async fn continue_deletions(&self) -> Result<usize, Failure> {
        // None has begun, as none can.
        Ok(0)
    }

    async fn follow(&self, who: &Name, whom: &Name) -> Result<bool, FollowError> {
        if who == whom {
            return Err(FollowError::Oneself);
        }
        let mut follow = pipe();
        follow.cmd("RPUSH").arg(keys::friends(who)).arg(whom.as_str()).ignore();
        follow.cmd("RPUSH").arg(keys::followers(whom)).arg(who.as_str()).ignore();
        self.write::<()>(&follow).await?;
        Ok(true)
    }

    async fn unfollow(&self, who: &Name, whom: &Name) -> Result<bool, Failure> {
        let mut unfollow = pipe();
        unfollow.cmd("LREM").arg(keys::friends(who)).arg(0).arg(whom.as_str());
        unfollow.cmd("LREM").arg(keys::followers(whom)).arg(0).arg(who.as_str());
        let (friends, _followers): (u64, u64) = self.write(&unfollow).await?;
        Ok(friends > 0)
    }

    async fn follows(&self, who: &Name, whom: &Name) -> Result<bool, Failure> {
        let look = pipe().cmd("LPOS").arg(keys::friends(who)).arg(whom.as_str()).to_owned();
        let (at,): (Option<u64>,) = self.read(&look).await?;
        Ok(at.is_some())
    }

    async fn followers(
        &self,
        of: &Name,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        self.names(keys::followers(of), after, limit).await
    }

    async fn friends(
        &self,
        of: &Name,
        after: Option<&Name>,
        limit: u32,
    ) -> Result<Page<Name, Name>, Failure> {
        self.names(keys::friends(of), after, limit).await
    }

    async fn post(&self, author: &Name, new: &NewPost) -> Result<(), PostError> {
        self.add_post(author, new).await
    }

    async fn delete_post(&self, id: &PostId) -> Result<bool, Failure> {
        self.remove_post(id).await
    }

    async fn read_post(&self, id: &PostId) -> Result<Option<Shown>, Failure> {
        self.one_post(id).await
    }

    async fn answers(
        &self,
        to: &PostId,
        _after: Option<&PostId>,
        _limit: u32,
    ) -> Result<Option<Page<Shown, PostId>>, Failure> {
        // No list has them: nobody is told of any.
        let none = Page { items: Vec::new(), next: None };
        Ok(self.one_post(to).await?.map(|_| none))
    }

    async fn posts(
        &self,
        of: &Name,
        after: Option<PostKey>,
        limit: u32,
    ) -> Result<Page<Shown, PostKey>, Failure> {
        let after = after.map(|key| PostId { author: of.clone(), key });
        let page = self.page(&keys::posts(of), after.as_ref(), limited(limit)).await?;
        Ok(Page { items: page.items, next: page.next.map(|id| id.key) })
    }

    async fn timeline(
        &self,
        of: &Name,
        after: Option<&PostId>,
        limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        self.page(&keys::timeline(of), after, limited(limit)).await
    }

    async fn newest(
        &self,
        _after: Option<&PostId>,
        _limit: u32,
    ) -> Result<Page<Shown, PostId>, Failure> {
        // Nor does any list have those of all.
        Ok(Page { items: Vec::new(), next: None })
    }

    async fn profile(&self, name: &Name) -> Result<Option<Profile>, Failure> {
        let mut look = pipe();
        look.cmd("EXISTS").arg(keys::account(name));
        for list in [keys::posts(name), keys::followers(name), keys::friends(name)] {
            look.cmd("LLEN").arg(list);
        }
        let (is_there, posts, followers, friends): (bool, u64, u64, u64) = self.read(&look).await?;
        Ok(is_there.then(|| Profile {
            name: name.clone(),
            posts: count(posts, COUNTED_POSTS),
            followers: count(followers, COUNTED_FOLLOWERS),
            friends: count(friends, FRIENDS as u32),
        }))
    }

    async fn check_health(&self) -> Result<(), Failure> {
        let ping = pipe().cmd("PING").ignore().to_owned();
        self.read::<()>(&ping).await
    }

    async fn close(&self) {
        // Connections close when they are dropped.
    }
}
