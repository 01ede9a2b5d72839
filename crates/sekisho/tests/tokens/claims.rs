//! What a genuine token must say.

use std::time::Duration;

use sekisho::clock::Timestamp;
use sekisho::revocation::{Jti, TokenKind, Whom};
use sekisho::tokens::{Algorithm, Key, Keys, Refusal};
use sekisho_testkit::jwt::Signer;
use serde_json::{Value, json};

use crate::support::{Desk, ISS, LEEWAY, NOW, SECRET, good, good_but, issuer, published};

fn start() -> (Signer, Desk) {
    let signer = Signer::ed25519();
    let desk = Desk::with(&signer);
    (signer, desk)
}

#[tokio::test]
async fn every_algorithm_verifies_what_it_signed() {
    for name in ["HS256", "HS384", "HS512"] {
        let key = Key::secret(Algorithm::parse(name).unwrap(), SECRET).unwrap();
        let desk = Desk::of(vec![issuer(ISS, &[name], Keys::fixed(vec![key]))]);
        assert!(desk.verify(&Signer::hmac(name, SECRET).token(&good())).await.is_ok(), "{name}");
        let guessed =
            Signer::hmac(name, b"another secret of sixty-four bytes: also enough for each of HS*.").token(&good());
        assert_eq!(desk.refusal(&guessed).await, Refusal::Signature, "{name}");
    }
    let signers = ["RS256", "RS384", "RS512"].map(Signer::rsa).into_iter();
    for signer in signers.chain(["ES256", "ES384"].map(Signer::ec)).chain([Signer::ed25519()]) {
        let from_pem = Keys::fixed(vec![Key::from_pem(signer.public_pem().as_bytes()).unwrap()]);
        for keys in [from_pem, published(&[&signer])] {
            let desk = Desk::of(vec![issuer(ISS, &[signer.alg], keys)]);
            let claims = desk.verify(&signer.token(&good())).await.unwrap();
            assert_eq!((claims.user.as_deref(), claims.jti.as_str()), (Some("user-1"), "jti-1"), "{}", signer.alg);
            assert_eq!(claims.expires_at, Timestamp::from_secs(NOW + 900));
        }
    }
}

#[tokio::test]
async fn c22_exp_holds_to_the_second() {
    let (signer, desk) = start();
    let token = signer.token(&good());
    desk.clock.set(Timestamp::from_secs(NOW + 900 + LEEWAY - 1));
    assert!(desk.verify(&token).await.is_ok());
    desk.clock.set(Timestamp::from_secs(NOW + 900 + LEEWAY));
    assert_eq!(desk.refusal(&token).await, Refusal::Expired);
    desk.clock.set(Timestamp::from_secs(NOW + 900 + LEEWAY + 1));
    assert_eq!(desk.refusal(&token).await, Refusal::Expired);
}

#[tokio::test]
async fn c22_a51_nbf_and_iat_hold_to_the_second() {
    let (signer, desk) = start();
    for name in ["nbf", "iat"] {
        let at = |time: u64| signer.token(&good_but(&json!({ name: time })));
        assert!(desk.verify(&at(NOW + LEEWAY)).await.is_ok(), "{name}");
        assert_eq!(desk.refusal(&at(NOW + LEEWAY + 1)).await, Refusal::NotYet, "{name}");
    }
}

#[tokio::test]
async fn c22_a51_exp_and_jti_must_be_there_and_be_what_they_are() {
    let (signer, desk) = start();
    for name in ["exp", "jti"] {
        let without = signer.token(&good_but(&json!({ name: null })));
        assert_eq!(desk.refusal(&without).await, Refusal::Claim(name));
    }
    let wrong = [json!("1700000900"), json!(-1), json!(1e300), json!([NOW + 900]), json!(true), json!({})];
    for (name, value) in ["exp", "nbf", "iat"].iter().flat_map(|name| wrong.iter().map(move |value| (*name, value))) {
        let token = signer.token(&good_but(&json!({ name: value })));
        assert_eq!(desk.refusal(&token).await, Refusal::Claim(name), "{name}: {value}");
    }
    for jti in [json!(""), json!(7), json!("a\nb"), json!(["a"])] {
        assert_eq!(
            desk.refusal(&signer.token(&good_but(&json!({ "jti": jti })))).await,
            Refusal::Claim("jti"),
            "{jti}"
        );
    }
    let fraction = signer.token(&good_but(&json!({ "exp": NOW as f64 + 0.5 })));
    assert_eq!(desk.verify(&fraction).await.unwrap().expires_at, Timestamp::from_millis(NOW * 1_000 + 500));
}

