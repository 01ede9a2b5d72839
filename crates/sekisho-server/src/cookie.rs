//! The cookie in which a browser carries a session: user and id, because the key of a session needs both.
//!
//! `__Host-session=<user>:<sid>`, each escaped where a cookie could not hold it. Neither may hold a colon. It is a line of text in one
//! direction and a search in the other, for which a library of cookies with jars and dates would be more to trust.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::header::{CACHE_CONTROL, COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use sekisho::sessions::SessionId;

use crate::config::{CookieConfig, SameSite};

/// What RFC 6265 keeps out of a value, and the escape itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b',').add(b';').add(b'\\').add(b'%');

/// `Set-Cookie` for a session that lives so long.
pub(crate) fn set(config: &CookieConfig, id: &SessionId, ttl: Option<Duration>) -> HeaderValue {
    let escape = |text| utf8_percent_encode(text, ESCAPED);
    let value = format!("{}:{}", escape(id.user.as_str()), escape(id.sid.as_str()));
    line(config, &value, ttl)
}

/// Lets a browser keep the cookie for as long as a session lives that was just let live on. An answer that says something of
/// this cookie itself is left alone: it has logged in, rotated or logged out meanwhile.
pub(crate) fn renew(headers: &mut HeaderMap, name: &str, renewed: HeaderValue) {
    if headers.get_all(SET_COOKIE).iter().any(|set| key(set.as_bytes()) == name.as_bytes()) {
        return;
    }
    headers.append(SET_COOKIE, renewed);
    // A cache on the way would hand one user's cookie to another, whatever the upstream thinks of caches.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// `Set-Cookie` that takes it away. A browser finds the cookie by the same attributes, so they are the same.
pub(crate) fn remove(config: &CookieConfig) -> HeaderValue {
    line(config, "", Some(Duration::ZERO))
}

fn line(config: &CookieConfig, value: &str, ttl: Option<Duration>) -> HeaderValue {
    let age = ttl.map(|ttl| format!("; Max-Age={}", ttl.as_secs())).unwrap_or_default();
    let same_site = match config.same_site {
        SameSite::Strict => "Strict",
        SameSite::Lax => "Lax",
        SameSite::None => "None",
    };
    let line = format!("{}={value}; Path=/; Secure; HttpOnly; SameSite={same_site}{age}", config.name);
    // All that is left is printable ASCII: the name was checked, the value is escaped.
    HeaderValue::from_str(&line).unwrap_or(HeaderValue::from_static(""))
}

/// The session that a request carries under this name. None too where it carries two: nobody can say which is meant.
pub(crate) fn session(headers: &HeaderMap, name: &str) -> Option<SessionId> {
    let mut found = named(headers, name);
    let (pair, None) = (found.next()?, found.next()) else { return None };
    read(pair)
}

/// All sessions that a request carries under this name, for a logout: whichever was meant, none stays. None if there are more
/// than anybody means.
pub(crate) fn all_sessions(headers: &HeaderMap, name: &str) -> Option<Vec<SessionId>> {
    const MOST: usize = 4;
    (named(headers, name).count() <= MOST).then(|| named(headers, name).filter_map(read).collect())
}

/// Whether a request carries anything under this name.
pub(crate) fn is_there(headers: &HeaderMap, name: &str) -> bool {
    named(headers, name).next().is_some()
}

fn named<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    pairs(headers).filter(move |pair| key(pair) == name.as_bytes())
}

fn read(pair: &[u8]) -> Option<SessionId> {
    let (user, sid) = std::str::from_utf8(pair).ok()?.split_once('=')?.1.split_once(':')?;
    let read = |text| -> Option<Cow<'_, str>> { percent_decode_str(text).decode_utf8().ok() };
    SessionId::new(read(user)?, read(sid)?).ok()
}

/// Takes a cookie out of a request and leaves the others.
pub(crate) fn take(headers: &mut HeaderMap, name: &str) {
    let others = pairs(headers).filter(|pair| !pair.is_empty() && key(pair) != name.as_bytes());
    let others = others.collect::<Vec<_>>().join(&b"; "[..]);
    headers.remove(COOKIE);
    if let Some(others) = HeaderValue::from_bytes(&others).ok().filter(|others| !others.is_empty()) {
        headers.insert(COOKIE, others);
    }
}

