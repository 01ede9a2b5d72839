//! What is served now, and how it is replaced.
//!
//! A changed configuration becomes a whole new app over the same store. Requests under way finish with the one they began
//! with; the next ones meet the new one. A configuration that cannot be served changes nothing.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use axum::Router;
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::audit::{Act, Operator};
use crate::config::{Config, ElevationConfig, TlsConfig};
use crate::server::refuse_open_grpc;
use crate::start::StartError;
use crate::{api, connection, logins, tls};

#[derive(Debug)]
pub(crate) struct Live {
    app: ArcSwap<App>,
    api: ArcSwap<Router>,
    tls: ArcSwapOption<Encryption>,
    grpc_tls: ArcSwapOption<Encryption>,
    /// Where Envoy's rate-limit service really is, once it is anywhere.
    pub(crate) grpc_at: OnceLock<SocketAddr>,
}

pub(crate) struct Encryption(TlsAcceptor);

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encryption")
    }
}

/// Changes a running server.
#[derive(Debug, Clone)]
pub struct Handle(pub(crate) Arc<Live>);

impl Handle {
    /// Serves `config` from now on. Returns the settings that are not taken up before a restart.
    pub fn reload(&self, config: Config) -> Result<Vec<&'static str>, StartError> {
        let app = self.0.app();
        let files = config.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>();
        let act = Act::giving("reload").about("files", files);
        let begun = app.audit.begin(&Operator::local(), act).ok_or(StartError::NotAudited)?;
        let outcome = self.0.replace(config);
        begun.end(outcome.as_ref().err().map(|_| 500));
        outcome
    }

    /// Notes for operators that the configuration they want is not served; the last good one is.
    pub fn reload_failed(&self) {
        self.0.app().metrics.reloaded(false, 0.0);
    }

    /// What is served now.
    pub fn config(&self) -> Config {
        self.0.app().config.clone()
    }
}

impl Live {
    pub(crate) fn new(app: Arc<App>) -> Result<Arc<Self>, StartError> {
        warn(&app.config);
        Ok(Arc::new(Self {
            api: ArcSwap::from_pointee(api::router(Arc::clone(&app))),
            tls: ArcSwapOption::new(gateway_tls(&app.config)?),
            grpc_tls: ArcSwapOption::new(grpc_tls(&app.config)?),
            grpc_at: OnceLock::new(),
            app: ArcSwap::new(app),
        }))
    }

    pub(crate) fn app(&self) -> Arc<App> {
        self.app.load_full()
    }

    /// The same, for as long as nobody is waited for.
    pub(crate) fn glance(&self) -> Guard<Arc<App>> {
        self.app.load()
    }

    /// Set when the server was told to stop.
    pub(crate) fn leaving(&self) -> Arc<AtomicBool> {
        self.app.load().metrics.leaving()
    }

    pub(crate) fn api(&self) -> Router {
        Router::clone(&self.api.load())
    }

    pub(crate) fn tls(&self) -> Option<TlsAcceptor> {
        self.tls.load().as_ref().map(|tls| tls.0.clone())
    }

    pub(crate) fn grpc_tls(&self) -> Option<TlsAcceptor> {
        self.grpc_tls.load().as_ref().map(|tls| tls.0.clone())
    }

    fn replace(&self, mut config: Config) -> Result<Vec<&'static str>, StartError> {
        let old = self.app();
        let logins = logins::of(&config, &old.backend.clients)?;
        let kept = keep_what_needs_a_restart(&mut config, &old.config);
        // The listener stays open, so what keeps others out must not go.
        self.grpc_at.get().map_or(Ok(()), |address| refuse_open_grpc(&config, *address))?;
        let (tls, grpc_tls) = (gateway_tls(&config)?, grpc_tls(&config)?);
        let app = old.under(config)?;
        warn(&app.config);
        self.api.store(Arc::new(api::router(Arc::clone(&app))));
        self.tls.store(tls);
        self.grpc_tls.store(grpc_tls);
        app.metrics.reloaded(true, connection::unix_seconds());
        self.app.store(app);
        logins.into_iter().for_each(|(redis, credentials)| redis.log_in_as(credentials));
        Ok(kept)
    }
}

