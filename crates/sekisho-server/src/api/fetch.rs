//! Fetches for callers who would rather not go out themselves: told in JSON, or as it is over a file, whatever its length.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body as Content, Bytes};
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use data_encoding::BASE64;
use schemars::JsonSchema;
use sekisho::Invalid;
use sekisho::clock::Timestamp;
use sekisho::outbound::MAX_URL;
use sekisho::outbound::fetch::{Body as FetchedBody, FetchRequest, Fetched, RobotsState};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

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
    /// `unreachable`, `timeout`, `broken_off`, `too_large`, `too_many_redirects`, `bad_redirect`, `http_status` or `not_saved`.
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

/// With an answer that is told as it is: all that JSON would say of it, but for its headers and its body.
const FETCHED: HeaderName = HeaderName::from_static("x-sekisho-fetched");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// Read from a file at a time.
const PIECE: usize = 64 << 10;

pub(super) async fn fetch(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Body(body): Body<FetchBody>,
) -> Result<Response, Problem> {
    let fetcher = app.fetcher.as_ref().ok_or_else(Problem::no_outbound)?;
    let mut request = request(&body).map_err(|invalid| Problem::invalid(&invalid))?;
    let folder = if headers.get(ACCEPT) == Some(&BYTES) {
        let folder = TempDir::new().map_err(|error| not_spooled(&error))?;
        request = request.into_file(folder.path().join("body"));
        Some(folder)
    } else {
        None
    };
    let fetched = fetcher.fetch(&request).await.map_err(|error| app.problem(&error))?;
    match folder {
        Some(folder) if fetched.ok => as_it_is(fetched, folder).await,
        _ => Ok(Json(FetchedView::from(fetched)).into_response()),
    }
}

/// The body, from the file that it was written to.
async fn as_it_is(fetched: Fetched, folder: TempDir) -> Result<Response, Problem> {
    let told = json!({
        "ok": true, "status": fetched.status, "from_cache": fetched.from_cache, "final_url": fetched.final_url.as_str(),
        "robots": fetched.robots.map(word),
    });
    let (content, length) = match fetched.body {
        FetchedBody::Bytes(bytes) => {
            let length = bytes.len() as u64;
            (Content::from(bytes), length)
        }
        FetchedBody::File { path, bytes } => {
            (spooled(&path, folder).await.map_err(|error| not_spooled(&error))?, bytes)
        }
    };
    let mut response = Response::new(content);
    // A URL and words: nothing that a header could not hold.
    let told = HeaderValue::try_from(told.to_string()).unwrap_or(HeaderValue::from_static("{}"));
    response.headers_mut().extend([(CONTENT_TYPE, BYTES), (CONTENT_LENGTH, length.into()), (FETCHED, told)]);
    Ok(response)
}

/// Piece by piece; with the last of it, or with whoever asked for it, the file goes.
async fn spooled(path: &Path, folder: TempDir) -> io::Result<Content> {
    let file = File::open(path).await?;
    let pieces = futures_util::stream::try_unfold((file, folder), |(mut file, folder)| async move {
        let mut piece = Vec::with_capacity(PIECE);
        let read = file.read_buf(&mut piece).await?;
        Ok::<_, io::Error>((read > 0).then(|| (Bytes::from(piece), (file, folder))))
    });
    Ok(Content::from_stream(pieces))
}

fn not_spooled(error: &io::Error) -> Problem {
    tracing::error!(%error, "a file for what is fetched cannot be written");
    Problem::no_room()
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
            robots: fetched.robots.map(word),
        }
    }
}

const fn word(robots: RobotsState) -> &'static str {
    match robots {
        RobotsState::Rules => "rules",
        RobotsState::Absent => "absent",
        RobotsState::Unreadable => "unreadable",
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
