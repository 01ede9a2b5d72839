//! Fetches pages politely: within the budget and the pace of each domain, as its robots.txt allows, and only where the
//! public Internet is.
//!
//! A [`Fetcher`] takes a [`FetchRequest`] and answers with a [`Fetched`], also when it was not allowed to ask. Every request
//! that it sends is acquired and settled on the domain where it lands: robots.txt, redirects and retries too.

mod answer;
mod ask;
mod body;
mod client;
mod fetcher;
mod guard;
mod meters;
mod pages;
pub(crate) mod redirect;
mod request;
mod resolve;
pub(crate) mod robots;
pub(crate) mod signals;
mod turn;

pub use answer::{Body, Fetched, Reason};
pub use fetcher::{FetchParts, FetchTerms, Fetcher};
pub use guard::{Guard, Refused};
pub use pages::{MemoryPages, Page, PageFuture, Pages};
pub use request::FetchRequest;
pub use resolve::{Addresses, Resolve, SystemResolver};
pub use robots::RobotsState;
