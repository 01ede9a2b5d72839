//! A primary and a replica, each instance with its own way to them.

use anyhow::Result;
use sekisho_testkit::{Fault, FaultProxy, RedisServer};
use std::time::Duration;

use crate::clock::pass;
use crate::load::{Load, OTHERS};
use crate::rig::{Figures, Rig, Settings};
use crate::rows::held;

/// Five seconds of them.
const LOOKS: usize = 50;
/// Until connections to the origin that were kept for the next request are closed: up to 30 s by the cache, 31 by the gateway.
const QUIET: Duration = Duration::from_secs(40);

pub(super) struct Site {
    servers: [RedisServer; 2],
    primary: usize,
    pub(super) proxies: Vec<FaultProxy>,
    pub(super) rig: Rig,
}

impl Site {
    pub(super) fn start() -> Result<Site> {
        let durable = ["--appendonly", "yes", "--appendfsync", "everysec"];
        let servers = [RedisServer::start_with(&durable), RedisServer::start_with(&durable)];
        servers[1].demote_to(&servers[0]);
        let proxies: Vec<_> = (0..3).map(|_| FaultProxy::to(servers[0].port())).collect();
        let urls: Vec<_> = proxies.iter().map(FaultProxy::url).collect();
        // Short windows, so that those of one fault are over before the next.
        let settings =
            Settings { limit: 60, window: Duration::from_secs(5), memory_subjects: 50_000, ..Settings::default() };
        let rig = Rig::start(&urls, settings);
        rig.await_shared()?;
        Ok(Site { servers, primary: 0, proxies, rig })
    }

    pub(super) fn redis(&self) -> &RedisServer {
        &self.servers[self.primary]
    }

    pub(super) fn set(&self, fault: Fault) {
        self.proxies.iter().for_each(|proxy| proxy.set(fault));
    }

    /// The replica takes over; connections stay on the old primary, which is read-only now.
    pub(super) fn fail_over(&mut self) {
        let (old, new) = (self.primary, 1 - self.primary);
        self.servers[new].promote();
        self.servers[old].demote_to(&self.servers[new]);
        self.primary = new;
        self.proxies.iter().for_each(|proxy| proxy.repoint(self.servers[new].port()));
    }

    /// Waits until the replica has all that the primary has.
    pub(super) fn await_replica(&self) {
        self.servers[1 - self.primary].await_info("replication", "master_link_status:up");
    }

    /// What Redis holds of all that was ever reserved.
    pub(super) fn open_reservations(&self) -> Result<u64> {
        let subjects = (0..OTHERS).map(|number| format!("s{number}")).chain(["open", "paused"].map(str::to_owned));
        subjects.map(|subject| held(&self.rig.instances[0], &subject)).sum()
    }

    /// Of all instances together while nobody asks them anything, the least of some looks: what comes and goes with requests is
    /// no growth.
    pub(super) fn figures(&self, load: &Load) -> Figures {
        load.pause(true);
        pass(QUIET);
        let looks = (0..LOOKS).map(|_| {
            pass(Duration::from_millis(100));
            self.look()
        });
        let none = Figures { rss_mib: f64::MAX, descriptors: usize::MAX, threads: usize::MAX, tasks: usize::MAX };
        let least = looks.fold(none, |least, one| Figures {
            rss_mib: least.rss_mib.min(one.rss_mib),
            descriptors: least.descriptors.min(one.descriptors),
            threads: least.threads.min(one.threads),
            tasks: least.tasks.min(one.tasks),
        });
        load.pause(false);
        least
    }

    fn look(&self) -> Figures {
        let all = self.rig.instances.iter().map(|instance| instance.figures());
        let none = Figures { rss_mib: 0.0, descriptors: 0, threads: 0, tasks: 0 };
        all.fold(none, |sum, one| Figures {
            rss_mib: sum.rss_mib + one.rss_mib,
            descriptors: sum.descriptors + one.descriptors,
            threads: sum.threads + one.threads,
            tasks: sum.tasks + one.tasks,
        })
    }
}
