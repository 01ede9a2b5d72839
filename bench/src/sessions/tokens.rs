//! All of a verification, revocation included, against the signature alone.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use sekisho::clock::{Clock as _, SystemClock};
use sekisho::revocation::TokenKind;
use sekisho::tokens::{Algorithm, Issuer, Key, Keys, Verifier};
use sekisho_testkit::jwt::{Signer, jwks};
use serde_json::json;

use crate::measure::{Contender, median, ratio, rounds, row};

const OPERATIONS: usize = 2_000;
const ROUNDS: usize = 21;

struct Bench {
    runtime: tokio::runtime::Runtime,
    verifier: Verifier,
    token: String,
    /// Decoded before: that is not the signature's work.
    signature: Vec<u8>,
    key: UnparsedPublicKey<Vec<u8>>,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let clock = Arc::new(SystemClock::start());
        let signer = Signer::ec("ES256").named("k");
        let issuer = Issuer {
            iss: "https://auth.example".to_owned(),
            audience: vec!["api".to_owned()],
            algorithms: vec![Algorithm::Es256],
            keys: Keys::fixed(Key::from_jwks(jwks(&[&signer]).as_bytes())?),
            namespace: None,
        };
        let revocations = super::revocation::filled(clock.clone())?;
        let verifier = Verifier::new(vec![issuer], Duration::from_secs(60), revocations, clock.clone())?;
        let now = clock.now().as_secs_ceil();
        let token = signer.token(&json!({
            "iss": "https://auth.example",
            "aud": "api",
            "sub": "550e8400-e29b-41d4-a716-446655440000",
            "jti": "7f3d9a1b-2c8e-4f5a-9b1d-6e8c7a3f2d1b",
            "iat": now,
            "exp": now + 3_600,
            "scope": "profile:read profile:write",
        }));
        let signature = token.rsplit_once('.').map_or("", |(_, signature)| signature);
        let signature = BASE64URL_NOPAD.decode(signature.as_bytes())?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, signer.public_key().to_vec());
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(Self { runtime, verifier, token, signature, key })
    }

    fn whole(&self) {
        self.runtime.block_on(async {
            for _ in 0..OPERATIONS {
                black_box(self.verifier.verify(black_box(&self.token), TokenKind::Access).await).unwrap();
            }
        });
    }

    fn signature(&self) {
        let message = self.token.rsplit_once('.').map_or("", |(message, _)| message);
        for _ in 0..OPERATIONS {
            black_box(self.key.verify(black_box(message.as_bytes()), &self.signature)).unwrap();
        }
    }
}

pub(crate) fn run() -> anyhow::Result<()> {
    println!("\n## An ES256 token, 1M tokens revoked (median of {ROUNDS} interleaved rounds)\n");
    println!("| the same token, 1 thread | µs | of the signature alone |\n|---|---|---|");
    let bench = Bench::new()?;
    let contenders = [Contender::new(|_| bench.whole()), Contender::new(|_| bench.signature())];
    let times = rounds(&contenders, 1, OPERATIONS, ROUNDS);
    let micros = |times: &[f64]| format!("{:.1}", median(times) / 1_000.0);
    row("verify and check", &[("", micros(&times[0])), ("×", format!("{:.3}", ratio(&times[0], &times[1])))]);
    row("ring's verification of the signature", &[("", micros(&times[1])), ("", "1".to_owned())]);
    Ok(())
}

/// One side alone, for a profiler.
pub(crate) fn count(what: &str) -> anyhow::Result<()> {
    let bench = Bench::new()?;
    match what {
        "verify" => bench.whole(),
        "signature" => bench.signature(),
        "nothing" => {}
        _ => anyhow::bail!("verify, signature or nothing"),
    }
    Ok(())
}
