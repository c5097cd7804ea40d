//! A group of four with one liar (u = r = 1): quorums of three Writes, prefixes with two signers.

use super::*;
use perdura_protocol::configuration::{Configuration, Member};
use perdura_protocol::keys::{SecretKey, Signature};
use perdura_protocol::viewchange::Lock;
use perdura_protocol::{ClusterId, Time, limits};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const VIEW: View = View(6);

fn key(id: u8) -> SecretKey {
    SecretKey::from_seed(Scheme::KeyedHash, [id; 32])
}

fn configuration(id: u64, from_slot: u64) -> Configuration {
    let member = |id| Member { key: key(id).public(), incarnation: 0 };
    Configuration { id, from_slot: Slot(from_slot), members: (0..4).map(member).collect() }
}

fn configurations() -> Configurations {
    Configurations::new(CLUSTER, configuration(0, 0))
}

fn verifier(configurations: &Configurations, r: u8) -> Verifier<'_> {
    Verifier {
        faults: Faults::new(1, r).unwrap(),
        scheme: Scheme::KeyedHash,
        configurations,
        current: configurations.latest().id,
        entropy: [1; 32],
        window: limits::WINDOW,
        verified: Cell::new(0),
    }
}

impl Verifier<'_> {
    /// All that is looked at, in the order of its cost.
    fn view_change(&self, change: &ViewChange) -> Result<(), Invalid> {
        self.formed(change).and_then(|()| self.signed(change)).and_then(|()| self.proven(change))
    }
}

fn digest(number: u64) -> Digest {
    Batch::tick(Time(number)).digest()
}

fn signed(
    signers: &[u8],
    configuration: u64,
    kind: StatementKind,
    view: View,
    slot: Slot,
    digest: Digest,
) -> Certificate {
    let message = Context { cluster: CLUSTER, configuration }.statement(kind, view, slot, digest);
    Certificate::new(signers.iter().map(|id| (ReplicaId(*id), key(*id).sign(&message))).collect())
}

/// The prefix up to `slot`, signed by `signers`.
fn prefix_in(configuration: u64, slot: u64, signers: &[u8]) -> PrefixCertificate {
    let (slot, history) = (Slot(slot), digest(slot));
    let certificate = signed(signers, configuration, StatementKind::Prefix, View(0), slot, history);
    PrefixCertificate { slot, history, configuration, certificate }
}

fn prefix(slot: u64, signers: &[u8]) -> PrefixCertificate {
    prefix_in(0, slot, signers)
}

fn lock(slot: u64, view: u64, batch: u64, signers: &[u8]) -> Lock {
    let (slot, view, digest) = (Slot(slot), View(view), digest(batch));
    Lock {
        slot,
        view,
        digest,
        writes: signed(signers, 0, StatementKind::Write, view, slot, digest),
    }
}

fn sign_change(mut change: ViewChange, signer: u8) -> ViewChange {
    let context = Context { cluster: CLUSTER, configuration: change.configuration };
    let message =
        context.statement(StatementKind::ViewChange, change.view, Slot(0), change.body_digest());
    change.signature = key(signer).sign(&message);
    change
}

/// A view change of `sender` to [`VIEW`] from the prefix at 64.
fn change(sender: u8, locks: Vec<Lock>) -> ViewChange {
    let change = ViewChange {
        view: VIEW,
        sender: ReplicaId(sender),
        configuration: 0,
        prefix: prefix(64, &[0, 3]),
        locks,
        signature: Signature::NONE,
    };
    sign_change(change, sender)
}

fn sign_new_view(mut new_view: NewView, signer: u8) -> NewView {
    let context = Context { cluster: CLUSTER, configuration: new_view.configuration };
    let message =
        context.statement(StatementKind::NewView, new_view.view, Slot(0), new_view.body_digest());
    new_view.signature = key(signer).sign(&message);
    new_view
}

/// The leader of [`VIEW`] starts it from `changes`.
fn new_view(changes: Vec<ViewChange>) -> NewView {
    let (view, sender, signature) = (VIEW, VIEW.leader(4), Signature::NONE);
    sign_new_view(NewView { view, sender, configuration: 0, changes, signature }, sender.0)
}

fn quorum_of_changes() -> Vec<ViewChange> {
    [0, 1, 3].map(|sender| change(sender, vec![lock(70, 5, 1, &[0, 1, 2])])).to_vec()
}

#[test]
fn a_certificate_needs_enough_signers_and_all_of_them_genuine() {
    let known = configurations();
    let verifier = verifier(&known, 1);
    let certified = |certificate: &Certificate| {
        verifier.certified(certificate, 3, StatementKind::Accept, VIEW, Slot(9), digest(1))
    };
    let by = |signers: &[u8]| signed(signers, 0, StatementKind::Accept, VIEW, Slot(9), digest(1));
    assert!(certified(&by(&[0, 2, 3])));
    assert!(certified(&by(&[0, 1, 2, 3])), "more than needed do no harm");
    assert!(!certified(&by(&[0, 2])));
    assert!(!certified(&by(&[0, 2, 4])), "replica 4 is not of the group");
    assert!(!certified(&signed(&[0, 2, 3], 0, StatementKind::Accept, VIEW, Slot(8), digest(1))));
    let mut forged = by(&[0, 2, 3]).signatures().to_vec();
    forged[2].1 = Signature([1; 64]);
    assert!(!certified(&Certificate::new(forged)));
}

