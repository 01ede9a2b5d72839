//! An origin that is a row of a database: SQLite in a file, or PostgreSQL.

mod database;
mod statement;

use std::sync::Arc;
use std::time::Duration;

use sekisho::cache::{Failure, Fetched, Key, KeyPattern, Origin, OriginFuture, Reply, Validators};
use serde_json::{Map, Value};

use crate::config::SqlConfig;
use database::{Database, NotDone};
pub use statement::Statement;

/// Why a row was not changed.
#[derive(Debug)]
pub(crate) enum NotUpdated {
    /// There is none.
    Missing,
    /// The database holds something against it.
    Conflict(String),
    Failed(String),
    /// It may have been changed, or may yet be.
    TimedOut(Duration),
    /// The same: the connection was lost after it was asked for.
    Lost(String),
}

impl NotUpdated {
    /// Nobody knows whether the row is what it was.
    pub(crate) const fn is_unsure(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Lost(_))
    }
}

/// Reads a row as a JSON object, and changes it.
#[derive(Debug)]
pub(crate) struct SqlOrigin {
    database: Database,
    pattern: KeyPattern,
    select: Statement,
    update: Option<Statement>,
    timeout: Duration,
}

impl SqlOrigin {
    /// Nothing is asked of the database yet: one that is away keeps nothing from starting.
    pub(super) fn open(
        config: &SqlConfig,
        pattern: &KeyPattern,
        concurrency: usize,
        timeout: Duration,
    ) -> Result<Arc<Self>, String> {
        let database = Database::open(&config.database, concurrency, timeout, config.table)?;
        let (select, update) = (config.sql.clone(), config.update.clone());
        Ok(Arc::new(Self { database, pattern: pattern.clone(), select, update, timeout }))
    }

    /// What an update has to be given besides the key. `None`: this origin is only read.
    pub(crate) fn fields(&self) -> Option<Vec<&str>> {
        let is_field = |name: &&str| !self.pattern.names().any(|part| part == *name);
        self.update.as_ref().map(|update| update.names().filter(is_field).collect())
    }

    /// Writes `fields`, of which all are there, to the row of `key`.
    pub(crate) async fn update(&self, key: &Key, fields: &Map<String, Value>) -> Result<(), NotUpdated> {
        let failed = |reason: &str| NotUpdated::Failed(reason.to_owned());
        let update = self.update.as_ref().ok_or_else(|| failed("there is no `update`"))?;
        let parts = self.pattern.parts(key).ok_or_else(|| failed("the key is none of this cache"))?;
        let value = |name: &str| match parts.iter().find(|(part, _)| *part == name) {
            Some((_, text)) => Value::from(*text),
            None => fields.get(name).cloned().unwrap_or_default(),
        };
        let doing = self.database.execute(update, update.names().map(value).collect());
        match tokio::time::timeout(self.timeout, doing).await {
            Ok(Ok(0)) => Err(NotUpdated::Missing),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(NotDone::Surely(error)))
                if error.as_database_error().is_some_and(|error| error.kind() != sqlx::error::ErrorKind::Other) =>
            {
                Err(NotUpdated::Conflict(database::reason(&error)))
            }
            Ok(Err(NotDone::Surely(error))) => Err(NotUpdated::Failed(database::reason(&error))),
            Ok(Err(NotDone::Perhaps(error))) => Err(NotUpdated::Lost(database::reason(&error))),
            Err(_) => Err(NotUpdated::TimedOut(self.timeout)),
        }
    }
}

impl Origin for SqlOrigin {
    fn fetch<'a>(&'a self, key: &'a Key, _: &'a Validators) -> OriginFuture<'a> {
        Box::pin(async move {
            let parts = self.pattern.parts(key).ok_or_else(|| Failure::new("the key is none of this cache"))?;
            let part =
                |name: &str| parts.iter().find(|(part, _)| *part == name).map_or("", |(_, text)| text).to_owned();
            let row = self.database.row(&self.select, self.select.names().map(part).collect()).await;
            match row.map_err(|error| Failure::new(database::reason(&error)))? {
                Some(json) => Ok(Reply::Fetched(Fetched::from(json.into_bytes()))),
                None => Ok(Reply::Missing),
            }
        })
    }
}
