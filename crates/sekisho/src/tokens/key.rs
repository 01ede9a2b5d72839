//! One key to verify with.
//!
//! jsonwebtoken reads PEM and JWK; ring checks signatures. jsonwebtoken's own `decode` is not used: it reads the system's
//! clock, and takes its cryptography from a setting of the whole process, which belongs to the application.

use std::fmt;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm,
};

use super::algorithm::Algorithm;
use crate::error::Invalid;

/// RFC 7518, 3.3; ring refuses shorter ones as well, but only when a token comes.
const LEAST_RSA_BYTES: usize = 2048 / 8;

/// A key, and what it is for. Keys that are secret and keys that are public are different variants, and an algorithm of one
/// sort never meets a key of the other: a public key cannot be taken for a secret.
#[derive(Clone)]
pub struct Key {
    /// What tokens call it.
    id: Option<String>,
    /// If the set says that it is for one algorithm alone.
    only: Option<Algorithm>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Hmac(Algorithm, Box<hmac::Key>),
    /// PKCS #1
    RsaDer(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Key {
    /// A secret that the issuer shares with us, for one of the HMAC algorithms.
    pub fn secret(algorithm: Algorithm, secret: &[u8]) -> Result<Self, Invalid> {
        let refuse = |reason: String| Err(Invalid::new("secret", reason));
        let Some(least) = algorithm.least_secret() else {
            return refuse(format!("cannot be used with {}, which takes a public key", algorithm.name()));
        };
        if secret.len() < least {
            // RFC 8725, 3.5: a short secret is guessed from a single token.
            return refuse(format!("must be at least {least} bytes long for {}", algorithm.name()));
        }
        let hash = match algorithm {
            Algorithm::Hs384 => hmac::HMAC_SHA384,
            Algorithm::Hs512 => hmac::HMAC_SHA512,
            _ => hmac::HMAC_SHA256,
        };
        let material = Material::Hmac(algorithm, Box::new(hmac::Key::new(hash, secret)));
        Ok(Self { id: None, only: None, material })
    }

    /// One public key: `PUBLIC KEY`, or `RSA PUBLIC KEY`.
    pub fn from_pem(pem: &[u8]) -> Result<Self, Invalid> {
        let refuse = |reason: &str| Invalid::new("pem", reason);
        let text = String::from_utf8_lossy(pem);
        if text.contains("PRIVATE KEY") {
            return Err(refuse("holds a private key; give the public one, and keep the private one with the issuer"));
        }
        if text.contains("CERTIFICATE") {
            return Err(refuse("holds a certificate; give its public key (`openssl x509 -pubkey -noout`)"));
        }
        let readers = [DecodingKey::from_rsa_pem, DecodingKey::from_ec_pem, DecodingKey::from_ed_pem];
        let read = readers.iter().find_map(|read| read(pem).ok());
        let material = read.and_then(|key| match (key.family(), key.kind()) {
            (AlgorithmFamily::Rsa, DecodingKeyKind::SecretOrDer(der)) => Some(Material::RsaDer(der.clone())),
            (AlgorithmFamily::Ec, DecodingKeyKind::SecretOrDer(point)) => curve_point(point.clone()),
            (AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(point)) => edwards_point(point.clone()),
            _ => None,
        });
        let material = material.ok_or_else(|| refuse("must hold a public key: RSA, P-256, P-384 or Ed25519"))?;
        Ok(Self { id: None, only: None, material })
    }

    /// The keys of a set (RFC 7517) that can be used here. Others in it are passed over: sets hold keys for encryption, and
    /// of kinds to come. A secret in a set is never taken, because a set is public.
    pub fn from_jwks(json: &[u8]) -> Result<Vec<Self>, Invalid> {
        #[derive(serde::Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let refuse = |reason: String| Invalid::new("jwks", reason);
        let set: Set = serde_json::from_slice(json).map_err(|_| refuse("is not a JSON Web Key Set".to_owned()))?;
        let read = |jwk: serde_json::Value| serde_json::from_value::<Jwk>(jwk).ok().as_ref().and_then(Self::from_jwk);
        let keys: Vec<Self> = set.keys.into_iter().filter_map(read).collect();
        match keys.len() {
            0 => Err(refuse(
                "holds no public key that could sign: RSA from 2048 bits, P-256, P-384 or Ed25519".to_owned(),
            )),
            // A set this long is a mistake or an attack, and every key of it would be tried.
            101.. => Err(refuse("holds more than 100 keys".to_owned())),
            _ => Ok(keys),
        }
    }

    fn from_jwk(jwk: &Jwk) -> Option<Self> {
        if jwk.common.public_key_use.as_ref().is_some_and(|used| *used != PublicKeyUse::Signature) {
            return None;
        }
        let only = match jwk.common.key_algorithm {
            Some(algorithm) => Some(signs(algorithm)?),
            None => None,
        };
        let key = DecodingKey::from_jwk(jwk).ok()?;
        let material = match (&jwk.algorithm, key.kind()) {
            (AlgorithmParameters::RSA(_), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let n = n.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
                let e = e.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
                (n.len() >= LEAST_RSA_BYTES && !e.is_empty()).then_some(Material::Rsa { n, e })?
            }
            (AlgorithmParameters::EllipticCurve(curve), DecodingKeyKind::SecretOrDer(point)) => {
                let material = curve_point(point.clone())?;
                let fits = matches!(
                    (&curve.curve, &material),
                    (EllipticCurve::P256, Material::P256(_)) | (EllipticCurve::P384, Material::P384(_))
                );
                fits.then_some(material)?
            }
            (AlgorithmParameters::OctetKeyPair(pair), DecodingKeyKind::SecretOrDer(point)) => {
                (pair.curve == EllipticCurve::Ed25519).then(|| edwards_point(point.clone()))??
            }
            _ => return None,
        };
        let key = Self { id: jwk.common.key_id.clone(), only, material };
        only.is_none_or(|only| key.takes(only)).then_some(key)
    }

    /// Whether a token that says `algorithm` and `kid` may be this key's.
    pub(super) fn fits(&self, algorithm: Algorithm, kid: Option<&str>) -> bool {
        let named = match (kid, &self.id) {
            (Some(kid), Some(id)) => kid == id,
            _ => true,
        };
        named && self.only.is_none_or(|only| only == algorithm) && self.takes(algorithm)
    }

    fn takes(&self, algorithm: Algorithm) -> bool {
        match &self.material {
            Material::Hmac(own, _) => *own == algorithm,
            Material::RsaDer(_) | Material::Rsa { .. } => rsa(algorithm).is_some(),
            Material::P256(_) => algorithm == Algorithm::Es256,
            Material::P384(_) => algorithm == Algorithm::Es384,
            Material::Ed25519(_) => algorithm == Algorithm::EdDsa,
        }
    }

    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let check =
            |by: &dyn VerificationAlgorithm, key: &[u8]| by.verify(key.into(), message.into(), signature.into());
        let checked = match (&self.material, rsa(algorithm)) {
            (Material::Hmac(own, key), _) if *own == algorithm => hmac::verify(key, message, signature),
            (Material::RsaDer(der), Some(rsa)) => check(rsa, der),
            (Material::Rsa { n, e }, Some(rsa)) => RsaPublicKeyComponents { n, e }.verify(rsa, message, signature),
            (Material::P256(point), _) if algorithm == Algorithm::Es256 => check(&ECDSA_P256_SHA256_FIXED, point),
            (Material::P384(point), _) if algorithm == Algorithm::Es384 => check(&ECDSA_P384_SHA384_FIXED, point),
            (Material::Ed25519(point), _) if algorithm == Algorithm::EdDsa => check(&ED25519, point),
            _ => Err(ring::error::Unspecified),
        };
        checked.is_ok()
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
        _ => None,
    }
}

/// An uncompressed point; its length says on which curve.
fn curve_point(point: Vec<u8>) -> Option<Material> {
    match (point.len(), point.first()) {
        (65, Some(4)) => Some(Material::P256(point)),
        (97, Some(4)) => Some(Material::P384(point)),
        _ => None,
    }
}

fn edwards_point(point: Vec<u8>) -> Option<Material> {
    (point.len() == 32).then_some(Material::Ed25519(point))
}

/// None for algorithms that encrypt, or that are not known here.
fn signs(algorithm: KeyAlgorithm) -> Option<Algorithm> {
    algorithm.to_string().parse().ok().and_then(Algorithm::of)
}

/// Neither a secret nor what is derived from it.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.material {
            Material::Hmac(..) => "secret",
            Material::RsaDer(_) | Material::Rsa { .. } => "RSA",
            Material::P256(_) => "P-256",
            Material::P384(_) => "P-384",
            Material::Ed25519(_) => "Ed25519",
        };
        f.debug_struct("Key").field("id", &self.id).field("kind", &kind).finish()
    }
}
