//! What the faults happen to: instances of the server, each a process of its own, and what they need.

mod config;
mod instance;
mod origin;

pub(crate) use config::{HELD, PASS, SECRET, Settings, policy_of};
pub(crate) use instance::{Figures, Instance};
pub(crate) use origin::Origin;

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;

/// Some instances on the same store, and an origin for their caches and routes.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) instances: Vec<Arc<Instance>>,
    pub(crate) origin: Origin,
    pub(crate) settings: Settings,
    dir: TempDir,
}

impl Rig {
    /// One instance on each of these stores, which may be several ways to the same one.
    pub(crate) fn start(urls: &[String], settings: Settings) -> Rig {
        let dir = tempfile::Builder::new().prefix("sekisho-faults-").tempdir().expect("a temporary directory");
        let origin = Origin::start();
        let start = |url: &String| Arc::new(Instance::start(dir.path(), url, &settings, origin.port()));
        Rig { instances: urls.iter().map(start).collect(), origin, settings, dir }
    }

    /// As `start`, all of them on one store.
    pub(crate) fn of_three(url: &str, settings: Settings) -> Rig {
        Rig::start(&vec![url.to_owned(); 3], settings)
    }

    /// What the instances have written to their logs, for who wants to know why.
    pub(crate) fn logs(&self) -> Vec<PathBuf> {
        self.instances.iter().map(|instance| instance.log()).collect()
    }

    /// Waits until every instance decides on the store.
    pub(crate) fn await_shared(&self) -> anyhow::Result<()> {
        self.instances.iter().try_for_each(|instance| instance.await_shared())
    }

    /// Keeps the logs when the program ends.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.dir.disable_cleanup(true);
        self.dir.path().to_owned()
    }
}
