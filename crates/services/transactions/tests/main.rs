//! Clients of a partitioned store, on partitions in this process that carry out commands in any order.

mod crowds;
mod fullness;
mod pages;
mod run;
mod seeded;
mod support;
mod words;
