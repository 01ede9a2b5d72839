//! Where a redirect leads, and what is not taken along: pure.

use http::header::{self, HeaderMap, HeaderName};
use url::Url;

use super::request::askable;

/// `None`: it is no redirect. A reason: it is one that is not followed.
pub(crate) fn next(url: &Url, status: u16, headers: &HeaderMap) -> Option<Result<Url, String>> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = headers.get(header::LOCATION)?;
    // Many servers send UTF-8 as it is.
    let Ok(location) = std::str::from_utf8(location.as_bytes()) else {
        return Some(Err("its location cannot be read".to_owned()));
    };
    let Ok(next) = url.join(location) else { return Some(Err("its location is no URL".to_owned())) };
    if url.scheme() == "https" && next.scheme() == "http" {
        return Some(Err("it leads from https to http".to_owned()));
    }
    Some(askable(next).map_err(|invalid| format!("its location {}", invalid.reason)))
}

/// The caller meant its headers for the first server. Another one gets those that say how to answer and nothing of who asks.
pub(crate) fn taken_along(headers: &HeaderMap, from: &Url, to: &Url) -> HeaderMap {
    const HARMLESS: [HeaderName; 2] = [header::ACCEPT, header::ACCEPT_LANGUAGE];
    if from.origin() == to.origin() {
        return headers.clone();
    }
    let harmless = headers.iter().filter(|(name, _)| HARMLESS.contains(name));
    harmless.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn led(from: &str, status: u16, to: &str) -> Option<Result<String, String>> {
        let headers = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_str(to).unwrap())]);
        let next = next(&Url::parse(from).unwrap(), status, &headers)?;
        Some(next.map(|url| url.to_string()))
    }

    #[test]
    fn redirects_lead_on() {
        for (to, expected) in [
            ("/b", "https://a.example/b"),
            ("b?c#d", "https://a.example/x/b?c"),
            ("//b.example/", "https://b.example/"),
            ("https://a.example:8443/", "https://a.example:8443/"),
        ] {
            assert_eq!(led("https://a.example/x/y", 302, to), Some(Ok(expected.to_owned())));
        }
        assert_eq!(led("http://a.example/", 301, "https://a.example/"), Some(Ok("https://a.example/".to_owned())));
        for status in [200, 300, 304, 305, 404] {
            assert_eq!(led("http://a.example/", status, "/b"), None);
        }
        assert!(next(&Url::parse("http://a.example").unwrap(), 302, &HeaderMap::new()).is_none());
    }

    #[test]
    fn a43_some_lead_nowhere() {
        let long = format!("/{}", "x".repeat(20_000));
        for to in [
            "http://a.example/",
            "file:///etc/passwd",
            "https://u:p@a.example/",
            "https://",
            "javascript:alert(1)",
            &long,
        ] {
            assert!(matches!(led("https://a.example/", 302, to), Some(Err(_))), "{to}");
        }
    }

    #[test]
    fn a43_credentials_stay_where_they_were_meant_for() {
        let headers = [("authorization", "a"), ("cookie", "b"), ("x-api-key", "c"), ("accept-language", "ja")];
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let headers = HeaderMap::from_iter(headers);
        let url = |url: &str| Url::parse(url).unwrap();
        let from = url("https://a.example/");
        assert_eq!(taken_along(&headers, &from, &url("https://a.example:443/b")), headers);
        for to in ["https://b.example/", "https://a.example:444/", "http://a.example/", "https://sub.a.example/"] {
            let names: Vec<_> = taken_along(&headers, &from, &url(to)).keys().map(HeaderName::to_string).collect();
            assert_eq!(names, ["accept-language"], "{to}");
        }
    }
}
