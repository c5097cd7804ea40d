//! This replica's log, as far as the node gives to it and hears of it: the only place that knows what is logged.
//!
//! Records that agreement waits for are counted: its *sequence*. Appends are numbered: their *marks*. An append takes all records that wait, so a mark
//! that is durable makes durable whatever was noted before it was given.
//!
//! The others go on while this disk stands still, and what they decide would pile up here: a
//! hundred MB in a second. Beyond its bound a replica executes nothing more. It is a laggard then,
//! votes for no more than a pipeline's depth, and fetches what it missed when its disk goes on (A6).

use super::flushes::Flushes;
use super::{Node, Now, Output, Stage};
use perdura_protocol::{Record, Slot, seeded};
use std::collections::VecDeque;

/// Bytes that may wait for the disk in a real replica: some seconds of full load, which a disk that
/// is collecting garbage may take, and little beside the state.
pub const BACKLOG_BYTES: usize = 256 * 1024 * 1024;

/// Appends that may be under way; what comes then waits for the next, in one. The keeper's queue has
/// room for more, so that the event loop never waits for the disk.
pub(super) const APPENDS: usize = 1024;

/// Records that nothing waits for are appended after this time at the latest.
pub(super) const NOTE_MS: u64 = 100;

/// Notes that wait to be appended; with more, they are appended at once.
pub const NOTES: usize = 1024;

/// What a record counts for, without its batch.
pub const NOTE_BYTES: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    // Not appended yet; whether something waits for one of them, and since when the first of the others waits.
    records: Vec<Record>,
    forced: bool,
    noted_ms: Option<u64>,
    // Records that agreement waits for, given so far, and how many of them are durable.
    sequence: u64,
    persisted: u64,
    // The last append, the last that is durable, and those between them.
    appended: u64,
    durable: u64,
    appending: Flushes,
    backlog: Backlog,
    // Bytes that may wait for the disk, and whether more do.
    bound: usize,
    lags: bool,
    // Executed slots that are not logged: with the sequence that has to be persisted for it; and the last that is.
    executed: VecDeque<(Slot, u64)>,
    executed_at: u64,
    logged: Slot,
}

impl Journal {
    /// Of a replica that has executed up to this slot, from its log. So many bytes may wait.
    pub fn new(bound: usize, logged: Slot) -> Journal {
        Journal {
            records: Vec::new(),
            forced: false,
            noted_ms: None,
            sequence: 0,
            persisted: 0,
            appended: 0,
            durable: 0,
            appending: Flushes::default(),
            backlog: Backlog::default(),
            bound,
            lags: false,
            executed: VecDeque::new(),
            executed_at: 0,
            logged,
        }
    }

    /// Adds a record that agreement waits for.
    pub fn force(&mut self, record: Record) {
        self.add(record);
        self.forced = true;
        self.sequence += 1;
    }

    /// Adds a record that nothing waits for; a newer Delivered mark takes the place of the last.
    pub fn note(&mut self, now_ms: u64, record: Record) {
        let marks = (&record, self.records.last());
        if let (Record::Delivered { .. }, Some(Record::Delivered { .. })) = marks {
            let older = self.records.pop();
            self.backlog.remove(older.as_ref());
        }
        self.add(record);
        self.noted_ms.get_or_insert(now_ms);
    }

    /// The same, in the place of one that waits and is `of_same`.
    pub fn note_anew(&mut self, now_ms: u64, record: Record, of_same: impl Fn(&Record) -> bool) {
        match self.records.iter_mut().find(|waiting| of_same(waiting)) {
            Some(waiting) => *waiting = record,
            None => {
                self.add(record);
                self.noted_ms.get_or_insert(now_ms);
            }
        }
    }

    fn add(&mut self, record: Record) {
        self.backlog.add(&record);
        self.records.push(record);
    }

    /// Whether something waits for a record that is not appended.
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// The mark whose durability makes everything noted so far durable; what waits is appended in
    /// this round.
    pub fn log_all(&mut self) -> u64 {
        self.forced |= !self.records.is_empty();
        self.appended + u64::from(self.forced)
    }

