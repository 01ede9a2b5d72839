//! The keys of `tokens` and what is below it, and of `audit`.

use sekisho::tokens::Algorithm;

use super::super::revocation;
use super::{Fallback, Kind, SESSION_STORE, Section, key, section, words};

const ON_FAILURE_WORDS: [&str; 2] = words(&revocation::ON_FAILURE);
const SIGNATURE_WORDS: [&str; 9] = words(&Algorithm::ALL);

pub(in crate::config) static TOKENS: Section = section(
    "tokens",
    &[
        key("leeway", Kind::Duration, "how far the clocks of issuers may be off, up to 10m").or(Fallback::Text("60s")),
        key("issuers", Kind::List(&ISSUERS), "who may issue tokens, up to 32"),
        key("max_staleness", Kind::Duration, "how old the knowledge of what is revoked may be, 1s to 1h")
            .or(Fallback::Text("30s")),
        key(
            "on_failure",
            Kind::Choice(&ON_FAILURE_WORDS),
            "when it is older: `closed` answers 503, `open` accepts tokens that may have been revoked",
        )
        .or(Fallback::Text("closed")),
        key(
            "store",
            Kind::One(&SESSION_STORE),
            "another Redis for revocations. It must not evict: `maxmemory-policy noeviction`",
        )
        .or(Fallback::Words("the `store` of all")),
    ],
);

pub(in crate::config) static ISSUERS: Section = Section {
    name: "issuers",
    keys: &[
        key("iss", Kind::Text, "what its tokens say in `iss`, to the letter").needed(),
        key(
            "aud",
            Kind::Texts,
            "its tokens must be for one of these. Without any, tokens that name an audience are refused",
        )
        .or(Fallback::Texts(&[])),
        key(
            "algorithms",
            Kind::Choices(&SIGNATURE_WORDS),
            "what it may sign with: those of `HS…` with `secret_env`, the others with `jwks` or `pem`",
        )
        .needed(),
        key(
            "jwks",
            Kind::Text,
            "its keys: a JSON Web Key Set, a file or a URL, which is fetched every five minutes and when a token names an unknown key",
        ),
        key("pem", Kind::Text, "or its one public key, a file in PEM"),
        key("secret_env", Kind::Text, "or the environment variable that holds a secret, at least as long as the hash"),
        key(
            "namespace",
            Kind::Text,
            "goes before its users and token ids, with a slash, so that they are not taken for another issuer's. For all issuers or for none",
        ),
    ],
    either: &["jwks", "pem", "secret_env"],
    cases: None,
};

pub(in crate::config) static AUDIT: Section = section(
    "audit",
    &[key("to", Kind::Text, "`log`, `stderr`, or a file to append lines of JSON to").or(Fallback::Text("log"))],
);
