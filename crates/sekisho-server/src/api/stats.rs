//! What the store holds: keys by category, and one key. Values are never shown, for they hold tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use sekisho::keyspace::{Budget, Category, Figures, KeyFigures, Survey};
use serde::{Deserialize, Serialize};

use super::body::Params;
use super::words;
use crate::app::App;
use crate::respond::Problem;

/// Longer than any key of ours.
const LONGEST_KEY: usize = 4096;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StatsQuery {
    /// How many keys to look at, over all servers. Left out: 100000.
    #[schemars(with = "Option<words::KeyBudget>")]
    budget: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyQuery {
    /// Its whole name.
    #[schemars(with = "words::KeyText")]
    key: String,
}

/// All keys by category. Where `complete` is false the budget did not reach, and counts and memory are estimated from the
/// `scanned_keys`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Stats {
    #[schemars(extend("enum" = ["memory", "redis", "redis_cluster"]))]
    backend: &'static str,
    total_keys: u64,
    used_memory_bytes: u64,
    scanned_keys: u64,
    complete: bool,
    categories: Categories,
}

/// Every category is there, also one without keys.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Categories {
    session: CategoryStats,
    session_index: CategoryStats,
    session_end: CategoryStats,
    blacklist: CategoryStats,
    not_before: CategoryStats,
    cache: CategoryStats,
    rate: CategoryStats,
    rate_limit: CategoryStats,
    sekisho: CategoryStats,
    other: CategoryStats,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CategoryStats {
    keys: u64,
    /// Estimated from a sample.
    memory_bytes: u64,
    /// Of those that expire, from a sample; left out where none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_ttl_seconds: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KeyStats {
    key: String,
    category: &'static str,
    /// Redis's word: `string`, `zset`.
    #[serde(rename = "type")]
    kind: String,
    /// -1 where it does not expire.
    ttl_seconds: i64,
    memory_bytes: u64,
    /// Bytes of a string, elements of anything else.
    length: u64,
}

pub(super) async fn keys(
    State(app): State<Arc<App>>,
    Params(query): Params<StatsQuery>,
) -> Result<Json<Stats>, Problem> {
    let mut budget = Budget::default();
    if let Some(text) = query.budget {
        let keys = text.parse().ok().filter(|keys| (1..=99_999_999).contains(keys) && !text.starts_with(['0', '+']));
        budget.keys = keys.ok_or_else(|| Problem::bad_input("budget", "`budget` must be 1 to 99999999 keys"))?;
    }
    let survey = app.backend.keys.survey(budget).await.map_err(|error| app.problem(&error))?;
    app.metrics.counted(&survey);
    Ok(Json(Stats::of(app.backend.kind.as_str(), &survey)))
}

pub(super) async fn key(
    State(app): State<Arc<App>>,
    Params(query): Params<KeyQuery>,
) -> Result<Json<KeyStats>, Problem> {
    if query.key.is_empty() || query.key.len() > LONGEST_KEY || query.key.contains(char::is_control) {
        let reason = format!("`key` must be 1 to {LONGEST_KEY} bytes long and hold no control characters");
        return Err(Problem::bad_input("key", reason));
    }
    let figures = app.backend.keys.key(&query.key).await.map_err(|error| app.problem(&error))?;
    let figures = figures.ok_or_else(Problem::no_such_key)?;
    Ok(Json(KeyStats::of(query.key, figures)))
}

impl Stats {
    fn of(backend: &'static str, survey: &Survey) -> Self {
        let of = |category| CategoryStats::of(&survey.categories[category as usize]);
        Self {
            backend,
            total_keys: survey.total_keys,
            used_memory_bytes: survey.used_memory,
            scanned_keys: survey.scanned,
            complete: survey.is_complete,
            categories: Categories {
                session: of(Category::Session),
                session_index: of(Category::SessionIndex),
                session_end: of(Category::SessionEnd),
                blacklist: of(Category::Blacklist),
                not_before: of(Category::NotBefore),
                cache: of(Category::Cache),
                rate: of(Category::Rate),
                rate_limit: of(Category::RateLimit),
                sekisho: of(Category::Sekisho),
                other: of(Category::Other),
            },
        }
    }
}

impl CategoryStats {
    fn of(figures: &Figures) -> Self {
        Self {
            keys: figures.keys,
            memory_bytes: figures.memory,
            mean_ttl_seconds: figures.mean_ttl.map(|ttl| ttl.as_secs_f64()),
        }
    }
}

impl KeyStats {
    fn of(key: String, figures: KeyFigures) -> Self {
        let seconds = |ttl: Duration| i64::try_from(ttl.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX);
        Self {
            key,
            category: figures.category.as_str(),
            kind: figures.kind,
            ttl_seconds: figures.ttl.map_or(-1, seconds),
            memory_bytes: figures.memory,
            length: figures.length,
        }
    }
}
