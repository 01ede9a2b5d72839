//! What clients do, and the origin.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::Site;
use crate::ask;
use crate::clock::{now, pass};
use crate::rig::{STRANGER, Trouble};
use crate::rows::{BUDGET_MIB, Flood, MINUTE, STRANGERS};

/// Values that are known are answered all the while, and decisions do not notice.
pub(super) fn origin(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    let known = |site: &Site| {
        for instance in &site.rig.instances {
            let (status, _) = ask::get(instance.api(), "/v1/caches/tiles/1")?;
            ensure!(status == 200, "a value that is known is answered {status}");
        }
        Ok(())
    };
    known(site)?;
    site.rig.origin.take(Duration::from_secs(3));
    pass(Duration::from_secs(2));
    let slow = known(site);
    site.rig.origin.take(Duration::ZERO);
    slow?;
    for trouble in [Trouble::Unavailable, Trouble::Garbage, Trouble::Endless, Trouble::Cut] {
        site.rig.origin.trouble(Some(trouble));
        pass(Duration::from_secs(2));
        let answered = known(site);
        site.rig.origin.trouble(None);
        answered?;
    }
    Ok(())
}

pub(super) fn strangers(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    flood(site, Duration::ZERO)
}

pub(super) fn many_strangers(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    flood(site, MINUTE / 4)
}

/// What is kept of them is bounded, and those who were there before are limited as they were.
fn flood(site: &Site, frozen: Duration) -> Result<()> {
    let (begun, mut most) = (now(), 0.0_f64);
    let mut watch = |until: Duration| {
        while now() < until {
            pass(Duration::from_millis(250));
            most = site.rig.instances.iter().map(|instance| instance.figures().rss_mib).fold(most, f64::max);
        }
    };
    let flood = Flood::start(&site.rig.instances, STRANGER);
    if !frozen.is_zero() {
        watch(begun + MINUTE / 4);
        site.redis().freeze();
        watch(begun + MINUTE / 4 + frozen);
        site.redis().thaw();
    }
    watch(begun + MINUTE);
    let asked = flood.stop();
    ensure!(asked >= STRANGERS * 9 / 10, "only {asked} strangers came");
    ensure!(most <= BUDGET_MIB, "an instance took {most:.0} MiB, more than {BUDGET_MIB:.0}");
    Ok(())
}

pub(super) fn herd(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    let gateway = site.rig.instances[0].gateway();
    // Connections on which a question is begun and never ended.
    let mut slow: Vec<_> = (0..1_000).filter_map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, gateway)).ok()).collect();
    slow.iter_mut().try_for_each(|client| client.write_all(b"GET / HTTP/1.1\r\nx-slow: "))?;
    site.rig.origin.take(Duration::from_millis(500));
    let before = site.rig.origin.herd();
    let path = format!("/v1/caches/tiles/herd{}", random.random_range(0..u32::MAX));
    let clients: Vec<_> = (0..150)
        .map(|number| {
            let (port, path) = (site.rig.instances[number % 3].api(), path.clone());
            thread::spawn(move || ask::get(port, &path).map(|(status, _)| status).unwrap_or_default())
        })
        .collect();
    let statuses: Vec<u16> =
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
    site.rig.origin.take(Duration::ZERO);
    drop(slow);
    ensure!(statuses.iter().all(|status| *status == 200), "a client of the herd got no value: {statuses:?}");
    let calls = site.rig.origin.herd() - before;
    ensure!((1..=3).contains(&calls), "three instances asked the origin {calls} times for one value");
    Ok(())
}

/// HTTP/2 connections on which every request is reset as soon as it is sent. Each is ended before long, and others do not notice.
pub(super) fn resets(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    // `GET /` over `http`, all from HPACK's own table.
    const HEAD: [u8; 3] = [0x82, 0x86, 0x84];
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let frame = |kind: u8, flags: u8, stream: u32, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap_or_default().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
    };
    let mut ended = 0;
    for connection in 0..60 {
        let to = site.rig.instances[connection % 3].gateway();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, to))?;
        client.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat())?;
        let request = |stream| [frame(1, 5, stream, &HEAD), frame(3, 0, stream, &CANCEL)].concat();
        let is_ended = (0..20_000_u32).any(|number| client.write_all(&request(2 * number + 1)).is_err());
        ended += usize::from(is_ended);
        pass(Duration::from_millis(50));
    }
    ensure!(ended == 60, "{} connections could reset 20,000 requests each", 60 - ended);
    Ok(())
}
