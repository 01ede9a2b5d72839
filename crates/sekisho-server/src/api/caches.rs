//! Caches for trusted callers. A key is written as its parts, `/` between them.
//!
//! `{key}/refresh` and `{key}/explain` stand where a key could go on, which no router can tell apart; how many parts the
//! cache's keys have does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequestParts as _, Path, Request, State};
use axum::http::header::{AGE, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use sekisho::cache::refresh::{Explanation, Queued};
use sekisho::cache::{Answer, Freshness, Kept, Key, Shape, Tier, Value};
use serde::Serialize;

use super::body;
use crate::app::App;
use crate::audit::{Act, Operator};
use crate::caches::{Caches, Named, tier_name};
use crate::respond::Problem;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// What is configured, and how it is.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Caches")]
pub(super) struct CacheList {
    caches: Vec<CacheView>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Cache")]
struct CacheView {
    name: String,
    /// Where values stand in Redis.
    key: String,
    /// The parts of a key, in the order in which a path has them.
    parts: Vec<String>,
    /// `hash` or `json`.
    l2: &'static str,
    /// `http`, `sql` or `none`.
    origin: &'static str,
    ttl_seconds: u64,
    fresh_seconds: u64,
    /// In this process's memory.
    entries: usize,
    /// `up`, `down`, or `none` where there is no Redis.
    shared: &'static str,
}

/// Where a value has come to.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CachePut")]
pub(super) struct PutView {
    /// `everywhere`, or `here_only`: this process has it, and others do not.
    kept: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheRemoved")]
pub(super) struct RemovedView {
    removed: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheRefresh")]
pub(super) struct RefreshView {
    /// `queued`, `waiting` (it was queued before) or `in_work`.
    state: &'static str,
}

/// Where a key is, and why it is refreshed or not.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CacheExplanation")]
pub(super) struct ExplainView {
    key: String,
    /// In Redis.
    redis_key: String,
    /// The first that has a value now: `l1`, `l2` or `none`.
    tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_seconds: Option<f64>,
    /// So long the origin is not asked for it.
    fresh_seconds: f64,
    /// `off`, `not_kept`, `fresh`, `cold`, `due`, `queued`, `put_off` or `in_work`.
    why: serde_json::Value,
    /// The same in words.
    reason: String,
    /// The age from which it may be refreshed.
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_after_seconds: Option<f64>,
    /// How often it is asked for, and what that must be more than.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_score: Option<f64>,
    /// Jobs that come before it, and all there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs_before: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<u64>,
    /// Put off for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_in_seconds: Option<f64>,
    /// How often it was put off after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeats: Option<u32>,
}

pub(super) async fn list(State(app): State<Arc<App>>) -> Json<CacheList> {
    let view = |named: &Named| {
        let config = &named.config;
        let ages = config.terms.ages;
        CacheView {
            name: config.name.clone(),
            key: config.key.to_string(),
            parts: config.key.names().map(str::to_owned).collect(),
            l2: if config.shape == Shape::Json { "json" } else { "hash" },
            origin: config.origin.as_str(),
            ttl_seconds: ages.keep_for.as_secs(),
            fresh_seconds: ages.fresh_for.unwrap_or(ages.keep_for).as_secs(),
            entries: named.cache.len(),
            shared: match named.is_shared {
                false => "none",
                true if named.cache.is_sharing() => "up",
                true => "down",
            },
        }
    };
    Json(CacheList { caches: app.caches.all().map(view).collect() })
}

/// GET, PUT, DELETE and POST of everything below a cache.
pub(super) async fn serve(
    State(app): State<Arc<App>>,
    operator: Operator,
    request: Request,
) -> Result<Response, Problem> {
    let (mut head, body) = request.into_parts();
    let Path(names) = Path::<HashMap<String, String>>::from_request_parts(&mut head, &())
        .await
        .map_err(|_| Problem::bad_input("", "the path is not UTF-8 once its escapes are read"))?;
    let name = |name: &str| names.get(name).map_or("", String::as_str);
    let target = Target::of(&app.caches, name("name"), name("key"));
    let method = head.method.clone();
    // Read also for what is refused: whoever is cut off in the middle of sending sees no answer.
    let content = match method {
        Method::PUT => {
            let most = target.named.map_or(0, |named| named.config.max_bytes);
            Some(body::read(Request::from_parts(head, body), most).await)
        }
        _ => None,
    };
    if !target.what.methods().contains(&method) {
        return Err(Problem::method_not_allowed(Some(target.what.allow())));
    }
    let named = target.named.ok_or_else(|| Problem::no_such_cache(name("name"), app.caches.all()))?;
    let key = named.config.key.key(&target.parts).map_err(|invalid| Problem::invalid(&invalid))?;
    if let Some(content) = content {
        return put(&app, named, &key, content?).await;
    }
    match method {
        Method::DELETE => {
            let act = Act::ending("cache_remove").about("cache", name("name")).about("key", key.as_str());
            app.audit.of(&operator, act, remove(&app, named, &key)).await
        }
        Method::POST => refresh(&app, named, &key).await,
        _ if target.what == What::Explanation => explain(&app, named, &key).await,
        _ => get(named, &key).await,
    }
}

struct Target<'a> {
    named: Option<&'a Named>,
    parts: Vec<&'a str>,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Value,
    Refresh,
    Explanation,
}

impl<'a> Target<'a> {
    fn of(caches: &'a Caches, name: &str, key: &'a str) -> Self {
        let (named, mut parts) = (caches.get(name), key.split('/').collect::<Vec<_>>());
        let is_whole = named.is_some_and(|named| named.config.key.names().len() == parts.len());
        let what = match parts.last() {
            Some(&"refresh") if !is_whole => What::Refresh,
            Some(&"explain") if !is_whole => What::Explanation,
            _ => What::Value,
        };
        if what != What::Value {
            parts.pop();
        }
        Self { named, parts, what }
    }
}

impl What {
    fn methods(self) -> &'static [Method] {
        match self {
            Self::Value => &[Method::GET, Method::HEAD, Method::PUT, Method::DELETE],
            Self::Refresh => &[Method::POST],
            Self::Explanation => &[Method::GET, Method::HEAD],
        }
    }

    fn allow(self) -> String {
        self.methods().iter().map(Method::as_str).collect::<Vec<_>>().join(",")
    }
}

pub(super) async fn get(named: &Named, key: &Key) -> Result<Response, Problem> {
    let answer = named.get(key).await.map_err(|why| Problem::unanswered(&why))?;
    let status = cache_status(named, key, &answer);
    let mut response = match &answer.value {
        Some(content) => value(named, content),
        None => Problem::no_such_value().into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_STATUS, status);
    headers.insert(AGE, HeaderValue::from(answer.age.as_secs()));
    Ok(response)
}

/// A cache between us and the caller would know of no change.
fn value(named: &Named, content: &Bytes) -> Response {
    let headers = [
        (CONTENT_TYPE, named.config.content_type.clone()),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // What an origin sent is nobody's page.
        (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    ];
    (headers, content.clone()).into_response()
}

/// RFC 9211. `ttl` is what is left of the time for which it is fresh, below zero for what is stale.
fn cache_status(named: &Named, key: &Key, answer: &Answer<Bytes>) -> HeaderValue {
    let ages = &named.config.terms.ages;
    let fresh = match &answer.value {
        Some(_) => ages.fresh_for(key),
        None => ages.missing_for.unwrap_or(Duration::ZERO),
    };
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let (tier, ttl) = (tier_name(answer.tier), seconds(fresh) - seconds(answer.age));
    let is_stored = answer.value.is_some() || ages.missing_for.is_some();
    let stored = if is_stored { "; stored" } else { "" };
    let is_unchanged = answer.value.as_ref().is_some_and(Value::is_unchanged);
    let text = match (answer.tier, &answer.freshness) {
        (Tier::Origin, _) if is_unchanged => {
            format!("sekisho; fwd=stale; fwd-status=304{stored}; ttl={ttl}; detail={tier}")
        }
        (Tier::Origin, _) => format!("sekisho; fwd=miss{stored}; ttl={ttl}; detail={tier}"),
        (_, Freshness::Fresh) => format!("sekisho; hit; ttl={ttl}; detail={tier}"),
        (_, Freshness::StaleForNow) => format!("sekisho; hit; ttl={ttl}; detail=\"{tier}, the origin is slow\""),
        (_, Freshness::StaleOnError(_)) => format!("sekisho; hit; ttl={ttl}; detail=\"{tier}, the origin failed\""),
    };
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("sekisho"))
}

async fn put(app: &App, named: &Named, key: &Key, content: Bytes) -> Result<Response, Problem> {
    let kept = named.put(key, content.into()).await.map_err(|error| app.problem(&error))?;
    let view = match (kept, named.is_shared) {
        (Kept::Everywhere, _) => PutView { kept: "everywhere", detail: None },
        (Kept::HereOnly, false) => PutView { kept: "here_only", detail: Some("this cache has no shared store") },
        (Kept::HereOnly, true) => {
            let detail = "the shared store did not take it: other instances answer what they had until it is told";
            PutView { kept: "here_only", detail: Some(detail) }
        }
    };
    Ok(Json(view).into_response())
}

async fn remove(app: &App, named: &Named, key: &Key) -> Result<Response, Problem> {
    match named.cache.invalidate(key).await {
        Ok(()) => Ok((StatusCode::OK, Json(RemovedView { removed: "everywhere" })).into_response()),
        Err(error) if error.is_retryable() => Err(Problem::removed_here_only()),
        Err(error) => Err(app.problem(&error)),
    }
}

/// The fetch is a worker's: it comes at the pace that the origin bears.
async fn refresh(app: &App, named: &Named, key: &Key) -> Result<Response, Problem> {
    let queued = named.cache.refresh(key).await.map_err(|error| app.problem(&error))?;
    let state = match queued {
        Queued::Queued => "queued",
        Queued::Waiting | Queued::Gone => "waiting",
        Queued::InWork => "in_work",
    };
    Ok((StatusCode::ACCEPTED, Json(RefreshView { state })).into_response())
}

async fn explain(app: &App, named: &Named, key: &Key) -> Result<Response, Problem> {
    let explained = named.cache.explain(key).await.map_err(|error| app.problem(&error))?;
    let reason = explained.why.to_string();
    let Explanation { key: name, tier, age_seconds, refresh_after_seconds, score, min_score, why, .. } = explained;
    let view = ExplainView {
        redis_key: format!("{}{name}", named.config.key.prefix()),
        key: name,
        tier: tier.map_or("none", tier_name),
        age_seconds,
        fresh_seconds: named.config.terms.ages.fresh_for(key).as_secs_f64(),
        why: serde_json::to_value(why).unwrap_or_default(),
        reason,
        refresh_after_seconds,
        score,
        min_score,
        jobs_before: explained.jobs_before,
        queued: explained.queued,
        due_in_seconds: explained.due_in_seconds,
        repeats: explained.repeats,
    };
    Ok(Json(view).into_response())
}
