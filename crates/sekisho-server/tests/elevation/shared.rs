//! Tiles in Redis.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sekisho_elevation::{Layer, Pixel, Tile};
use sekisho_server::config::Config;
use sekisho_server::config::env::Environment;
use sekisho_testkit::tiles::{Ground, Served, TileServer, Trouble, ground};
use sekisho_testkit::{RedisServer, poll_until};
use serde_json::json;
use tokio::time::Instant;

use super::support::TestServer;
use super::{asked, assert_metres, at, half_surveyed, slope};

const PLACE: &str = "/v1/elevation?lat=35.1&lon=138.5001";

fn on(tiles: &TileServer, redis: &RedisServer, more: &str) -> TestServer {
    for_days("30", tiles, redis, more)
}

fn for_days(days: &str, tiles: &TileServer, redis: &RedisServer, more: &str) -> TestServer {
    let url = redis.url();
    let environment = Environment::from([("REDIS_URL", url.as_str()), ("ELEVATION_CACHE_TTL_DAYS", days)]);
    let config = Config::parse("test.yaml", &super::config(tiles, more)).unwrap();
    let mut config = config.with_environment(&environment).unwrap();
    // A busy machine is no outage.
    config.store.timeout = Duration::from_secs(20);
    TestServer::on_its_store(config)
}

/// The tiles in Redis, merged or not, in some order of their own.
fn kept(redis: &RedisServer) -> BTreeSet<String> {
    redis.command(&["KEYS", "cycling:elevation:v1:data:*"]).items().iter().map(sekisho_testkit::Reply::text).collect()
}

/// A server that has told one height, and then its Redis comes to harm: it tells that and another one all the same. `check` is
/// given what was kept before, and how long each of them took.
fn tells_heights_while(
    harm: impl Fn(&RedisServer),
    check: impl Fn(&RedisServer, &BTreeSet<String>, [Duration; 2]),
    undo: impl Fn(&RedisServer),
) {
    let (tiles, redis) = (TileServer::start(ground::only(Layer::Dem5a, slope())), RedisServer::start());
    let own = format!("store: {{ url: \"{}\", timeout: 1s }}", redis.url());
    let server = on(&tiles, &redis, &format!(", layers: [dem5a], compat: off, {own}"));
    let tells = |lon: f64| {
        let answer = server.get(&format!("/v1/elevation?lat=35.1&lon={lon}")).expect(200);
        assert_metres(&answer["elevation"], 400.0 + (lon - 138.2) * 1_000.0);
    };
    tells(138.2);
    // One is what the server tries its origin with.
    let first = poll_until(Duration::from_secs(60), || Some(kept(&redis)).filter(|kept| kept.len() >= 2));
    let first = first.expect("the first tiles are kept");
    harm(&redis);
    let took = [138.3, 138.2].map(|lon| {
        let began = Instant::now();
        tells(lon);
        began.elapsed()
    });
    check(&redis, &first, took);
    undo(&redis);
    // Of others one that is kept again.
    let mut lon = 138.4;
    let is_kept = poll_until(Duration::from_secs(60), || {
        lon += 0.02;
        tells(lon);
        (kept(&redis).len() > first.len()).then_some(())
    });
    assert!(is_kept.is_some(), "it did not come back to Redis");
}

#[test]
fn a_redis_that_is_full_keeps_no_tiles_and_heights_are_told() {
    let limit = |redis: &RedisServer, bytes: &str| {
        redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", bytes]).expect_success();
    };
    let check = |redis: &RedisServer, before: &BTreeSet<String>, _| assert_eq!(kept(redis), *before);
    tells_heights_while(|redis| limit(redis, "1"), check, |redis| limit(redis, "0"));
}

#[test]
fn a_redis_that_stands_still_holds_up_no_height() {
    // Its time-out is a second: one is waited for, and then it is left alone.
    let check = |_: &RedisServer, _: &BTreeSet<String>, took: [Duration; 2]| {
        assert!(took.iter().all(|took| *took < Duration::from_secs(4)), "{took:?}");
    };
    tells_heights_while(RedisServer::freeze, check, RedisServer::thaw);
}

fn tile() -> (u32, u32) {
    Pixel::of(at(35.1, 138.5001), Layer::Dem5a.zoom()).tile()
}

fn text(redis: &RedisServer, key: &str, field: &str) -> Option<String> {
    let is_there = redis.command(&["HEXISTS", key, field]).int() == 1;
    is_there.then(|| redis.command(&["HGET", key, field]).text())
}

