//! Verification, from the text of a token to its claims.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::claims::{self, Claims, Typed};
use super::keys::Keys;
use super::{MAX_TOKEN, Refusal, TokenKind};
use crate::clock::Clock;
use crate::error::{Error, Invalid};
use crate::revocation::{self, Revocations};

/// A token without `kid` may be of any key of its issuer. It is not tried on more than this.
const MAX_TRIES: usize = 8;

/// Whom we believe, and what.
#[derive(Debug, Clone)]
pub struct Issuer {
    /// What its tokens say in `iss`, to the letter.
    pub iss: String,
    /// Its tokens must be for one of these. If empty, they must name nobody.
    pub audience: Vec<String>,
    /// What it signs with: all symmetric, or none.
    pub algorithms: Vec<Algorithm>,
    pub keys: Arc<Keys>,
    /// Goes before its users and token ids, so that they are not taken for another issuer's.
    pub namespace: Option<String>,
}

/// Verifies the tokens of some issuers.
#[derive(Debug)]
pub struct Verifier {
    issuers: Vec<Issuer>,
    leeway: Duration,
    revocations: Revocations,
    clock: Arc<dyn Clock>,
}

/// A token taken apart, nothing of it believed.
struct Parts<'a> {
    algorithm: Algorithm,
    typ: Option<String>,
    kid: Option<String>,
    message: &'a [u8],
    signature: Vec<u8>,
    claims: Map<String, Value>,
}

