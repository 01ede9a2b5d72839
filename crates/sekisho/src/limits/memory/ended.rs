//! The reservations of a shard that ended lately.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::super::decision::Ending;
use super::super::policy::Amounts;
use super::super::reservation::Tag;
use crate::store::memory::fingerprint::Fingerprint;

/// How a reservation ended, remembered for a while so that a repeated call gets the same answer.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) expires: u64,
    pub(super) forget_at: u64,
    pub(super) amounts: Amounts,
}

#[derive(Debug, Default)]
pub(super) struct EndedReservations {
    by_tag: HashMap<(Fingerprint, Tag), Ended>,
    /// In the order of their ends, which is nearly that of their forgetting.
    order: VecDeque<(u64, Fingerprint, Tag)>,
}

impl EndedReservations {
    pub(super) fn of(&self, print: Fingerprint, tag: Tag) -> Option<&Ended> {
        self.by_tag.get(&(print, tag))
    }

    pub(super) fn len(&self) -> usize {
        self.by_tag.len()
    }

    pub(super) fn insert(&mut self, print: Fingerprint, tag: Tag, ended: Ended) {
        self.order.push_back((ended.forget_at, print, tag));
        self.by_tag.insert((print, tag), ended);
    }

    pub(super) fn forget_old(&mut self, now: u64) {
        // Two for each one added keeps it short without ever pausing for long.
        for _ in 0..2 {
            let (Some((first, ..)), Some((last, ..))) = (self.order.front(), self.order.back()) else { return };
            if *first <= now {
                self.forget_oldest();
            } else if first > last {
                // One of a long lease would keep all those behind it.
                self.order.rotate_left(1);
            }
        }
    }

    pub(super) fn forget_oldest(&mut self) {
        let Some((forget_at, print, tag)) = self.order.pop_front() else { return };
        // A reservation under the same key that ended later stands further behind.
        if self.by_tag.get(&(print, tag)).is_some_and(|ended| ended.forget_at == forget_at) {
            self.by_tag.remove(&(print, tag));
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.by_tag.capacity() * (size_of::<((Fingerprint, Tag), Ended)>() + 1) + self.order.capacity() * 40
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_end_under_the_same_key_is_not_forgotten_with_the_earlier_one() {
        let (print, tag) = (Fingerprint::from_lanes([1, 2]), Tag::random());
        let ended = |forget_at| Ended { ending: Ending::Expired, expires: 0, forget_at, amounts: Amounts::new() };
        let mut all = EndedReservations::default();
        all.insert(print, tag, ended(10));
        all.insert(print, tag, ended(20));
        all.forget_old(15);
        assert_eq!(all.by_tag.get(&(print, tag)).map(|ended| ended.forget_at), Some(20));
        all.forget_old(20);
        assert!(all.by_tag.is_empty() && all.order.is_empty());
    }

    #[test]
    fn an_end_that_is_remembered_for_long_keeps_no_others() {
        let print = Fingerprint::from_lanes([1, 2]);
        let ended = |forget_at| Ended { ending: Ending::Settled, expires: 0, forget_at, amounts: Amounts::new() };
        let mut all = EndedReservations::default();
        let long = [Tag::random(), Tag::random()];
        long.iter().for_each(|tag| all.insert(print, *tag, ended(1_000_000)));
        for now in 0..1_000 {
            all.forget_old(now);
            all.insert(print, Tag::random(), ended(now + 20));
        }
        assert!(all.len() < 30, "{}", all.len());
        assert!(long.iter().all(|tag| all.of(print, *tag).is_some()));
    }
}