fn warn(config: &Config) {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
}

fn gateway_tls(config: &Config) -> Result<Option<Arc<Encryption>>, StartError> {
    encryption("tls", config.tls.as_ref(), &["h2", "http/1.1"])
}

fn grpc_tls(config: &Config) -> Result<Option<Arc<Encryption>>, StartError> {
    encryption("grpc_tls", config.grpc_tls.as_ref(), &["h2"])
}

fn encryption(
    name: &'static str,
    config: Option<&TlsConfig>,
    protocols: &[&str],
) -> Result<Option<Arc<Encryption>>, StartError> {
    let acceptor = config.map(|config| tls::acceptor(name, config, protocols)).transpose()?;
    Ok(acceptor.map(|tls| Arc::new(Encryption(tls))))
}

/// Listeners are open and the store is connected: these stay as they are, and the names of those that should have changed
/// are returned. As whom to log in to a store may change.
fn keep_what_needs_a_restart(config: &mut Config, old: &Config) -> Vec<&'static str> {
    let mut kept = Vec::new();
    let mut keep = |name, is_same: bool| {
        if !is_same {
            kept.push(name);
        }
    };
    keep("listen", config.listen == old.listen);
    keep("api", config.api == old.api);
    keep("grpc", config.grpc == old.grpc);
    keep("store", keep_place(&mut config.store, &old.store));
    keep("memory", format!("{:?}", config.memory) == format!("{:?}", old.memory));
    keep("sessions.store", keep_place(&mut config.sessions.store, &old.sessions.store));
    keep("tokens.store", keep_place(&mut config.tokens.revocation.store, &old.tokens.revocation.store));
    keep("caches", format!("{:?}", config.caches) == format!("{:?}", old.caches));
    config.caches.clone_from(&old.caches);
    // Its tiles are refreshed by a worker that began with the server.
    match (&mut config.elevation, &old.elevation) {
        (Some(new), Some(old)) => {
            keep("elevation", new.is_served_as(old));
            *new = ElevationConfig { policy: Arc::clone(&new.policy), ..old.clone() };
        }
        (new @ Some(_), None) => {
            keep("elevation", false);
            *new = None;
        }
        (None, _) => {}
    }
    if let (Some(new), Some(old)) = (&mut config.outbound, &old.outbound) {
        let is_same = keep_place(&mut new.store, &old.store) && new.state == old.state;
        keep("outbound.store", is_same);
        new.state.clone_from(&old.state);
    }
    (config.listen, config.api, config.grpc) = (old.listen, old.api, old.grpc);
    config.memory = old.memory;
    kept
}

/// What is shown of a store says where it is, and not who logs in. False where it is elsewhere now: it stays where it was.
fn keep_place<T: Clone + fmt::Debug>(store: &mut T, old: &T) -> bool {
    let is_same = format!("{store:?}") == format!("{old:?}");
    if !is_same {
        store.clone_from(old);
    }
    is_same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_as_they_were_at_the_start_and_charged_as_the_file_says_now() {
        let with = |origin: &str, policy: &str| {
            let elevation = ElevationConfig { origin: origin.into(), policy: policy.into(), ..Default::default() };
            Config { elevation: Some(elevation), ..Config::default() }
        };
        let (without, old) = (Config::default(), with("http://old", "a"));
        let taken_up = |mut new: Config, old: &Config| {
            let kept = keep_what_needs_a_restart(&mut new, old);
            (kept, new.elevation.map(|elevation| (elevation.origin, elevation.policy.to_string())))
        };
        let served = |policy: &str| Some(("http://old".to_owned(), policy.to_owned()));
        assert_eq!(taken_up(with("http://old", "b"), &old), (vec![], served("b")));
        assert_eq!(taken_up(with("http://new", "b"), &old), (vec!["elevation"], served("b")));
        assert_eq!(taken_up(with("http://new", "b"), &without), (vec!["elevation"], None), "nobody would refresh them");
        assert_eq!(taken_up(Config::default(), &old), (vec![], None));
    }
}