#[test]
fn a_prefix_needs_one_signer_more_than_may_lie() {
    let known = configurations();
    let verifier = verifier(&known, 1);
    assert!(verifier.prefix(&PrefixCertificate::genesis()));
    let other = PrefixCertificate { history: digest(3), ..PrefixCertificate::genesis() };
    assert!(!verifier.prefix(&other), "nothing comes before slot 1");
    assert!(verifier.prefix(&prefix(64, &[1, 2])));
    assert!(verifier.prefix(&prefix(64, &[1, 2, 3])));
    assert!(!verifier.prefix(&prefix(64, &[1])));
    assert!(!verifier.prefix(&prefix(64, &[1, 5])));
    let moved = PrefixCertificate { slot: Slot(128), ..prefix(64, &[1, 2]) };
    assert!(!verifier.prefix(&moved));
}

#[test]
fn a_prefix_is_signed_in_the_configuration_of_its_slot() {
    let mut known = Configurations::new(CLUSTER, configuration(2, 100));
    known.add(configuration(3, 200));
    let verifier = verifier(&known, 1);
    let holds = |configuration, slot| verifier.prefix(&prefix_in(configuration, slot, &[0, 1]));
    assert!(holds(2, 100) && holds(2, 199) && holds(3, 200));
    assert!(!holds(1, 100) && !holds(2, 200) && !holds(3, 199));
    assert!(holds(1, 99), "of older ones only the number is known to who joined later");
}

#[test]
fn a_view_change_is_its_senders_own_in_the_current_configuration() {
    let known = configurations();
    let verifier = verifier(&known, 1);
    let genuine = change(1, vec![lock(65, 0, 1, &[0, 1, 2]), lock(66, 5, 2, &[1, 2, 3])]);
    assert_eq!(verifier.view_change(&genuine), Ok(()));
    assert_eq!(verifier.view_change(&change(1, Vec::new())), Ok(()));
    let signature = Err(Invalid::Signature);
    assert_eq!(verifier.view_change(&sign_change(genuine.clone(), 2)), signature);
    assert_eq!(verifier.view_change(&change(4, Vec::new())), signature, "not of the group");
    let altered = ViewChange { view: View(7), ..genuine.clone() };
    assert_eq!(verifier.view_change(&altered), signature);
    let elsewhere = sign_change(ViewChange { configuration: 1, ..genuine }, 1);
    assert_eq!(verifier.view_change(&elsewhere), Err(Invalid::OtherConfiguration));
}

#[test]
fn locks_older_than_the_oldest_known_configuration_are_not_judged() {
    let known = Configurations::new(CLUSTER, configuration(0, 70));
    let verifier = verifier(&known, 1);
    let of = |slot| change(1, vec![lock(slot, 5, 1, &[0, 1, 2])]);
    assert_eq!(verifier.view_change(&of(69)), Err(Invalid::OtherConfiguration));
    assert_eq!(verifier.view_change(&of(70)), Ok(()));
    assert_eq!(verifier.view_change(&of(71)), Ok(()));
}

#[test]
fn a_view_change_without_a_certified_prefix_is_void() {
    let known = configurations();
    let verifier = verifier(&known, 1);
    let bare = ViewChange { prefix: prefix(64, &[1]), ..change(1, Vec::new()) };
    assert_eq!(verifier.view_change(&sign_change(bare, 1)), Err(Invalid::Prefix));
    let first = ViewChange { prefix: PrefixCertificate::genesis(), ..change(1, Vec::new()) };
    assert_eq!(verifier.view_change(&sign_change(first, 1)), Ok(()));
}

#[test]
fn locks_lie_in_the_window_above_the_prefix_in_earlier_views() {
    let known = configurations();
    let end = 64 + limits::WINDOW;
    for r in [0, 1] {
        let verifier = verifier(&known, r);
        let of = |slot, view| change(1, vec![lock(slot, view, 1, &[0, 1, 2])]);
        for (slot, view) in [(65, 5), (end, 5), (70, 0)] {
            assert_eq!(verifier.view_change(&of(slot, view)), Ok(()), "{slot} {view}");
        }
        for (slot, view) in [(63, 5), (64, 5), (end + 1, 5), (70, 6), (70, 7)] {
            assert_eq!(verifier.view_change(&of(slot, view)), Err(Invalid::Lock), "{slot} {view}");
        }
    }
}

