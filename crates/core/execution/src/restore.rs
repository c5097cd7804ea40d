//! A machine from a snapshot's pieces (rule D5: verified before it replaces anything).
//!
//! The manifest was certified or read from this replica's own disk; each piece is held against it,
//! and the decoders take only what an encoder writes, so that the restored machine gives the same
//! pieces again.

use crate::administration::Registry;
use crate::alone::Alone;
use crate::asked::{Asked, Call};
use crate::interface::Inspector;
use crate::machine::{Machine, newest_versions};
use crate::manifest::Manifest;
use crate::rules_in_force::RulesInForce;
use crate::service::Service;
use crate::session::Session;
use crate::sessions::{Sessions, Table};
use bytes::Bytes;
use perdura_protocol::configuration::{Parameters, Schedule};
use perdura_protocol::fields::{FieldError, Fields};
use perdura_protocol::versions::VersionError;
use perdura_protocol::{Decode, DecodeError, PublicKey, Reader, SessionId, Time, Versions, limits};

/// Why pieces are not a state. Nothing was replaced; fetch them again, or from another replica.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// It goes on under newer versions than this program knows.
    #[error(transparent)]
    Versions(#[from] VersionError),
    /// There are more or fewer pieces than the manifest names.
    #[error("the manifest names {expected} pieces, {found} are there")]
    Count {
        /// In the manifest.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// A piece is not the one in the manifest.
    #[error("piece {0} is not the one that the manifest names")]
    Digest(usize),
    /// A piece or a service's segment does not decode.
    #[error("piece {index} is malformed: {reason}")]
    Malformed {
        /// Index of the piece, or of the segment among the service's.
        index: usize,
        /// What is wrong.
        reason: DecodeError,
    },
    /// The fields of the core are not those of this program.
    #[error("piece 0 is malformed: {0}")]
    Core(#[from] FieldError),
    /// The pieces decode, but no machine gives them.
    #[error("the pieces contradict each other: {0}")]
    Contradiction(&'static str),
}

impl RestoreError {
    /// Whether these are not the pieces that were written. Else they are, and this program does not read them.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, RestoreError::Count { .. } | RestoreError::Digest(_))
    }
}

impl<S: Service> Machine<S> {
    /// The machine whose snapshot had this manifest and these pieces. `service` is in its initial
    /// state.
    ///
    /// # Errors
    /// When the pieces are not those of the manifest, or not those of a machine with these
    /// parameters.
    pub fn restore(
        parameters: &Parameters,
        manifest: &Manifest,
        pieces: Vec<Bytes>,
        service: S,
    ) -> Result<Machine<S>, RestoreError> {
        Machine::restore_telling(parameters, manifest, pieces, service, Asked::default())
    }

    /// The same, which tells there what its service is being asked.
    ///
    /// # Errors
    /// As [`Machine::restore`].
    pub fn restore_telling(
        parameters: &Parameters,
        manifest: &Manifest,
        mut pieces: Vec<Bytes>,
        mut service: S,
        asked: Asked,
    ) -> Result<Machine<S>, RestoreError> {
        manifest.versions.check(newest_versions(&service))?;
        let expected = manifest.entries().len();
        if pieces.len() != expected {
            return Err(RestoreError::Count { expected, found: pieces.len() });
        }
        let wrong = || (0..expected).find(|index| !manifest.verify(*index, &pieces[*index]));
        if let Some(index) = asked.about(Call::Install, manifest.slot, wrong) {
            return Err(RestoreError::Digest(index));
        }
        let segments = pieces.split_off(1 + manifest.sessions());
        let mut reader = Reader::new(pieces[0].clone());
        let malformed = |reason| RestoreError::Malformed { index: 0, reason };
        let head = Head::decode(&mut reader, parameters, manifest.versions)?;
        let timed = head.stood_ms.is_some();
        let core = Core::decode(&mut reader, parameters, head.administrator, timed)
            .and_then(|core| reader.finish().map(|()| core))
            .map_err(malformed)?;
        let rules =
            RulesInForce { versions: manifest.versions, state_limit_bytes: head.state_limit_bytes };
        rules.tell(&mut service, manifest.slot);
        let sessions = Sessions::restored(core.tables, head.stood_ms);
        let sessions = restore_sessions(manifest, head.time, sessions, &pieces)?;
        let inspector = Inspector::of(&service, manifest.slot, &asked);
        asked.about(Call::Install, manifest.slot, || service.restore(segments))?;
        rules.tell(&mut service, manifest.slot);
        Ok(Machine {
            cluster: parameters.cluster,
            offer_ms: parameters.offer_ms(),
            slot: manifest.slot,
            time: head.time,
            history: manifest.history,
            turn: head.turn,
            rules,
            next_rules: rules,
            registry: core.registry,
            sessions,
            service,
            inspector,
            asked,
        })
    }
}

/// What stands before the registry in the core.
struct Head {
    time: Time,
    turn: Option<u64>,
    state_limit_bytes: u64,
    administrator: PublicKey,
    stood_ms: Option<u64>,
}

impl Head {
    fn decode(
        reader: &mut Reader,
        parameters: &Parameters,
        versions: Versions,
    ) -> Result<Head, RestoreError> {
        let turns = parameters.schedule == Schedule::Sequential;
        let malformed = |reason| RestoreError::Malformed { index: 0, reason };
        if versions.rules == 0 {
            let first = |reader: &mut Reader| {
                let time = Decode::decode(reader)?;
                let turn = if turns { Some(Decode::decode(reader)?) } else { None };
                Ok((time, turn))
            };
            let (time, turn) = first(reader).map_err(malformed)?;
            let Parameters { state_limit_bytes, administrator, .. } = *parameters;
            return Ok(Head { time, turn, state_limit_bytes, administrator, stood_ms: None });
        }
        let mut fields = Fields::decode(reader).map_err(malformed)?;
        let head = Head {
            time: fields.need("time")?,
            turn: if turns { Some(fields.need("turn")?) } else { None },
            state_limit_bytes: fields.need("state-limit-bytes")?,
            administrator: fields.need("administrator")?,
            stood_ms: Some(fields.need("stood-ms")?),
        };
        fields.pass_over()?;
        // A state has one encoding, so nothing is in it that may be passed over.
        if fields != Fields::default() {
            return Err(RestoreError::Contradiction("a field of the core that nobody needs"));
        }
        if head.state_limit_bytes < parameters.state_limit_bytes {
            return Err(RestoreError::Contradiction("the state's limit was lowered"));
        }
        Ok(head)
    }
}

struct Core {
    registry: Registry,
    // Ascending by key; without their live sessions.
    tables: Vec<(PublicKey, Table)>,
}

impl Core {
    fn decode(
        reader: &mut Reader,
        parameters: &Parameters,
        administrator: PublicKey,
        timed: bool,
    ) -> Result<Core, DecodeError> {
        let registry = Registry::decode(reader, parameters, administrator)?;
        let mut tables: Vec<(PublicKey, Table)> = Vec::new();
        for _ in 0..reader.count("clients with sessions", limits::CLIENTS + 1, 44)? {
            let key = PublicKey::decode(reader)?;
            let ascending = tables.last().is_none_or(|(last, _)| *last < key);
            if !ascending || !registry.is_client(key) {
                return Err(DecodeError::NotCanonical("clients with sessions"));
            }
            tables.push((key, Table::decode(reader, timed)?));
        }
        Ok(Core { registry, tables })
    }
}

/// Puts the session pieces (all but the first of `pieces`) back under their clients.
fn restore_sessions(
    manifest: &Manifest,
    now: Time,
    mut sessions: Sessions,
    pieces: &[Bytes],
) -> Result<Sessions, RestoreError> {
    let clock = sessions.clock(now);
    let mut last: Option<SessionId> = None;
    for (index, piece) in pieces.iter().enumerate().skip(1) {
        let (id, session) = Session::from_piece(piece.clone(), clock.is_some())
            .map_err(|reason| RestoreError::Malformed { index, reason })?;
        let held = session.held();
        let later = held.last_used > manifest.slot || held.renewed > clock;
        if last.is_some_and(|last| last >= id) || later {
            return Err(RestoreError::Contradiction("order, slots or times of sessions"));
        }
        last = Some(id);
        if !sessions.put_back(now, id, session) {
            return Err(RestoreError::Contradiction("a session that was not opened"));
        }
    }
    if !sessions.are_complete() {
        return Err(RestoreError::Contradiction("more sessions than there may be"));
    }
    Ok(sessions)
}
