//! Fetches for callers who would rather not go out themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use data_encoding::BASE64;
use schemars::JsonSchema;
use sekisho::Invalid;
use sekisho::clock::Timestamp;
use sekisho::outbound::MAX_URL;
use sekisho::outbound::fetch::{FetchRequest, Fetched, RobotsState};
use serde::{Deserialize, Serialize};

use super::body::Body;
use crate::app::App;
use crate::respond::Problem;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Fetch")]
pub(super) struct FetchBody {
    /// What is asked for, `http` or `https`.
    #[schemars(extend("maxLength" = MAX_URL, "pattern" = "^[Hh][Tt][Tt][Pp][Ss]?://"))]
    url: String,
    /// A page counts against both budgets; `true` if left out.
    page: Option<bool>,
    /// Sent along. Another origin, where a redirect leads, gets none that says who asks.
    headers: Option<BTreeMap<String, String>>,
    /// Waits for its turn, up to `outbound.max_wait`; `false` if left out.
    wait: Option<bool>,
}

/// What became of it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Fetched")]
pub(super) struct FetchedView {
    /// There is a good answer, and its body is whole.
    ok: bool,
    /// Of the last answer, if anybody answered.
    status: Option<u16>,
    /// Why it is not ok: `domain_budget_exceeded`, `domain_cooldown`, `domain_busy`, `robots_disallowed`, `address_refused`,
    /// `unreachable`, `timeout`, `broken_off`, `too_large`, `too_many_redirects`, `bad_redirect` or `http_status`.
    reason: Option<&'static str>,
    /// The same in words.
    detail: Option<String>,
    /// The server said that what was kept from an earlier answer still holds.
    from_cache: bool,
    /// Where the redirects led.
    final_url: String,
    /// Several of one name are joined by commas.
    headers: BTreeMap<String, String>,
    /// As text, or in base64 if it is none.
    body: String,
    /// `text` or `base64`.
    body_encoding: &'static str,
    /// When it may go better, in Unix milliseconds.
    retry_at: Option<u64>,
    /// What is known of the site's robots.txt: `rules`, `absent` or `unreadable`.
    robots: Option<&'static str>,
}

pub(super) async fn fetch(
    State(app): State<Arc<App>>,
    Body(body): Body<FetchBody>,
) -> Result<Json<FetchedView>, Problem> {
    let fetcher = app.fetcher.as_ref().ok_or_else(Problem::no_outbound)?;
    let request = request(&body).map_err(|invalid| Problem::invalid(&invalid))?;
    let fetched = fetcher.fetch(&request).await.map_err(|error| app.problem(&error))?;
    Ok(Json(fetched.into()))
}

fn request(body: &FetchBody) -> Result<FetchRequest, Invalid> {
    let mut request = FetchRequest::get(&body.url)?;
    for (name, value) in body.headers.iter().flatten() {
        request = request.with_header(name, value)?;
    }
    if !body.page.unwrap_or(true) {
        request = request.no_page();
    }
    Ok(if body.wait.unwrap_or(false) { request.waiting() } else { request })
}

impl From<Fetched> for FetchedView {
    fn from(fetched: Fetched) -> Self {
        let bytes = fetched.body.bytes();
        let (body, body_encoding) = match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), "text"),
            Err(_) => (BASE64.encode(bytes), "base64"),
        };
        let robots = fetched.robots.map(|state| match state {
            RobotsState::Rules => "rules",
            RobotsState::Absent => "absent",
            RobotsState::Unreadable => "unreadable",
        });
        Self {
            ok: fetched.ok,
            status: fetched.status,
            reason: fetched.reason.map(|reason| reason.as_str()),
            detail: fetched.detail,
            from_cache: fetched.from_cache,
            final_url: fetched.final_url.into(),
            headers: named(&fetched.headers),
            body,
            body_encoding,
            retry_at: fetched.retry_at.map(Timestamp::as_millis_ceil),
            robots,
        }
    }
}

fn named(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut named = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        let all = named.entry(name.as_str().to_owned()).or_default();
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(&value);
    }
    named
}
