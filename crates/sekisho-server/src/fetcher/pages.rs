//! What was fetched, in a cache of the configuration: all instances ask conditionally for what one of them has.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use data_encoding::{BASE64_NOPAD, HEXLOWER};
use sekisho::cache::Key;
use sekisho::outbound::fetch::{Page, PageFuture, Pages};
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::caches::{Caches, Named};

#[derive(Debug)]
pub(super) struct CachedPages {
    caches: Arc<Caches>,
    /// The configuration has made sure that there is one of that name.
    name: String,
}

impl CachedPages {
    pub(super) fn new(caches: Arc<Caches>, name: String) -> Self {
        Self { caches, name }
    }

    /// A URL is too long for a key, and says too much in one.
    fn place(&self, url: &Url) -> Option<(&Named, Key)> {
        let named = self.caches.get(&self.name)?;
        let digest = HEXLOWER.encode(&Sha256::digest(url.as_str().as_bytes()));
        Some((named, named.config.key.key(&[digest]).ok()?))
    }
}

impl Pages for CachedPages {
    fn find<'a>(&'a self, url: &'a Url) -> PageFuture<'a, Option<Arc<Page>>> {
        Box::pin(async move {
            let (named, key) = self.place(url)?;
            let value = named.get(&key).await.ok()?.value?;
            read(&value).map(Arc::new)
        })
    }

    fn keep<'a>(&'a self, url: &'a Url, page: Arc<Page>) -> PageFuture<'a, ()> {
        Box::pin(async move {
            let Some((named, key)) = self.place(url) else { return };
            // It may be too long for this cache, and is then asked for again as a whole.
            if let Err(error) = named.put(&key, written(&page)).await {
                tracing::debug!(%error, "a page is not kept");
            }
        })
    }
}

/// The headers as one line of JSON, then the body as it is.
fn written(page: &Page) -> Vec<u8> {
    let header = |(name, value): (&HeaderName, &HeaderValue)| (name.to_string(), BASE64_NOPAD.encode(value.as_bytes()));
    let headers: Vec<(String, String)> = page.headers.iter().map(header).collect();
    let mut written = serde_json::to_vec(&headers).unwrap_or_default();
    written.push(b'\n');
    written.extend_from_slice(&page.body);
    written
}

/// None if somebody else wrote it.
fn read(value: &Bytes) -> Option<Page> {
    let end = value.iter().position(|byte| *byte == b'\n')?;
    let named: Vec<(String, String)> = serde_json::from_slice(&value[..end]).ok()?;
    let mut headers = HeaderMap::new();
    for (name, text) in named {
        let bytes = BASE64_NOPAD.decode(text.as_bytes()).ok()?;
        headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(&bytes).ok()?);
    }
    Some(Page { headers, body: value.slice(end + 1..) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_as_it_was_and_nothing_else_is_one() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("etag", &b"\"a\""[..]), ("x-a", b"1"), ("x-a", b"2"), ("x-b", b"\xe9\"\\")] {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let page = Page { headers, body: Bytes::from_static(b"a\nb\0\xff") };
        assert_eq!(read(&written(&page).into()), Some(page));
        for other in
            [&b""[..], b"\n", b"[]", b"{}\nbody", b"[[\"a b\",\"\"]]\n", b"[[\"a\",\"!\"]]\n", b"[[\"a\",\"Cg\"]]\n"]
        {
            assert_eq!(read(&Bytes::from_static(other)), None, "{other:?}");
        }
    }
}
