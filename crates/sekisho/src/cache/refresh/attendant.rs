//! Whoever else has to do with what a worker does.

use crate::cache::key::Key;

/// Goes along with a worker. Calls must not wait.
pub trait Attendant: Send + Sync + 'static {
    /// A job may be for something that is made of other values: these are then refreshed in its stead. None: itself.
    fn stands_for(&self, _: &Key) -> Vec<Key> {
        Vec::new()
    }

    /// What is kept of it is now what the origin has, or what it stands for has been queued.
    fn refreshed(&self, _: &Key) {}
}
