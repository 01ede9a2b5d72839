//! The page `/elevation`: one file, which loads nothing else.

use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse as _, Response};
use data_encoding::BASE64;
use sha2::{Digest as _, Sha256};

const PAGE: &str = include_str!("page.html");

/// Runs and shows what stands in the file, by its hash, and asks this server; nothing else. A name in a GPX file that
/// found its way into the page could do nothing there.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let inline = PAGE.split_once(&format!("<{tag}>")).and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
        let text = inline.map(|(text, _)| text).unwrap_or_default();
        format!("'sha256-{}'", BASE64.encode(&Sha256::digest(text)))
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash("script"),
        hash("style")
    )
});

pub(super) fn answer() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE).into_response()
}
