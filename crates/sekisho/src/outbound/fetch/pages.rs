//! What was fetched before, so that a server can say that it still holds.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    LAST_MODIFIED, SET_COOKIE,
};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use url::Url;

pub type PageFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A good answer as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Keeps answers to requests without headers of the caller's. It may forget at any time.
pub trait Pages: fmt::Debug + Send + Sync + 'static {
    fn find<'a>(&'a self, url: &'a Url) -> PageFuture<'a, Option<Arc<Page>>>;

    fn keep<'a>(&'a self, url: &'a Url, page: Arc<Page>) -> PageFuture<'a, ()>;
}

/// In this process's memory, up to so many bytes.
pub struct MemoryPages {
    kept: Cache<Box<str>, Arc<Page>, Weight>,
}

impl MemoryPages {
    pub fn new(max_bytes: u64) -> Self {
        // The number is only for its first tables.
        Self { kept: Cache::with_weighter(1_000, max_bytes, Weight) }
    }
}

impl Pages for MemoryPages {
    fn find<'a>(&'a self, url: &'a Url) -> PageFuture<'a, Option<Arc<Page>>> {
        Box::pin(async move { self.kept.get(url.as_str()) })
    }

    fn keep<'a>(&'a self, url: &'a Url, page: Arc<Page>) -> PageFuture<'a, ()> {
        Box::pin(async move { self.kept.insert(url.as_str().into(), page) })
    }
}

impl fmt::Debug for MemoryPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPages").field("bytes", &self.kept.weight()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Box<str>, Arc<Page>> for Weight {
    fn weight(&self, url: &Box<str>, page: &Arc<Page>) -> u64 {
        let headers = page.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
        (url.len() + page.body.len() + headers.sum::<usize>() + 128) as u64
    }
}

/// Whether there is any use in keeping it, and the server allows it. A cookie is for whoever was answered, and for nobody
/// after them.
pub(super) fn is_worth_keeping(status: u16, headers: &HeaderMap) -> bool {
    let says = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("no-store"));
    let is_forbidden = headers.contains_key(SET_COOKIE) || headers.get_all(CACHE_CONTROL).iter().any(says);
    status == 200 && !is_forbidden && (headers.contains_key(ETAG) || headers.contains_key(LAST_MODIFIED))
}

/// Asks whether it has changed.
pub(super) fn conditions(page: &Page) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let of = |name, asks| page.headers.get(name).map(|value| (asks, value.clone()));
    [of(ETAG, IF_NONE_MATCH), of(LAST_MODIFIED, IF_MODIFIED_SINCE)].into_iter().flatten()
}

/// The page with what a 304 says anew.
pub(super) fn renewed(page: &Page, headers: &HeaderMap) -> Page {
    let mut renewed = page.clone();
    for (name, value) in headers.iter().filter(|(name, _)| ![CONTENT_LENGTH, SET_COOKIE].contains(name)) {
        renewed.headers.insert(name.clone(), value.clone());
    }
    renewed
}
