//! Taking up a changed configuration: on SIGHUP, and when a file of it changes.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use sekisho_server::config::{Config, ConfigError};
use sekisho_server::{Handle, StartError};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::systemd::Systemd;

/// Files are looked at this often. Asking the kernel to tell would miss what editors, mounts and links do in their ways.
const LOOK: Duration = Duration::from_secs(1);

/// The files of a configuration as they were when it was read, or before: what is written while it is being taken up is then a
/// change, and not what was read.
#[derive(Debug)]
pub(crate) struct Seen {
    files: Vec<PathBuf>,
    stamps: Vec<Option<(SystemTime, u64)>>,
}

impl Seen {
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        Self { stamps: stamps(&files), files }
    }

    /// Of other files: those that were there before are as they were seen then.
    fn followed_by(&self, files: Vec<PathBuf>) -> Self {
        let mut next = Self::of(files);
        for (file, stamp) in self.files.iter().zip(&self.stamps) {
            if let Some(place) = next.files.iter().position(|other| other == file) {
                next.stamps[place] = *stamp;
            }
        }
        next
    }
}

/// Goes on until it is dropped. `load` reads everything anew: file, environment, flags.
pub(crate) async fn watch(
    handle: Handle,
    mut seen: Seen,
    systemd: &Systemd,
    mut hangup: Option<Signal>,
    load: impl Fn() -> Result<Config, ConfigError>,
) {
    loop {
        let is_asked = tokio::select! {
            () = heard(&mut hangup) => true,
            () = tokio::time::sleep(LOOK) => false,
        };
        let now = stamps(&seen.files);
        if !is_asked && now == seen.stamps {
            continue;
        }
        seen.stamps = now;
        systemd.reloading();
        let taken_up = none_is_empty(&seen)
            .and_then(|()| load().map_err(|error| error.to_string()))
            .and_then(|config| take_up(&handle, config));
        systemd.reloaded(taken_up.is_ok());
        match taken_up {
            Ok(()) => seen = seen.followed_by(handle.config().files),
            Err(reason) => {
                tracing::error!("the configuration could not be taken up, the last good one stays: {reason}");
                handle.reload_failed();
            }
        }
    }
}

/// SIGHUP, heard from this call on: before that it would end the process.
pub(crate) fn hangup() -> Option<Signal> {
    let unheard = |error| tracing::warn!(%error, "SIGHUP cannot be heard; only changed files are taken up");
    signal(SignalKind::hangup()).map_err(unheard).ok()
}

/// An empty file is one that somebody is just writing. A server could start with it, and would forget all its policies.
fn none_is_empty(seen: &Seen) -> Result<(), String> {
    let is_empty = |stamp: &Option<(SystemTime, u64)>| stamp.is_some_and(|(_, length)| length == 0);
    let empty = seen.files.iter().zip(&seen.stamps).find(|(_, stamp)| is_empty(stamp));
    empty.map_or(Ok(()), |(file, _)| Err(format!("{} is empty", file.display())))
}

fn take_up(handle: &Handle, config: Config) -> Result<(), String> {
    let later = handle.reload(config).map_err(|error: StartError| error.to_string())?;
    if later.is_empty() {
        tracing::info!("the configuration was taken up");
    } else {
        tracing::warn!("the configuration was taken up, but for {}: that needs a restart", later.join(", "));
    }
    Ok(())
}

async fn heard(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// When each file was written, and how long it is; nothing for one that is not there.
fn stamps(files: &[PathBuf]) -> Vec<Option<(SystemTime, u64)>> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.iter().map(stamp).collect()
}
