//! One attack each.

use data_encoding::BASE64URL_NOPAD;
use proptest::prelude::*;
use sekisho::tokens::{Key, Keys, MAX_TOKEN, Refusal};
use sekisho_testkit::jwt::{Signer, part};
use serde_json::json;

use crate::support::{Desk, ISS, NOW, SECRET, good, good_but, issuer, published};

#[tokio::test]
async fn c20_a49_none_is_no_algorithm() {
    let signer = Signer::ec("ES256");
    let desk = Desk::with(&signer);
    for alg in ["none", "None", "NONE", "nOnE", "", "HS257"] {
        let unsigned = format!("{}.{}.", part(&json!({ "alg": alg, "typ": "JWT" })), part(&good()));
        assert_eq!(desk.refusal(&unsigned).await, Refusal::Malformed, "{alg}");
        let signed = signer.token_with(&json!({ "alg": alg }), &good());
        assert_eq!(desk.refusal(&signed).await, Refusal::Malformed, "{alg}");
    }
}

#[tokio::test]
async fn c20_a49_a_public_key_is_no_secret() {
    let rsa = Signer::rsa("RS256");
    let pem = rsa.public_pem();
    let desk = Desk::of(vec![issuer(ISS, &["RS256"], Keys::fixed(vec![Key::from_pem(pem.as_bytes()).unwrap()]))]);
    assert!(desk.verify(&rsa.token(&good())).await.is_ok());
    // Everybody knows the public key; whoever signs with it as a secret must gain nothing.
    for secret in [pem.as_bytes(), pem.trim().as_bytes(), rsa.public_key()] {
        let forged = Signer::hmac("HS256", secret).token(&good());
        assert_eq!(desk.refusal(&forged).await, Refusal::Algorithm);
        // Nor by saying that it is RSA.
        let forged = Signer::hmac("HS256", secret).token_with(&json!({ "alg": "RS256" }), &good());
        assert_eq!(desk.refusal(&forged).await, Refusal::Signature);
    }
}

