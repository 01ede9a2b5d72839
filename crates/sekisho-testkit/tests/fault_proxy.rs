//! The proxy harms what it is told to harm, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use sekisho_testkit::{Fault, FaultProxy, RedisServer, poll_until};

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(100);

fn pair() -> (RedisServer, FaultProxy) {
    let redis = RedisServer::start();
    let proxy = FaultProxy::to(redis.port());
    (redis, proxy)
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn send(mut stream: &TcpStream, words: &[&str]) {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(bytes.as_bytes()).unwrap();
}

#[track_caller]
fn expect(mut stream: &TcpStream, reply: &str) {
    let mut bytes = vec![0; reply.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), reply);
}

/// Nothing more comes from it, ever.
#[track_caller]
fn expect_reset(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0; 64]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn is_silent(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    let read = stream.read(&mut [0; 64]);
    stream.set_read_timeout(Some(LONG)).unwrap();
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn what_is_passed_on_is_whole_and_counted() {
    let (_redis, proxy) = pair();
    assert_eq!(proxy.url(), format!("redis://127.0.0.1:{}", proxy.port()));
    let streams = [connect(&proxy), connect(&proxy)];
    let large = "x".repeat(3 << 20);
    thread::scope(|scope| {
        scope.spawn(|| send(&streams[0], &["SET", "large", &large]));
        expect(&streams[0], "+OK\r\n");
    });
    send(&streams[1], &["GET", "large"]);
    expect(&streams[1], &format!("${}\r\n{large}\r\n", large.len()));
    assert_eq!((proxy.connections(), proxy.connections_in_all(), proxy.harmed()), (2, 2, 0));
    drop(streams);
    assert!(poll_until(LONG, || (proxy.connections() == 0).then_some(())).is_some());
    assert_eq!(proxy.connections_in_all(), 2);
}

#[test]
fn a_cut_resets_every_connection_and_the_next_one_is_well() {
    let (_redis, proxy) = pair();
    let stream = connect(&proxy);
    send(&stream, &["PING"]);
    expect(&stream, "+PONG\r\n");
    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    expect_reset(&stream);
    let stream = connect(&proxy);
    send(&stream, &["PING"]);
    expect(&stream, "+PONG\r\n");
    drop(proxy);
    expect_reset(&stream);
}

#[test]
fn a_refused_connection_is_reset_and_open_ones_go_on() {
    let (_redis, proxy) = pair();
    let stream = connect(&proxy);
    send(&stream, &["PING"]);
    expect(&stream, "+PONG\r\n");
    proxy.set(Fault::Refuse);
    expect_reset(&connect(&proxy));
    send(&stream, &["PING"]);
    expect(&stream, "+PONG\r\n");
}

#[test]
fn a_repointed_proxy_keeps_open_connections_where_they_are() {
    let (first, proxy) = pair();
    let second = RedisServer::start();
    first.command(&["SET", "name", "1"]).expect_success();
    second.command(&["SET", "name", "2"]).expect_success();
    let old = connect(&proxy);
    send(&old, &["GET", "name"]);
    expect(&old, "$1\r\n1\r\n");
    proxy.repoint(second.port());
    let new = connect(&proxy);
    for (stream, name) in [(&old, "1"), (&new, "2")] {
        send(stream, &["GET", "name"]);
        expect(stream, &format!("$1\r\n{name}\r\n"));
    }
}

#[test]
fn a_delayed_reply_comes_later_in_its_order() {
    let (redis, proxy) = pair();
    proxy.set(Fault::Delay { each: 2 * SHORT, jitter: SHORT });
    let stream = connect(&proxy);
    for _ in 0..3 {
        send(&stream, &["INCR", "calls"]);
    }
    assert!(is_silent(&stream));
    assert_eq!(redis.command(&["GET", "calls"]).text(), "3", "the requests are not delayed");
    proxy.set(Fault::Pass);
    send(&stream, &["INCR", "calls"]);
    expect(&stream, ":1\r\n:2\r\n:3\r\n:4\r\n");
}

#[test]
fn a_black_hole_swallows_everything_and_its_end_resets_what_has_a_hole() {
    let (redis, proxy) = pair();
    let idle = connect(&proxy);
    proxy.set(Fault::Blackhole);
    let stream = connect(&proxy);
    send(&stream, &["INCR", "calls"]);
    assert!(is_silent(&stream));
    assert!(redis.command(&["GET", "calls"]).is_nil());
    assert_eq!(proxy.connections(), 2);
    proxy.set(Fault::Pass);
    expect_reset(&stream);
    send(&idle, &["INCR", "calls"]);
    expect(&idle, ":1\r\n");
}

#[test]
fn a_dropped_reply_is_of_a_script_that_ran() {
    let (redis, proxy) = pair();
    proxy.set(Fault::DropReply { one_in: 3 });
    let script = &["EVAL", "return redis.call('INCR', KEYS[1])", "1", "calls"];
    let stream = connect(&proxy);
    send(&stream, &["PING"]);
    for _ in 0..4 {
        send(&stream, script);
    }
    expect(&stream, "+PONG\r\n:1\r\n:2\r\n");
    expect_reset(&stream);
    assert_eq!(proxy.harmed(), 1);
    let calls: u32 = redis.command(&["GET", "calls"]).text().parse().unwrap();
    assert!(calls >= 3, "the third was run: {calls}");
}

#[test]
fn an_injected_error_takes_its_turn_and_nothing_is_run() {
    let (redis, proxy) = pair();
    let stream = connect(&proxy);
    send(&stream, &["SELECT", "0"]);
    send(&stream, &["MGET", "a", "b"]);
    expect(&stream, "+OK\r\n*2\r\n$-1\r\n$-1\r\n");
    // A reply of a command that was sent before is still to come.
    send(&stream, &["BLPOP", "list", "0"]);
    let blocked = || redis.command(&["INFO", "clients"]).text().contains("blocked_clients:1");
    assert!(poll_until(LONG, || blocked().then_some(())).is_some());
    proxy.set(Fault::Inject("-MISCONF no\r\n"));
    send(&stream, &["INCR", "calls"]);
    send(&stream, &["SELECT", "1"]);
    assert!(is_silent(&stream));
    redis.command(&["RPUSH", "list", "x"]).expect_success();
    expect(&stream, "*2\r\n$4\r\nlist\r\n$1\r\nx\r\n-MISCONF no\r\n+OK\r\n");
    assert!(redis.command(&["GET", "calls"]).is_nil());
    proxy.set(Fault::Pass);
    send(&stream, &["INCR", "calls"]);
    expect(&stream, ":1\r\n");
}

#[test]
fn sliced_and_throttled_streams_are_whole() {
    let (redis, proxy) = pair();
    let text = "x".repeat(2_000);
    for (fault, key) in [(Fault::Slice, "a"), (Fault::Throttle { bytes_per_second: 20_000 }, "b")] {
        proxy.set(fault);
        let stream = connect(&proxy);
        send(&stream, &["SET", key, &text]);
        send(&stream, &["GET", key]);
        expect(&stream, &format!("+OK\r\n$2000\r\n{text}\r\n"));
        assert_eq!(redis.command(&["STRLEN", key]).int(), 2_000);
    }
}

#[test]
fn a_flipped_reply_differs_in_one_bit() {
    let (_redis, proxy) = pair();
    proxy.set(Fault::Flip);
    let mut stream = connect(&proxy);
    send(&stream, &["PING"]);
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).unwrap();
    let bits: u32 = reply.iter().zip(b"+PONG\r\n").map(|(&is, &was)| (is ^ was).count_ones()).sum();
    assert_eq!((bits, proxy.harmed()), (1, 1));
}

#[test]
fn a_server_that_is_gone_resets_its_clients() {
    let (redis, proxy) = pair();
    let stream = connect(&proxy);
    send(&stream, &["PING"]);
    expect(&stream, "+PONG\r\n");
    redis.kill9();
    let mut rest = [0; 1];
    // As a killed process does: closed or reset.
    assert!(matches!((&stream).read(&mut rest), Ok(0) | Err(_)));
    expect_reset(&connect(&proxy));
}

#[test]
fn what_is_not_redis_goes_through() {
    let (redis, proxy) = pair();
    let mut stream = connect(&proxy);
    stream.write_all(b"PING\r\n").unwrap();
    expect(&stream, "+PONG\r\n");
    assert_eq!(redis.command(&["PING"]).text(), "PONG");
}
