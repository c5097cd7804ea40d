//! What a new log file repeats, so that dropping the files before it loses nothing: the view, the
//! configurations, how far the agreed prefix was known, the newest certified state, and the boots and newest votes of others.

use perdura_protocol::configuration::Configuration;
use perdura_protocol::message::StateCertificate;
use perdura_protocol::viewchange::PrefixCertificate;
use perdura_protocol::{Digest, PublicKey, Record, ReplicaId, Slot, View, seeded};
use std::collections::BTreeMap;

/// The newest records of the kinds that are not bound to a slot's agreement.
#[derive(Clone, Default, Debug)]
pub(crate) struct Carry {
    view: Option<View>,
    configurations: BTreeMap<u64, Configuration>,
    prefix: Option<PrefixCertificate>,
    delivered: Option<(Slot, Digest)>,
    state: Option<StateCertificate>,
    boots: BTreeMap<ReplicaId, (PublicKey, Record)>,
    heard: BTreeMap<ReplicaId, (PublicKey, Record)>,
}

impl Carry {
    /// As many configurations as `protocol` remembers.
    const CONFIGURATIONS: usize = 16;

    /// Takes a record into account.
    pub(crate) fn observe(&mut self, record: &Record) {
        match record {
            Record::View(view) => self.view = self.view.max(Some(*view)),
            Record::Configuration(configuration) => {
                self.configurations.insert(configuration.id, configuration.clone());
                if self.configurations.len() > Self::CONFIGURATIONS {
                    self.configurations.pop_first();
                }
            }
            Record::Prefix(prefix) => {
                if self.prefix.as_ref().is_none_or(|known| known.slot < prefix.slot) {
                    self.prefix = Some(prefix.clone());
                }
            }
            Record::Delivered { slot, history } => {
                if self.delivered.is_none_or(|(known, _)| known < *slot) {
                    self.delivered = Some((*slot, *history));
                }
            }
            Record::State(state) => {
                if self.state.as_ref().is_none_or(|known| known.slot <= state.slot) {
                    self.state = Some(state.clone());
                }
            }
            // They come in their order, and what another key signed is an incarnation's that was replaced.
            Record::Boot { .. } if seeded!(BootsNotCarried) => {}
            Record::Boot { replica, key, .. } => {
                self.heard.retain(|of, (by, _)| of != replica || by == key);
                self.boots.insert(*replica, (*key, record.clone()));
            }
            Record::Heard { replica, key, .. } => {
                self.boots.retain(|of, (by, _)| of != replica || by == key);
                self.heard.insert(*replica, (*key, record.clone()));
            }
            Record::Vote { .. } | Record::Decision { .. } | Record::Accepts { .. } => {}
        }
    }

    /// The records to repeat.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> = self.view.map(Record::View).into_iter().collect();
        records.extend(self.configurations.values().cloned().map(Record::Configuration));
        records.extend(self.prefix.clone().map(Record::Prefix));
        records.extend(self.delivered.map(|(slot, history)| Record::Delivered { slot, history }));
        records.extend(self.state.clone().map(Record::State));
        let of_others = self.boots.values().chain(self.heard.values());
        records.extend(of_others.map(|(_, record)| record.clone()));
        records
    }
}