#[tokio::test]
async fn c20_a49_an_issuer_signs_only_as_it_may() {
    let signer = Signer::rsa("RS512");
    let desk = Desk::of(vec![issuer(ISS, &["RS256"], published(&[&signer]))]);
    assert_eq!(desk.refusal(&signer.token(&good())).await, Refusal::Algorithm);
    // A key for one algorithm is not lent to another of its family.
    let mut jwk = signer.jwk();
    jwk["alg"] = json!("RS256");
    let keys = Keys::fixed(Key::from_jwks(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap());
    let desk = Desk::of(vec![issuer(ISS, &["RS256", "RS512"], keys)]);
    assert_eq!(desk.refusal(&signer.token(&good())).await, Refusal::UnknownKey);
    assert!(desk.verify(&Signer::rsa("RS256").token(&good())).await.is_ok());
}

#[tokio::test]
async fn c21_a50_keys_in_the_token_are_not_looked_at() {
    let (signer, evil) = (Signer::ec("ES256").named("k1"), Signer::ec("ES256").named("k1"));
    let desk = Desk::with(&signer);
    for header in [
        json!({ "jku": "https://evil.example/jwks.json" }),
        json!({ "x5u": "https://evil.example/cert.pem" }),
        json!({ "jwk": evil.jwk() }),
        json!({ "x5c": ["MIIB"] }),
    ] {
        assert_eq!(desk.refusal(&evil.token_with(&header, &good())).await, Refusal::Signature, "{header}");
        // They do not even get in the way.
        assert!(desk.verify(&signer.token_with(&header, &good())).await.is_ok(), "{header}");
    }
    let with_kid = |kid: &str| evil.token_with(&json!({ "kid": kid, "jwk": evil.jwk() }), &good());
    assert_eq!(desk.refusal(&with_kid("evil")).await, Refusal::UnknownKey);
}

#[tokio::test]
async fn c21_a50_kid_is_only_compared() {
    let signer = Signer::ec("ES256").named("k1");
    let desk = Desk::with(&signer);
    for kid in ["../../etc/passwd", "/dev/null", "k1\0", "K1", "k1' OR '1'='1", "", "{{7*7}}", &"k".repeat(8_000)] {
        assert_eq!(
            desk.refusal(&signer.token_with(&json!({ "kid": kid }), &good())).await,
            Refusal::UnknownKey,
            "{kid}"
        );
    }
    assert_eq!(desk.refusal(&signer.token_with(&json!({ "kid": 1 }), &good())).await, Refusal::Malformed);
}

#[tokio::test]
async fn c19_no_claim_counts_before_the_signature() {
    let (signer, evil) = (Signer::ec("ES256"), Signer::ec("ES256"));
    let desk = Desk::with(&signer);
    // Whatever else is wrong with a forged token, that it is forged is what is found.
    for over in [
        json!({ "exp": NOW - 10_000 }),
        json!({ "aud": "other" }),
        json!({ "jti": null }),
        json!({ "nbf": NOW + 10_000 }),
        json!({ "sub": 7 }),
    ] {
        assert_eq!(desk.refusal(&evil.token(&good_but(&over))).await, Refusal::Signature, "{over}");
    }
}

#[tokio::test]
async fn c24_keys_are_bound_to_their_issuer() {
    let (ours, theirs) = (Signer::ec("ES256").named("k"), Signer::ec("ES256").named("k"));
    let other = "https://other.example";
    let desk =
        Desk::of(vec![issuer(ISS, &["ES256"], published(&[&ours])), issuer(other, &["ES256"], published(&[&theirs]))]);
    assert_eq!(desk.verify(&theirs.token(&good_but(&json!({ "iss": other })))).await.unwrap().issuer, other);
    // One issuer's key does not speak for the other.
    assert_eq!(desk.refusal(&theirs.token(&good())).await, Refusal::Signature);
    for iss in [json!("https://auth.example/"), json!("evil"), json!(null), json!([ISS]), json!(7)] {
        assert_eq!(desk.refusal(&ours.token(&good_but(&json!({ "iss": iss })))).await, Refusal::Issuer, "{iss}");
    }
}

#[tokio::test]
async fn c22_a53_what_is_too_long_is_not_read() {
    let signer = Signer::hmac("HS256", SECRET);
    let desk = secret_desk();
    let megabyte = signer.token(&good_but(&json!({ "filler": "x".repeat(1 << 20) })));
    assert_eq!(desk.refusal(&megabyte).await, Refusal::TooLong);
    assert_eq!(desk.refusal(&".".repeat(MAX_TOKEN + 1)).await, Refusal::TooLong);
    assert!(desk.verify(&signer.token(&good_but(&json!({ "filler": "x".repeat(8_000) })))).await.is_ok());
}

#[tokio::test]
async fn what_is_no_token_is_refused() {
    let desk = secret_desk();
    let signer = Signer::hmac("HS256", SECRET);
    let whole = signer.token(&good());
    let (message, signature) = whole.rsplit_once('.').unwrap();
    let header = message.split_once('.').unwrap().0;
    let nested = BASE64URL_NOPAD.encode("[".repeat(10_000).as_bytes());
    for bad in [
        "",
        ".",
        "..",
        "...",
        "token",
        "関所.関所.関所",
        "a.b.c",
        message,
        &format!("{whole}."),
        &format!("{whole}=="),
        &format!("{message}.{signature}\n"),
        &format!(" {whole}"),
        &format!("{message}.!!!"),
        &format!("{header}.{header}.{whole}"),
        &signer.sign(&format!("{header}.")),
        &signer.sign(&format!("{header}.{}", BASE64URL_NOPAD.encode(b"[1]"))),
        &signer.sign(&format!("{header}.{}", BASE64URL_NOPAD.encode(b"\"text\""))),
        &signer.sign(&format!("{header}.{nested}")),
        &signer.sign(&format!("{nested}.{}", part(&good()))),
        &signer.sign(&format!("{}.{}", BASE64URL_NOPAD.encode(b"{}"), part(&good()))),
    ] {
        assert_eq!(desk.refusal(bad).await, Refusal::Malformed, "{bad:.100}");
    }
}

#[tokio::test]
async fn what_is_critical_is_not_passed_over() {
    let desk = secret_desk();
    let signer = Signer::hmac("HS256", SECRET);
    for header in [json!({ "crit": ["b64"], "b64": false }), json!({ "zip": "DEF" }), json!({ "enc": "A128GCM" })] {
        assert_eq!(desk.refusal(&signer.token_with(&header, &good())).await, Refusal::Type, "{header}");
    }
}

#[test]
fn c26_a_secret_is_as_long_as_the_hash() {
    use sekisho::tokens::Algorithm::{Es256, Hs256, Hs384, Hs512};
    for (algorithm, least) in [(Hs256, 32), (Hs384, 48), (Hs512, 64)] {
        assert!(Key::secret(algorithm, &vec![7; least]).is_ok());
        assert!(Key::secret(algorithm, &vec![7; least - 1]).unwrap_err().reason.contains("bytes"));
    }
    assert!(Key::secret(Es256, &[7; 64]).is_err());
    assert!(!format!("{:?}", Key::secret(Hs256, SECRET).unwrap()).contains("secret of"));
}

#[test]
fn c20_a49_secrets_and_public_keys_do_not_share_an_issuer() {
    use sekisho::clock::ManualClock;
    use sekisho::revocation::Revocations;
    use std::sync::Arc;
    let clock = Arc::new(ManualClock::default());
    let build = |issuers| {
        let revocations = Revocations::memory(clock.clone());
        sekisho::tokens::Verifier::new(issuers, std::time::Duration::ZERO, revocations, clock.clone())
    };
    let keys = || Keys::fixed(Vec::new());
    assert_eq!(build(vec![issuer(ISS, &["RS256", "HS256"], keys())]).unwrap_err().field, "issuers[0].algorithms");
    assert_eq!(build(vec![issuer(ISS, &[], keys())]).unwrap_err().field, "issuers[0].algorithms");
    let twice = vec![issuer(ISS, &["RS256"], keys()), issuer(ISS, &["ES256"], keys())];
    assert_eq!(build(twice).unwrap_err().field, "issuers[1].iss");
}

#[test]
fn c21_sets_give_only_public_keys_that_sign() {
    let signer = Signer::ec("ES256");
    let mut encrypts = signer.jwk();
    encrypts["use"] = json!("enc");
    let mut other_curve = signer.jwk();
    other_curve["crv"] = json!("P-384");
    let secret = json!({ "kty": "oct", "k": BASE64URL_NOPAD.encode(SECRET), "alg": "HS256" });
    let weak = json!({ "kty": "RSA", "n": BASE64URL_NOPAD.encode(&[255; 128]), "e": "AQAB" });
    let strange = json!({ "kty": "AKP", "alg": "ML-DSA-44", "pub": "AAAA" });
    for unfit in [&encrypts, &other_curve, &secret, &weak, &strange, &json!(7), &json!({ "kty": "EC" })] {
        let set = |keys: &[&serde_json::Value]| json!({ "keys": keys }).to_string();
        assert!(Key::from_jwks(set(&[unfit]).as_bytes()).is_err(), "{unfit}");
        assert_eq!(Key::from_jwks(set(&[unfit, &signer.jwk()]).as_bytes()).unwrap().len(), 1, "{unfit}");
    }
    for set in ["", "{}", "[]", "{\"keys\":{}}", "{\"keys\":[]}"] {
        assert!(Key::from_jwks(set.as_bytes()).is_err(), "{set}");
    }
    let many = vec![signer.jwk(); 101];
    assert!(Key::from_jwks(json!({ "keys": many }).to_string().as_bytes()).is_err());
}

#[test]
fn a_pem_is_one_public_key() {
    for signer in [Signer::rsa("RS256"), Signer::ec("ES256"), Signer::ec("ES384"), Signer::ed25519()] {
        assert!(Key::from_pem(signer.public_pem().as_bytes()).is_ok(), "{}", signer.alg);
    }
    let wrapped = |label: &str| format!("-----BEGIN {label}-----\nMAA=\n-----END {label}-----\n");
    let reason = |pem: String| Key::from_pem(pem.as_bytes()).unwrap_err().reason;
    assert!(reason(wrapped("PRIVATE KEY")).contains("private"));
    assert!(reason(wrapped("CERTIFICATE")).contains("certificate"));
    assert!(reason(wrapped("PUBLIC KEY")).contains("must hold"));
    assert!(reason(String::new()).contains("must hold"));
}

fn secret_desk() -> Desk {
    let key = Key::secret(sekisho::tokens::Algorithm::Hs256, SECRET).unwrap();
    Desk::of(vec![issuer(ISS, &["HS256"], Keys::fixed(vec![key]))])
}

/// A change of some bytes, somewhere.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Insert(prop::sample::Index, u8),
    Swap(prop::sample::Index, prop::sample::Index),
    Cut(prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), 1u8..128).prop_map(|(at, by)| Mutation::Flip(at, by)),
        index().prop_map(Mutation::Remove),
        (index(), 0u8..128).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        (index(), index()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        index().prop_map(Mutation::Cut),
    ]
}

