//! The classes of faults.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use sekisho_testkit::Fault;
use sekisho_testkit::jwt::Signer;
use serde_json::json;

use super::site::Site;
use crate::ask;
use crate::clock::{now, pass};
use crate::load::Load;
use crate::rig::{Instance, SECRET, Trouble};
use crate::rows::{held, reserve};

pub(super) struct Class {
    pub(super) name: &'static str,
    pub(super) over: f64,
    pub(super) may_lose: bool,
    pub(super) run: fn(&mut Site, &Load, &mut SmallRng) -> Result<()>,
}

/// With what was last seen carried over, a total outage admits a tenth more at most.
pub(super) const CARRIED: f64 = 0.10;
/// Two of three cut off: each gives its share, and the third the whole limit.
const CUT_OFF: f64 = 2.0 / 3.0;

const fn class(name: &'static str, over: f64, run: fn(&mut Site, &Load, &mut SmallRng) -> Result<()>) -> Class {
    Class { name, over, may_lose: false, run }
}

const fn lossy(name: &'static str, run: fn(&mut Site, &Load, &mut SmallRng) -> Result<()>) -> Class {
    Class { may_lose: true, ..class(name, CARRIED, run) }
}

pub(super) const CLASSES: [Class; 20] = [
    lossy("F4 Redis killed, back after 3–10 s", killed),
    class("F5 Redis stands still 1–5 s", CARRIED, frozen),
    class("F6 replies 5–60 ms late", CARRIED, slow),
    class("F8 connections reset", CARRIED, reset),
    class("F9 1 % of replies lost", CARRIED, lost_replies),
    class("F11 flapping", CARRIED, flapping),
    class("F12 connections killed by Redis", CARRIED, killed_connections),
    class("F14 one or two instances cut off", CUT_OFF, partition),
    class("F15 scripts flushed", 0.0, scripts),
    lossy("F16 failover, the old primary read-only", failover),
    class("F23 Redis out of memory", CARRIED, out_of_memory),
    class("F27 password changed", CARRIED, password),
    class("F33 invalidations lost, and a token revoked", CARRIED, deaf),
    class("F38 instance killed with 500 reservations", 0.0, instance_killed),
    class("F40 instance stands still", CARRIED, instance_frozen),
    class("F43 seven bad configurations", 0.0, bad_config),
    CROWD,
    class("F52 herd, and slow connections (A19)", 0.0, herd),
    class("A22 requests taken back at once, in floods", 0.0, resets),
    class("F55–F57 the origin is slow, fails, or talks nonsense", 0.0, origin),
];

pub(super) const CROWD: Class = class("F50 crowd of strangers", 0.0, strangers);

pub(super) const LAST: Class = class("F39 rolling restart", 0.0, rolling);

fn seconds(random: &mut SmallRng, from: f64, to: f64) -> Duration {
    Duration::from_secs_f64(random.random_range(from..to))
}

fn killed(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    site.redis().kill9();
    pass(seconds(random, 3.0, 10.0));
    site.redis().restart();
    Ok(())
}

fn frozen(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    site.redis().freeze();
    pass(seconds(random, 1.0, 5.0));
    site.redis().thaw();
    Ok(())
}

fn slow(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    for _ in 0..3 {
        let each = Duration::from_millis(random.random_range(5..60));
        site.set(Fault::Delay { each, jitter: each / 5 });
        pass(Duration::from_secs(2));
    }
    site.set(Fault::Pass);
    Ok(())
}

fn reset(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    for _ in 0..30 {
        pass(Duration::from_millis(100));
        site.proxies[random.random_range(0..3)].cut();
    }
    Ok(())
}

fn lost_replies(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    site.set(Fault::DropReply { one_in: 100 });
    pass(seconds(random, 3.0, 6.0));
    site.set(Fault::Pass);
    Ok(())
}

fn flapping(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    for _ in 0..random.random_range(5..12) {
        site.set(Fault::Refuse);
        site.proxies.iter().for_each(|proxy| proxy.cut());
        pass(Duration::from_millis(200));
        site.set(Fault::Pass);
        pass(Duration::from_millis(200));
    }
    Ok(())
}

