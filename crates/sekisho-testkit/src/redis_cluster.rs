use std::time::Duration;

use crate::redis_server::RedisServer;
use crate::wait::poll_until;

const SLOTS: usize = 16_384;

/// A node keeps itself read-only for its first two seconds, and gossip needs a few rounds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Primaries in real cluster mode, with the slots dealt out evenly, and no replicas unless asked for.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    replicas: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts `masters` nodes and waits until each of them knows the others and every slot.
    pub fn start(masters: usize) -> RedisCluster {
        RedisCluster::start_all(masters, 0)
    }

    /// As `start`, with a replica for every master, which takes its place a few seconds after it is gone.
    pub fn start_with_replicas(masters: usize) -> RedisCluster {
        let cluster = RedisCluster::start_all(masters, masters);
        for (master, replica) in cluster.nodes.iter().zip(&cluster.replicas) {
            master.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).expect_success();
            let id = master.command(&["CLUSTER", "MYID"]).text();
            replica.command(&["CLUSTER", "REPLICATE", &id]).expect_success();
        }
        let is_linked =
            |replica: &RedisServer| replica.command(&["INFO", "replication"]).text().contains("master_link_status:up");
        let linked = poll_until(PATIENCE, || cluster.replicas.iter().all(is_linked).then_some(()));
        assert!(linked.is_some(), "the replicas never linked to their masters");
        // A master that has not heard of its replica yet does not name it to clients.
        let names_all = |node: &RedisServer| {
            let slots = node.command(&["CLUSTER", "SLOTS"]);
            slots.items().len() == masters && slots.items().iter().all(|range| range.items().len() == 4)
        };
        let known = poll_until(PATIENCE, || cluster.nodes.iter().all(names_all).then_some(()));
        assert!(known.is_some(), "the masters never heard of all replicas");
        cluster
    }

    fn start_all(masters: usize, replicas: usize) -> RedisCluster {
        assert!(masters > 0, "a cluster has at least one node");
        let start = |count| (0..count).map(|_| start_node()).collect();
        let cluster = RedisCluster { nodes: start(masters), replicas: start(replicas) };
        cluster.deal_slots();
        cluster.introduce();
        cluster.await_formed();
        cluster
    }

    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// In the order of their masters.
    pub fn replicas(&self) -> &[RedisServer] {
        &self.replicas
    }

    /// The node that was dealt `slot` at the start; a test that moves slots keeps its own account.
    pub fn node_for_slot(&self, slot: u16) -> &RedisServer {
        &self.nodes[owner(usize::from(slot), self.nodes.len())]
    }

    /// Empties every node.
    pub fn flush(&self) {
        for node in &self.nodes {
            node.command(&["FLUSHALL"]).expect_success();
        }
    }

    /// Waits until every node sees a whole and healthy cluster, as after a restart of one of them.
    pub fn await_formed(&self) {
        let formed = poll_until(PATIENCE, || self.nodes.iter().all(|node| self.is_whole_to(node)).then_some(()));
        if formed.is_none() {
            let views: Vec<_> = self.nodes.iter().map(|node| node.command(&["CLUSTER", "NODES"]).text()).collect();
            panic!("the cluster did not form; its nodes see:\n{}", views.join("\n"));
        }
    }

    fn deal_slots(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let (first, last) = slots_of(index, self.nodes.len());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]).expect_success();
            // Distinct epochs from the start save the nodes a round of resolving conflicts.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).expect_success();
        }
    }

    /// Everyone meets everyone: with gossip alone the last introductions take seconds.
    fn introduce(&self) {
        let all = || self.nodes.iter().chain(&self.replicas);
        for node in all() {
            for other in all().filter(|other| other.port() != node.port()) {
                let bus = other.bus_port().expect("a cluster node has a bus");
                let (port, bus) = (other.port().to_string(), bus.to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).expect_success();
            }
        }
    }

    fn is_whole_to(&self, node: &RedisServer) -> bool {
        let info = node.command(&["CLUSTER", "INFO"]).text();
        let says = |name: &str, value: &str| info.lines().any(|line| line == format!("{name}:{value}"));
        says("cluster_state", "ok")
            && says("cluster_slots_ok", &SLOTS.to_string())
            && says("cluster_known_nodes", &(self.nodes.len() + self.replicas.len()).to_string())
            && !node.command(&["CLUSTER", "NODES"]).text().contains("handshake")
    }
}

fn start_node() -> RedisServer {
    RedisServer::start_cluster_node(&[
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "1500",
        "--cluster-require-full-coverage",
        "no",
    ])
}

/// The first and the last slot of a node.
fn slots_of(index: usize, nodes: usize) -> (usize, usize) {
    let first_of = |index: usize| (index * SLOTS).div_ceil(nodes);
    (first_of(index), first_of(index + 1) - 1)
}

fn owner(slot: usize, nodes: usize) -> usize {
    assert!(slot < SLOTS, "slot {slot} does not exist");
    slot * nodes / SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_the_owner_it_was_dealt_to() {
        for nodes in 1..=7 {
            for slot in 0..SLOTS {
                let (first, last) = slots_of(owner(slot, nodes), nodes);
                assert!((first..=last).contains(&slot), "slot {slot} of {nodes} nodes");
            }
        }
    }
}
