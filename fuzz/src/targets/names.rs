//! Names that callers give, and what is made of them.

use std::net::{IpAddr, Ipv4Addr};

use sekisho::cache::{KeyPattern, UrlTemplate};
use sekisho::identity::{Facts, ForwardedBy, SubjectPart, SubjectSpec, TrustedProxies};
use sekisho::key::{Endpoint, KeyTemplate, Subject};
use sekisho::limits::ReservationId;
use sekisho::outbound::{Permit, Site, parse_url};
use sekisho::sessions::{Document, SessionId};
use url::Url;

use super::{line, text};

/// Lines are the values of the header. Whatever stands left of what a stranger could have written changes nothing.
pub(super) fn client_ip(input: &[u8]) -> String {
    let input = text(input);
    let values: Vec<&str> = input.split('\n').collect();
    let networks = ["10.0.0.0/8", "fd00::/8"].iter().filter_map(|network| network.parse().ok()).collect();
    let mut proxies = TrustedProxies { networks, source: ForwardedBy::XForwardedFor };
    let (inside, outside) = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)));
    let mut told = String::new();
    for source in [ForwardedBy::XForwardedFor, ForwardedBy::Forwarded] {
        proxies.source = source;
        assert_eq!(proxies.client(outside, values.iter().copied()), outside, "a stranger's word counted");
        let client = proxies.client(inside, values.iter().copied());
        let is_mapped = matches!(client, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        assert!(!is_mapped, "{client} is IPv4");
        if !proxies.trusts(client) {
            let longer = ["203.0.113.9, 198.51.100.7"].into_iter().chain(values.iter().copied());
            assert_eq!(proxies.client(inside, longer), client, "what a client put before it counted");
        }
        let kind = if client == inside {
            "peer"
        } else if client.is_ipv4() {
            "v4"
        } else {
            "v6"
        };
        told += &format!("{kind} {} ", proxies.trusts(client));
    }
    told
}

/// Parts of a subject with `+` between them, then the facts of a request: address, agent, user, path, a header.
pub(super) fn subjects(input: &[u8]) -> String {
    let input = text(input);
    let mut lines = input.split('\n').map(str::to_owned);
    let parts = lines.next().unwrap_or_default();
    let parts: Result<Vec<_>, _> = parts.split('+').map(|part| SubjectPart::parse(part.trim())).collect();
    let spec = parts.and_then(SubjectSpec::new);
    let facts = Facts {
        ip: lines.next().and_then(|ip| ip.parse().ok()),
        user_agent: lines.next(),
        user: lines.next(),
        path: lines.next(),
        headers: lines.next().map(|value| ("x-tenant".to_owned(), value)).into_iter().collect(),
        ..Facts::default()
    };
    match spec.map(|spec| spec.build(&facts)) {
        Ok(Ok((subject, endpoint))) => {
            let is_key = |text: &str| !text.contains(['{', '}', '\n', '\r', '\0']) && !text.is_empty();
            assert!(is_key(subject.as_str()) && endpoint.as_ref().is_none_or(|endpoint| is_key(endpoint.as_str())));
            format!("built {}", endpoint.is_some())
        }
        Ok(Err(invalid)) => format!("unbuilt {invalid}"),
        Err(invalid) => format!("no specification: {invalid}"),
    }
}

/// A template, a subject and an endpoint.
pub(super) fn key_templates(input: &[u8]) -> String {
    let input = text(input);
    let mut lines = input.split('\n');
    let template = KeyTemplate::parse(lines.next().unwrap_or_default());
    let (subject, endpoint) = (lines.next().map(Subject::new), lines.next().map(Endpoint::new));
    if let Ok(template) = &template {
        let again = KeyTemplate::parse(template.source());
        assert_eq!(again.as_ref(), Ok(template));
    }
    let template = template.map(|template| (template.time_label(), template.needs_endpoint()));
    format!("{template:?} {:?} {:?}", subject.map(|s| s.map(drop)), endpoint.map(|e| e.map(drop)))
}

