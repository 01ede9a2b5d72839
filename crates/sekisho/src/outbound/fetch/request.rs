//! What is asked for, checked before anything is charged.

use std::path::PathBuf;

use http::Uri;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::error::Invalid;
use crate::outbound::{Site, parse_url};

/// One thing to fetch, by GET.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) is_page: bool,
    pub(super) waits: bool,
    pub(super) file: Option<PathBuf>,
}

/// They are the connection's, or would make the answer belong to another question.
const OURS: [HeaderName; 13] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::EXPECT,
    header::PROXY_AUTHORIZATION,
    header::RANGE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::USER_AGENT,
    header::VIA,
];

impl FetchRequest {
    /// A page, for which nobody waits if its turn is not now.
    pub fn get(url: &str) -> Result<Self, Invalid> {
        let url = askable(parse_url("url", url)?)?;
        Ok(Self { url, headers: HeaderMap::new(), is_page: true, waits: false, file: None })
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Anything else than a page, such as an API or an image: only a request is charged.
    #[must_use]
    pub fn no_page(mut self) -> Self {
        self.is_page = false;
        self
    }

    /// Waits for its turn as long as the fetcher's terms say.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Streams the body of a good answer to this file, which appears only when it is whole.
    #[must_use]
    pub fn into_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Sends a header along; a credential reaches no other origin. An answer to a question with headers is nobody else's,
    /// so it does not come from the cache either.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, Invalid> {
        let refuse = |reason: &str| Invalid::new(format!("headers.{}", clipped(name)), reason);
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse("is no name of a header"))?;
        if OURS.contains(&name) || name.as_str().starts_with("proxy-") || name == "keep-alive" {
            return Err(refuse("is not the caller's to set"));
        }
        // The value is not quoted: it may be a credential.
        let mut value = HeaderValue::from_str(value).map_err(|_| refuse("has a value that no header can have"))?;
        value.set_sensitive(true);
        self.headers.append(name, value);
        Ok(self)
    }
}

/// What may be asked for, as a URL and as what the client sends; a fragment is not sent.
pub(super) fn askable(mut url: Url) -> Result<Url, Invalid> {
    url.set_fragment(None);
    Site::of(&url)?;
    Uri::try_from(url.as_str()).map_err(|error| Invalid::new("url", format!("cannot be asked for: {error}")))?;
    Ok(url)
}

fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let long = format!("http://example.com/{}", "x".repeat(1 << 20));
        for url in [
            "",
            "nothing",
            "/path",
            "http://",
            "ftp://example.com/",
            "file:///etc/passwd",
            "http://u:p@example.com/",
            &long,
        ] {
            assert_eq!(FetchRequest::get(url).unwrap_err().field, "url");
        }
        let url = FetchRequest::get("HTTP://EXAMPLE.com:80/a b?c#d").unwrap().url;
        assert_eq!(url.as_str(), "http://example.com/a%20b?c");
    }

    #[test]
    fn a46_headers_of_the_connection_are_not_the_callers() {
        let request = FetchRequest::get("http://example.com/").unwrap();
        for (name, value) in [
            ("Host", "inside"),
            ("connection", "close"),
            ("Transfer-Encoding", "chunked"),
            ("proxy-connection", "x"),
            ("user-agent", "x"),
            ("a b", "x"),
            ("x-a", "line\r\nhost: inside"),
        ] {
            let refused = request.clone().with_header(name, value).unwrap_err();
            assert!(refused.field.starts_with("headers.") && !refused.to_string().contains("inside"), "{refused}");
        }
        let request = request.with_header("Authorization", "Bearer s3cret").unwrap();
        assert!(!format!("{request:?}").contains("s3cret"));
    }
}
