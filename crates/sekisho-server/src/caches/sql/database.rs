//! The two databases, and rows of either as JSON.

use std::str::FromStr as _;
use std::time::Duration;

use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions as _, Encode, Executor as _, Row as _, Type, TypeInfo as _,
    ValueRef as _,
};

use super::Statement;
use crate::config::DatabaseUrl;

#[derive(Debug)]
pub(super) enum Database {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Database {
    /// `table` makes the one that is asked, in a file that is made if it is not there. Another server's is its owner's to make.
    pub(super) fn open(
        url: &DatabaseUrl,
        connections: usize,
        timeout: Duration,
        table: Option<&'static str>,
    ) -> Result<Self, String> {
        let most = u32::try_from(connections).unwrap_or(u32::MAX);
        let unreadable = |_: sqlx::Error| format!("{url} is no URL of a database");
        // Statements are not logged: what they are given is people's.
        if url.is_sqlite() {
            let options = SqliteConnectOptions::from_str(url.expose()).map_err(unreadable)?;
            let options = options.busy_timeout(timeout).disable_statement_logging().create_if_missing(table.is_some());
            let mut pool = SqlitePoolOptions::new().max_connections(most).acquire_timeout(timeout);
            if let Some(table) = table {
                pool = pool.after_connect(move |connection, _| {
                    Box::pin(async move { connection.execute(table).await.map(drop) })
                });
            }
            return Ok(Self::Sqlite(pool.connect_lazy_with(options)));
        }
        let options = PgConnectOptions::from_str(url.expose()).map_err(unreadable)?.disable_statement_logging();
        let pool = PgPoolOptions::new().max_connections(most).acquire_timeout(timeout);
        Ok(Self::Postgres(pool.connect_lazy_with(options)))
    }

    /// The first row as a JSON object, its members in the order of the columns.
    pub(super) async fn row(&self, select: &Statement, args: Vec<String>) -> sqlx::Result<Option<String>> {
        match self {
            Self::Sqlite(pool) => {
                let query = args.into_iter().fold(sqlx::query(sql(select.text())), Query::bind);
                query.fetch_optional(pool).await?.map(|row| object(&row)).transpose()
            }
            // It knows its own types best. The line break ends a comment.
            Self::Postgres(pool) => {
                let wrapped = format!("SELECT row_to_json(found)::text FROM ({}\n) AS found LIMIT 1", select.text());
                let query = args.into_iter().fold(sqlx::query(sql(&wrapped)), Query::bind);
                query.fetch_optional(pool).await?.map(|row| row.try_get(0)).transpose()
            }
        }
    }

    /// How many rows it has changed.
    pub(super) async fn execute(&self, statement: &Statement, args: Vec<Value>) -> Result<u64, NotDone> {
        // A connection first: while there is none, nothing was sent.
        match self {
            Self::Sqlite(pool) => {
                let mut connection = pool.acquire().await.map_err(NotDone::Surely)?;
                let query = args.into_iter().fold(sqlx::query(sql(statement.text())), bind);
                Ok(query.execute(&mut *connection).await.map_err(NotDone::of)?.rows_affected())
            }
            Self::Postgres(pool) => {
                let mut connection = pool.acquire().await.map_err(NotDone::Surely)?;
                let query = args.into_iter().fold(sqlx::query(sql(statement.text())), bind);
                Ok(query.execute(&mut *connection).await.map_err(NotDone::of)?.rows_affected())
            }
        }
    }
}

/// Why a statement is not known to have been done.
#[derive(Debug)]
pub(super) enum NotDone {
    Surely(sqlx::Error),
    /// It was sent, and what became of it was not heard.
    Perhaps(sqlx::Error),
}

impl NotDone {
    /// Of what happened after it was sent. Only a refusal of the database itself says that nothing was done; the last words
    /// of one that goes down (classes 08 and 57P) are none.
    fn of(error: sqlx::Error) -> Self {
        let is_last_word = |code: &str| code.starts_with("08") || code.starts_with("57P");
        match error.as_database_error().map(|error| error.code()) {
            Some(code) if !code.as_deref().is_some_and(is_last_word) => Self::Surely(error),
            _ => Self::Perhaps(error),
        }
    }
}

/// It is the operator's own, from the configuration; callers give arguments only.
fn sql(text: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(text.to_owned())
}

fn bind<'q, DB>(query: Query<'q, DB, DB::Arguments>, value: Value) -> Query<'q, DB, DB::Arguments>
where
    DB: sqlx::Database,
    bool: Encode<'q, DB> + Type<DB>,
    i64: Encode<'q, DB> + Type<DB>,
    f64: Encode<'q, DB> + Type<DB>,
    String: Encode<'q, DB> + Type<DB>,
    Option<String>: Encode<'q, DB> + Type<DB>,
{
    match value {
        Value::Null => query.bind(None::<String>),
        Value::Bool(flag) => query.bind(flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => query.bind(whole),
            None => query.bind(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => query.bind(text),
        list_or_object => query.bind(list_or_object.to_string()),
    }
}

fn object(row: &SqliteRow) -> sqlx::Result<String> {
    let mut json = String::from("{");
    for (at, column) in row.columns().iter().enumerate() {
        let raw = row.try_get_raw(at)?;
        let value = match raw.type_info().name() {
            _ if raw.is_null() => Value::Null,
            "INTEGER" => Value::from(row.try_get_unchecked::<i64, _>(at)?),
            "REAL" => Value::from(row.try_get_unchecked::<f64, _>(at)?),
            _ => Value::from(row.try_get_unchecked::<String, _>(at)?),
        };
        let comma = if at == 0 { "" } else { "," };
        json.push_str(&format!("{comma}{}:{value}", Value::from(column.name())));
    }
    json.push('}');
    Ok(json)
}

/// For answers of a trusted API: it holds no password, and no value but what the database itself says.
pub(super) fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => format!("the database refused: {}", error.message()),
        sqlx::Error::PoolTimedOut => "the database did not answer in time".to_owned(),
        other => format!("the database failed: {other}"),
    }
}
