//! Redis has no clock that a test could set, so time passes there by taking it from every key's own.

use std::time::Duration;

use sekisho_testkit::RedisServer;

/// Lets every key of a server expire so much sooner.
pub(crate) fn age(server: &RedisServer, by: Duration) {
    let script = "for _, key in ipairs(redis.call('KEYS', '*')) do \
                    local ttl = redis.call('PTTL', key) \
                    if ttl >= 0 and ttl <= tonumber(ARGV[1]) then redis.call('DEL', key) \
                    elseif ttl >= 0 then redis.call('PEXPIRE', key, ttl - ARGV[1]) end \
                  end";
    server.command(&["EVAL", script, "0", &by.as_millis().to_string()]).expect_success();
}
