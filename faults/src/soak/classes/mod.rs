//! The classes of faults.

mod clients;
mod instances;
mod redis;

use std::time::Duration;

use anyhow::Result;
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::site::Site;

type Run = fn(&mut Site, &mut SmallRng) -> Result<()>;

#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    pub(super) name: &'static str,
    /// How much more than the limit may be admitted in a window.
    pub(super) over: f64,
    pub(super) loss: Loss,
    /// Whether an instance stands still, and whoever is just asking it gets no answer.
    pub(super) halts: bool,
    /// Whether an instance is killed, and whoever is just asking it is cut off.
    pub(super) cuts: bool,
    pub(super) run: Run,
}

impl Class {
    /// Nothing happens.
    pub(super) fn none(name: &'static str) -> Class {
        class(name, 0.0, |_, _| Ok(()))
    }
}

/// What Redis may have lost when it is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Nothing,
    /// Its file is written every second, and a replica hears of everything a little later.
    LastSecond,
    /// Sessions too: everybody has to sign in again.
    Everything,
}

/// With what was last seen carried over, a total outage admits a tenth more at most.
pub(super) const CARRIED: f64 = 0.10;
/// Two of three cut off: each gives its share, and the third the whole limit.
const CUT_OFF: f64 = 2.0 / 3.0;

const fn class(name: &'static str, over: f64, run: Run) -> Class {
    Class { name, over, loss: Loss::Nothing, halts: false, cuts: false, run }
}

const fn lossy(name: &'static str, loss: Loss, run: Run) -> Class {
    Class { loss, ..class(name, CARRIED, run) }
}

pub(super) const CLASSES: [Class; 21] = [
    lossy("F3 Redis killed, back empty after 10 s", Loss::Everything, redis::emptied),
    lossy("F4 Redis killed, back after 3–10 s", Loss::LastSecond, redis::killed),
    class("F5 Redis stands still 1–5 s", CARRIED, redis::frozen),
    class("F6 replies 5–60 ms late", CARRIED, redis::slow),
    class("F8 connections reset", CARRIED, redis::reset),
    class("F9 1 % of replies lost", CARRIED, redis::lost_replies),
    class("F11 flapping", CARRIED, redis::flapping),
    class("F12 connections killed by Redis", CARRIED, redis::killed_connections),
    class("F14 one or two instances cut off", CUT_OFF, redis::partition),
    class("F15 scripts flushed", 0.0, redis::scripts),
    lossy("F16 failover, the old primary read-only", Loss::LastSecond, redis::failover),
    class("F23 Redis out of memory", CARRIED, redis::out_of_memory),
    class("F27 password changed", CARRIED, redis::password),
    class("F33 invalidations lost, and a token revoked", CARRIED, redis::deaf),
    Class { cuts: true, ..class("F38 instance killed with 500 reservations", 0.0, instances::killed) },
    Class { halts: true, ..class("F40 instance stands still 10 s", CARRIED, instances::frozen) },
    class("F43 seven bad configurations", 0.0, instances::bad_config),
    class("F50 a million strangers in a minute", 0.0, clients::strangers),
    class("F52 herd, and slow connections (A19)", 0.0, clients::herd),
    class("A22 requests taken back at once, in floods", 0.0, clients::resets),
    class("F55–F57 the origin is slow, fails, or talks nonsense", 0.0, clients::origin),
];

/// It fills whatever has a bound.
pub(super) const FIRST: Class =
    class("F50 a million strangers, a quarter of them without Redis", CARRIED, clients::many_strangers);

pub(super) const LAST: Class = class("F39 rolling restart", 0.0, instances::rolling);

fn seconds(random: &mut SmallRng, from: f64, to: f64) -> Duration {
    Duration::from_secs_f64(random.random_range(from..to))
}
