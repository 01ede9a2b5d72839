//! Parsers of what servers and operators write, for the fuzz targets.

use redis::{PushInfo, Value};

use super::{slots, tracking, url};

/// Bytes as a server sends them, read as its answer to `CLUSTER SLOTS`: first and last slot, master, number of replicas.
pub(crate) fn ranges(bytes: &[u8]) -> Option<Vec<(u16, u16, String, usize)>> {
    let ranges = slots::read_ranges(&redis::parse_redis_value(bytes).ok()?, "asked")?;
    // That they may be all of them is counted, too.
    slots::is_all(&ranges);
    Some(ranges.into_iter().map(|range| (range.first, range.last, range.master, range.replicas.len())).collect())
}

/// Bytes as a server sends them, read as a push: the keys that it names, and whether all that was known may be old.
pub(crate) fn pushed(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, bool)> {
    let Value::Push { kind, data } = redis::parse_redis_value(bytes).ok()? else { return None };
    Some(tracking::sorted(PushInfo { kind, data }))
}

/// Whether a URL can be used, and what is wrong with it otherwise; and what is shown of it.
pub(crate) fn store_url(text: &str) -> Result<String, String> {
    let target = url::parse(text).map_err(|error| error.to_string())?;
    for address in &target.addresses {
        target.login.at(address).map_err(|error| error.to_string())?;
    }
    Ok(format!("{target:?}"))
}
