//! Tokens: what is accepted, and that nothing else is. Names carry the clauses of docs/security/asvs.md.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attacks;
mod claims;
mod rotation;
mod support;
