//! Where the values of a cache stand, as a pattern of named parts: `cycling:elevation:v1:data:{z}:{x}:{y}`.

use std::fmt;

use super::key::Key;
use crate::error::Invalid;

/// The longest part of a key.
const LONGEST: usize = 256;

/// A pattern of keys. It makes a [`Key`] of parts, and of a key the parts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPattern {
    source: String,
    prefix: String,
    /// Each part with the text after it.
    parts: Vec<(String, String)>,
}

impl KeyPattern {
    /// It begins with text, which is what all keys of the cache have in common, and between any two parts there is some.
    pub fn parse(source: &str) -> Result<Self, Invalid> {
        let refuse = |reason: &str| Invalid::new("key", format!("{reason}: {source:?}"));
        let (prefix, mut rest) = source.split_once('{').ok_or_else(|| refuse("has no part such as {id}"))?;
        let mut parts: Vec<(String, String)> = Vec::new();
        loop {
            let (name, after) = rest.split_once('}').ok_or_else(|| refuse("has an unclosed brace"))?;
            let (text, next) = after.split_once('{').map_or((after, None), |(text, next)| (text, Some(next)));
            if !is_name(name) {
                return Err(refuse("has a part whose name is not of letters, digits and _"));
            }
            if parts.iter().any(|(known, _)| known == name) {
                return Err(refuse("has a part twice"));
            }
            if next.is_some() && text.is_empty() {
                return Err(refuse("has two parts with nothing between them"));
            }
            parts.push((name.to_owned(), text.to_owned()));
            match next {
                Some(next) => rest = next,
                None => break,
            }
        }
        if prefix.is_empty() {
            return Err(refuse("must begin with text"));
        }
        // What may not stand in a key may not stand between its parts either.
        for text in std::iter::once(prefix).chain(parts.iter().map(|(_, text)| text.as_str())) {
            if !text.is_empty() {
                Key::new(text)?;
            }
        }
        Ok(Self { source: source.to_owned(), prefix: prefix.to_owned(), parts })
    }

    /// What all its keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|(name, _)| name.as_str())
    }

    /// The key of these parts, in their order. A part can be neither nothing nor a way out of a path, and holds nothing
    /// that would make it two: so no two lists of parts have the same key.
    pub fn key<T: AsRef<str>>(&self, parts: &[T]) -> Result<Key, Invalid> {
        if parts.len() != self.parts.len() {
            let names: Vec<_> = self.names().collect();
            let (is, names) = (parts.len(), names.join("/"));
            return Err(Invalid::new(
                "key",
                format!("has {is} parts, and this cache's have {}: {names}", self.parts.len()),
            ));
        }
        let mut key = String::new();
        for (part, (name, text)) in parts.iter().map(AsRef::as_ref).zip(&self.parts) {
            let refuse = |reason: &str| Err(Invalid::new(name.as_str(), reason));
            match () {
                () if part.is_empty() => return refuse("is empty"),
                () if part.len() > LONGEST => return refuse("is longer than 256 bytes"),
                () if matches!(part, "." | "..") || part.contains(['/', '\\']) => {
                    return refuse("must not be part of a path");
                }
                () if part.contains(|c: char| text.contains(c)) => {
                    return Err(Invalid::new(name.as_str(), format!("must hold nothing of {text:?}")));
                }
                () => {}
            }
            key.push_str(part);
            key.push_str(text);
        }
        Key::new(key)
    }

    /// The parts by name. `None`: it is no key of this pattern.
    pub fn parts<'a>(&'a self, key: &'a Key) -> Option<Vec<(&'a str, &'a str)>> {
        let (mut rest, mut parts) = (key.as_str(), Vec::with_capacity(self.parts.len()));
        for (at, (name, text)) in self.parts.iter().enumerate() {
            let is_last = at + 1 == self.parts.len();
            let (part, after) = if is_last { (rest.strip_suffix(text.as_str())?, "") } else { rest.split_once(text)? };
            parts.push((name.as_str(), part));
            rest = after;
        }
        Some(parts)
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tiles() -> KeyPattern {
        KeyPattern::parse("cycling:elevation:v1:data:{z}:{x}:{y}").unwrap()
    }

    #[test]
    fn parts_become_a_key_and_a_key_its_parts() {
        let key = tiles().key(&["15", "29109", "12900"]).unwrap();
        assert_eq!((tiles().prefix(), key.as_str()), ("cycling:elevation:v1:data:", "15:29109:12900"));
        assert_eq!(tiles().parts(&key), Some(vec![("z", "15"), ("x", "29109"), ("y", "12900")]));
    }

    #[test]
    fn a_pattern_that_could_mean_two_things_is_refused() {
        for source in ["plain", "{id}", "a:{x}{y}", "a:{x}:{x}", "a:{x", "a:{x y}", "a:{}", "a}:{x}", "a\n:{x}"] {
            assert!(KeyPattern::parse(source).is_err(), "{source:?}");
        }
    }

    #[test]
    fn a_part_reaches_no_other_key_and_leaves_no_path() {
        for part in ["", ".", "..", "a/b", "a\\b", "1:2", "a{b", "a\nb"] {
            assert!(tiles().key(&[part, "1", "2"]).is_err(), "{part:?}");
        }
        assert!(tiles().key(&["1", "2"]).is_err() && tiles().key(&["1", "2", "3", "4"]).is_err());
    }

    proptest! {
        #[test]
        fn no_two_lists_of_parts_have_one_key(
            one in proptest::collection::vec("[a-c:.%-]{1,4}", 3), two in proptest::collection::vec("[a-c:.%-]{1,4}", 3),
        ) {
            for pattern in ["p:{x}:{y}:{z}", "p:{x}--{y}:.{z}.png"] {
                let pattern = KeyPattern::parse(pattern).unwrap();
                if let (Ok(a), Ok(b)) = (pattern.key(&one), pattern.key(&two)) {
                    prop_assert_eq!(a == b, one == two);
                    let found: Vec<_> = pattern.parts(&a).unwrap().into_iter().map(|(_, part)| part.to_owned()).collect();
                    prop_assert_eq!(&found, &one);
                }
            }
        }
    }
}
