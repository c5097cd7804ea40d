//! The administrator's words on other partitions, and on transactions that cannot end without one.

use super::certificate::SignedMembers;
use super::intent::Intent;
use super::reply::{PartitionReply, Reason};
use super::{Asker, Partition};
use crate::map::SegmentMap;
use perdura_protocol::PartitionId;

impl Partition {
    /// Another partition has ended: nothing that names it is prepared any more.
    pub(super) fn end_partition(
        &mut self,
        asker: &Asker<'_>,
        partition: PartitionId,
    ) -> Result<PartitionReply, String> {
        if asker.session.client != asker.administrator {
            return Err("only the administrator may say that a partition has ended".into());
        }
        if partition == self.place.partition || partition.index() >= self.place.map.partitions() {
            return Err(format!("partition {} is no other one", partition.0));
        }
        if self.ended.insert(partition) {
            self.book.put_ended(partition);
        }
        Ok(PartitionReply::Ended { partition })
    }

    /// Who the members of another group are.
    pub(super) fn learn(
        &mut self,
        asker: &Asker<'_>,
        newest: SignedMembers,
    ) -> Result<PartitionReply, String> {
        if newest.administrator != asker.administrator {
            return Err("this is not the administrator's word".into());
        }
        let members = &newest.members;
        let partition = members.partition;
        let Some(known) = self.members.get_mut(&partition) else {
            return Err(format!("there is no partition {}", partition.0));
        };
        if members.configuration == known.configuration && members.keys != known.keys {
            return Err(format!(
                "configuration {} of partition {} has other members: the administrator's key was used for two",
                members.configuration, partition.0
            ));
        }
        let has_word = self.words.contains_key(&partition);
        if members.configuration > known.configuration || (has_word && members == known) {
            // The same once more may be the word of a new administrator.
            *known = members.clone();
            self.book.put_members(&newest);
            self.words.insert(partition, newest);
        }
        Ok(PartitionReply::Known {
            partition,
            configuration: self.members[&partition].configuration,
        })
    }

    /// Ends a transaction without the votes.
    pub(super) fn force(
        &mut self,
        map: &mut SegmentMap,
        asker: &Asker<'_>,
        intent: Intent,
        commit: bool,
    ) -> Result<PartitionReply, String> {
        if asker.session.client != asker.administrator {
            return Err("only the administrator may end a transaction without the votes".into());
        }
        self.check_intent(&intent)?;
        let transaction = intent.id();
        match self.records.get(transaction).map(|record| record.outcome) {
            Some(Some(committed)) if committed != commit => {
                let decided = if committed { "committed" } else { "aborted" };
                return Err(format!("it was {decided} in partition {}", self.place.partition.0));
            }
            Some(Some(_)) => {}
            Some(None) => {
                self.tally.forced();
                self.end(map, transaction, commit);
            }
            None if commit => {
                let partition = self.place.partition.0;
                return Err(format!(
                    "partition {partition} has no part of it that could be committed"
                ));
            }
            None => self.remember_abort(transaction, intent, Reason::Resolved),
        }
        Ok(PartitionReply::Finished { transaction, committed: commit })
    }
}
