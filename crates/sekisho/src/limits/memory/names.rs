//! What is known of policies by their names: the space of their fingerprints, and the rules that have made records.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::super::policy::Policy;
use super::super::record::Record;
use crate::store::memory::fingerprint::{Fingerprinter, Space};

#[derive(Debug, Default)]
pub(super) struct Names {
    /// With the shape of the last policy of that name.
    spaces: RwLock<HashMap<String, (Space, u64)>>,
    /// What each rule of a shape was, so that a record of another configuration can be taken over.
    shapes: RwLock<HashMap<u64, Arc<[u64]>>>,
}

impl Names {
    pub(super) fn space(&self, policy: &Policy, fingerprinter: &Fingerprinter) -> Space {
        if let Some((space, shape)) = self.spaces.read().get(policy.name()).copied()
            && (shape == policy.shape() || self.shapes.read().contains_key(&policy.shape()))
        {
            return space;
        }
        self.learn(policy.shape(), policy.shapes_of_rules().into());
        let space = fingerprinter.space_of(policy.name());
        self.spaces.write().insert(policy.name().to_owned(), (space, policy.shape()));
        space
    }

    pub(super) fn learn(&self, shape: u64, rules: Arc<[u64]>) {
        self.shapes.write().insert(shape, rules);
    }

    /// All shapes that made records here, and their rules.
    #[cfg(feature = "durable")]
    pub(super) fn shapes(&self) -> Vec<(u64, Arc<[u64]>)> {
        self.shapes.read().iter().map(|(shape, rules)| (*shape, Arc::clone(rules))).collect()
    }

    /// What `record` still says under another policy than the one that made it.
    #[cold]
    pub(super) fn taken_over(&self, record: Record, policy: &Policy) -> Record {
        match self.shapes.read().get(&record.shape) {
            Some(rules) => record.taken_over(policy, rules),
            None => Record::fresh(policy),
        }
    }
}