#[tokio::test]
async fn c28_a_refresh_token_ends_absolutely_and_can_be_revoked() {
    let (signer, desk) = start();
    let refresh = |over: Value| {
        let mut claims = good_but(&json!({ "type": "refresh", "exp": NOW + 604_800 }));
        claims.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        signer.token(&claims)
    };
    let verify = async |token: &str| desk.verifier.verify(token, TokenKind::Refresh).await;
    for over in [json!({ "exp": null }), json!({ "exp": "never" }), json!({ "exp": 1e300 })] {
        assert_eq!(verify(&refresh(over.clone())).await.unwrap_err(), Refusal::Claim("exp"), "{over}");
    }
    let (one, two) = (refresh(json!({ "jti": "one" })), refresh(json!({ "jti": "two" })));
    let claims = verify(&one).await.unwrap();
    let until = desk.verifier.forgotten_at(&claims);
    desk.verifier.revocations().revoke(TokenKind::Refresh, &claims.jti, until).await.unwrap();
    assert_eq!(verify(&one).await.unwrap_err(), Refusal::Revoked);
    assert!(verify(&two).await.is_ok());
    // However often it was used meanwhile.
    desk.clock.advance(Duration::from_secs(604_800 + 60));
    assert_eq!(verify(&two).await.unwrap_err(), Refusal::Expired);
}

#[tokio::test]
async fn c29_a_token_that_does_not_say_its_kind_is_looked_for_in_both_lists() {
    let (signer, desk) = start();
    let revoke = async |kind, jti: &str| {
        let jti = sekisho::revocation::Jti::new(jti).unwrap();
        let until = Timestamp::from_secs(NOW + 960);
        desk.verifier.revocations().revoke(kind, &jti, until).await.unwrap();
    };
    use TokenKind::{Access, Refresh};
    let silent = |jti: &str| signer.token(&good_but(&json!({ "jti": jti })));
    let says = |jti: &str, kind: &str| signer.token(&good_but(&json!({ "jti": jti, "type": kind })));
    revoke(Refresh, "a").await;
    revoke(Access, "b").await;
    for jti in ["a", "b"] {
        assert_eq!(desk.refusal(&silent(jti)).await, Refusal::Revoked, "{jti}");
        for hint in [None, Some(Access), Some(Refresh)] {
            let found = desk.verifier.inspect(&silent(jti), hint).await;
            assert_eq!(found.unwrap_err(), Refusal::Revoked, "{jti} {hint:?}");
        }
    }
    // Who says it is in one list alone.
    assert!(desk.verify(&says("a", "access")).await.is_ok());
    assert!(desk.verifier.verify(&says("b", "refresh"), Refresh).await.is_ok());
}

#[tokio::test]
async fn users_are_names_that_can_stand_in_a_header() {
    let (signer, desk) = start();
    for sub in [json!(""), json!(" admin"), json!("admin "), json!("a\r\nb"), json!(7), json!("u".repeat(257))] {
        assert_eq!(
            desk.refusal(&signer.token(&good_but(&json!({ "sub": sub })))).await,
            Refusal::Claim("sub"),
            "{sub}"
        );
    }
    let nobody = signer.token(&good_but(&json!({ "sub": null })));
    assert_eq!(desk.verify(&nobody).await.unwrap().user, None);
}

