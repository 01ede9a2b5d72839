//! An origin that is asked over HTTP: `http://tiles.example/xyz/dem_png/{z}/{x}/{y}.png`.

mod client;
mod url;

use std::fmt;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::key::Key;
use super::origin::{Failure, Origin, OriginFuture, Reply, Validators};
use super::pattern::KeyPattern;
use crate::error::Invalid;

pub use client::{Hop, HttpClient, HttpTerms};
pub use url::UrlTemplate;

/// Asks for the URL that a key's parts make of a template.
#[derive(Clone)]
pub struct HttpOrigin {
    client: HttpClient,
    pattern: KeyPattern,
    url: UrlTemplate,
    headers: HeaderMap,
}

impl HttpOrigin {
    /// All names in `url` have to be parts of the pattern.
    pub fn new(client: HttpClient, pattern: KeyPattern, url: UrlTemplate) -> Result<Self, Invalid> {
        if let Some(name) = url.names().find(|name| !pattern.names().any(|known| known == *name)) {
            return Err(Invalid::new("http", format!("names {{{name}}}, which is no part of the key {pattern}")));
        }
        Ok(Self { client, pattern, url, headers: HeaderMap::new() })
    }

    /// Sends a header with every request, such as a credential; it goes to no other host, and is not printed.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        self.headers.insert(name, value);
        self
    }
}

impl HttpOrigin {
    /// What is asked for a key.
    pub fn url(&self, key: &Key) -> Result<::url::Url, Failure> {
        let parts = self.pattern.parts(key).ok_or_else(|| Failure::new("the key is none of this cache"))?;
        self.url.render(&parts).map_err(|invalid| Failure::new(invalid.to_string()))
    }

    /// One request, which may lead elsewhere.
    pub async fn hop(&self, url: &::url::Url, known: &Validators) -> Result<Hop, Failure> {
        self.client.hop(url, &self.headers, known).await
    }

    /// What is there for a key, where each request is made by `ask`.
    pub async fn fetch_by<A: Future<Output = Result<Hop, Failure>>>(
        &self,
        key: &Key,
        ask: impl Fn(::url::Url) -> A,
    ) -> Result<Reply, Failure> {
        self.client.follow(&self.url(key)?, ask).await
    }
}

impl Origin for HttpOrigin {
    fn fetch<'a>(&'a self, key: &'a Key, known: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async move {
            let url = self.url(key)?;
            self.client.fetch(&url, &self.headers, known).await
        })
    }
}

impl fmt::Debug for HttpOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOrigin").field("url", &self.url).finish_non_exhaustive()
    }
}
