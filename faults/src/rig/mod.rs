//! What the faults happen to: instances of the server, each a process of its own, and what they need.

mod config;
mod instance;
mod origin;

pub(crate) use config::{HELD, PASS, SECRET, STRANGER, Settings, policy_of};
pub(crate) use instance::{Figures, Instance};
pub(crate) use origin::{Origin, Trouble};

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Some instances on the same store, and an origin for their caches and routes.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) instances: Vec<Arc<Instance>>,
    pub(crate) origin: Origin,
    pub(crate) settings: Settings,
}

impl Rig {
    /// One instance on each of these stores, which may be several ways to the same one.
    pub(crate) fn start(urls: &[String], settings: Settings) -> Rig {
        let dir = folder();
        let origin = Origin::start();
        let start = |url: &String| Arc::new(Instance::start(&dir, url, &settings, origin.port()));
        Rig { instances: urls.iter().map(start).collect(), origin, settings }
    }

    /// As `start`, all of them on one store.
    pub(crate) fn of_three(url: &str, settings: Settings) -> Rig {
        Rig::start(&vec![url.to_owned(); 3], settings)
    }

    /// Waits until every instance decides on the store, and knows of the others.
    pub(crate) fn await_shared(&self) -> anyhow::Result<()> {
        self.instances.iter().try_for_each(|instance| {
            instance.await_shared()?;
            instance.await_others(self.instances.len())
        })
    }
}

/// Where configurations and logs stay for who wants to know why: `target/release/faults-logs`, one folder a rig.
fn folder() -> PathBuf {
    static RIGS: AtomicUsize = AtomicUsize::new(0);
    let all = std::env::current_exe().expect("a path of its own").with_file_name("faults-logs");
    let number = RIGS.fetch_add(1, Ordering::Relaxed);
    if number == 0 {
        // Those of the last time, if there are any.
        let _ = fs::remove_dir_all(&all);
    }
    let dir = all.join(format!("{number:02}"));
    fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    dir
}