#[test]
fn layers_are_kept_as_they_came_and_merged_for_the_seeds_clients() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    let server = on(&tiles, &redis, "");
    assert_metres(&server.get(PLACE).expect(200)["elevation"], 730.1);
    let (x, y) = tile();
    let of_layer = format!("cycling:elevation:v1:data:dem5a:15:{x}:{y}");
    assert!(text(&redis, &of_layer, "etag").is_some_and(|etag| etag.starts_with('"')));
    assert!(text(&redis, &of_layer, "updated_at").is_some_and(|at| at.parse::<u64>().is_ok()));
    let ttl = redis.command(&["TTL", &of_layer]).int();
    assert!((29 * 86_400..=30 * 86_400).contains(&ttl), "{ttl}");

    let merged = format!("cycling:elevation:v1:data:15:{x}:{y}");
    let csv = poll_until(Duration::from_secs(60), || text(&redis, &merged, "content"));
    let csv = csv.unwrap_or_else(|| panic!("{merged} was not written"));
    assert_eq!((csv.lines().count(), csv.lines().next().unwrap().split(',').count()), (256, 256));
    assert!(text(&redis, &merged, "updated_at").is_some());
    // West of the border by laser, east of it by contour lines, pixel by pixel.
    let csv = Tile::decode(csv.as_bytes()).unwrap();
    let zoom = Layer::Dem5a.zoom();
    for column in [0_u8, 100, 200, 255] {
        let middle = Pixel { x: x * 256 + u32::from(column), y: y * 256 + 7 }.centre(zoom);
        let expected = slope()(middle) + if middle.lon() < 138.5 { 0.0 } else { 30.0 };
        assert!((csv.metres(column, 7).unwrap() - expected).abs() < 0.02, "{column}");
    }
}

fn merged(x: u32, y: u32) -> String {
    format!("cycling:elevation:v1:data:15:{x}:{y}")
}

/// How often each of these was asked for.
fn counted(served: &[Served]) -> HashMap<&str, usize> {
    let mut counted = HashMap::new();
    served.iter().for_each(|served| *counted.entry(served.path.as_str()).or_default() += 1);
    counted
}

/// Where the finest layer has the height nobody asks for a tile of zoom 15. The merged one is written all the same, once.
#[test]
fn where_the_finest_layer_has_the_height_the_merged_tile_is_written_too() {
    let slope = slope();
    let ground: Ground = Arc::new(move |layer, point| match layer {
        Layer::Dem1a => Some(slope(point)),
        Layer::Dem5a => Some(slope(point) + 1.0),
        _ => None,
    });
    let (tiles, redis) = (TileServer::start(ground), RedisServer::start());
    let server = on(&tiles, &redis, "");
    let answer = server.get(PLACE).expect(200);
    assert_eq!((&answer["source"], &answer["zoom"]), (&json!("dem1a"), &json!(17)), "{answer}");
    let (x, y) = tile();
    let csv = poll_until(Duration::from_secs(60), || text(&redis, &merged(x, y), "content"));
    let csv = Tile::decode(csv.expect("the merged tile was not written").as_bytes()).unwrap();
    let middle = Pixel { x: x * 256 + 9, y: y * 256 + 7 }.centre(Layer::Dem5a.zoom());
    assert!((csv.metres(9, 7).unwrap() - slope(middle) - 1.0).abs() < 0.02);

    // The other finest ones in it lead to nothing more.
    let written = redis.command(&["HGET", &merged(x, y), "version"]);
    let zoom = Layer::Dem1a.zoom();
    for (column, row) in (0..4).flat_map(|column| (0..4).map(move |row| (column, row))) {
        let middle = Pixel { x: (x * 4 + column) * 256 + 128, y: (y * 4 + row) * 256 + 128 }.centre(zoom);
        server.get(&format!("/v1/elevation?lat={}&lon={}", middle.lat(), middle.lon())).expect(200);
    }
    // One that is asked for after them is merged after them.
    let next = Pixel { x: (x + 2) * 256 + 128, y: y * 256 + 128 }.centre(Layer::Dem5a.zoom());
    server.get(&format!("/v1/elevation?lat={}&lon={}", next.lat(), next.lon())).expect(200);
    assert!(poll_until(Duration::from_secs(60), || text(&redis, &merged(x + 2, y), "content")).is_some());
    assert_eq!(redis.command(&["HGET", &merged(x, y), "version"]), written);
    let asked = asked(&tiles);
    let of_merged: Vec<_> = asked.iter().filter(|served| served.path.contains("/15/")).collect();
    assert_eq!(of_merged.len(), 2, "{of_merged:?}");
    assert!(counted(&asked).values().all(|times| *times == 1), "{asked:?}");
}

