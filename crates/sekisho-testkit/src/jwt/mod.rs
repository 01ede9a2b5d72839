//! An issuer of tokens: signs whatever a test wants signed, right or wrong.

use data_encoding::{BASE64, BASE64URL_NOPAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RsaEncoding, RsaKeyPair,
};
use serde_json::{Value, json};

/// ring makes no RSA keys, so this one was made once. It protects nothing but tests.
const RSA: &str = include_str!("rsa.b64");
/// Its public half.
const RSA_PUBLIC_PEM: &str = include_str!("rsa.pub.pem");

/// What stands before a raw public key to make it a SubjectPublicKeyInfo.
const SPKI_P256: &str = "3059301306072A8648CE3D020106082A8648CE3D030107034200";
const SPKI_P384: &str = "3076301006072A8648CE3D020106052B81040022036200";
const SPKI_ED25519: &str = "302A300506032B6570032100";

/// A key to sign with.
#[derive(Debug)]
pub struct Signer {
    /// What the header says.
    pub alg: &'static str,
    pub kid: Option<String>,
    key: SigningKey,
}

enum SigningKey {
    Hmac(hmac::Key),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

impl Signer {
    /// HS256, HS384 or HS512.
    pub fn hmac(alg: &'static str, secret: &[u8]) -> Self {
        let hash = match alg {
            "HS384" => hmac::HMAC_SHA384,
            "HS512" => hmac::HMAC_SHA512,
            _ => hmac::HMAC_SHA256,
        };
        Self { alg, kid: None, key: SigningKey::Hmac(hmac::Key::new(hash, secret)) }
    }

    /// RS256, RS384 or RS512. Always the same key.
    pub fn rsa(alg: &'static str) -> Self {
        let der = BASE64.decode(RSA.split_whitespace().collect::<String>().as_bytes()).expect("base64");
        let key = RsaKeyPair::from_pkcs8(&der).expect("a key of the right form");
        let padding: &dyn RsaEncoding = match alg {
            "RS384" => &RSA_PKCS1_SHA384,
            "RS512" => &RSA_PKCS1_SHA512,
            _ => &RSA_PKCS1_SHA256,
        };
        Self { alg, kid: None, key: SigningKey::Rsa(Box::new(key), padding) }
    }

    /// ES256 or ES384, with a new key.
    pub fn ec(alg: &'static str) -> Self {
        let curve = if alg == "ES384" { &ECDSA_P384_SHA384_FIXED_SIGNING } else { &ECDSA_P256_SHA256_FIXED_SIGNING };
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(curve, &random).expect("the system has random bytes");
        let key = EcdsaKeyPair::from_pkcs8(curve, made.as_ref(), &random).expect("a key just made");
        Self { alg, kid: None, key: SigningKey::Ec(key) }
    }

    /// EdDSA, with a new key.
    pub fn ed25519() -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("the system has random bytes");
        let key = Ed25519KeyPair::from_pkcs8(made.as_ref()).expect("a key just made");
        Self { alg: "EdDSA", kid: None, key: SigningKey::Ed(key) }
    }

    #[must_use]
    pub fn named(mut self, kid: &str) -> Self {
        self.kid = Some(kid.to_owned());
        self
    }

    /// A token with an ordinary header.
    pub fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "typ": "JWT" }), claims)
    }

    /// `header` is put over `alg` and `kid`; a null there takes one away.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let mut whole = json!({ "alg": self.alg });
        if let Some(kid) = &self.kid {
            whole["kid"] = json!(kid);
        }
        for (name, value) in header.as_object().into_iter().flatten() {
            whole[name] = value.clone();
        }
        whole.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        self.sign(&format!("{}.{}", part(&whole), part(claims)))
    }

    /// Any text with its signature behind a dot.
    pub fn sign(&self, message: &str) -> String {
        format!("{message}.{}", BASE64URL_NOPAD.encode(&self.signature(message.as_bytes())))
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.key {
            SigningKey::Hmac(key) => hmac::sign(key, message).as_ref().to_vec(),
            SigningKey::Rsa(key, padding) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(*padding, &random, message, &mut signature).expect("as long as the modulus");
                signature
            }
            SigningKey::Ec(key) => key.sign(&random, message).expect("the system has random bytes").as_ref().to_vec(),
            SigningKey::Ed(key) => key.sign(message).as_ref().to_vec(),
        }
    }

    /// The raw public key, for comparisons with what verifies signatures and nothing else.
    pub fn public_key(&self) -> &[u8] {
        match &self.key {
            SigningKey::Hmac(_) => panic!("a secret is not published"),
            SigningKey::Rsa(key, _) => key.public().as_ref(),
            SigningKey::Ec(key) => key.public_key().as_ref(),
            SigningKey::Ed(key) => key.public_key().as_ref(),
        }
    }

    /// The public key as a JWK.
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| json!(BASE64URL_NOPAD.encode(bytes));
        let mut jwk = match &self.key {
            SigningKey::Rsa(key, _) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({ "kty": "RSA", "n": text(&public.n), "e": text(&public.e) })
            }
            SigningKey::Ed(_) => json!({ "kty": "OKP", "crv": "Ed25519", "x": text(self.public_key()) }),
            SigningKey::Hmac(_) | SigningKey::Ec(_) => {
                let point = &self.public_key()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if x.len() == 32 { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": curve, "x": text(x), "y": text(y) })
            }
        };
        jwk["use"] = json!("sig");
        if let Some(kid) = &self.kid {
            jwk["kid"] = json!(kid);
        }
        jwk
    }

    /// The public key in PEM.
    pub fn public_pem(&self) -> String {
        let head = match &self.key {
            SigningKey::Rsa(..) => return RSA_PUBLIC_PEM.to_owned(),
            SigningKey::Ed(_) => SPKI_ED25519,
            _ if self.public_key().len() == 65 => SPKI_P256,
            _ => SPKI_P384,
        };
        let head = data_encoding::HEXUPPER.decode(head.as_bytes()).expect("hexadecimal");
        let der = [&head, self.public_key()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", BASE64.encode(&der))
    }
}

/// One part of a token.
pub fn part(json: &Value) -> String {
    BASE64URL_NOPAD.encode(json.to_string().as_bytes())
}

/// A JSON Web Key Set.
pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}
