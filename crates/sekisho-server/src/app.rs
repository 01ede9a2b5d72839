//! What every door shares: the gate and the configuration it was built from.

use std::collections::HashMap;
use std::sync::Arc;

use sekisho::Error;
use sekisho::backend::Backend;
use sekisho::gate::Gate;
use sekisho::limits::Limits;
use sekisho::outbound::Outbound;
use sekisho::outbound::fetch::Fetcher;
use sekisho::sessions::Sessions;
use sekisho::tokens::Verifier;

use crate::audit::Audit;
use crate::caches::Caches;
use crate::config::Config;
use crate::elevation::{Heights, door};
use crate::envoy::Domain;
use crate::fetcher;
use crate::gateway;
use crate::gateway::pool::Upstreams;
use crate::metrics::{Metrics, RouteMeter};
use crate::respond::Problem;
use crate::start::StartError;
use crate::tokens;

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) gate: Gate,
    pub(crate) config: Config,
    pub(crate) upstreams: Upstreams,
    /// Kept when the configuration changes, and with it every count.
    pub(crate) backend: Backend,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) audit: Audit,
    pub(crate) meters: DoorMeters,
    /// None where nobody's tokens are believed.
    pub(crate) tokens: Option<Verifier>,
    pub(crate) sessions: Sessions,
    /// Kept when the configuration changes.
    pub(crate) caches: Arc<Caches>,
    /// None where heights are not served.
    pub(crate) elevation: Option<Arc<Heights>>,
    /// None where nothing goes out.
    pub(crate) outbound: Option<Outbound>,
    pub(crate) fetcher: Option<Fetcher>,
}

/// The meters of routes that are known before any request comes.
#[derive(Debug)]
pub(crate) struct DoorMeters {
    /// Of the gateway's routes, in their order.
    pub(crate) routes: Vec<Arc<RouteMeter>>,
    /// Of what it answers besides: the paths of `gateway::OWN`.
    pub(crate) own: Vec<Arc<RouteMeter>>,
    /// Of the paths of `elevation::door`.
    pub(crate) elevation: Vec<Arc<RouteMeter>>,
    pub(crate) other: Arc<RouteMeter>,
    /// `POST /v1/check`
    pub(crate) check: Arc<RouteMeter>,
}

impl DoorMeters {
    fn new(metrics: &Metrics, config: &Config) -> Self {
        let gateway = |route: &str| metrics.route("gateway", route);
        Self {
            routes: config.routes.iter().map(|route| gateway(&route.path.to_string())).collect(),
            own: gateway::OWN.iter().map(|path| gateway(path)).collect(),
            elevation: door::PATHS.iter().filter(|_| config.elevation.is_some()).map(|path| gateway(path)).collect(),
            other: gateway("other"),
            check: metrics.route("api", "/v1/check"),
        }
    }
}

impl App {
    pub(crate) fn new(config: Config, backend: Backend) -> Result<Arc<Self>, StartError> {
        Self::with(config, backend, Arc::default(), None)
    }

    /// Another configuration over the same store.
    pub(crate) fn under(&self, config: Config) -> Result<Arc<Self>, StartError> {
        Self::with(config, self.backend.clone(), Arc::clone(&self.metrics), Some(self))
    }

    fn with(
        config: Config,
        mut backend: Backend,
        metrics: Arc<Metrics>,
        before: Option<&Self>,
    ) -> Result<Arc<Self>, StartError> {
        let own = config.policies.iter().map(|policy| &policy.policy);
        let policies = own.chain(config.domains.iter().flat_map(Domain::policies)).cloned().collect();
        let limits = Limits::new(policies, Arc::clone(&backend.limits))
            .map_err(|invalid| StartError::Policy(invalid.to_string()))?;
        let mut subjects = HashMap::new();
        for policy in &config.policies {
            if let Some(subject) = &policy.subject {
                subjects.insert(policy.policy.name().to_owned(), subject.spec.clone());
            }
        }
        let upstreams = Upstreams::new(&config.routes)?;
        let mut gate = metrics.collect(|| Gate::new(limits, subjects, backend.kind));
        if let Some(before) = before {
            gate = gate.in_place_of(&before.gate);
        }
        let audit = Audit::open(&config.audit, Arc::clone(&metrics))?;
        backend.revocations = backend.revocations.under(config.tokens.revocation.terms);
        if !config.tokens.issuers.is_empty() {
            backend.revocations.follow();
        }
        metrics.collect(|| backend.revocations.meter());
        let tokens = tokens::verifier(&config.tokens, &backend, before.and_then(|before| before.tokens.as_ref()))?;
        let meters = DoorMeters::new(&metrics, &config);
        let sessions = Sessions::new(Arc::clone(&backend.sessions), Arc::clone(&backend.clock), config.sessions.terms);
        let elevation = Heights::of(&config, &backend, &metrics, before.and_then(|before| before.elevation.as_ref()));
        let before_outbound = before.and_then(|before| before.outbound.as_ref());
        let outbound = metrics.collect(|| open_outbound(&config, &backend, before_outbound));
        let caches = match before {
            Some(before) => Arc::clone(&before.caches),
            None => Arc::new(Caches::open(&config.caches, &backend, outbound.as_ref(), &metrics)?),
        };
        let fetched = config.outbound.as_ref().zip(outbound.as_ref());
        let fetcher = fetched.map(|(of, outbound)| metrics.collect(|| fetcher::open(of, outbound, &caches)));
        Ok(Arc::new(Self {
            gate,
            config,
            upstreams,
            backend,
            metrics,
            audit,
            meters,
            tokens,
            sessions,
            caches,
            elevation,
            outbound,
            fetcher,
        }))
    }

    pub(crate) fn problem(&self, error: &Error) -> Problem {
        Problem::of(error, self.gate.limits().policies().map(|policy| policy.name()))
    }
}

/// What was counted belongs to the store: other policies go on with it.
fn open_outbound(config: &Config, backend: &Backend, before: Option<&Outbound>) -> Option<Outbound> {
    let domains = Arc::clone(config.outbound.as_ref()?.domains());
    if let Some(before) = before {
        before.replace(domains);
        return Some(before.clone());
    }
    Some(Outbound::new(domains, Arc::clone(&backend.outbound)))
}
