//! Listeners, connections and the way down. What to listen on and when to stop are arguments.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sekisho::backend::Backend;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::watch;

use crate::app::App;
use crate::config::Config;
use crate::connection::{Door, Side};
use crate::crew::Crew;
use crate::envoy::grpc::Grpc;
use crate::guests::Guests;
use crate::live::{Handle, Live};
use crate::quiet::quietly;
use crate::start::{StartError, open_store};
use crate::{census, eviction, metrics, tokens};

/// How long requests in flight get when the server is told to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the store has, after that, to be told what they cost.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// A server with its listeners open and nothing accepted yet.
#[derive(Debug)]
pub struct Server {
    gateway: TcpListener,
    api: TcpListener,
    grpc: Option<(TcpListener, Grpc)>,
    addresses: Addresses,
    live: Arc<Live>,
    crew: Crew,
}

#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub gateway: SocketAddr,
    pub api: SocketAddr,
    /// None where Envoy's rate-limit service is not served.
    pub grpc: Option<SocketAddr>,
}

impl Server {
    /// Opens the store and the listeners that the configuration names.
    pub async fn bind(config: Config) -> Result<Self, StartError> {
        refuse_open_api(&config, config.api)?;
        let grpc = config.grpc;
        grpc.map_or(Ok(()), |address| refuse_open_grpc(&config, address))?;
        let backend = open_store(&config).await?;
        let gateway = listen("listen", config.listen).await?;
        let api = listen("api", config.api).await?;
        let server = Self::new(config, backend, gateway, api)?;
        match grpc {
            Some(address) => server.with_grpc(listen("grpc", address).await?),
            None => Ok(server),
        }
    }

    pub fn new(config: Config, backend: Backend, gateway: TcpListener, api: TcpListener) -> Result<Self, StartError> {
        let local = |name, listener: &TcpListener, address| {
            listener.local_addr().map_err(|error| StartError::Listen { name, address, error })
        };
        let addresses = Addresses {
            gateway: local("listen", &gateway, config.listen)?,
            api: local("api", &api, config.api)?,
            grpc: None,
        };
        refuse_open_api(&config, addresses.api)?;
        let live = Live::new(App::new(config, backend)?)?;
        Ok(Self { gateway, api, grpc: None, addresses, live, crew: Crew::default() })
    }

    /// Serves Envoy's rate-limit service as well.
    pub fn with_grpc(mut self, listener: TcpListener) -> Result<Self, StartError> {
        let address = listener.local_addr().map_err(|error| {
            let address = self.live.app().config.grpc.unwrap_or(self.addresses.api);
            StartError::Listen { name: "grpc", address, error }
        })?;
        refuse_open_grpc(&self.live.app().config, address)?;
        self.addresses.grpc = Some(*self.live.grpc_at.get_or_init(|| address));
        self.grpc = Some((listener, Grpc::new(Arc::clone(&self.live))));
        Ok(self)
    }