#[test]
fn a_lock_is_proven_by_exactly_a_quorum_of_genuine_writes() {
    let known = configurations();
    let of = |lock| change(1, vec![lock, self::lock(80, 5, 2, &[0, 1, 2])]);
    let mut unsigned = lock(70, 5, 1, &[0, 1, 2]);
    unsigned.writes = Certificate::default();
    let mut other_batch = lock(70, 5, 1, &[0, 1, 2]);
    other_batch.digest = digest(2);
    let mut other_view = lock(70, 5, 1, &[0, 1, 2]);
    other_view.view = View(4);
    let unproven =
        [lock(70, 5, 1, &[0, 1]), lock(70, 5, 1, &[0, 1, 2, 3]), lock(70, 5, 1, &[0, 1, 4])];
    let unproven = unproven.into_iter().chain([unsigned, other_batch, other_view]);
    for lock in unproven {
        let change = of(lock);
        assert_eq!(verifier(&known, 1).view_change(&change), Err(Invalid::Lock), "{change:?}");
        assert_eq!(verifier(&known, 0).view_change(&change), Ok(()), "where nobody lies");
    }
}

#[test]
fn a_new_view_is_its_leaders_from_a_quorum_of_changes_to_it() {
    let known = configurations();
    let verifier = verifier(&known, 1);
    let check = |new_view: &NewView| verifier.new_view(new_view, |_| false);
    let genuine = new_view(quorum_of_changes());
    assert_eq!(check(&genuine), Ok(()));
    let all = [0, 1, 2, 3].map(|sender| change(sender, Vec::new()));
    assert_eq!(check(&new_view(all.to_vec())), Ok(()), "more than a quorum");
    assert_eq!(check(&new_view(quorum_of_changes()[..2].to_vec())), Err(Invalid::Quorum));
    let usurper = NewView { sender: ReplicaId(3), ..genuine.clone() };
    assert_eq!(check(&sign_new_view(usurper, 3)), Err(Invalid::Quorum), "3 does not lead view 6");
    let mut mixed = quorum_of_changes();
    mixed[1] = sign_change(ViewChange { view: View(10), ..mixed[1].clone() }, 1);
    assert_eq!(check(&new_view(mixed)), Err(Invalid::Quorum), "one of the changes is to view 10");
    assert_eq!(check(&sign_new_view(genuine.clone(), 3)), Err(Invalid::Signature));
    let elsewhere = sign_new_view(NewView { configuration: 1, ..genuine }, 2);
    assert_eq!(check(&elsewhere), Err(Invalid::OtherConfiguration));
}

#[test]
fn a_new_view_with_one_invalid_change_is_void_and_known_changes_are_not_checked_again() {
    let known = configurations();
    let verifier = verifier(&known, 1);
    let mut changes = quorum_of_changes();
    changes[2].signature = Signature([1; 64]);
    let new_view = new_view(changes);
    assert_eq!(verifier.new_view(&new_view, |_| false), Err(Invalid::Signature));
    let bad = |change: &ViewChange| change.sender == ReplicaId(3);
    assert_eq!(verifier.new_view(&new_view, bad), Ok(()));
    assert_eq!(verifier.new_view(&new_view, |change| !bad(change)), Err(Invalid::Signature));
}

#[test]
fn the_highest_lock_of_each_slot_above_the_highest_prefix_is_chosen() {
    let null = Batch::null().digest();
    let low = ViewChange { prefix: prefix(10, &[0, 1]), ..change(0, Vec::new()) };
    let changes = [
        change(1, vec![lock(66, 3, 1, &[]), lock(68, 1, 4, &[])]),
        ViewChange { locks: vec![lock(60, 2, 9, &[]), lock(64, 2, 9, &[])], ..low },
        change(3, vec![lock(66, 5, 2, &[]), lock(68, 0, 3, &[])]),
    ];
    let start = Start::choose(changes.iter());
    assert_eq!(start.base, prefix(64, &[0, 3]));
    let expected = [(65, null), (66, digest(2)), (67, null), (68, digest(4))];
    assert_eq!(start.choices, expected.map(|(slot, digest)| (Slot(slot), digest)).into());
    assert_eq!(start.choice(Slot(66)), Choice::Reproposed(digest(2)));
    assert_eq!(start.choice(Slot(67)), Choice::Reproposed(null), "nobody holds a lock");
    assert_eq!(start.choice(Slot(69)), Choice::Free);
    assert_eq!(Start::choose(changes.iter().rev()), start, "in whatever order they come");
}

#[test]
fn without_locks_everything_is_free() {
    let free = Start::choose([change(1, Vec::new())].iter());
    assert_eq!(free.base.slot, Slot(64));
    assert!(free.choices.is_empty());
    assert_eq!(Start::choose([].iter()), Start::genesis());
    // All locks are below a prefix that another one knows.
    let behind = ViewChange { prefix: prefix(10, &[0, 1]), ..change(0, vec![lock(60, 2, 9, &[])]) };
    assert!(Start::choose([behind, change(1, Vec::new())].iter()).choices.is_empty());
}
