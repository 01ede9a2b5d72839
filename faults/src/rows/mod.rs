//! The rows of the fault matrix that are measured, each a fault that happens to instances under load.

mod availability;
mod cluster;
mod crowd;
mod failover;
mod herd;
mod network;
mod people;
mod process;
mod store;

pub(crate) use crowd::{BUDGET_MIB, Flood, MINUTE, STRANGERS};
pub(crate) use process::{held, reserve};

use anyhow::Result;

use crate::report::Line;

pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) fault: &'static str,
    pub(crate) run: fn(seed: u64) -> Result<Vec<Line>>,
}

const fn row(id: &'static str, fault: &'static str, run: fn(u64) -> Result<Vec<Line>>) -> Row {
    Row { id, fault, run }
}

pub(crate) const ROWS: [Row; 27] = [
    row("F0", "none", availability::none),
    row("F1", "Redis is not there at the start, and comes 5 s later", availability::absent),
    row("F3", "kill -9 under load, back empty after 10 s", availability::killed),
    row("F4", "kill -9, AOF every second, back after 5 s", availability::killed_with_aof),
    row("F5a", "Redis stands still for 1 s", availability::frozen_1),
    row("F5b", "Redis stands still for 5 s", availability::frozen_5),
    row("F6", "replies 5, 15, 30 and 200 ms late, 3 s each", network::slow),
    row("F8", "connections reset in the middle, every 100 ms for 5 s", network::reset),
    row("F9", "1 % of replies lost after the script ran", network::lost_replies),
    row("F11", "200 ms there, 200 ms gone, for 10 s", network::flapping),
    row("F12", "all connections killed every second", network::killed_connections),
    row("F12b", "connections of one of three instances cut every 0.9 s for 8 s", network::one_broken),
    row("F14", "two of three instances cut off for 10 s", network::partition),
    row("F15", "scripts flushed every 50 ms", store::flushed_scripts),
    row("F16", "failover; connections stay on the old primary, now read-only", failover::read_only),
    row("F17", "planned failover (FAILOVER TO)", failover::planned),
    row("F19", "a primary of a Cluster killed, its replica takes over", cluster::failover),
    row("F20", "slots of a Cluster moved under load", cluster::moved),
    row("F22", "a primary of a Cluster killed, no replica, back after 6 s", cluster::down),
    row("F23", "Redis out of memory (noeviction) for 5 s", store::out_of_memory),
    row("F32", "FLUSHALL", store::flushed),
    row("F37", "Redis lost for 8 s, with sessions and tokens, AOF always", people::lost),
    row("F38", "an instance killed with 500 reservations open", process::killed),
    row("F39", "rolling restart of all instances (F42)", process::rolling),
    row("F50", "a million new subjects in a minute, half of it without Redis", crowd::strangers),
    row("F52", "1,500 clients ask for one expired value, the origin takes 500 ms", herd::cache),
    row("F53", "Redis is back, 3 × 10,000 subjects to write back", herd::recovery),
];