#[test]
fn an_older_clients_job_writes_a_merged_tile_where_there_was_none() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    let _server = for_days("365", &tiles, &redis, "");
    let (x, y) = tile();
    redis.command(&["SADD", "cycling:elevation:v1:queue:refresh", &format!("15:{x}:{y}")]).expect_success();
    let csv = poll_until(Duration::from_secs(60), || text(&redis, &merged(x, y), "content"));
    let csv = Tile::decode(csv.expect("the merged tile was not written").as_bytes()).unwrap();
    let east = Pixel { x: x * 256 + 255, y: y * 256 + 7 }.centre(Layer::Dem5a.zoom());
    assert!((csv.metres(255, 7).unwrap() - slope()(east) - 30.0).abs() < 0.02);
    // Each was asked for once: the layers' tiles by the worker, and then what the coarsest has beyond the border.
    let asked = asked(&tiles);
    assert!(counted(&asked).values().all(|times| *times == 1), "{asked:?}");
    let (coarsest, others): (Vec<_>, Vec<_>) = asked.iter().partition(|served| served.path.contains("/14/"));
    assert_eq!((others.len(), coarsest.len() <= 4), (3, true), "{asked:?}");
}

#[test]
fn compat_off_leaves_the_csv_out() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    let server = on(&tiles, &redis, ", compat: off");
    assert_metres(&server.get(PLACE).expect(200)["elevation"], 730.1);
    // Everything that was fetched is there; whoever merges would have asked for other layers, too.
    let keys = redis.command(&["KEYS", "cycling:elevation:v1:data:*"]);
    let keys: Vec<String> = keys.items().iter().map(|key| key.text()).collect();
    assert!(keys.iter().any(|key| key.contains(":dem5a:15:")), "{keys:?}");
    assert!(keys.iter().all(|key| key.contains(":dem")), "{keys:?}");
}

#[test]
fn another_instance_asks_the_origin_for_nothing() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    let answer = on(&tiles, &redis, ", compat: off").get(PLACE).expect(200);
    assert!(!asked(&tiles).is_empty());
    tiles.trouble(Trouble::Status(500));
    let other = on(&tiles, &redis, ", compat: off");
    let reply = other.get(PLACE);
    assert!(reply.header("cache-status").contains("origin=0"), "{:?}", reply.headers);
    assert_eq!(reply.expect(200), answer);
    assert_eq!(asked(&tiles), vec![]);
}

/// What stands in Redis may be anything: it goes, the tile is fetched again, and the height is right.
#[test]
fn a_corrupt_tile_in_redis_is_fetched_again() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    let answer = on(&tiles, &redis, ", compat: off").get(PLACE).expect(200);
    let (x, y) = tile();
    let key = format!("cycling:elevation:v1:data:dem5a:15:{x}:{y}");
    for corrupt in ["", "no picture", "\u{89}PNG\r\n\u{1a}\n and then nothing", "1.0,e\n2.0"] {
        redis.command(&["HSET", &key, "content", corrupt]).expect_success();
        tiles.served();
        // One that has it in memory would not look.
        let reply = on(&tiles, &redis, ", compat: off").get(PLACE);
        assert_eq!(reply.expect(200), answer, "{corrupt:?}");
        assert!(asked(&tiles).iter().any(|served| served.path.contains("dem5a")), "{corrupt:?}");
    }
    redis.command(&["DEL", &key]).expect_success();
    redis.command(&["SET", &key, "of another type"]).expect_success();
    assert_eq!(on(&tiles, &redis, ", compat: off").get(PLACE).expect(200), answer);
    assert_eq!(redis.command(&["TYPE", &key]).text(), "hash");
}

#[test]
fn without_redis_heights_are_told_all_the_same() {
    let (tiles, redis) = (TileServer::start(ground::only(Layer::Dem5a, slope())), RedisServer::start());
    let server = on(&tiles, &redis, ", layers: [dem5a]");
    assert_metres(&server.get("/v1/elevation?lat=35.1&lon=138.2").expect(200)["elevation"], 400.0);
    redis.kill9();
    assert_metres(&server.get("/v1/elevation?lat=35.1&lon=138.3").expect(200)["elevation"], 500.0);
    assert_metres(&server.get("/v1/elevation?lat=35.1&lon=138.2").expect(200)["elevation"], 400.0);
}

