//! How many connections are open, in all and from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::config::Connections;

/// Those of one listener: a crowd at the gateway must not keep the operator from the API.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    open: AtomicUsize,
    by_address: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    address: Option<IpAddr>,
}

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Everywhere,
    ForTheAddress,
}

impl Crowd {
    /// `address` is none for those who are not counted one by one.
    pub(crate) fn enter(self: &Arc<Self>, address: Option<IpAddr>, limits: &Connections) -> Result<Place, Full> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= limits.max {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(Full::Everywhere);
        }
        let mut place = Place { crowd: Arc::clone(self), address: None };
        if let Some(address) = address.map(network) {
            let mut by_address = self.by_address.lock();
            let count = by_address.entry(address).or_default();
            if *count >= limits.per_ip {
                return Err(Full::ForTheAddress);
            }
            *count += 1;
            place.address = Some(address);
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.open.fetch_sub(1, Ordering::Relaxed);
        let Some(address) = self.address else { return };
        let mut by_address = self.crowd.by_address.lock();
        if let Some(count) = by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&address);
            }
        }
    }
}

/// Who has one IPv6 address has the other 2^64 of its network too.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a20_places_are_counted_by_network_and_given_back() {
        let limits = Connections { max: 4, per_ip: 2, ..Connections::default() };
        let crowd = Arc::new(Crowd::default());
        let enter = |address: &str| crowd.enter(Some(address.parse().unwrap()), &limits);
        let kept = [enter("2001:db8::1").unwrap(), enter("2001:db8::ffff:1").unwrap()];
        assert_eq!(enter("2001:db8::2").unwrap_err(), Full::ForTheAddress);
        let others = [enter("2001:db8:0:1::1").unwrap(), enter("192.0.2.1").unwrap()];
        assert_eq!(enter("::ffff:192.0.2.1").unwrap_err(), Full::Everywhere);
        assert_eq!(crowd.enter(None, &limits).unwrap_err(), Full::Everywhere);
        drop((kept, others));
        assert_eq!((crowd.open.load(Ordering::Relaxed), crowd.by_address.lock().len()), (0, 0));
        let many = [(); 4].map(|()| crowd.enter(None, &limits).unwrap());
        assert_eq!(many.len(), 4, "who is not counted by address has only the whole to fit in");
    }
}
