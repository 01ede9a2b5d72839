//! URLs with named parts, and what may stand in them.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::error::Invalid;

/// All but what RFC 3986 calls unreserved: no part can end a segment, begin a query or write an escape.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A URL such as `http://tiles.example/{z}/{x}/{y}.png`. Parts stand in its path and query only: which server is asked is
/// never a caller's to say.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlTemplate {
    /// Scheme and server.
    base: String,
    /// Text, and the name after it.
    parts: Vec<(String, String)>,
    tail: String,
}

impl UrlTemplate {
    pub fn parse(source: &str) -> Result<Self, Invalid> {
        // The source is not quoted: a query may hold a credential.
        let refuse = |reason: &str| Invalid::new("http", reason);
        let scheme = ["http://", "https://"].into_iter().find(|scheme| source.starts_with(scheme));
        let scheme = scheme.ok_or_else(|| refuse("must begin with http:// or https://"))?;
        let authority = source[scheme.len()..].split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains(['{', '}', '@']) || authority.is_empty() {
            return Err(refuse("must name its server, without placeholders and without a password"));
        }
        let (base, mut rest) = source.split_at(scheme.len() + authority.len());
        if rest.contains('#') {
            return Err(refuse("must have no fragment"));
        }
        let mut parts = Vec::new();
        while let Some((text, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| refuse("has an unclosed brace"))?;
            parts.push((text.to_owned(), name.to_owned()));
            rest = after;
        }
        let template = Self { base: base.to_owned(), parts, tail: rest.to_owned() };
        if template.texts().any(|text| text.contains('}')) {
            return Err(refuse("has a closing brace with no opening one"));
        }
        let sample: Vec<_> = template.names().map(|name| (name, "0")).collect();
        template.render(&sample)?;
        Ok(template)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(_, name)| name.as_str())
    }

    pub fn is_https(&self) -> bool {
        self.base.starts_with("https://")
    }

    /// The URL of these parts, each encoded. A path that would lead out of itself is refused, as no encoding hides a dot.
    pub fn render(&self, parts: &[(&str, &str)]) -> Result<Url, Invalid> {
        let refuse = |reason: String| Invalid::new("http", reason);
        let mut url = self.base.clone();
        for (text, name) in &self.parts {
            let part = parts.iter().find(|(known, _)| known == name);
            let (_, part) = part.ok_or_else(|| refuse(format!("names {{{name}}}, which is not given")))?;
            url.push_str(text);
            url.extend(utf8_percent_encode(part, ENCODED));
        }
        url.push_str(&self.tail);
        let path = url[self.base.len()..].split('?').next().unwrap_or_default();
        if path.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
            return Err(refuse("leads out of its path".to_owned()));
        }
        let parsed = Url::parse(&url).map_err(|error| refuse(format!("is no URL: {error}")))?;
        // A URL is read without its tabs and ends of lines, and `%2e` as a dot: what was no `..` may have become one.
        let segments = |path: &str| path.split(['/', '\\']).count();
        if !path.is_empty() && segments(path) != segments(parsed.path()) {
            return Err(refuse("leads out of its path".to_owned()));
        }
        Ok(parsed)
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(text, _)| text.as_str()).chain([self.tail.as_str()])
    }
}

/// Without the query, which may hold a credential.
impl fmt::Debug for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.base)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_are_encoded_where_they_stand() {
        let template = UrlTemplate::parse("http://tiles.example:8080/{z}/{x}.png?id={x}").unwrap();
        let url = template.render(&[("z", "1 5"), ("x", "a/b?c#d%2e&e")]).unwrap();
        assert_eq!(
            url.as_str(),
            "http://tiles.example:8080/1%205/a%2Fb%3Fc%23d%252e%26e.png?id=a%2Fb%3Fc%23d%252e%26e"
        );
    }

    #[test]
    fn no_value_leads_out_of_its_path_with_the_help_of_the_text_around_it() {
        for (source, value) in [
            ("http://a/b/{x}\t/y", ".."),
            ("http://a/b/{x}\r/y", "."),
            ("http://a/b/{x}%2e/y", "."),
            ("http://a/b/%2e{x}", "."),
        ] {
            let template = UrlTemplate::parse(source).unwrap();
            assert_eq!(template.render(&[("x", value)]).unwrap_err().reason, "leads out of its path", "{source:?}");
        }
        assert_eq!(UrlTemplate::parse("http://a").unwrap().render(&[]).unwrap().as_str(), "http://a/");
        assert_eq!(
            UrlTemplate::parse("http://a?x={x}").unwrap().render(&[("x", "..")]).unwrap().as_str(),
            "http://a/?x=.."
        );
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for source in [
            "ftp://a/{x}",
            "tiles/{x}",
            "http:///{x}",
            "http://{x}/y",
            "http://u:p@a/{x}",
            "http://a/{x",
            "http://a/x}",
            "http://a/{x}#f",
            "http://a/../{x}",
            "http://a:99999/{x}",
        ] {
            assert!(UrlTemplate::parse(source).is_err(), "{source:?}");
        }
    }

    #[test]
    fn no_path_is_left() {
        let template = UrlTemplate::parse("http://a/tiles/{x}/{y}{z}").unwrap();
        for (x, y, z) in [("..", "1", "2"), (".", "1", "2"), ("1", ".", ".")] {
            assert!(template.render(&[("x", x), ("y", y), ("z", z)]).is_err(), "{x} {y} {z}");
        }
    }

    proptest! {
        #[test]
        fn no_part_changes_the_server_or_the_number_of_segments(x in "\\PC{1,20}", y in "[./%\\\\?#@:{}]{1,6}") {
            let template = UrlTemplate::parse("http://a.example/tiles/{x}/{y}?q={y}").unwrap();
            if let Ok(url) = template.render(&[("x", &x), ("y", &y)]) {
                prop_assert_eq!(url.host_str(), Some("a.example"));
                prop_assert_eq!((url.port(), url.username(), url.fragment()), (None, "", None));
                prop_assert_eq!(url.path_segments().map(Iterator::count), Some(3));
                prop_assert_eq!(url.query_pairs().collect::<Vec<_>>(), vec![("q".into(), y.clone().into())]);
            }
        }
    }
}
