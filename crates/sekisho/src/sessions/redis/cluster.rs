//! Where a decision does not fit in one slot. Nothing is atomic over slots, so the order makes it safe: a session is known
//! before it is there, what ends is decided by the first write, and whoever saves looks at the marks again afterwards. Between
//! its write and that look an old client may see a session that has ended; Sekisho never does, for it reads the marks too.

use futures_util::future::{try_join, try_join3};

use super::RedisStore;
use super::calls::{Keys, mark_key, only_key};
use super::find::Found;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::sessions::id::{SessionId, Sid};
use crate::sessions::judge::is_marked;
use crate::sessions::store::{Over, Save, Saved, Terms};

impl RedisStore {
    pub(super) async fn find_on_cluster(&self, id: &SessionId) -> Result<Found, Error> {
        let (found, mark, is_known) = try_join3(self.find_beside(id), self.marks(id), self.is_known(id)).await?;
        Ok(Found { mark, is_known, ..found })
    }

    pub(super) async fn save_on_cluster(&self, save: &Save<'_>, terms: &Terms) -> Result<Saved, Error> {
        let known = async {
            match save.over {
                Over::Nothing { ttl } | Over::Anything { ttl } => self.index(save.id, ttl).await,
                // It was known when it was saved first.
                Over::This(_) => Ok(0),
            }
        };
        let (mark, known) = try_join(self.marks(save.id), known).await?;
        let (saved, since) = self.save_with(save, terms, Keys::of(save.id), mark).await?;
        match saved {
            Saved::Saved { ttl, .. } => {
                let later = self.marks(save.id).await?;
                if later > mark && later.zip(since).is_some_and(|(mark, since)| is_marked(since, mark)) {
                    self.finish(save.id, Some(save.document.as_str()), false, terms).await?;
                    return Ok(Saved::Ended { mark: later });
                }
                Ok(Saved::Saved { known, ttl })
            }
            Saved::Ended { mark } => {
                self.forget(&save.id.user, [&save.id.sid]).await?;
                Ok(Saved::Ended { mark })
            }
            changed => Ok(changed),
        }
    }

    /// The latest mark that holds for a session.
    async fn marks(&self, id: &SessionId) -> Result<Option<Timestamp>, Error> {
        let (only, user, all) =
            try_join3(self.read(only_key(&id.user)), self.read(mark_key(Some(&id.user))), self.read(mark_key(None)))
                .await?;
        Ok(latest(&id.sid, only.as_deref(), user.as_deref(), all.as_deref()))
    }
}

/// As `mark_of` in the script.
pub(super) fn latest(sid: &Sid, only: Option<&str>, user: Option<&str>, all: Option<&str>) -> Option<Timestamp> {
    let only = only.and_then(|only| only.split_once(' ')).filter(|(_, kept)| *kept != sid.as_str());
    [user, all, only.map(|(at, _)| at)]
        .into_iter()
        .flatten()
        .filter_map(|at| at.parse().ok())
        .map(Timestamp::from_millis)
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_combine_by_max() {
        let sid = Sid::new("s").unwrap();
        let at = |millis| Some(Timestamp::from_millis(millis));
        assert_eq!(latest(&sid, None, None, None), None);
        assert_eq!(latest(&sid, None, Some("5"), Some("7")), at(7));
        assert_eq!(latest(&sid, None, Some("7"), Some("5")), at(7));
        assert_eq!(latest(&sid, Some("9 other"), Some("7"), None), at(9));
        assert_eq!(latest(&sid, Some("9 s"), Some("7"), None), at(7));
        assert_eq!(latest(&sid, Some("9 s"), None, Some("words")), None);
    }
}
