//! The tiles that one request needs, counted by the tier they came from.

use std::time::Duration;

use axum::http::HeaderValue;
use parking_lot::Mutex;
use schemars::JsonSchema;
use sekisho::cache::{Freshness, Tier, Unanswered, Value};
use sekisho_elevation::{Tile, TileId, Tiles, TilesError};
use serde::Serialize;

use super::tiles::TileCache;

pub(super) struct Asking<'a> {
    cache: &'a TileCache,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    tally: Tally,
    failed: Option<Unanswered>,
}

/// How many tiles came from where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "TilesByTier")]
pub(super) struct Tally {
    memory: u32,
    redis: u32,
    origin: u32,
    /// Of these, how many are old because the origin is slow or fails.
    stale: u32,
}

impl<'a> Asking<'a> {
    pub(super) fn new(cache: &'a TileCache) -> Self {
        Self { cache, seen: Mutex::default() }
    }

    pub(super) fn tally(&self) -> Tally {
        self.seen.lock().tally
    }

    /// In how many seconds it may be worth to ask again.
    pub(super) fn retry_after(&self) -> u64 {
        let wait = match &self.seen.lock().failed {
            Some(Unanswered::Failed(failure)) => failure.retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        wait.as_secs() + u64::from(wait.subsec_nanos() > 0 || wait.is_zero())
    }
}

impl Tiles for Asking<'_> {
    type Shared = Value<Tile>;

    async fn tile(&self, id: TileId) -> Result<Option<Value<Tile>>, TilesError> {
        match self.cache.get(id).await {
            Ok(answer) => {
                let Tally { memory, redis, origin, stale } = &mut self.seen.lock().tally;
                *match answer.tier {
                    Tier::Memory => memory,
                    Tier::Shared => redis,
                    Tier::Origin => origin,
                } += 1;
                *stale += u32::from(answer.freshness != Freshness::Fresh);
                Ok(answer.value)
            }
            Err(why) => {
                let reason = why.to_string();
                self.seen.lock().failed = Some(why);
                Err(TilesError::Unavailable { id, reason })
            }
        }
    }
}

impl Tally {
    /// For `Cache-Status` (RFC 9211): a hit if the origin was not asked, and how many came from where.
    pub(super) fn header(self) -> HeaderValue {
        let Self { memory, redis, origin, stale } = self;
        let outcome = if origin == 0 { "hit" } else { "fwd=miss" };
        let detail = format!("memory={memory} redis={redis} origin={origin} stale={stale}");
        let header = HeaderValue::from_str(&format!("sekisho-elevation; {outcome}; detail=\"{detail}\""));
        header.unwrap_or(HeaderValue::from_static("sekisho-elevation"))
    }
}