#[tokio::test]
async fn c24_a52_the_audience_is_ours() {
    let (signer, desk) = start();
    let to = |audience: &Value| signer.token(&good_but(&json!({ "aud": audience })));
    for audience in [json!("api"), json!(["other", "api"])] {
        assert!(desk.verify(&to(&audience)).await.is_ok(), "{audience}");
    }
    for audience in [json!("other"), json!("API"), json!(["other"]), json!([]), json!(7), json!(["api2"]), json!(null)]
    {
        assert_eq!(desk.refusal(&to(&audience)).await, Refusal::Audience, "{audience}");
    }
    let mut nobodys = issuer(ISS, &["EdDSA"], published(&[&signer]));
    nobodys.audience.clear();
    let desk = Desk::of(vec![nobodys]);
    assert!(desk.verify(&to(&json!(null))).await.is_ok());
    assert_eq!(desk.refusal(&to(&json!("api"))).await, Refusal::Audience, "it is somebody's, and we are nobody");
}

#[tokio::test]
async fn c23_a52_kinds_exclude_each_other() {
    let (signer, desk) = start();
    let kind_of = async |header: Value, over: Value, hint| {
        let token = signer.token_with(&header, &good_but(&over));
        desk.verifier.inspect(&token, hint).await.map(|claims| claims.kind)
    };
    use TokenKind::{Access, Refresh};
    let plain = || json!({});
    for typ in [json!(null), json!("JWT"), json!("jwt"), json!("at+jwt"), json!("application/at+jwt")] {
        assert_eq!(kind_of(json!({ "typ": typ }), plain(), None).await, Ok(Access), "{typ}");
    }
    for typ in ["logout+jwt", "dpop+jwt", "id+jwt", "", "application/", "secevent+jwt"] {
        assert_eq!(kind_of(json!({ "typ": typ }), plain(), None).await, Err(Refusal::Type), "{typ}");
    }
    assert_eq!(kind_of(json!({ "typ": "rt+jwt" }), plain(), Some(Access)).await, Ok(Refresh));
    for name in ["token_type", "typ", "type"] {
        for word in ["refresh", "Refresh", "refresh_token"] {
            assert_eq!(kind_of(plain(), json!({ name: word }), Some(Access)).await, Ok(Refresh), "{name} {word}");
        }
        assert_eq!(kind_of(plain(), json!({ name: "Bearer" }), Some(Refresh)).await, Ok(Access), "{name}");
        assert_eq!(kind_of(plain(), json!({ name: "ID" }), None).await, Err(Refusal::Kind), "{name}");
        // Keycloak's refresh token that outlives its session.
        assert_eq!(kind_of(plain(), json!({ name: "Offline" }), None).await, Ok(Refresh), "{name}");
        // What is not known is not taken for what is.
        for other in [json!("password_reset"), json!("DPoP"), json!(""), json!(7), json!(["access"]), json!(true)] {
            for hint in [None, Some(Access), Some(Refresh)] {
                let kind = kind_of(plain(), json!({ name: other }), hint).await;
                assert_eq!(kind, Err(Refusal::Kind), "{name} {other}");
            }
        }
        // A header that says it leaves the claim to its issuer, but not a contradiction.
        let typed = || json!({ "typ": "at+jwt" });
        assert_eq!(kind_of(typed(), json!({ name: "employee" }), None).await, Ok(Access), "{name}");
        assert_eq!(kind_of(typed(), json!({ name: "refresh" }), None).await, Ok(Refresh), "{name}");
        assert_eq!(kind_of(typed(), json!({ name: "id_token" }), None).await, Err(Refusal::Kind), "{name}");
    }
    assert_eq!(kind_of(plain(), json!({ "typ": "JWT" }), Some(Refresh)).await, Ok(Refresh), "that says nothing");
    assert_eq!(kind_of(plain(), json!({ "token_type": "bearer", "type": "reset" }), None).await, Err(Refusal::Kind));
    assert_eq!(kind_of(plain(), json!({ "at_hash": "x" }), None).await, Err(Refusal::Kind));
    // Where the token does not say, whoever asks does.
    assert_eq!(kind_of(plain(), plain(), Some(Refresh)).await, Ok(Refresh));
    let refresh = signer.token(&good_but(&json!({ "type": "refresh" })));
    assert_eq!(desk.refusal(&refresh).await, Refusal::Kind);
    assert!(desk.verifier.verify(&refresh, Refresh).await.is_ok());
    assert_eq!(desk.verifier.verify(&signer.token(&good()), Refresh).await.unwrap_err(), Refusal::Kind);
}

