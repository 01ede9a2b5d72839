//! Fetches the keys of issuers.

use std::time::Duration;

use axum::http::header::{ACCEPT, HeaderValue};
use axum::http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sekisho::tokens::{Fetch, Fetched};

use crate::start::StartError;

/// From the first packet to the last byte.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest known sets are some tens of kilobytes.
const MAX_BYTES: usize = 512 * 1024;

type Request0 = Request<Empty<Bytes>>;

/// Does not follow redirects, and keeps no connections: it asks once in minutes.
#[derive(Debug)]
pub(crate) enum Fetcher {
    Plain(Client<HttpConnector, Empty<Bytes>>),
    Tls(Client<HttpsConnector<HttpConnector>, Empty<Bytes>>),
}

impl Fetcher {
    /// The roots of trust are read only if they are needed.
    pub(crate) fn new(needs_tls: bool) -> Result<Self, StartError> {
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(TIMEOUT));
        http.enforce_http(false);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_max_idle_per_host(0);
        if !needs_tls {
            return Ok(Self::Plain(builder.build(http)));
        }
        let tls = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| StartError::Tls(error.to_string()))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Self::Tls(builder.build(tls)))
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let uri: Uri = url.parse().map_err(|_| "the URL cannot be read".to_owned())?;
        let mut request = Request0::new(Empty::new());
        *request.uri_mut() = uri;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/jwk-set+json, application/json"));
        let answer = self.send(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(format!("it answered {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
        body.map(|body| body.to_bytes().to_vec()).map_err(|error| error.to_string())
    }

    async fn send(&self, request: Request0) -> Result<axum::http::Response<Incoming>, String> {
        let sent = match self {
            Self::Plain(client) => client.request(request).await,
            Self::Tls(client) => client.request(request).await,
        };
        sent.map_err(|error| std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
    }
}

impl Fetch for Fetcher {
    fn fetch<'a>(&'a self, url: &'a str) -> Fetched<'a> {
        let timed_out = |_| format!("no answer came in {TIMEOUT:?}");
        Box::pin(async move { tokio::time::timeout(TIMEOUT, self.get(url)).await.map_err(timed_out)? })
    }
}
