//! What a process may have.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Lets a running process open files and connections up to so many in all, or as many as this one may.
pub fn limit_descriptors(pid: u32, count: Option<u64>) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has an id");
    let own = getrlimit(Resource::Nofile);
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: count.or(own.current), maximum: own.maximum })
        .expect("a process of ours can be limited");
}