#[test]
fn an_old_tile_that_is_often_asked_for_is_refreshed() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    for_days("365", &tiles, &redis, ", compat: off").get(PLACE).expect(200);
    let (x, y) = tile();
    let (name, now) = (format!("dem5a:15:{x}:{y}"), redis.command(&["TIME"]).items()[0].text());
    let key = format!("cycling:elevation:v1:data:{name}");
    let long_ago = (now.parse::<u64>().unwrap() - 100 * 86_400).to_string();
    redis.command(&["HSET", &key, "updated_at", &long_ago]);
    redis.command(&["ZADD", "cycling:elevation:v1:stats:rank", "50", &name]);
    tiles.served();
    let server = for_days("365", &tiles, &redis, ", compat: off");
    let reply = server.get(PLACE);
    assert!(reply.header("cache-status").contains("origin=0"), "{:?}", reply.headers);
    let renewed = poll_until(Duration::from_secs(60), || text(&redis, &key, "updated_at").filter(|at| *at != long_ago));
    assert!(renewed.is_some_and(|at| at >= now), "it is as old as before");
    let asked: Vec<_> = asked(&tiles).into_iter().map(|served| (served.path, served.status)).collect();
    assert_eq!(asked, [(format!("/xyz/dem5a_png/15/{x}/{y}.png"), 304)]);
}

#[test]
fn an_older_clients_job_is_for_the_layers_and_the_merged_tile_is_written_again() {
    let (tiles, redis) = (TileServer::start(half_surveyed()), RedisServer::start());
    let server = for_days("365", &tiles, &redis, "");
    assert_metres(&server.get(PLACE).expect(200)["elevation"], 730.1);
    let (x, y) = tile();
    let name = format!("15:{x}:{y}");
    let (merged, layer) =
        (format!("cycling:elevation:v1:data:{name}"), format!("cycling:elevation:v1:data:dem5a:{name}"));
    let patience = Duration::from_secs(60);
    poll_until(patience, || text(&redis, &merged, "content")).unwrap();
    // Nothing is merged any more; now both are old, and the ground has risen.
    poll_until(patience, || tiles.served().is_empty().then_some(())).unwrap();
    let now: u64 = redis.command(&["TIME"]).items()[0].text().parse().unwrap();
    let long_ago = (now - 100 * 86_400).to_string();
    for key in [&merged, &layer] {
        redis.command(&["HSET", key, "updated_at", &long_ago]).expect_success();
    }
    let slope = slope();
    tiles.resurvey(ground::only(Layer::Dem5a, move |point| slope(point) + 100.0));
    redis.command(&["SADD", "cycling:elevation:v1:queue:refresh", &name]).expect_success();

    let column = |csv: String| Tile::decode(csv.as_bytes()).unwrap().metres(0, 7).unwrap();
    let west = Pixel { x: x * 256, y: y * 256 + 7 }.centre(Layer::Dem5a.zoom());
    let has_risen = || text(&redis, &merged, "content").map(column).filter(|m| (m - slope(west) - 100.0).abs() < 0.02);
    assert!(poll_until(patience, has_risen).is_some(), "the merged tile is as it was");
    assert_ne!(text(&redis, &merged, "updated_at"), Some(long_ago.clone()));
    assert_ne!(text(&redis, &layer, "updated_at"), Some(long_ago));
    let is_done = || (redis.command(&["SCARD", "cycling:elevation:v1:queue:refresh"]).int() == 0).then_some(());
    assert!(poll_until(patience, is_done).is_some(), "jobs are left");
    let counted = || {
        let metrics = server.get("/metrics").text;
        let changed = "sekisho_cache_refresh_total{cache=\"elevation\",result=\"changed\"}";
        metrics.contains(changed).then_some(())
    };
    assert!(poll_until(patience, counted).is_some(), "{}", server.get("/metrics").text);
}

#[test]
fn tiers_are_counted_and_the_store_is_told_of() {
    let (tiles, redis) = (TileServer::start(ground::only(Layer::Dem5a, slope())), RedisServer::start());
    let server = on(&tiles, &redis, ", layers: [dem5a], compat: off");
    server.get(PLACE).expect(200);
    server.get(PLACE).expect(200);
    let metrics = server.get("/metrics").text;
    for line in [
        "sekisho_cache_requests_total{cache=\"elevation\",tier=\"origin\",result=\"fresh\"}",
        "sekisho_cache_shared_up{cache=\"elevation\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let told = |is_up: bool| {
        let ready = server.gateway("GET", "/readyz", &[]).json();
        (ready["checks"]["elevation_store_ok"] == is_up).then_some(())
    };
    assert!(poll_until(Duration::from_secs(60), || told(true)).is_some());
    redis.kill9();
    let is_down = || {
        server.get("/v1/elevation?lat=35.1&lon=138.3").expect(200);
        told(false)
    };
    assert!(poll_until(Duration::from_secs(60), is_down).is_some());
}