fn mutated(token: &str, mutations: &[Mutation]) -> String {
    let mut bytes = token.as_bytes().to_vec();
    for mutation in mutations {
        if bytes.is_empty() {
            break;
        }
        let length = bytes.len();
        match mutation {
            Mutation::Flip(at, by) => bytes[at.index(length)] ^= by,
            Mutation::Remove(at) => drop(bytes.remove(at.index(length))),
            Mutation::Insert(at, byte) => bytes.insert(at.index(length), *byte),
            Mutation::Swap(a, b) => bytes.swap(a.index(length), b.index(length)),
            Mutation::Cut(at) => bytes.truncate(at.index(length)),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn c19_no_change_of_a_token_is_accepted(
        which in 0usize..4,
        mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        thread_local! {
            static DESKS: Vec<(Desk, String)> = {
                let signers = [Signer::ec("ES256"), Signer::ec("ES384"), Signer::ed25519(), Signer::rsa("RS256")];
                signers.iter().map(|signer| (Desk::with(signer), signer.token(&good()))).collect()
            };
            static RUNTIME: tokio::runtime::Runtime =
                tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        }
        DESKS.with(|desks| {
            let (desk, token) = &desks[which];
            let changed = mutated(token, &mutations);
            let accepted = RUNTIME.with(|runtime| runtime.block_on(desk.verify(&changed))).is_ok();
            prop_assert!(changed == *token || !accepted, "accepted: {changed}");
            Ok(())
        })?;
    }
}
