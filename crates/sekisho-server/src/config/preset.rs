//! Caches that are ready made: what each is unless something else is said.

use std::time::Duration;

use sekisho::cache::{Ages, Shape};

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preset {
    /// Rows of users, as older clients keep them.
    Profile,
}

pub(super) const PRESETS: [(&str, Preset); 1] = [("profile", Preset::Profile)];

/// The parts of a preset.
pub(super) struct Parts {
    pub(super) key: &'static str,
    pub(super) shape: Shape,
    pub(super) keep_for: Duration,
    pub(super) missing_for: Option<Duration>,
    pub(super) database: &'static str,
    pub(super) sql: &'static str,
    pub(super) update: &'static str,
    /// Made in a file of SQLite that has none.
    pub(super) table: &'static str,
}

impl Preset {
    pub(super) const fn parts(self) -> Parts {
        match self {
            Self::Profile => PROFILE,
        }
    }

    pub(super) fn ages(self) -> Ages {
        let Parts { keep_for, missing_for, .. } = self.parts();
        Ages { keep_for, missing_for, ..Ages::default() }
    }
}

const PROFILE: Parts = Parts {
    key: "cache:profile:{user_id}",
    shape: Shape::Json,
    keep_for: Duration::from_secs(300),
    missing_for: None,
    database: "sqlite://profiles.db",
    sql: "SELECT user_id, first_name, last_name, email, phone, address FROM profiles WHERE user_id = :user_id",
    update: "UPDATE profiles SET first_name = :first_name, last_name = :last_name, email = :email, phone = :phone, \
             address = :address WHERE user_id = :user_id",
    table: "CREATE TABLE IF NOT EXISTS profiles (user_id TEXT PRIMARY KEY, first_name TEXT NOT NULL, \
            last_name TEXT NOT NULL, email TEXT NOT NULL UNIQUE, phone TEXT, address TEXT)",
};
