use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

/// What an operator does, and to whom.
#[derive(Debug)]
pub(crate) struct Act {
    pub(super) name: &'static str,
    /// Somebody has more afterwards than before; otherwise less.
    pub(super) gives: bool,
    pub(super) about: Map<String, Value>,
}

impl Act {
    pub(crate) fn giving(name: &'static str) -> Self {
        Self { name, gives: true, about: Map::new() }
    }

    pub(crate) fn ending(name: &'static str) -> Self {
        Self { name, gives: false, about: Map::new() }
    }

    /// Never a token or a session id: those are [`hashed`](Self::hashed).
    pub(crate) fn about(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.about.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn maybe(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.about(name, value),
            None => self,
        }
    }

    /// What somebody could use who reads the line.
    pub(crate) fn hashed(self, name: &str, secret: &str) -> Self {
        self.about(name, json!(hashed(secret)))
    }
}

/// Enough to find the lines of one session or token again: `printf %s "$SID" | sha256sum | cut -c-16`.
pub(crate) fn hashed(secret: &str) -> String {
    format!("sha256:{}", &HEXLOWER.encode(&Sha256::digest(secret.as_bytes()))[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_what_sha256sum_says() {
        assert_eq!(hashed("abc"), "sha256:ba7816bf8f01cfea");
    }
}
