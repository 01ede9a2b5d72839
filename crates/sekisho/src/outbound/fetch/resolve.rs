//! Names become addresses, and only those that were checked are connected to.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;
use url::{Host, Url};

use super::guard::{Guard, Refused};

pub type Addresses<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Who says which addresses a name has.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    fn resolve<'a>(&'a self, host: &'a str) -> Addresses<'a>;
}

/// The system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> Addresses<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// Resolves for connections, and gives them nothing that the guard refuses. There is no second look-up after the check, so
/// a name that changes its mind in between gains nothing.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    guard: Arc<Guard>,
    resolver: Arc<dyn Resolve>,
}

/// Why a name leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoWay {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the name cannot be resolved: {0}")]
    Unresolved(#[from] io::Error),
}

impl Checked {
    pub(super) fn new(guard: Guard, resolver: Arc<dyn Resolve>) -> Self {
        Self { guard: Arc::new(guard), resolver }
    }

    /// Asked before anything is charged; the connection is checked again on its own.
    pub(super) async fn check(&self, url: &Url) -> Result<(), NoWay> {
        match url.host() {
            Some(Host::Ipv4(address)) => Ok(self.guard.check(address.into())?),
            Some(Host::Ipv6(address)) => Ok(self.guard.check(address.into())?),
            Some(Host::Domain(host)) => self.addresses(host).await.map(drop),
            None => Err(io::Error::from(io::ErrorKind::AddrNotAvailable).into()),
        }
    }

    async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, NoWay> {
        let addresses = self.resolver.resolve(host).await?;
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it has no address").into());
        }
        self.guard.check_all(&addresses)?;
        Ok(addresses)
    }
}

impl Service<Name> for Checked {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = NoWay;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, NoWay>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NoWay>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let addresses = this.addresses(name.as_str()).await?;
            // Port 0 means the port of the URL.
            let addresses: Vec<_> = addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect();
            Ok(addresses.into_iter())
        })
    }
}

/// hyper's connector takes an address in a URL as it is and does not ask the resolver, so it is checked here.
#[derive(Clone)]
pub(super) struct Connector {
    checked: Checked,
    inner: HttpConnector<Checked>,
}

type Inner = HttpConnector<Checked>;
type Boxed = Box<dyn std::error::Error + Send + Sync>;

impl Connector {
    pub(super) fn new(checked: Checked, configure: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = HttpConnector::new_with_resolver(checked.clone());
        configure(&mut inner);
        Self { checked, inner }
    }
}

impl Service<Uri> for Connector {
    type Response = <Inner as Service<Uri>>::Response;
    type Error = Boxed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Boxed>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Boxed>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        if let Some(address) = literal(&uri)
            && let Err(refused) = self.checked.guard.check(address)
        {
            return Box::pin(async move { Err(refused.into()) });
        }
        let connecting = self.inner.call(uri);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

fn literal(uri: &Uri) -> Option<IpAddr> {
    uri.host()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The guard's refusal, however deep it lies in an error of the client.
pub(super) fn refusal(error: &(dyn std::error::Error + 'static)) -> Option<Refused> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(refused) = error.downcast_ref::<Refused>() {
            return Some(*refused);
        }
        if let Some(NoWay::Refused(refused)) = error.downcast_ref::<NoWay>() {
            return Some(*refused);
        }
        next = error.source();
    }
    None
}
