//! Where a decision does not fit in one slot. Nothing is atomic over slots, so the order makes it safe: a session is known
//! before it is there, what ends is decided by the first write, and whoever saves looks at the marks again afterwards. Between
//! its write and that look an old client may see a session that has ended; Sekisho never does, for it reads the marks too.

use futures_util::future::{try_join, try_join3};

use super::RedisStore;
use super::calls::{Keys, mark_key, only_key, over};
use super::find::Found;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::revocation::read_mark;
use crate::sessions::id::{SessionId, Sid};
use crate::sessions::judge::is_marked;
use crate::sessions::store::{Over, Save, Saved, Terms};

impl RedisStore {
    pub(super) async fn find_on_cluster(&self, id: &SessionId) -> Result<Found, Error> {
        let (found, mark, is_known) = try_join3(self.find_beside(id), self.marks(id), self.is_known(id)).await?;
        Ok(Found { mark, is_known, ..found })
    }

    pub(super) async fn save_on_cluster(&self, save: &Save<'_>, terms: &Terms) -> Result<Saved, Error> {
        let index = async || match save.over {
            Over::Nothing { ttl } | Over::Anything { ttl } => self.index(save.id, ttl).await,
            // It was known when it was saved first.
            Over::This(_) => Ok(0),
        };
        let (mark, _) = try_join(self.marks(save.id), index()).await?;
        match self.save_with(save, over(save), terms, Keys::of(save.id), mark).await? {
            Saved::Saved { ttl, since, .. } => {
                // Counted once it is there: of several that save at once the last one finds them all.
                let known = async { if terms.max_per_user.is_some() { index().await } else { Ok(0) } };
                let (later, known) = try_join(self.marks(save.id), known).await?;
                if later > mark && later.is_some_and(|mark| is_marked(since, mark)) {
                    self.finish(save.id, Some(save.document.as_str()), false, terms).await?;
                    return Ok(Saved::Ended { mark: later });
                }
                Ok(Saved::Saved { known, ttl, since })
            }
            Saved::Ended { mark } => {
                self.forget(&save.id.user, [&save.id.sid]).await?;
                Ok(Saved::Ended { mark })
            }
            changed => Ok(changed),
        }
    }

    /// The latest mark that holds for a session.
    pub(super) async fn marks(&self, id: &SessionId) -> Result<Option<Timestamp>, Error> {
        let user = self.marked(mark_key(Some(&id.user)), false);
        let (only, user, all) =
            try_join3(self.marked(only_key(&id.user), true), user, self.marked(mark_key(None), false)).await?;
        Ok(latest(&id.sid, only.as_deref(), user.as_deref(), all.as_deref()))
    }
}

/// As `mark_of` in the script.
pub(super) fn latest(sid: &Sid, only: Option<&str>, user: Option<&str>, all: Option<&str>) -> Option<Timestamp> {
    let only = only.and_then(|only| {
        let mut words = only.split(' ');
        let (at, kept, before) = (words.next()?, words.next()?, words.next());
        if kept == sid.as_str() { before } else { Some(at) }
    });
    [user, all, only].into_iter().flatten().filter_map(|at| read_mark(at.as_bytes())).max()
}

/// As `only_of` in the script: when, which session stays, and perhaps up to when that one had ended too.
pub(super) fn is_only(text: &str) -> bool {
    let is_mark = |word: &str| read_mark(word.as_bytes()).is_some();
    match text.split(' ').collect::<Vec<_>>().as_slice() {
        [at, kept] => is_mark(at) && !kept.is_empty(),
        [at, kept, before] => is_mark(at) && !kept.is_empty() && is_mark(before),
        _ => false,
    }
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
        assert_eq!(latest(&sid, Some("9 s 8"), Some("7"), None), at(8), "it had ended before it was kept");
        assert_eq!(latest(&sid, Some("9 other 8"), None, None), at(9));
        assert_eq!(latest(&sid, Some("9 s"), None, Some("words")), None);
    }

    #[test]
    fn what_names_no_session_that_stays_is_told() {
        assert!(["9 s", "9 s 8", "9 :"].into_iter().all(is_only));
        assert!(!["", "9", "9 ", "x s", "9 s x", "9 s 8 7", "9 s ", "1234567890123456 s"].into_iter().any(is_only));
    }
}
