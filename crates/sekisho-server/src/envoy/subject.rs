//! Descriptors as subjects, and paths of the tree as names of policies.
//!
//! Both are injective: no descriptor can be written so that it reaches the counter of another one.

use std::fmt::Write as _;

use sekisho::Invalid;
use sekisho::key::Subject;
use sha2::{Digest as _, Sha256};

use super::domain::{Unit, Value};

/// Longest name of a policy, less what stands around the readable part.
const MAX_SLUG: usize = 64 - "envoy.".len() - "-01234567".len();

/// No key of a file is empty, so that no path looks like this.
const BLOCKED: (&str, Option<&str>) = ("", Some("blocked"));

/// `key=value,key=value`, with everything escaped that could be taken for something else. What would be too long is
/// hashed; the mark before a hash holds no `=`, which every other subject does.
pub(crate) fn subject<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Subject, Invalid> {
    let text = joined(entries.into_iter().map(|(key, value)| (key, Some(value))));
    if text.len() <= Subject::MAX_BYTES {
        return Subject::new(text);
    }
    Subject::new(format!("sha256:{}", hex(&Sha256::digest(&text))))
}

/// Readable as far as names allow, and told apart by a hash of the whole path. A rule that blocks keeps no counter, so it
/// must not go on with that of the same rule when it counted.
pub(super) fn policy_name(domain: &str, path: &[(String, Value)], requests: u32) -> String {
    let parts = path.iter().map(|(key, value)| match value {
        Value::Any => (key.as_str(), None),
        Value::Exact(value) | Value::Pattern(value) => (key.as_str(), Some(value.as_str())),
    });
    named(joined(std::iter::once((domain, None)).chain(parts).chain((requests == 0).then_some(BLOCKED))))
}

/// Where limits are counted that a request brings along and no rule of that unit is configured for.
pub(super) fn override_name(domain: &str, requests: u32, unit: Unit) -> String {
    named(joined([(domain, None), if requests == 0 { BLOCKED } else { ("", Some(unit.name())) }]))
}

fn named(path: String) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '.' };
    let slug: String = path.chars().map(fits).take(MAX_SLUG).collect();
    format!("envoy.{slug}-{}", &hex(&Sha256::digest(&path))[..8])
}

fn joined<'a>(parts: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> String {
    let mut text = String::new();
    for (i, (key, value)) in parts.into_iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        escape(&mut text, key);
        if let Some(value) = value {
            text.push('=');
            escape(&mut text, value);
        }
    }
    text
}

/// Percent signs, the two separators, and what no subject may hold.
fn escape(text: &mut String, part: &str) {
    for c in part.chars() {
        if c.is_control() || matches!(c, '%' | '=' | ',' | '{' | '}') {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(text, "%{byte:02X}");
            }
        } else {
            text.push(c);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn different_entries_are_different_subjects() {
        let parts = ["", "a", "b", "=", ",", "%", "%3D", "a=b", "a,b", "{", "}", "\n", "\u{85}", "関所", "sha256:"];
        let mut seen = HashMap::new();
        let mut try_it = |entries: &[(&str, &str)]| {
            let subject = subject(entries.iter().copied()).unwrap();
            if let Some(other) = seen.insert(subject, format!("{entries:?}")) {
                panic!("{entries:?} is also {other}");
            }
        };
        for a in parts {
            for b in parts {
                try_it(&[(a, b)]);
                for c in parts {
                    try_it(&[(a, b), (c, "x")]);
                }
            }
        }
    }

    #[test]
    fn what_is_long_is_hashed_and_stays_apart() {
        let long = "x".repeat(40_000);
        let one = subject([("k", long.as_str())]).unwrap();
        let other = subject([("k", &long[1..])]).unwrap();
        assert_ne!(one, other);
        assert!(one.as_str().starts_with("sha256:") && one.as_str().len() == 71);
        assert_eq!(subject([("k", "v"), ("k2", "v2")]).unwrap().as_str(), "k=v,k2=v2");
        assert_eq!(subject([("{k}", "a,b\n")]).unwrap().as_str(), "%7Bk%7D=a%2Cb%0A");
    }

    #[test]
    fn names_can_be_read_and_do_not_meet() {
        let name = |domain: &str, key: &str, value: Value| policy_name(domain, &[(key.to_owned(), value)], 1);
        let plain = name("edge", "path", Value::Exact("/login".into()));
        assert!(plain.starts_with("envoy.edge.path..login-"), "{plain}");
        assert_ne!(name("a", "b", Value::Exact("c".into())), name("a", "b.c", Value::Any));
        assert_ne!(name("a.b", "c", Value::Any), name("a", "b.c", Value::Any));
        assert_ne!(override_name("a", 1, Unit::Day), override_name("a", 0, Unit::Day));
        assert_ne!(policy_name("a", &[("b".into(), Value::Any)], 0), name("a", "b", Value::Any));
        assert_eq!(name(&"x".repeat(1000), "k", Value::Any).len(), 64);
    }
}
