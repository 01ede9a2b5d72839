//! A cluster forms by itself, routes by slot and heals after a restart.

use sekisho_testkit::{RedisCluster, Reply};

#[test]
fn a_cluster_of_three_serves_every_slot() {
    let cluster = RedisCluster::start(3);
    assert_eq!(cluster.nodes().len(), 3);
    let ports: Vec<_> = cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", ports.join(",")));

    for key in ["a", "b", "c", "d", "e"] {
        let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        let home = cluster.node_for_slot(slot.try_into().unwrap());
        home.command(&["SET", key, "1"]).expect_success();
        for other in cluster.nodes().iter().filter(|node| node.port() != home.port()) {
            let moved = format!("MOVED {slot} 127.0.0.1:{}", home.port());
            assert_eq!(other.command(&["GET", key]), Reply::Error(moved));
        }
    }

    cluster.flush();
    for node in cluster.nodes() {
        assert_eq!(node.command(&["DBSIZE"]).int(), 0);
    }
}

#[test]
fn a_node_that_was_killed_comes_back_to_its_slots() {
    let cluster = RedisCluster::start(3);
    let node = &cluster.nodes()[1];
    node.kill9();
    node.restart();
    cluster.await_formed();
    assert_eq!(cluster.node_for_slot(8_000).command(&["CLUSTER", "COUNTKEYSINSLOT", "8000"]).int(), 0);
}

#[test]
fn one_node_is_a_cluster_too() {
    let cluster = RedisCluster::start(1);
    cluster.nodes()[0].command(&["SET", "a", "1"]).expect_success();
}
