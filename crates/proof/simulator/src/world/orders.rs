//! The administrator raises versions and the state's limit, lists the clients, and replaces his key, at moments of its own, whatever
//! else happens: crashes, replacements, revocations. All replicas run a program that knows what he orders.
//!
//! A key whose replacement ended without a word stays at hand, as `perdura admin rotate` keeps it in a file, and is the
//! administrator's when a replica says so. Some of the keys that were replaced are stolen then: nothing may come of what is
//! signed with one.

use super::{Event, World};
use crate::random::Random;
use crate::report::Mark;
use crate::violation::Broken;
use perdura_client::CallResult;
use perdura_protocol::{AdminCommand, Command, Encode, PublicKey, SecretKey, Versions, versions};

/// Runs in a hundred in which he orders such things.
const RUNS: u64 = 40;

/// Thefts of replaced keys, in a hundred.
const THEFTS: u64 = 40;

/// Under a version beyond this no service of a simulation runs.
const NEWEST: Versions = Versions { rules: versions::RULES, service: crate::witness::NEWEST };

/// What he is about.
#[derive(Debug)]
pub(crate) struct Orders {
    random: Random,
    /// Not for certain his yet.
    key: Option<SecretKey>,
    /// What was ordered and has not ended.
    under_way: Option<Order>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Versions,
    Limit,
    List,
    Key,
    /// By who stole the former key.
    Theft,
}

impl Orders {
    pub fn new(random: Random) -> Orders {
        Orders { random, key: None, under_way: None }
    }

    /// The administrator's process ends; what becomes of the order the next one does not know.
    pub fn forget(&mut self) {
        self.under_way = None;
    }
}

impl World {
    /// In some runs he begins.
    pub(crate) fn begin_orders(&mut self) {
        if self.orders.random.percent(RUNS) {
            self.push_order();
        }
    }

    fn push_order(&mut self) {
        let most = self.plan.chaos.interval_us * 4;
        let delay = self.orders.random.between(1_000, most.max(2_000));
        self.push(delay, Event::Order);
    }

    /// He orders the next thing, if he has nothing else to do.
    pub(crate) fn next_order(&mut self) {
        if self.ending.begun() {
            return;
        }
        self.push_order();
        let admin = self.clients.len() - 1;
        if self.clients[admin].administered.is_some() || !self.clients[admin].is_running() {
            return;
        }
        self.take_up_key();
        match self.orders.random.below(10) {
            0..4 => self.order_versions(),
            4..6 => self.order_limit(),
            6..7 => self.begin_order(Order::List, AdminCommand::ListClients),
            _ => self.order_key(),
        };
    }

    fn begin_order(&mut self, order: Order, command: AdminCommand) {
        self.trace.line(self.now_us, format_args!("admin orders {command:?}"));
        self.administer_command(command);
        self.orders.under_way = Some(order);
    }

    /// The rules or the service's version, or both; rarely those of long ago.
    fn order_versions(&mut self) {
        let random = &mut self.orders.random;
        let versions = *random.pick(&[
            NEWEST,
            NEWEST,
            Versions { rules: NEWEST.rules, service: 1 },
            Versions::FIRST,
        ]);
        self.begin_order(Order::Versions, AdminCommand::RaiseVersions(versions));
    }

    fn order_limit(&mut self) {
        // Some lower it, which is refused.
        let bytes = (1 << 30) + self.orders.random.below(1 << 30);
        self.begin_order(Order::Limit, AdminCommand::RaiseStateLimit { bytes });
    }

    /// A new key, or the one of which it is not known whether it is the administrator's.
    fn order_key(&mut self) {
        let key = self.fresh_administrator();
        self.begin_order(Order::Key, AdminCommand::ReplaceAdministrator { key });
    }

    /// The key that is to take the place of the administrator's.
    pub(crate) fn fresh_administrator(&mut self) -> PublicKey {
        let (scheme, random) = (self.plan.scheme, &mut self.orders.random);
        let fresh = || SecretKey::from_seed(scheme, random.bytes32());
        self.orders.key.get_or_insert_with(fresh).public()
    }

    /// What he had ordered ended so.
    pub(crate) fn order_ended(&mut self, result: &CallResult) {
        let Some(order) = self.orders.under_way.take() else { return };
        let done = matches!(result, CallResult::Completed(_));
        match order {
            Order::Versions if done => self.mark(Mark::VersionsRaised),
            Order::Limit if done => self.mark(Mark::LimitRaised),
            Order::List if done => self.mark(Mark::ClientsListed),
            Order::Key if done && self.orders.random.percent(THEFTS) => self.steal(),
            Order::Key if done => self.take_up_key(),
            // Certain, as long as nobody gave the key away: under the first rules there is no such command.
            Order::Key if matches!(result, CallResult::Refused(_)) => {}
            Order::Theft if done => {
                let what = "who had stolen the key of a former administrator revoked a client";
                self.fail(Broken::new("Revocation (E4)", what.to_owned()));
            }
            Order::Theft => {
                self.mark(Mark::FormerKeyRefused);
                self.take_up_key();
            }
            Order::Versions | Order::Limit | Order::List | Order::Key => {}
        }
    }

    /// Somebody goes on with the former key, and would do harm.
    fn steal(&mut self) {
        let command = AdminCommand::RevokeClient { name: "client-0".to_owned() };
        self.trace.line(self.now_us, format_args!("a thief orders {command:?}"));
        if self.administer_unseen(Command::Admin(command).to_bytes()) {
            self.orders.under_way = Some(Order::Theft);
        }
    }

    /// If replicas know the new key, as their status shows, it is used from here on.
    pub(crate) fn take_up_key(&mut self) {
        let Some(key) = &self.orders.key else { return };
        let public = key.public();
        let mut processes = self.replicas.iter().filter_map(|replica| replica.process.as_ref());
        if !processes.any(|process| process.machine().administrator() == public) {
            return;
        }
        let Some(key) = self.orders.key.take() else { return };
        let admin = self.clients.len() - 1;
        let former = self.clients[admin].key.public();
        self.trace.line(self.now_us, format_args!("the administrator has another key"));
        self.mark(Mark::AdministratorReplaced);
        let last = self.checkers.agreement.last();
        self.checkers.revocation.revoked(former, last);
        self.restart_administrator(key);
    }

    /// His process ends, and another one starts with this key.
    pub(crate) fn restart_administrator(&mut self, key: SecretKey) {
        let admin = self.clients.len() - 1;
        self.end_client(admin);
        self.clients[admin].take_key(key);
        self.start_client(admin);
    }
}
