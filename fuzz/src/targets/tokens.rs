//! Tokens, and sets of keys.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use ring::hmac;
use sekisho::clock::{Clock, ManualClock, Timestamp};
use sekisho::revocation::Revocations;
use sekisho::tokens::{Algorithm, Issuer, Key, Keys, TokenKind, Verifier};

use super::{line, text};

const SECRET: &[u8; 64] = &[7; 64];

/// One issuer with a secret that the target knows, so that claims are read that nobody else could sign.
static DESK: LazyLock<(Verifier, tokio::runtime::Runtime)> = LazyLock::new(|| {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    let issuer = Issuer {
        iss: "https://issuer.example".to_owned(),
        audience: vec!["api".to_owned()],
        algorithms: vec![Algorithm::Hs256],
        keys: Keys::fixed(Key::secret(Algorithm::Hs256, SECRET).into_iter().collect()),
        namespace: Some("example".to_owned()),
    };
    let revocations = Revocations::memory(clock.clone());
    #[allow(clippy::expect_used, reason = "all of it is constant")]
    let verifier = Verifier::new(vec![issuer], Duration::from_secs(5), revocations, clock).expect("one good issuer");
    #[allow(clippy::expect_used, reason = "a target without a runtime shows nothing")]
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    (verifier, runtime)
});

/// A header and claims in two lines, which are signed; and all of it as a token by itself, which nobody signed.
pub(super) fn tokens(input: &[u8]) -> String {
    let (verifier, runtime) = &*DESK;
    let unsigned = runtime.block_on(verifier.verify(&text(input), TokenKind::Access));
    assert!(unsigned.is_err(), "nobody signed it");
    let (header, claims) = line(input);
    let message = format!("{}.{}", BASE64URL_NOPAD.encode(header), BASE64URL_NOPAD.encode(claims));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), message.as_bytes());
    let token = format!("{message}.{}", BASE64URL_NOPAD.encode(signature.as_ref()));
    let read = runtime.block_on(verifier.read(&token, None)).map(|claims| (claims.kind, claims.user.is_some()));
    let verified = runtime.block_on(verifier.verify(&token, TokenKind::Access)).map(|claims| claims.says_kind);
    format!("{unsigned:?} {read:?} {verified:?}")
}

/// A JSON Web Key Set, or a key in PEM.
pub(super) fn key_sets(input: &[u8]) -> String {
    let set = Key::from_jwks(input).map(|keys| keys.len());
    format!("{set:?} {:?}", Key::from_pem(input).map(drop))
}
