//! One server can be used, killed, frozen, restarted and followed.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use sekisho_testkit::{RedisServer, Reply, poll_until};

#[test]
fn a_started_server_answers_at_its_url() {
    let server = RedisServer::start();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert!(server.command(&["SET", "name", "barrier"]).is_ok());
    assert_eq!(server.command(&["GET", "name"]).text(), "barrier");
    assert_eq!(server.command(&["INCRBY", "count", "3"]).int(), 3);
    assert!(server.command(&["GET", "nothing"]).is_nil());
    assert_eq!(server.command(&["MGET", "name", "nothing"]).items().len(), 2);
    assert!(matches!(server.command(&["NO-SUCH-COMMAND"]), Reply::Error(_)));
}

#[test]
fn arguments_reach_the_server() {
    let server = RedisServer::start_with(&["--maxmemory", "5mb"]);
    assert_eq!(server.command(&["CONFIG", "GET", "maxmemory"]).items()[1].text(), "5242880");
}

#[test]
fn a_server_with_a_password_counts_as_started() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    assert!(matches!(server.command(&["GET", "x"]), Reply::Error(message) if message.starts_with("NOAUTH")));
}

#[test]
fn a_killed_server_refuses_connections() {
    let server = RedisServer::start();
    server.kill9();
    let error = server.try_command(&["PING"]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    server.kill9();
}

#[test]
fn what_was_saved_is_back_unless_it_is_to_be_forgotten() {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.command(&["SET", "a", "1"]).expect_success();
    server.restart();
    assert_eq!(server.command(&["DBSIZE"]).int(), 1);
    server.restart_empty();
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[test]
fn a_restarted_server_is_empty_and_on_the_same_port() {
    let server = RedisServer::start();
    let port = server.port();
    server.command(&["SET", "name", "barrier"]).expect_success();
    server.kill9();
    server.restart();
    assert_eq!(server.port(), port);
    assert!(server.command(&["GET", "name"]).is_nil());
    server.restart();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn a_frozen_server_answers_only_when_thawed() {
    let server = RedisServer::start();
    for _ in 0..2 {
        server.freeze();
        thread::scope(|scope| {
            let call = scope.spawn(|| server.command(&["INCR", "calls"]));
            assert!(poll_until(Duration::from_millis(200), || call.is_finished().then_some(())).is_none());
            server.thaw();
            call.join().unwrap().int();
        });
    }
    assert_eq!(server.command(&["GET", "calls"]).text(), "2");
}

#[test]
fn a_dropped_server_is_gone_even_when_frozen() {
    let server = RedisServer::start();
    let pid = server.command(&["INFO", "server"]).text();
    let pid = pid.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().to_owned();
    server.freeze();
    drop(server);
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    assert_eq!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH));
}

#[test]
fn a_replica_follows_its_primary() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_replica_of(&primary);
    primary.command(&["SET", "name", "barrier"]).expect_success();
    let copy = poll_until(Duration::from_secs(5), || {
        let copy = replica.command(&["GET", "name"]);
        (!copy.is_nil()).then_some(copy)
    });
    assert_eq!(copy.unwrap().text(), "barrier");
    assert!(matches!(replica.command(&["SET", "x", "1"]), Reply::Error(message) if message.starts_with("READONLY")));
}

#[test]
fn many_servers_started_at_once_get_a_port_each() {
    let mut ports: Vec<u16> = thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(RedisServer::start)).collect();
        let servers: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        servers.iter().map(RedisServer::port).collect()
    });
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 8);
}

#[test]
fn a_failover_leaves_the_old_primary_read_only_to_those_it_still_has() {
    let first = RedisServer::start();
    let second = RedisServer::start_replica_of(&first);
    let mut pinned = TcpStream::connect(("127.0.0.1", first.port())).unwrap();
    let mut set = |expected: &str| {
        pinned.write_all(b"SET name 1\r\n").unwrap();
        let mut reply = vec![0; expected.len()];
        pinned.read_exact(&mut reply).unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), expected);
    };
    set("+OK\r\n");
    second.promote();
    first.demote_to(&second);
    set("-READONLY You can't write against a read only replica.\r\n");
    second.command(&["SET", "name", "2"]).expect_success();
    let copied = poll_until(Duration::from_secs(5), || {
        (first.command(&["GET", "name"]) == Reply::Bulk(Some("2".into()))).then_some(())
    });
    assert!(copied.is_some(), "the old primary never followed");
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    let server = RedisServer::start();
    server.fill_disk();
    for command in [["SET", "a", "1"].as_slice(), &["PING"]] {
        assert!(matches!(server.command(command), Reply::Error(message) if message.starts_with("MISCONF")));
    }
    assert!(server.command(&["GET", "a"]).is_nil());
    server.free_disk();
    server.command(&["SET", "a", "1"]).expect_success();
    assert_eq!(server.command(&["DBSIZE"]).int(), 1);
}
