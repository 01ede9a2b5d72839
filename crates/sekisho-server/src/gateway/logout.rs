//! The logout of browsers: a POST from a page of the same site, and nothing that a page of another site could bring about.

use axum::http::header::{CACHE_CONTROL, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::uri::Authority;

use crate::app::App;
use crate::cookie;
use crate::payload::Response;
use crate::respond::Problem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");

/// Ends the session that the request carries, or each of several: a cookie of the same name can come from another path or
/// host, and whoever logs out means all of them. Without one there is nothing to end, and that is the same to whoever asks.
pub(super) async fn end(app: &App, head: &Parts) -> Result<(), Problem> {
    if !is_own_page(&head.headers, head.uri.authority()) {
        return Err(Problem::forbidden("a page of another site may not log anybody out"));
    }
    let name = &app.config.sessions.cookie.name;
    let Some(ids) = cookie::all_sessions(&head.headers, name) else {
        return Err(Problem::bad_input("", format!("there are too many cookies of the name `{name}`")));
    };
    for id in ids {
        let ending = async {
            // What is not there leaves nothing behind: anybody could fill the store with ends of what never was.
            if app.sessions.get(&id).await?.is_some() { app.sessions.end(&id).await } else { Ok(false) }
        };
        ending.await.map_err(|error| app.problem(&error))?;
    }
    Ok(())
}

/// Tells the browser to forget. Only once the session has ended: a cookie that is gone cannot be tried again.
pub(super) fn forget(app: &App, answer: &mut Response) {
    let headers = answer.headers_mut();
    headers.append(SET_COOKIE, cookie::remove(&app.config.sessions.cookie));
    headers.insert(CLEAR_SITE_DATA, HeaderValue::from_static("\"cache\", \"cookies\", \"storage\""));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// What browsers say of where a request comes from, which no page can write. Who says neither is no browser of this decade:
/// the cookie is `SameSite` besides.
fn is_own_page(headers: &HeaderMap, authority: Option<&Authority>) -> bool {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return site == "same-origin";
    }
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).or(authority.map(Authority::as_str));
    origin.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
}
