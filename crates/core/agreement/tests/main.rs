//! Agreement machines by themselves, and in groups.

mod costs;
mod gathering;
mod group;
mod harness;
mod laggard;
mod new_views;
mod planning;
mod proofs;
mod slow_disk;
mod successors;
mod suspicion;

#[test]
fn costly_slots_are_proposed_one_after_the_other() {
    planning::costly_slots_are_proposed_one_after_the_other();
}