impl Verifier {
    /// `leeway` is how far clocks may be apart.
    pub fn new(
        issuers: Vec<Issuer>,
        leeway: Duration,
        revocations: Revocations,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Invalid> {
        for (index, issuer) in issuers.iter().enumerate() {
            let refuse = |field: &str, reason: &str| Err(Invalid::new(format!("issuers[{index}].{field}"), reason));
            let symmetric = issuer.algorithms.iter().filter(|algorithm| algorithm.is_symmetric()).count();
            if issuer.algorithms.is_empty() {
                return refuse("algorithms", "names none");
            }
            if symmetric != 0 && symmetric != issuer.algorithms.len() {
                return refuse("algorithms", "mixes those with a secret and those with a public key");
            }
            if issuers[..index].iter().any(|earlier| earlier.iss == issuer.iss) {
                return refuse("iss", "is named twice");
            }
        }
        Ok(Self { issuers, leeway, revocations, clock })
    }

    pub fn issuers(&self) -> &[Issuer] {
        &self.issuers
    }

    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// How long an entry about this token has to be kept: until nobody accepts it any more.
    pub fn forgotten_at(&self, claims: &Claims) -> crate::clock::Timestamp {
        claims.expires_at + self.leeway
    }

    /// The token as a credential: everything must hold, and it must be of this kind.
    pub async fn verify(&self, token: &str, kind: TokenKind) -> Result<Claims, Refusal> {
        let claims = self.inspect(token, None).await?;
        if claims.kind == kind { Ok(claims) } else { Err(Refusal::Kind) }
    }

    /// The same for a token of either kind. `hint` counts where the token does not say which; it is looked for in both lists
    /// then, because whoever revoked it may have guessed otherwise (RFC 7009, 2.1; RFC 7662, 2.1).
    pub async fn inspect(&self, token: &str, hint: Option<TokenKind>) -> Result<Claims, Refusal> {
        let (issuer, claims) = self.authentic(token, hint).await?;
        claims::holds(&claims, &issuer.audience, self.clock.now(), self.leeway)?;
        let asked = |kind: &TokenKind| {
            let (jti, user) = (Some(&claims.jti), claims.user.as_deref());
            self.revocations.check(&revocation::Token { kind: *kind, jti, user, issued_at: claims.issued_at })
        };
        let mut unknown = None;
        for verdict in claims.lists().iter().map(asked) {
            match verdict {
                Ok(verdict) if verdict.is_good() => {}
                // Known in one list, it does not matter that the other could not be asked.
                Ok(_) => return Err(Refusal::Revoked),
                Err(error) => unknown = Some(error),
            }
        }
        unknown.map_or(Ok(claims), |error| Err(Refusal::Unavailable(error)))
    }

    /// Whether its issuer has signed it, and no more: enough to revoke it, whether it still holds or not.
    pub async fn read(&self, token: &str, hint: Option<TokenKind>) -> Result<Claims, Refusal> {
        self.authentic(token, hint).await.map(|(_, claims)| claims)
    }

    async fn authentic(&self, token: &str, hint: Option<TokenKind>) -> Result<(&Issuer, Claims), Refusal> {
        let parts = take_apart(token)?;
        let issuer = self.issuer_of(&parts)?;
        let mut decided = signed(issuer, &parts);
        if decided == Err(Refusal::UnknownKey) {
            // The issuer may have a new key.
            issuer.keys.refetch().await;
            decided = signed(issuer, &parts);
        }
        if decided == Err(Refusal::UnknownKey) && issuer.keys.current().is_none() {
            // No set has ever come, so nobody can say whether this token is good.
            return Err(Refusal::Unavailable(no_keys()));
        }
        decided?;
        let Parts { typ, claims, .. } = parts;
        let claims = claims::read(claims, Typed(typ.as_deref()), hint, issuer.namespace.as_deref())?;
        Ok((issuer, claims))
    }

    /// `iss` is not believed here: it only says whose keys to try.
    fn issuer_of(&self, parts: &Parts<'_>) -> Result<&Issuer, Refusal> {
        let named = parts.claims.get("iss").and_then(Value::as_str);
        let issuer = self.issuers.iter().find(|issuer| Some(issuer.iss.as_str()) == named).ok_or(Refusal::Issuer)?;
        if issuer.algorithms.contains(&parts.algorithm) { Ok(issuer) } else { Err(Refusal::Algorithm) }
    }
}

fn signed(issuer: &Issuer, parts: &Parts<'_>) -> Result<(), Refusal> {
    let keys = issuer.keys.current().ok_or(Refusal::UnknownKey)?;
    let mut tried =
        keys.iter().filter(|key| key.fits(parts.algorithm, parts.kid.as_deref())).take(MAX_TRIES).peekable();
    if tried.peek().is_none() {
        return Err(Refusal::UnknownKey);
    }
    let is_signed = tried.any(|key| key.verifies(parts.algorithm, parts.message, &parts.signature));
    is_signed.then_some(()).ok_or(Refusal::Signature)
}

fn no_keys() -> Error {
    Error::Unavailable { reason: "the keys of the token's issuer have not come yet".to_owned(), may_have_run: false }
}

/// Bounds first; then the header, which says how to check the rest. What it says of keys (`jku`, `jwk`, `x5u`, `x5c`) is
/// not looked at: keys come from the configuration.
fn take_apart(token: &str) -> Result<Parts<'_>, Refusal> {
    if token.len() > MAX_TOKEN {
        return Err(Refusal::TooLong);
    }
    let (message, signature) = token.rsplit_once('.').ok_or(Refusal::Malformed)?;
    let (_, payload) = message.split_once('.').ok_or(Refusal::Malformed)?;
    let header = jsonwebtoken::decode_header(token).map_err(|_| Refusal::Malformed)?;
    let algorithm = Algorithm::of(header.alg).ok_or(Refusal::Algorithm)?;
    if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() || !Typed(header.typ.as_deref()).is_known()
    {
        return Err(Refusal::Type);
    }
    let decode = |part: &str| BASE64URL_NOPAD.decode(part.as_bytes()).map_err(|_| Refusal::Malformed);
    let signature = decode(signature)?;
    let claims = serde_json::from_slice(&decode(payload)?).map_err(|_| Refusal::Malformed)?;
    Ok(Parts { algorithm, typ: header.typ, kid: header.kid, message: message.as_bytes(), signature, claims })
}
