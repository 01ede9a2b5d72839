//! Limits on Redis and Redis Cluster.
