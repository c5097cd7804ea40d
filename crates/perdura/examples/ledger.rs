//! A replicated ledger. `ledger dev` runs one on this machine; `ledger pay DIR FROM TO AMOUNT` is a client of it.

#![allow(missing_docs)]

use perdura::{Context, Parts, QueryContext, Service, Sharded, blocking::Client};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

#[derive(Default)]
pub struct Ledger {
    pub accounts: Sharded<String, u64>,
    pub total: u64,
}

#[derive(Serialize, Deserialize, Debug)]
pub enum Command {
    Deposit { to: String, amount: u64 },
    Transfer { from: String, to: String, amount: u64 },
}

#[derive(Serialize, Deserialize, Debug)]
pub enum Query {
    Balance(String),
    Total,
}

#[derive(Serialize, Deserialize, Debug)]
pub enum Refused {
    TooLittle(u64),
    TooMuch,
}

impl Service for Ledger {
    const NAME: &'static str = "ledger";
    type Command = Command;
    type Query = Query;
    type Reply = u64;
    type Error = Refused;

    /// Gives what the receiver has then. What a refused command wrote is undone.
    fn execute(&mut self, _: &Context<'_>, command: Command) -> Result<u64, Refused> {
        let (to, amount) = match command {
            Command::Deposit { to, amount } => {
                self.total = self.total.checked_add(amount).ok_or(Refused::TooMuch)?;
                (to, amount)
            }
            Command::Transfer { from, to, amount } => {
                let has = self.accounts.get(&from).unwrap_or(0);
                let left = has.checked_sub(amount).ok_or(Refused::TooLittle(has))?;
                self.accounts.insert(from, left);
                (to, amount)
            }
        };
        let has = self.accounts.get(&to).unwrap_or(0) + amount;
        self.accounts.insert(to, has);
        Ok(has)
    }

    fn query(&self, _: &QueryContext, query: Query) -> Result<u64, Refused> {
        Ok(match query {
            Query::Balance(account) => self.accounts.get(&account).unwrap_or(0),
            Query::Total => self.total,
        })
    }

    fn parts(&mut self, parts: &mut Parts) {
        parts.map(&mut self.accounts);
        parts.value(&mut self.total);
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_none_or(|word| word != "pay") || words.len() != 5 {
        return Ok(perdura::cli::<Ledger>());
    }
    let (from, to, amount) = (words[2].clone(), words[3].clone(), words[4].parse()?);
    let has = Client::<Ledger>::open(&words[1])?.execute(&match from.as_str() {
        "bank" => Command::Deposit { to: to.clone(), amount },
        _ => Command::Transfer { from, to: to.clone(), amount },
    })?;
    println!("{to} has {has}");
    Ok(ExitCode::SUCCESS)
}
