//! Paths as routes write them.

use std::fmt;

use sekisho::key::Endpoint;

/// A path whose segments are text or `{parameters}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone)]
enum Segment {
    Text(String),
    Parameter(String),
    /// `{*name}`: all the rest, one segment at least. Only at the end.
    Rest(String),
}

/// Two parameters match the same paths whatever they are called.
impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.eq_ignore_ascii_case(b),
            (Self::Parameter(_), Self::Parameter(_)) | (Self::Rest(_), Self::Rest(_)) => true,
            _ => false,
        }
    }
}

impl Eq for Segment {}

impl PathPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("must start with a slash; it is `{text}`"));
        };
        if let Some(bad) = text.chars().find(|c| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#')) {
            return Err(format!("holds {bad:?}, which no path may hold"));
        }
        let segments = rest.split('/').map(|segment| {
            let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let is_name = |name: &str| !name.is_empty() && !name.contains(['{', '}', '*']);
            match (name, name.and_then(|name| name.strip_prefix('*'))) {
                (_, Some(name)) if is_name(name) => Ok(Segment::Rest(name.to_owned())),
                (Some(name), _) if is_name(name) => Ok(Segment::Parameter(name.to_owned())),
                _ if segment.contains(['{', '}', '*']) => Err(format!(
                    "has the segment `{segment}`: a parameter is a whole segment, such as {{id}}, or {{*rest}} at the end"
                )),
                _ => Ok(Segment::Text(segment.to_owned())),
            }
        });
        let pattern = Self { segments: segments.collect::<Result<_, _>>()? };
        if let Some((_, before)) = pattern.segments.split_last()
            && before.iter().any(|segment| matches!(segment, Segment::Rest(_)))
        {
            return Err("has something behind the segment that takes all the rest".to_owned());
        }
        // The path is also an endpoint that limits tell apart: better refused here than on every request.
        Endpoint::new(pattern.endpoint()).map_err(|invalid| invalid.reason)?;
        Ok(pattern)
    }

    /// `path` is as `gateway::paths` reads it. The case of letters and a slash at the end make no other path: to many servers
    /// they do not, and a limit must not be escaped by them.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let mut given = path.strip_prefix('/').unwrap_or(path).split('/');
        for segment in &self.segments {
            match (segment, given.next()) {
                (Segment::Text(text), Some(given)) if text.eq_ignore_ascii_case(given) => {}
                (Segment::Parameter(_), Some(given)) if !given.is_empty() => {}
                (Segment::Rest(_), Some(first)) => return !first.is_empty(),
                _ => return false,
            }
        }
        matches!((given.next(), given.next()), (None | Some(""), None))
    }

    /// The path as limits know it: never what the caller sent, so that nobody can make up endpoints.
    pub(crate) fn endpoint(&self) -> String {
        let part = |segment: &Segment| match segment {
            Segment::Text(text) => format!("/{text}"),
            Segment::Parameter(name) | Segment::Rest(name) => format!("/:{name}"),
        };
        self.segments.iter().map(part).collect()
    }
}

/// As the file writes it.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Text(text) => write!(f, "/{text}"),
            Segment::Parameter(name) => write!(f, "/{{{name}}}"),
            Segment::Rest(name) => write!(f, "/{{*{name}}}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_whole_segments() {
        let pattern = PathPattern::parse("/api/scan/{id}").unwrap();
        for (path, expected) in [
            ("/api/scan/7", true),
            ("/api/scan/", false),
            ("/api/scan", false),
            ("/api/scan/7/8", false),
            ("/api/%73can/7", false),
            ("/API/scan/7", true),
            ("/api/scan/7/", true),
            ("/api/scan/7//", false),
        ] {
            assert_eq!(pattern.matches(path), expected, "{path}");
        }
        assert_eq!(pattern.endpoint(), "/api/scan/:id");
        assert!(PathPattern::parse("/").unwrap().matches("/"));
        for bad in ["api", "/a{b}", "/{*all}/x", "/a*", "/{*}", "/{}"] {
            assert!(PathPattern::parse(bad).is_err(), "{bad}");
        }
        let pattern = PathPattern::parse("/v1/{*rest}").unwrap();
        assert!(
            pattern.matches("/v1/a")
                && pattern.matches("/v1/a/b/")
                && !pattern.matches("/v1/")
                && !pattern.matches("/v1")
        );
        assert_eq!(pattern.to_string(), "/v1/{*rest}");
    }
}
