//! The servers of a Redis Cluster and who has which slot.
//!
//! redis-rs's own cluster client sends a script again when it does not know whether it ran, so it is not used here.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use redis::Value;
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    client::Options,
    error::Error,
    node::Node,
    slots::{SlotMap, read_ranges},
    url::{Address, Login, Target},
};

/// How long a map is trusted when nothing speaks against it, and when something does.
const REFRESH_WHEN_WELL: Duration = Duration::from_secs(5);
const REFRESH_WHEN_NOT: Duration = Duration::from_millis(200);
/// However many redirects come in, the map is not asked for more often.
const REFRESH_AT_MOST_EVERY: Duration = Duration::from_millis(50);

pub(super) struct Cluster {
    seeds: Vec<Address>,
    login: Login,
    options: Options,
    runtime: Handle,
    map: ArcSwap<SlotMap>,
    /// Every server we hold a connection to, masters and those we were sent to. Also the lock for changing `map`.
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    stale: Arc<Notify>,
}

impl Cluster {
    /// Asks the hosts of the URL, one after the other, until one knows the slots; then waits for its masters. If none does,
    /// they are asked again in the background; until then no slot has an owner.
    pub(super) async fn open(target: Target, options: Options, runtime: Handle) -> (Arc<Self>, Result<(), Error>) {
        let cluster = Arc::new(Self {
            seeds: target.addresses,
            login: target.login,
            options,
            runtime,
            map: ArcSwap::from_pointee(SlotMap::new(&[], |_| unreachable!("there are no ranges"))),
            nodes: Mutex::default(),
            stale: Arc::new(Notify::new()),
        });
        let first = cluster.refresh().await;
        for master in cluster.masters() {
            // One that is down must not keep us from serving the slots of the others.
            if let Err(error) = master.wait_up().await {
                tracing::warn!(%error, "a master of the cluster does not answer");
            }
        }
        cluster.runtime.spawn(keep_fresh(Arc::downgrade(&cluster), cluster.stale.clone()));
        (cluster, first)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.load().owner(slot).cloned()
    }

    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        self.map.load().masters().to_vec()
    }

    /// Something speaks against the map. A new one comes in the background.
    pub(super) fn doubt(&self) {
        self.stale.notify_one();
    }

    /// A server has told us who has the slot now. That much is taken over at once, the rest is asked for.
    pub(super) fn moved(&self, slot: u16, to: &str, told_by: &Node) -> Result<(), Error> {
        let node = self.node_at(to, &told_by.address.host)?;
        let nodes = self.nodes.lock();
        let map = self.map.load();
        if !map.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, &node)) {
            self.map.store(Arc::new(map.with_owner(slot, &node)));
        }
        drop(nodes);
        self.doubt();
        Ok(())
    }

    /// The server of that address, connected to now if it was not before.
    pub(super) fn node_at(&self, address: &str, asked_host: &str) -> Result<Arc<Node>, Error> {
        let address = Address::from_server(address, asked_host)
            .ok_or_else(|| Error::unavailable("a redirect names no address"))?;
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(&address.to_string()) {
            return Ok(node.clone());
        }
        let node = self.start(address)?;
        nodes.insert(node.address.to_string(), node.clone());
        Ok(node)
    }

    fn start(&self, address: Address) -> Result<Arc<Node>, Error> {
        Node::start(address, &self.login, self.options, self.runtime.clone(), Some(self.stale.clone()), None)
    }

    /// Asks the masters we know, then the hosts of the URL, and takes the first map that comes.
    async fn refresh(&self) -> Result<(), Error> {
        let mut failure = Error::unavailable("no server of the cluster is known");
        let known: Vec<_> = self.masters().into_iter().filter(|node| node.is_up()).collect();
        // Not always the same one: it may be the one that was cut off and still has the old map.
        let turn = if known.is_empty() { 0 } else { rand::random_range(0..known.len()) };
        for node in known.iter().cycle().skip(turn).take(known.len()) {
            match self.ask(node).await {
                Ok(()) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        for seed in &self.seeds {
            let node = match self.nodes.lock().get(&seed.to_string()) {
                Some(node) => node.clone(),
                None => self.start(seed.clone())?,
            };
            let asked = async {
                node.wait_up().await?;
                self.ask(&node).await
            };
            match asked.await {
                Ok(()) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn ask(&self, node: &Arc<Node>) -> Result<(), Error> {
        let address = &node.address;
        let live = node.live().ok_or_else(|| Error::unavailable(format!("{address} is not connected")))?;
        let mut connection = live.connection.clone();
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let answer = timeout(self.options.connect_timeout, connection.send_packed_command(&command))
            .await
            .map_err(|_| Error::unavailable(format!("{address} does not tell its slots in time")))?
            .map_err(|error| Error::unavailable(format!("{address}: {error}")))?;
        if let Value::ServerError(error) = &answer {
            return Err(Error::Server {
                code: error.code().to_owned(),
                message: error.details().unwrap_or_default().to_owned(),
            });
        }
        let ranges = read_ranges(&answer, &address.host)
            .filter(|ranges| !ranges.is_empty())
            .ok_or_else(|| Error::unavailable(format!("{address} knows no slots")))?;

        let mut nodes = self.nodes.lock();
        // The one we asked is most likely one of the masters, and has a connection.
        nodes.entry(address.to_string()).or_insert_with(|| node.clone());
        let mut masters: HashMap<String, Arc<Node>> = HashMap::new();
        for range in &ranges {
            if !masters.contains_key(&range.master) {
                let node = match nodes.get(&range.master) {
                    Some(node) => node.clone(),
                    None => self.start(
                        Address::from_server(&range.master, &address.host)
                            .ok_or_else(|| Error::unavailable("a slot range names no address"))?,
                    )?,
                };
                masters.insert(range.master.clone(), node);
            }
        }
        ranges.iter().for_each(|range| masters[&range.master].owns(range.first, range.last));
        self.map.store(Arc::new(SlotMap::new(&ranges, |master| masters[master].clone())));
        // Servers that are no longer masters are let go; calls that are out keep theirs until they are done.
        *nodes = masters;
        Ok(())
    }

    pub(super) fn is_well(&self) -> bool {
        let map: Guard<Arc<SlotMap>> = self.map.load();
        map.is_covered() && map.masters().iter().all(|node| node.is_trusted())
    }
}

async fn keep_fresh(cluster: Weak<Cluster>, stale: Arc<Notify>) {
    loop {
        let Some(well) = cluster.upgrade().map(|cluster| cluster.is_well()) else { return };
        let pause = if well { REFRESH_WHEN_WELL } else { REFRESH_WHEN_NOT };
        // Whether it was woken or the time is over, the map is asked for.
        let _ = timeout(pause, stale.notified()).await;
        let Some(cluster) = cluster.upgrade() else { return };
        if let Err(error) = cluster.refresh().await {
            tracing::debug!(%error, "the slots of the cluster could not be asked for");
        }
        drop(cluster);
        sleep(REFRESH_AT_MOST_EVERY).await;
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.seeds).field("map", &**self.map.load()).finish_non_exhaustive()
    }
}