    /// Has connections served by threads of their own, and not by the runtime that this runs on.
    #[must_use]
    pub fn with_crew(mut self, crew: Crew) -> Self {
        self.crew = crew;
        self
    }

    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// To change it while it runs.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.live))
    }

    /// Serves until `stop` resolves, then finishes what is in flight.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Addresses { gateway, api, grpc } = self.addresses;
        tracing::info!(%gateway, %api, grpc = grpc.map(tracing::field::display), "serving");
        let connections = Guests::new();
        let (grpc_listener, grpc) = self.grpc.unzip();
        let (stopping, stopped) = watch::channel(false);
        let app = self.live.app();
        app.metrics.watch_tasks(self.crew.runtimes().chain([runtime::Handle::current()]).collect());
        let mut workers = app.caches.work(&stopped, &app.metrics);
        if let Some(heights) = app.elevation.clone() {
            let (own, mut stopped) = (Arc::clone(&heights), stopped);
            workers.spawn(own.work(async move { drop(stopped.wait_for(|is_told| *is_told).await) }));
            tokio::spawn(async move { heights.check().await });
        }
        drop(app);
        {
            let gateway = accept(self.gateway, Door::new(&self.live, Side::Gateway), &connections, &self.crew);
            let api = accept(self.api, Door::new(&self.live, Side::Api), &connections, &self.crew);
            let calls = async {
                match (&grpc, grpc_listener) {
                    (Some(grpc), Some(listener)) => grpc.serve(listener, &connections, &self.crew).await,
                    _ => std::future::pending().await,
                }
            };
            let mut serving = pin!(async {
                tokio::select! {
                    () = gateway => {}
                    () = api => {}
                    () = upkeep(&self.live) => {}
                    () = census::keep(&self.live) => {}
                    () = eviction::watch(&self.live) => {}
                    () = calls => {}
                }
            });
            tokio::select! {
                () = stop => {}
                () = &mut serving => {}
            }
            // Whoever is told before the door closes does not run into it.
            self.live.app().metrics.leave();
            if let Some(grpc) = &grpc {
                grpc.leave().await;
            }
            tokio::select! {
                () = drained(&connections, self.live.app().config.connections.drain) => {}
                () = &mut serving => {}
            }
        }
        stopping.send_replace(true);
        if let Some(grpc) = grpc {
            grpc.stop().await;
        }
        // The listeners are closed by now, so that nobody new is told to wait.
        tracing::info!(open = connections.count(), "stopping");
        if tokio::time::timeout(STOP_TIMEOUT, connections.see_out()).await.is_err() {
            tracing::warn!("some requests were cut off: they took longer than {STOP_TIMEOUT:?} to finish");
        }
        // What the last answers cost was left to the store without waiting for it.
        let Backend { limits, outbound, .. } = self.live.app().backend.clone();
        let told = async { tokio::join!(limits.catch_up(), outbound.catch_up()) };
        if tokio::time::timeout(CATCH_UP_TIMEOUT, told).await.is_err() {
            tracing::warn!("the store was not told of all that was decided: it did not answer in {CATCH_UP_TIMEOUT:?}");
        }
        let refreshed = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, refreshed).await.is_err() {
            tracing::warn!("a refresh of a cache was cut off; another instance will do it");
        }
    }
}

/// Hears SIGTERM and SIGINT from this call on, not only once it is awaited, and resolves on the first of them.
pub fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

fn refuse_open_api(config: &Config, address: SocketAddr) -> Result<(), StartError> {
    if config.api_token.is_none() && !address.ip().to_canonical().is_loopback() {
        return Err(StartError::OpenApi(address));
    }
    Ok(())
}

/// The service knows no callers: whoever reaches it can use up what belongs to others, and give it back. Encryption alone
/// keeps nobody out; certificates that clients have to show do.
pub(crate) fn refuse_open_grpc(config: &Config, address: SocketAddr) -> Result<(), StartError> {
    let knows_clients = config.grpc_tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    if !config.insecure_grpc && !knows_clients && !address.ip().to_canonical().is_loopback() {
        return Err(StartError::OpenGrpc(address));
    }
    Ok(())
}

async fn listen(name: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|error| StartError::Listen { name, address, error })
}

/// Until nobody is connected any more, or for so long.
async fn drained(connections: &Guests, longest: Duration) {
    let everybody_left = async {
        while connections.count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    drop(tokio::time::timeout(longest, everybody_left).await);
}

async fn upkeep(live: &Live) {
    let mut due = tokio::time::interval(metrics::UPKEEP);
    loop {
        due.tick().await;
        let app = live.app();
        app.gate.upkeep();
        tokens::keep_fresh(app.tokens.as_ref());
        app.upstreams.upkeep();
    }
}

async fn accept(listener: TcpListener, door: Door, connections: &Guests, crew: &Crew) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                if let Some(place) = door.admit(peer) {
                    let (door, guest) = (door.clone(), connections.enter());
                    crew.serve(stream, move |stream| door.serve(stream, peer, guest, place));
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: they come back as connections end.
                quietly!(warn, %error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
