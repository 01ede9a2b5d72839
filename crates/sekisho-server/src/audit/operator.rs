use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::facts::Peer;

/// Who acts.
#[derive(Debug, Clone)]
pub(crate) struct Operator {
    /// `token:` and the fingerprint of the API's token, or `local` where there is none and only this machine gets here.
    pub(super) who: String,
    pub(super) from: Option<SocketAddr>,
}

impl Operator {
    /// This process, told by a signal or a file.
    pub(crate) fn local() -> Self {
        Self { who: "local".to_owned(), from: None }
    }
}

/// Handlers run only for those who have shown the token.
impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        let token = app.config.api_token.as_ref();
        let who = token.map_or_else(|| "local".to_owned(), |token| fingerprint(token.expose()));
        Ok(Self { who, from: parts.extensions.get::<Peer>().map(|peer| peer.address) })
    }
}

/// Tells tokens apart. Thirty-two bits do not prove a guess.
fn fingerprint(token: &str) -> String {
    format!("token:{}", &HEXLOWER.encode(&Sha256::digest(token.as_bytes()))[..8])
}
