//! What the program says of itself.

use crate::common::{fitting_helps, program};

#[test]
fn help_fits_in_a_hundred_columns() {
    let commands = fitting_helps(program);
    for some in ["kv put", "replica reinit", "client add", "bench failover", "space endwait"] {
        let words: Vec<&str> = some.split(' ').collect();
        assert!(commands.iter().any(|command| *command == words), "no {some} in {commands:?}");
    }
}
