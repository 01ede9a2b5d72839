//! An issuer, a verifier that believes it, and a clock between them.

use std::sync::Arc;
use std::time::Duration;

use sekisho::clock::{ManualClock, Timestamp};
use sekisho::revocation::{Revocations, TokenKind};
use sekisho::tokens::{Algorithm, Claims, Issuer, Key, Keys, Refusal, Verifier};
use sekisho_testkit::jwt::{Signer, jwks};
use serde_json::{Value, json};

pub(crate) const NOW: u64 = 1_700_000_000;
pub(crate) const LEEWAY: u64 = 60;
pub(crate) const ISS: &str = "https://auth.example";
pub(crate) const SECRET: &[u8] = b"a secret of sixty-four bytes, which is enough for each of HS*...";

pub(crate) fn issuer(iss: &str, algorithms: &[&str], keys: Arc<Keys>) -> Issuer {
    let algorithms = algorithms.iter().map(|name| Algorithm::parse(name).unwrap()).collect();
    Issuer { iss: iss.to_owned(), audience: vec!["api".to_owned()], algorithms, keys, namespace: None }
}

/// The keys of a set.
pub(crate) fn published(signers: &[&Signer]) -> Arc<Keys> {
    Keys::fixed(Key::from_jwks(jwks(signers).as_bytes()).unwrap())
}

pub(crate) struct Desk {
    pub(crate) verifier: Verifier,
    pub(crate) clock: ManualClock,
}

impl Desk {
    pub(crate) fn of(issuers: Vec<Issuer>) -> Self {
        Self::on(ManualClock::at(Timestamp::from_secs(NOW)), issuers)
    }

    pub(crate) fn on(clock: ManualClock, issuers: Vec<Issuer>) -> Self {
        let revocations = Revocations::memory(Arc::new(clock.clone()));
        let leeway = Duration::from_secs(LEEWAY);
        let verifier = Verifier::new(issuers, leeway, revocations, Arc::new(clock.clone())).unwrap();
        Self { verifier, clock }
    }

    /// One issuer with one key, and its verifier.
    pub(crate) fn with(signer: &Signer) -> Self {
        Self::of(vec![issuer(ISS, &[signer.alg], published(&[signer]))])
    }

    pub(crate) async fn verify(&self, token: &str) -> Result<Claims, Refusal> {
        self.verifier.verify(token, TokenKind::Access).await
    }

    pub(crate) async fn refusal(&self, token: &str) -> Refusal {
        self.verify(token).await.expect_err("it must not be accepted")
    }
}

/// Those of a good access token.
pub(crate) fn good() -> Value {
    json!({ "iss": ISS, "aud": "api", "sub": "user-1", "jti": "jti-1", "iat": NOW, "exp": NOW + 900 })
}

/// The same with some put over; a null takes one away.
pub(crate) fn good_but(over: &Value) -> Value {
    let mut claims = good();
    for (name, value) in over.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}
