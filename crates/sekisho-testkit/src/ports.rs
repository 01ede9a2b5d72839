//! Loopback ports that parallel test processes do not take from each other.

use std::collections::hash_map::RandomState;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;

/// Below the ephemeral range of Linux (32768–60999). A port that the kernel hands out would be free only until the next
/// outgoing connection, and a server that is killed and restarted on the same port needs it to stay free in between.
const RANGE: Range<u16> = 12_000..32_000;

/// A port that no other test process picks while this value lives.
///
/// The claim is a file lock: it ends with the process even after SIGKILL, so nothing has to be cleaned up.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: File,
}

impl Port {
    /// Panics if none is left.
    pub fn claim() -> Port {
        let dir = claims_dir();
        let span = RANGE.end - RANGE.start;
        let first = random() % span;
        (0..span)
            .map(|step| RANGE.start + (first + step) % span)
            .find_map(|number| Port::try_claim(&dir, number))
            .expect("a free loopback port below the ephemeral range")
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    fn try_claim(dir: &std::path::Path, number: u16) -> Option<Port> {
        let path = dir.join(format!("{number}.lock"));
        let claim = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        match claim.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
        }
        // The lock keeps other tests away; binding tells whether a stranger is already there.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Port { number, _claim: claim })
    }
}

/// One directory per user, since another user's lock files cannot be opened.
fn claims_dir() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("sekisho-testkit-ports-{user}"));
    fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    dir
}

/// Test processes start at different places, so that they rarely meet at a lock.
pub(crate) fn random() -> u16 {
    let bits = RandomState::new().build_hasher().finish();
    u16::try_from(bits % u64::from(u16::MAX)).expect("a remainder by u16::MAX fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_not_given_twice() {
        let port = Port::claim();
        assert!(Port::try_claim(&claims_dir(), port.number()).is_none());
    }

    #[test]
    fn a_dropped_claim_can_be_had_again() {
        let number = Port::claim().number();
        assert!(Port::try_claim(&claims_dir(), number).is_some());
    }

    #[test]
    fn a_port_somebody_listens_on_is_left_alone() {
        let port = Port::claim();
        let number = port.number();
        let _stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(port);
        assert!(Port::try_claim(&claims_dir(), number).is_none());
    }
}
