//! What a layer is told once, and what it asks the gate for each request.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;
use tower_layer::Layer;

use super::service::GateService;
use crate::error::{Error, Invalid};
use crate::gate::{Ask, Gate, Who};
use crate::http::{HeaderStyle, Problem, facts};
use crate::identity::{SubjectPart, SubjectSpec, TrustedProxies};
use crate::limits::{Cost, Policy};

/// Something that is read from the head of a request.
type Read<T> = Arc<dyn Fn(&Parts) -> Option<T> + Send + Sync>;

/// The same, of a claim with that name.
type ReadClaim = Arc<dyn Fn(&Parts, &str) -> Option<String> + Send + Sync>;

/// Puts a policy of a [`Gate`] in front of a service.
#[derive(Clone)]
pub struct GateLayer {
    pub(super) gate: Arc<Gate>,
    policy: Arc<Policy>,
    spec: SubjectSpec,
    cost: Cost,
    pub(super) style: HeaderStyle,
    proxies: TrustedProxies,
    peer: Read<IpAddr>,
    user: Option<Read<String>>,
    claim: Option<ReadClaim>,
    endpoint: Option<Read<String>>,
    releases: Arc<dyn Fn(StatusCode) -> bool + Send + Sync>,
}

impl GateLayer {
    /// Refuses a policy that the gate does not know, or whose subject it does not know how to build.
    pub fn new(gate: Arc<Gate>, policy: &str) -> Result<Self, Error> {
        let spec = gate.subject_spec(policy).cloned();
        let policy = Arc::clone(gate.limits().policy(policy)?);
        let spec = spec.ok_or_else(|| {
            Invalid::new("policy", format!("`{}` has no subject that is built from requests", policy.name()))
        })?;
        Ok(Self {
            gate,
            policy,
            spec,
            cost: Cost::default(),
            style: HeaderStyle::default(),
            proxies: TrustedProxies::default(),
            peer: Arc::new(|head| head.extensions.get::<SocketAddr>().map(SocketAddr::ip)),
            user: None,
            claim: None,
            endpoint: None,
            releases: Arc::new(|status| status.is_server_error()),
        })
    }

    /// What a request reserves; one request if never said.
    pub fn costing(mut self, cost: Cost) -> Result<Self, Invalid> {
        self.policy.amounts(&cost)?;
        self.cost = cost;
        Ok(self)
    }

    /// Which rate-limit headers answers have; both kinds if never said.
    #[must_use]
    pub fn headers(mut self, style: HeaderStyle) -> Self {
        self.style = style;
        self
    }

    /// Whose word is taken on where a request comes from; nobody's if never said.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: TrustedProxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// The other end of the connection; a `SocketAddr` in the request's extensions if never said. In axum it is in
    /// `ConnectInfo`. A request whose peer is not known is answered with 500 where the policy counts by address, and never
    /// counted together with others.
    #[must_use]
    pub fn peer(mut self, read: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.peer = Arc::new(read);
        self
    }

    /// Who is logged in, as a layer outside of this one has found out. Without a user a policy that counts users refuses
    /// the request with 400.
    #[must_use]
    pub fn user(mut self, read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.user = Some(Arc::new(read));
        self
    }

    /// What the token says that a layer outside of this one has verified, by the name of the claim. Without it a policy that
    /// counts by a claim refuses the request with 400.
    #[must_use]
    pub fn claim(mut self, read: impl Fn(&Parts, &str) -> Option<String> + Send + Sync + 'static) -> Self {
        self.claim = Some(Arc::new(read));
        self
    }

    /// What limits know the request by: a label, or the template of its route (`MatchedPath` in axum), in which `{id}`
    /// becomes `:id`. Never the path itself, which a client can make up.
    #[must_use]
    pub fn endpoint(mut self, read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.endpoint = Some(Arc::new(read));
        self
    }

    /// After which answers everything is given back; 5xx if never said. An error of the service counts as 500.
    #[must_use]
    pub fn release_on(mut self, releases: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.releases = Arc::new(releases);
        self
    }

    pub(super) fn releases(&self, status: StatusCode) -> bool {
        (self.releases)(status)
    }

    pub(super) fn ask(&self, head: &Parts) -> Result<Ask<'_>, Problem> {
        let peer = (self.peer)(head);
        let client = peer.map(|peer| facts::client(&self.proxies, peer, &head.headers));
        let endpoint = self.endpoint.as_ref().and_then(|read| read(head)).map(|template| label(&template));
        let mut facts = facts::of(&self.spec, client, endpoint, &head.headers);
        facts.user = self.user.as_ref().and_then(|read| read(head));
        let claims = self.spec.parts().iter().filter_map(|part| match part {
            SubjectPart::Claim(name) => Some(name),
            _ => None,
        });
        for name in claims {
            let Some(read) = &self.claim else { return Err(untold("claim", "the claims of the caller are not known")) };
            facts.claims.extend(read(head, name).map(|value| (name.clone(), value)));
        }
        let counts = |part: SubjectPart| self.spec.parts().contains(&part);
        // A client cannot mend what the service was not told.
        if facts.ip.is_none() && (counts(SubjectPart::Ip) || counts(SubjectPart::IpUa)) {
            return Err(untold("peer", "the address of the client is not known"));
        }
        if self.user.is_none() && counts(SubjectPart::User) {
            return Err(untold("user", "the user is not known"));
        }
        if facts.path.is_none() && (counts(SubjectPart::Endpoint) || self.policy.needs_endpoint()) {
            return Err(untold("endpoint", "the endpoint is not known"));
        }
        Ok(Ask { policy: self.policy.name().into(), who: Who::Facts(Box::new(facts)), cost: self.cost.clone() })
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GateService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GateService { layer: Arc::new(self.clone()), inner }
    }
}

impl fmt::Debug for GateLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer")
            .field("policy", &self.policy.name())
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

fn untold(what: &'static str, detail: &'static str) -> Problem {
    tracing::error!("{detail}: the policy counts by it, and `GateLayer::{what}` found none");
    Problem::internal(detail)
}

/// `/scan/{id}` is `/scan/:id` and `/{*rest}` is `/:rest`, as at the gateway: keys hold no braces.
fn label(template: &str) -> String {
    template.replace("{*", ":").replace('{', ":").replace('}', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_become_endpoints() {
        assert_eq!(label("/api/scan/{id}/{*rest}"), "/api/scan/:id/:rest");
        assert_eq!(label("/plain"), "/plain");
    }
}