    /// Whether an append is due.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let due = self.noted_ms.is_some_and(|since| now_ms >= since + NOTE_MS)
            || self.records.len() >= NOTES;
        !self.records.is_empty() && (self.forced || due) && !self.backlog.is_busy()
    }

    /// The next append and its mark.
    pub fn append(&mut self, now_ms: u64) -> (Vec<Record>, u64) {
        let mut records = std::mem::take(&mut self.records);
        if seeded!(MarkAheadOfWrite) && records.len() > 2 {
            self.records = records.split_off(2);
        }
        self.forced = false;
        self.noted_ms = None;
        self.appended += 1;
        self.backlog.append(self.appended);
        self.appending.begin(self.appended, self.sequence, now_ms);
        (records, self.appended)
    }

    /// An append is durable.
    pub fn came_back(&mut self, mark: u64) {
        self.durable = self.durable.max(mark);
    }

    /// And nothing that waits for it is to come before what agreement and execution do of it.
    pub fn persist(&mut self, now_ms: u64) {
        self.backlog.persisted(self.durable);
        if let Some(sequence) = self.appending.end(self.durable, now_ms) {
            self.persisted = sequence;
        }
    }

    /// Whether all is durable that was noted before this mark was given.
    pub fn has(&self, mark: u64) -> bool {
        mark <= self.durable
    }

    /// How many of the records that agreement waits for are durable.
    pub fn persisted(&self) -> u64 {
        self.persisted
    }

    /// How long flushes take, milliseconds: the longest of the last seconds.
    pub fn longest_ms(&mut self, now_ms: u64) -> u64 {
        self.appending.longest_ms(now_ms)
    }

    /// For how long an append hangs that is under way, milliseconds.
    pub fn hangs_ms(&self, now_ms: u64) -> u64 {
        self.appending.hangs_ms(now_ms)
    }

    /// A batch is executed whose record is `logged_at` in the sequence: gives the sequence that has to be persisted for replies of it.
    pub fn execute(&mut self, logged_at: u64) -> u64 {
        self.executed_at = self.executed_at.max(logged_at);
        self.executed_at
    }

    /// The sequence that has to be persisted for replies of whatever was executed.
    pub fn executed_at(&self) -> u64 {
        self.executed_at
    }

    /// What is executed comes up to this slot.
    pub fn executed(&mut self, slot: Slot) {
        self.executed.push_back((slot, self.executed_at));
    }

    /// A received state is executed up to this slot, and durable.
    pub fn installed(&mut self, slot: Slot) {
        self.executed.clear();
        self.logged = slot;
    }

    /// Goes on to the last executed slot that is logged.
    pub fn advance(&mut self) {
        let persisted = self.persisted;
        while let Some((slot, _)) = self.executed.pop_front_if(|(_, at)| *at <= persisted) {
            self.logged = slot;
        }
    }

    /// The last executed slot that is logged.
    pub fn logged(&self) -> Slot {
        self.logged
    }

    /// Bytes that may wait for the disk.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Bytes of records that wait for the disk, and those of the largest that there was.
    pub fn held(&self) -> (usize, usize) {
        (self.backlog.bytes, self.backlog.largest)
    }

    /// Whether too much waits for the disk.
    pub fn lags(&self) -> bool {
        self.lags
    }

    /// Looks whether too much waits, with so many bytes of replies; once too much did, until half of it is done. True where that is new.
    fn mind(&mut self, reply_bytes: usize) -> bool {
        let bound = if self.lags { self.bound / 2 } else { self.bound };
        let lags = self.backlog.bytes + reply_bytes > bound;
        std::mem::replace(&mut self.lags, lags) != lags
    }
}

/// The bytes of records that wait.
#[derive(Debug, Default)]
struct Backlog {
    bytes: usize,
    // Not appended yet.
    open: usize,
    // Appended: the mark that is to be reported, and the bytes.
    appended: VecDeque<(u64, usize)>,
    largest: usize,
}

fn size(record: &Record) -> usize {
    record.batch().map_or(NOTE_BYTES, |(_, batch)| batch.raw().len() + NOTE_BYTES)
}

impl Backlog {
    /// Whether no more appends should be begun.
    fn is_busy(&self) -> bool {
        self.appended.len() >= APPENDS
    }

    fn add(&mut self, record: &Record) {
        let bytes = size(record);
        self.bytes += bytes;
        self.open += bytes;
        self.largest = self.largest.max(bytes);
    }

    /// A record was replaced before it was appended.
    fn remove(&mut self, record: Option<&Record>) {
        let bytes = record.map_or(0, size).min(self.open);
        self.bytes -= bytes;
        self.open -= bytes;
    }

    fn append(&mut self, mark: u64) {
        self.appended.push_back((mark, std::mem::take(&mut self.open)));
    }

    fn persisted(&mut self, mark: u64) {
        while let Some((_, bytes)) = self.appended.pop_front_if(|(at, _)| *at <= mark) {
            self.bytes -= bytes;
        }
    }
}

impl Node {
    /// Stops executing when too much waits, and goes on when half of it is done.
    pub(super) fn mind_backlog(&mut self, now: Now) {
        if self.journal.mind(self.egress.bytes()) {
            self.agreement.on_disk_lag(now, self.journal.lags());
            self.carry_out(now);
        }
    }

    /// Gives the log what waits for it, where that is due.
    pub(super) fn append(&mut self, now: Now) {
        self.note_heard(now);
        if !self.journal.is_due(now.monotonic_ms) {
            return;
        }
        let before = self.stages.enter(Stage::Log);
        let (records, mark) = self.journal.append(now.monotonic_ms);
        self.outputs.push_back(Output::Append { records, mark });
        self.stages.go_back(before);
    }

    /// The log says that an append is durable.
    pub(super) fn on_persisted(&mut self, now: Now, mark: u64) {
        self.journal.came_back(mark);
        // Before a later state of its own that waits for the same flush: no state goes to disk behind a newer one.
        self.install_logged(now);
        self.journal.persist(now.monotonic_ms);
        self.answer_boots();
        self.agreement.on_persisted(now, self.journal.persisted());
        self.store_logged();
        self.digest_logged();
    }
}