fn killed_connections(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
    for _ in 0..3 {
        pass(Duration::from_secs(1));
        site.redis().command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_success();
    }
    Ok(())
}

fn partition(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    for proxy in &site.proxies[..random.random_range(1..3)] {
        proxy.set(Fault::Blackhole);
    }
    pass(seconds(random, 3.0, 8.0));
    site.set(Fault::Pass);
    Ok(())
}

fn scripts(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
    for _ in 0..60 {
        site.redis().command(&["SCRIPT", "FLUSH", "SYNC"]).expect_success();
        pass(Duration::from_millis(50));
    }
    Ok(())
}

fn failover(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
    site.fail_over();
    Ok(())
}

fn out_of_memory(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    site.redis().command(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb"]).expect_success();
    pass(seconds(random, 2.0, 5.0));
    site.redis().command(&["CONFIG", "SET", "maxmemory", "0"]).expect_success();
    Ok(())
}

/// Nobody is let in with what they knew; a reload of their changed files lets them in.
fn password(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    // Whoever is in stays in.
    let mut inside = TcpStream::connect((Ipv4Addr::LOCALHOST, site.redis().port()))?;
    say(&mut inside, "ACL SETUSER default resetpass >rotated")?;
    say(&mut inside, "CLIENT KILL TYPE normal SKIPME yes")?;
    pass(seconds(random, 2.0, 4.0));
    change_url(site, "redis://", "redis://:rotated@")?;
    site.rig.await_shared()?;
    say(&mut inside, "ACL SETUSER default resetpass nopass")?;
    change_url(site, "redis://:rotated@", "redis://")
}

fn say(redis: &mut TcpStream, line: &str) -> Result<()> {
    redis.write_all(format!("{line}\r\n").as_bytes())?;
    let mut reply = [0; 256];
    let length = redis.read(&mut reply)?;
    ensure!(matches!(reply[0], b'+' | b':'), "{line}: {}", String::from_utf8_lossy(&reply[..length]));
    Ok(())
}

fn change_url(site: &Site, from: &str, to: &str) -> Result<()> {
    for instance in &site.rig.instances {
        let config = std::fs::read_to_string(instance.config())?;
        std::fs::write(instance.config(), config.replace(from, to))?;
        instance.reload();
    }
    Ok(())
}

/// The connections over which Redis tells of changes end again and again; a token that is revoked meanwhile is refused
/// everywhere within a second all the same.
fn deaf(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    let (user, jti) = ("u0", format!("deaf-{}", random.random_range(0..u64::MAX)));
    let claims = json!({ "iss": "https://faults.test", "sub": user, "jti": jti, "iat": 1, "exp": 4_102_444_800_u64 });
    let header = format!("authorization: Bearer {}\r\n", Signer::hmac("HS256", SECRET.as_bytes()).token(&claims));
    let show =
        |instance: &Instance| ask::send(instance.gateway(), "GET", "/token", &header, "").map(|(status, _)| status);
    for instance in &site.rig.instances {
        ensure!(show(instance)? == 200, "a token that is not revoked is refused");
    }
    let (path, body) = (format!("/v1/tokens/access/{jti}"), json!({ "ttl": 3600 }).to_string());
    let mut revoked = 0;
    for turn in 0..5 {
        end_followers(site);
        // A 503 says that it is not revoked, and wants to be asked again.
        if turn >= 2 && revoked != 200 {
            (revoked, _) = ask::send(site.rig.instances[0].api(), "PUT", &path, "", &body)?;
        }
        pass(Duration::from_millis(300));
    }
    ensure!(revoked == 200, "a token could not be revoked: {revoked}");
    // A second after the last of them was ended.
    pass(Duration::from_millis(700));
    for (number, instance) in site.rig.instances.iter().enumerate() {
        let status = show(instance)?;
        ensure!(status == 401, "a revoked token is answered {status} on instance {number}");
    }
    Ok(())
}

/// Clients that are told of changes have the flag `t`.
fn end_followers(site: &Site) {
    let clients = site.redis().command(&["CLIENT", "LIST"]).text();
    let field = |line: &str, name: &str| line.split(' ').find_map(|part| part.strip_prefix(name).map(str::to_owned));
    for line in clients.lines().filter(|line| field(line, "flags=").is_some_and(|flags| flags.contains('t'))) {
        if let Some(id) = field(line, "id=") {
            // It may have gone by itself.
            let _ = site.redis().try_command(&["CLIENT", "KILL", "ID", &id]);
        }
    }
}

/// Values that are known are answered all the while, and decisions do not notice.
fn origin(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
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

fn instance_killed(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    let rig = &site.rig;
    let victim = random.random_range(0..3);
    reserve(&rig.instances[victim], "open", 500)?;
    let last = now();
    rig.instances[victim].kill9();
    pass((last + rig.settings.lease + Duration::from_secs(1)).saturating_sub(now()));
    let stuck = held(&rig.instances[(victim + 1) % 3], "open")?;
    rig.instances[victim].restart();
    ensure!(stuck == 0, "{stuck} reservations are held after lease + 1 s");
    Ok(())
}

fn instance_frozen(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    let victim = &site.rig.instances[random.random_range(0..3)];
    victim.freeze();
    // Shorter than the patience of its clients, whose requests it answers afterwards.
    pass(Duration::from_millis(1_500));
    victim.thaw();
    Ok(())
}

/// None of them is taken up, and requests go on under the last good one.
fn bad_config(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
    let instance = &site.rig.instances[0];
    let good = std::fs::read_to_string(instance.config())?;
    // Half a file may be a whole one: what is cut inside a bracket is not.
    let cut = &good[..good.rfind('}').unwrap_or_default()];
    let wrong = [cut, "policies: [", "", "store: 7", "\0\0", "policies: { a: { rules: [] } }", "limts: {}"];
    for text in wrong {
        std::fs::write(instance.config(), text)?;
        instance.reload();
        pass(Duration::from_millis(200));
    }
    std::fs::write(instance.config(), good)?;
    instance.reload();
    Ok(())
}

fn strangers(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
    let floods: Vec<_> = site
        .rig
        .instances
        .iter()
        .enumerate()
        .map(|(number, instance)| {
            let instance = Arc::clone(instance);
            thread::spawn(move || {
                for batch in 0..100 {
                    let name = |stranger| format!("x{number}-{batch}-{stranger}");
                    let checks: Vec<_> =
                        (0..500).map(|stranger| json!({ "policy": "counter", "subject": name(stranger) })).collect();
                    let _ = ask::post(instance.api(), "/v1/check/batch", &json!({ "checks": checks }));
                    pass(Duration::from_millis(60));
                }
            })
        })
        .collect();
    floods.into_iter().for_each(|flood| flood.join().expect("a flood does not panic"));
    Ok(())
}

fn herd(site: &mut Site, _: &Load, random: &mut SmallRng) -> Result<()> {
    let gateway = site.rig.instances[0].gateway();
    // Connections on which nothing is ever asked.
    let idle: Vec<_> = (0..1_000).filter_map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, gateway)).ok()).collect();
    site.rig.origin.take(Duration::from_millis(500));
    let before = site.rig.origin.calls();
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
    drop(idle);
    ensure!(statuses.iter().all(|status| *status == 200), "a client of the herd got no value: {statuses:?}");
    ensure!(site.rig.origin.calls() > before, "the origin was never asked");
    Ok(())
}

/// HTTP/2 connections on which every request is reset as soon as it is sent. Each is ended before long, and others do not notice.
fn resets(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
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

fn rolling(site: &mut Site, _: &Load, _: &mut SmallRng) -> Result<()> {
    for instance in &site.rig.instances {
        let status = instance.terminate()?;
        ensure!(status.success(), "an instance that was told to stop ended with {status}");
        instance.restart();
        instance.await_shared()?;
        pass(Duration::from_millis(500));
    }
    Ok(())
}
