//! Doors to parsers that are nobody else's business, for the fuzz targets: no part of the API.

use std::time::Duration;

use http::HeaderMap;
use url::Url;

use crate::clock::Timestamp;
use crate::limits::{Policy, packed, redis};
use crate::outbound::fetch::{redirect, robots, signals};
use crate::sessions::Document;
use crate::store::redis as store;

/// Whether a robots.txt allows `url` to `token`, and how long it wants to be left alone.
pub fn robots(text: &[u8], token: &str, url: &Url) -> (bool, Option<Duration>) {
    let rules = robots::rules::Rules::read(text, token);
    (rules.allows(url), rules.crawl_delay())
}

/// When the server of an answer wants to be asked again, as caches read it and as the fetcher does.
pub fn signals(status: u16, headers: &HeaderMap, now: Timestamp) -> (Option<Duration>, Option<Timestamp>) {
    (crate::retry_after::retry_after(headers), signals::not_before(status, headers, now))
}

/// Where a redirect leads, and how many headers go along.
pub fn redirect(url: &Url, status: u16, headers: &HeaderMap) -> Option<Result<(Url, usize), String>> {
    let next = redirect::next(url, status, headers)?;
    Some(next.map(|next| (next.clone(), redirect::taken_along(headers, url, &next).len())))
}

/// A packed record, unpacked and packed again.
pub fn repack(bytes: &[u8], base: u64) -> Option<Vec<u8>> {
    packed::unpack(bytes, base).map(|record| packed::pack(&record, base).to_vec())
}

/// A session as somebody has stored it: when it was made, and how long it lives.
pub fn stored_session(text: &str) -> Result<(bool, bool), String> {
    let document = Document::stored(text.into())?;
    Ok((document.created_at().is_some(), document.lifetime().is_some()))
}

/// A key of a revocation, as we would write it.
pub fn revocation_key(key: &[u8]) -> Option<Vec<u8>> {
    crate::revocation::rewritten(key)
}

/// An answer to `CLUSTER SLOTS`: first and last slot, master, number of replicas.
pub fn cluster_slots(bytes: &[u8]) -> Option<Vec<(u16, u16, String, usize)>> {
    store::fuzzing::ranges(bytes)
}

/// A push of a server: the keys it names, and whether all that was known may be old.
pub fn pushed(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, bool)> {
    store::fuzzing::pushed(bytes)
}

/// Whether the URL of a store can be used, and what is shown of it.
pub fn store_url(text: &str) -> Result<String, String> {
    store::fuzzing::store_url(text)
}

/// A script's answer, in words.
pub fn script_reply(bytes: &[u8], rules: &[usize], policy: &Policy) -> String {
    redis::decode::read_any(bytes, rules, policy)
}

/// A cached value as Redis holds it: unpacked, and read as a profile.
pub fn cached(bytes: &[u8], most: usize) -> (Result<usize, &'static str>, Option<Vec<u8>>) {
    let unpacked = crate::cache::redis::packed::unpack(bytes.to_vec(), most).map(|content| content.len());
    (unpacked, crate::cache::redis::json::read(bytes).map(|(content, _)| content))
}