/// A pattern, then the parts of a key. What a key was made of is what is read from it.
pub(super) fn cache_keys(input: &[u8]) -> String {
    let input = text(input);
    let mut lines = input.split('\n');
    let pattern = match KeyPattern::parse(lines.next().unwrap_or_default()) {
        Ok(pattern) => pattern,
        Err(invalid) => return invalid.to_string(),
    };
    let parts: Vec<&str> = lines.take(pattern.names().len()).collect();
    match pattern.key(&parts) {
        Ok(key) => {
            let read = pattern.parts(&key).map(|read| read.into_iter().map(|(_, part)| part).collect::<Vec<_>>());
            assert_eq!(read.as_deref(), Some(&parts[..]), "{key:?}");
            format!("{} parts", parts.len())
        }
        Err(invalid) => invalid.to_string(),
    }
}

/// A URL with placeholders, then a value for each. No value changes the server or leaves its segment.
pub(super) fn url_templates(input: &[u8]) -> String {
    let input = text(input);
    let mut lines = input.split('\n');
    let template = match UrlTemplate::parse(lines.next().unwrap_or_default()) {
        Ok(template) => template,
        Err(invalid) => return invalid.to_string(),
    };
    let names: Vec<&str> = template.names().collect();
    let values: Vec<&str> = names.iter().map(|_| lines.next().unwrap_or("0")).collect();
    let of = |values: &[&str]| -> Result<Url, _> {
        template.render(&names.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>())
    };
    let plain = of(&vec!["0"; names.len()]);
    match (of(&values), plain) {
        (Ok(url), Ok(plain)) => {
            assert_eq!(url.origin(), plain.origin(), "{url}");
            let segments = |url: &Url| url.path_segments().map(Iterator::count);
            assert_eq!(segments(&url), segments(&plain), "{url} {plain}");
            format!("{} names", names.len())
        }
        (Err(invalid), _) | (_, Err(invalid)) => invalid.to_string(),
    }
}

/// A URL, or a name alone. Whose budget it is does not depend on how it is written.
pub(super) fn sites(input: &[u8]) -> String {
    let input = text(input);
    let site = parse_url("url", &input).and_then(|url| Site::of(&url).map(|site| (url, site)));
    let named = Site::parse("domain", &input);
    if let Ok((url, site)) = &site {
        let again = Site::of(url);
        assert_eq!(again.as_ref(), Ok(site));
        let host = site.host();
        assert!(!host.is_empty() && !host.ends_with('.') && !host.contains(['{', '}', '/', '\n', ' ']), "{host:?}");
        assert!(host.ends_with(site.domain()), "{site:?}");
        assert_eq!(host.to_lowercase(), host);
    }
    if let Ok(site) = &named {
        assert_eq!(Site::parse("domain", site.host()).as_ref(), Ok(site), "{site:?}");
    }
    let kind = |site: &Site| if site.host() == site.domain() { "domain" } else { "host" };
    format!("{:?} {:?}", site.map(|(_, site)| kind(&site)), named.map(|site| kind(&site)))
}

/// The id of a reservation, or a permit. One that is taken is written as it was.
pub(super) fn reservations(input: &[u8]) -> String {
    let input = text(input);
    let (id, permit) = (input.parse::<ReservationId>(), input.parse::<Permit>());
    if let Ok(id) = &id {
        let written = id.to_string();
        assert_eq!(written.parse::<ReservationId>().as_ref(), Ok(id));
    }
    // The same bytes, before they were written as text.
    let raw = data_encoding::BASE64URL_NOPAD.encode(input.as_bytes()).parse::<ReservationId>();
    format!("{:?} {:?} {:?}", id.map(drop), permit.map(drop), raw.map(drop))
}

/// A user, an id, and what the session holds.
pub(super) fn sessions(input: &[u8]) -> String {
    let (user, rest) = line(input);
    let (sid, document) = line(rest);
    let id = SessionId::new(text(user), text(sid));
    let document = Document::new(text(document).as_ref());
    let document = document.map(|document| (document.created_at().is_some(), document.lifetime().is_some()));
    format!("{:?} {document:?}", id.map(drop))
}
