//! What happens to Redis, and on the way to it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use sekisho_testkit::Fault;
use sekisho_testkit::jwt::Signer;
use serde_json::json;

use super::{Site, seconds};
use crate::ask;
use crate::clock::pass;
use crate::rig::{Instance, SECRET};

pub(super) fn emptied(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    site.redis().kill9();
    pass(Duration::from_secs(10));
    site.redis().restart_empty();
    Ok(())
}

pub(super) fn killed(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    site.redis().kill9();
    pass(seconds(random, 3.0, 10.0));
    site.redis().restart();
    Ok(())
}

pub(super) fn frozen(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    site.redis().freeze();
    pass(seconds(random, 1.0, 5.0));
    site.redis().thaw();
    Ok(())
}

pub(super) fn slow(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    for _ in 0..3 {
        let each = Duration::from_millis(random.random_range(5..60));
        site.set(Fault::Delay { each, jitter: each / 5 });
        pass(Duration::from_secs(2));
    }
    site.set(Fault::Pass);
    Ok(())
}

pub(super) fn reset(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    for _ in 0..30 {
        pass(Duration::from_millis(100));
        site.proxies[random.random_range(0..3)].cut();
    }
    Ok(())
}

pub(super) fn lost_replies(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    site.set(Fault::DropReply { one_in: 100 });
    pass(seconds(random, 3.0, 6.0));
    site.set(Fault::Pass);
    Ok(())
}

pub(super) fn flapping(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    for _ in 0..random.random_range(5..12) {
        site.set(Fault::Refuse);
        site.proxies.iter().for_each(|proxy| proxy.cut());
        pass(Duration::from_millis(200));
        site.set(Fault::Pass);
        pass(Duration::from_millis(200));
    }
    Ok(())
}

pub(super) fn killed_connections(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    for _ in 0..3 {
        pass(Duration::from_secs(1));
        site.redis().command(&["CLIENT", "KILL", "TYPE", "normal"]).expect_success();
    }
    Ok(())
}

pub(super) fn partition(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    for proxy in &site.proxies[..random.random_range(1..3)] {
        proxy.set(Fault::Blackhole);
    }
    pass(seconds(random, 3.0, 8.0));
    site.set(Fault::Pass);
    Ok(())
}

pub(super) fn scripts(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    for _ in 0..60 {
        site.redis().command(&["SCRIPT", "FLUSH", "SYNC"]).expect_success();
        pass(Duration::from_millis(50));
    }
    Ok(())
}

pub(super) fn failover(site: &mut Site, _: &mut SmallRng) -> Result<()> {
    site.fail_over();
    Ok(())
}

pub(super) fn out_of_memory(site: &mut Site, random: &mut SmallRng) -> Result<()> {
    site.redis().command(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb"]).expect_success();
    pass(seconds(random, 2.0, 5.0));
    site.redis().command(&["CONFIG", "SET", "maxmemory", "0"]).expect_success();
    Ok(())
}

/// Nobody is let in with what they knew; a reload of their changed files lets them in.
pub(super) fn password(site: &mut Site, random: &mut SmallRng) -> Result<()> {
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
pub(super) fn deaf(site: &mut Site, random: &mut SmallRng) -> Result<()> {
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