/// As bytes: what others keep in their cookies need not be text, and must not hide this one.
fn pairs(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|header| header.as_bytes().split(|byte| *byte == b';'))
        .map(<[u8]>::trim_ascii)
}

fn key(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(cookie: &str) -> Option<SessionId> {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_str(cookie).unwrap());
        session(&headers, "__Host-session")
    }

    #[test]
    fn c16_a58_a_cookie_has_every_attribute_and_its_removal_the_same() {
        let id = SessionId::new("u1", "s1").unwrap();
        let config = CookieConfig::default();
        let set = set(&config, &id, Some(Duration::from_secs(60)));
        assert_eq!(set, "__Host-session=u1:s1; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=60");
        assert_eq!(remove(&config), "__Host-session=; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=0");
    }

    #[test]
    fn c16_a_renewed_cookie_gives_way_and_is_never_cached() {
        let renewed = || HeaderValue::from_static("sid=u:s; Max-Age=60");
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=600"));
        headers.append(SET_COOKIE, HeaderValue::from_static("sids=x"));
        renew(&mut headers, "sid", renewed());
        assert_eq!(headers.get_all(SET_COOKIE).iter().collect::<Vec<_>>(), ["sids=x", "sid=u:s; Max-Age=60"]);
        assert_eq!(headers[CACHE_CONTROL], "no-store");
        for own in ["sid=; Max-Age=0", "sid=u:new; Path=/"] {
            let mut headers = HeaderMap::new();
            headers.append(SET_COOKIE, HeaderValue::from_static(own));
            renew(&mut headers, "sid", renewed());
            assert_eq!(headers.get_all(SET_COOKIE).iter().collect::<Vec<_>>(), [own]);
            assert!(headers.get(CACHE_CONTROL).is_none());
        }
    }

    #[test]
    fn c16_the_longest_cookie_fits_in_a_browser() {
        let id = SessionId::new("\"".repeat(256), "\"".repeat(128)).unwrap();
        let set = set(&CookieConfig::default(), &id, None);
        let pair = set.to_str().unwrap().split(';').next().unwrap();
        assert!(pair.len() <= 4_096, "{}", pair.len());
        assert_eq!(carried(pair), Some(id));
    }

    #[test]
    fn any_id_comes_back_as_it_went() {
        for (user, sid) in [("u", "s"), ("ユーザー", "a;b"), ("a@example.org", "x=y,\"z\""), ("100%", "%3A")] {
            let id = SessionId::new(user, sid).unwrap();
            let set = set(&CookieConfig::default(), &id, None);
            let pair = set.to_str().unwrap().split(';').next().unwrap();
            assert_eq!(carried(&format!("other=1; {pair}; more=2")), Some(id), "{pair}");
        }
    }

    #[test]
    fn one_cookie_is_taken_and_the_others_stay() {
        let taken = |sent: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(COOKIE, HeaderValue::from_static(value));
            }
            take(&mut headers, "sid");
            headers.get(COOKIE).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(taken(&["a=1; sid=u:s; b=2"]).unwrap(), "a=1; b=2");
        assert_eq!(taken(&["sid=u:s", "sids=x", "sid=v:t"]).unwrap(), "sids=x");
        assert_eq!(taken(&["sid=u:s"]), None);
    }

    #[test]
    fn a_cookie_that_is_no_text_hides_no_other() {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_bytes(b"theirs=\xe9\xff; __Host-session=u:s").unwrap());
        assert_eq!(session(&headers, "__Host-session"), SessionId::new("u", "s").ok());
        take(&mut headers, "__Host-session");
        assert_eq!(headers[COOKIE].as_bytes(), b"theirs=\xe9\xff");
    }

    #[test]
    fn c06_what_is_no_session_is_none() {
        for cookie in [
            "other=u:s",
            "__Host-session=",
            "__Host-session=us",
            "__Host-session=:s",
            "__Host-session=u:",
            "__Host-session=u:a%3Ab",
            "__Host-session=*:s",
            "__Host-session=u:%00",
            "__Host-session=u:%ff",
            "__Host-session=u:s; __Host-session=v:t",
        ] {
            assert_eq!(carried(cookie), None, "{cookie}");
        }
    }
}
