//! One server by itself: for questions that are about servers, and not about a job's keys.

use std::{fmt, sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

use super::{error::Error, node::Node};

/// Nobody's request waits for these answers, so they may take longer than a decision.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server that is asked plain commands, over the connection that decisions go over as well.
#[derive(Clone)]
pub struct Server(Arc<Node>);

impl Server {
    pub(super) fn new(node: Arc<Node>) -> Self {
        Self(node)
    }

    /// `host:port`
    pub fn address(&self) -> String {
        self.0.address.to_string()
    }

    /// Sends `commands` in one go and returns their answers in order. What the server refuses is an answer too, a
    /// `Value::ServerError` in the place of its own.
    pub async fn ask(&self, commands: &[Cmd]) -> Result<Vec<Value>, Error> {
        let node = &self.0;
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        node.wait_up().await?;
        let live = node.live().ok_or_else(|| Error::unavailable(format!("{} is not connected", node.address)))?;
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let mut connection = live.connection.clone();
        match timeout(PATIENCE, connection.send_packed_commands(&pipeline, 0, commands.len())).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(error)) => Err(Error::unknown(format!("{}: {error}", node.address))),
            Err(_) => Err(Error::unknown(format!("{}: no answer in {PATIENCE:?}", node.address))),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.0.address)
    }
}