#[tokio::test]
async fn c24_a59_users_and_ids_of_two_issuers_are_told_apart() {
    let (a, b) = (Signer::ec("ES256"), Signer::ec("ES256"));
    let within = |iss: &str, signer: &Signer, namespace: &str| {
        let mut issuer = issuer(iss, &["ES256"], published(&[signer]));
        issuer.namespace = Some(namespace.to_owned());
        issuer
    };
    let desk = Desk::of(vec![within("a", &a, "one"), within("b", &b, "two")]);
    let (of_a, of_b) = (a.token(&good_but(&json!({ "iss": "a" }))), b.token(&good_but(&json!({ "iss": "b" }))));
    let claims = desk.verify(&of_a).await.unwrap();
    assert_eq!((claims.user.as_deref(), claims.jti.as_str()), (Some("one/user-1"), "one/jti-1"));
    let until = desk.verifier.forgotten_at(&claims);
    desk.verifier.revocations().revoke(TokenKind::Access, &claims.jti, until).await.unwrap();
    assert_eq!(desk.refusal(&of_a).await, Refusal::Revoked);
    assert!(desk.verify(&of_b).await.is_ok());
}

#[tokio::test]
async fn what_was_revoked_is_refused_for_as_long_as_it_could_pass() {
    let (signer, desk) = start();
    let token = signer.token(&good_but(&json!({ "type": "access" })));
    let claims = desk.verify(&token).await.unwrap();
    let revocations = desk.verifier.revocations();
    revocations.revoke(TokenKind::Refresh, &claims.jti, Timestamp::from_secs(NOW + 2_000)).await.unwrap();
    assert!(desk.verify(&token).await.is_ok(), "of the other kind");
    revocations.revoke(TokenKind::Access, &claims.jti, desk.verifier.forgotten_at(&claims)).await.unwrap();
    // Also in the leeway, where a verifier still takes what has expired.
    for later in [0, 899, 900, 900 + LEEWAY - 1] {
        desk.clock.set(Timestamp::from_secs(NOW + later));
        assert_eq!(desk.refusal(&token).await, Refusal::Revoked, "{later}");
    }
    desk.clock.set(Timestamp::from_secs(NOW + 900 + LEEWAY));
    assert_eq!(desk.refusal(&token).await, Refusal::Expired);
    // Whoever revokes does not care whether it has expired.
    assert_eq!(desk.verifier.read(&token, None).await.unwrap().jti, Jti::new("jti-1").unwrap());
}

#[tokio::test]
async fn a_mark_ends_what_was_issued_before_it() {
    let (signer, desk) = start();
    let revocations = desk.verifier.revocations();
    let mark = Timestamp::from_millis(NOW * 1_000 + 300);
    revocations.end_before(Whom::User("user-1"), mark, Duration::from_secs(9_999)).await.unwrap();
    let issued = |over: Value| signer.token(&good_but(&over));
    assert_eq!(desk.refusal(&issued(json!({ "iat": NOW }))).await, Refusal::Revoked);
    assert_eq!(desk.refusal(&issued(json!({ "iat": null }))).await, Refusal::Revoked, "nobody knows when");
    assert!(desk.verify(&issued(json!({ "iat": NOW + 1 }))).await.is_ok());
    assert!(desk.verify(&issued(json!({ "sub": "user-2" }))).await.is_ok());
}

#[tokio::test]
async fn claims_become_text_where_they_can() {
    let (signer, desk) = start();
    let over = json!({ "org": "o1", "tier": 3, "beta": true, "roles": ["a"], "nested": { "a": 1 } });
    let claims = desk.verify(&signer.token(&good_but(&over))).await.unwrap();
    let text = |name: &str| claims.text(name);
    assert_eq!((text("org"), text("tier"), text("beta")), (Some("o1".into()), Some("3".into()), Some("true".into())));
    assert_eq!((text("roles"), text("nested"), text("missing")), (None, None, None));
}
