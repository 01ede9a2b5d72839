//! A check as a script of its own for one policy: the rules unrolled, their numbers written in.
//!
//! The general script interprets a policy; for the commonest call by far, a check on a record without holds or override,
//! that costs more than the commands it sends. The script made here does the same arithmetic in a straight line. Whatever is
//! not plain (a hold, an override, a record of another shape, a clock that stepped back) it leaves untouched and answers with
//! 7, and the caller asks the general script instead.

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::super::policy::{Mode, Policy};
use super::super::rule::{Algorithm, Rule};
use super::super::store::Target;
use super::encode::{Body, When, bounds, has_period, shape, target_keys};
use crate::store::redis::{Job, Script};

/// The script, if every rule of the policy is one that can be unrolled.
pub(in crate::limits) fn script(policy: &Policy) -> Option<Script> {
    if policy.mode() == Mode::Shadow || policy.rules().len() > 4 {
        return None;
    }
    let mut parts = Parts::default();
    for (i, rule) in policy.rules().iter().enumerate() {
        if rule.key().is_some() { parts.add_keyed(&rule.algorithm, i) } else { parts.add(&rule.algorithm, i) }?;
    }
    Some(Script::new(parts.assemble(&literal(&shape(policy)))))
}

pub(super) fn job(when: When, target: &Target, amounts: &[u64]) -> Job {
    let mut body = Body::default();
    let mut keys = SmallVec::new();
    body.time(when);
    for amount in amounts {
        body.amount(Some(*amount));
    }
    for rule in target.policy.rules() {
        if matches!(rule.algorithm, Algorithm::Calendar { .. } | Algorithm::FixedWindow { .. }) && has_period(rule) {
            let (start, end) = bounds(rule, when.now);
            body.period(start, end);
        }
    }
    // A member of a sorted set needs a name.
    if target.policy.rules().iter().any(is_set) {
        body.name(&rand::random());
    }
    target_keys(when.now, target, &mut keys);
    Job { keys, args: [body.0].into_iter().collect(), repeatable: false }
}

fn is_set(rule: &Rule) -> bool {
    rule.key().is_some() && matches!(rule.algorithm, Algorithm::SlidingLog { .. })
}

/// The pieces of the script, one line or block a rule. `a`, `b`, `c`, `d` with the number of the rule are its slots.
#[derive(Default)]
struct Parts {
    /// Formats and names of what a body holds: amounts first, then periods.
    amounts: (String, String),
    periods: (String, String),
    slots: Vec<String>,
    empty: Vec<&'static str>,
    plain: String,
    /// Counts under seeds' keys, read before anything is written.
    reads: String,
    advance: String,
    rooms: String,
    take: String,
    keep: String,
    rules: usize,
    /// Seeds' keys, and whether members of a sorted set need a name.
    keys: usize,
    is_named: bool,
    /// What figures need of a set after the decision.
    after: String,
    figures: String,
}

impl Parts {
    fn add(&mut self, algorithm: &Algorithm, i: usize) -> Option<()> {
        let (a, b, d) = (format!("a{i}"), format!("b{i}"), format!("d{i}"));
        let (n, room) = (format!("n{i}"), format!("r{i}"));
        self.rules += 1;
        self.amounts.0 += "I6";
        self.amounts.1 += &format!(", {n}");
        let limit = algorithm.capacity();
        self.plain += &format!(" and {n} <= {limit}");
        let (slots, empty): (&[&str], &[&'static str]) = match algorithm {
            Algorithm::SlidingLog { window, .. } => {
                self.log(i, limit, *window);
                (&["a", "b"], &["''", "0"])
            }
            Algorithm::FixedWindow { window, .. } => {
                self.advance +=
                    &format!("local s = now - now % {window} if s > {a} then {a}, {b}, c{i} = s, 0, 0 end\n");
                self.window(i, limit, &format!("{a} + {window}"));
                (&["a", "b", "c"], &["0"; 3])
            }
            Algorithm::Calendar { .. } => {
                self.periods.0 += "I8I8";
                self.periods.1 += &format!(", s{i}, e{i}");
                self.plain += &format!(" and (now < {d} or (s{i} <= now and now < e{i}))");
                self.advance += &format!("if now >= {d} then {a}, {b}, c{i}, {d} = s{i}, 0, 0, e{i} end\n");
                self.window(i, limit, &d);
                (&["a", "b", "c", "d"], &["0"; 4])
            }
            Algorithm::Bucket { rate, queue: false, .. } => {
                let (price, leak, full) = (rate.price, rate.leak, rate.full);
                self.advance += &format!(
                    "if now > {a} then {b} = {b} - (now - {a}) * {leak} if {b} < 0 then {b} = 0 end {a} = now end\n"
                );
                self.rooms += &format!(
                    "local o = {b} + {n} * {price} - {full} if o > 0 then {room} = {a} + ceil(o / {leak}) denied = true end\n"
                );
                self.take += &format!("{b} = {b} + {n} * {price}\n");
                self.keep +=
                    &format!("if {b} > 0 then local k = {a} + ceil({b} / {leak}) if k > keep then keep = k end end\n");
                let left = format!("({b} < {full} and floor(({full} - {b}) / {price}) or 0)");
                self.figures += &format!(", {room}, {limit}, {limit} - {left}, 0, {left}, {a} + ceil({b} / {leak})");
                (&["a", "b", "c"], &["0"; 3])
            }
            _ => return None,
        };
        self.slots.extend(slots.iter().map(|slot| format!("{slot}{i}")));
        self.empty.extend(empty);
        Some(())
    }

    /// A counter or a set that is shared with older clients: `v` is what it counts.
    fn add_keyed(&mut self, algorithm: &Algorithm, i: usize) -> Option<()> {
        self.rules += 1;
        self.keys += 1;
        self.amounts.0 += "I6";
        self.amounts.1 += &format!(", n{i}");
        let limit = algorithm.capacity();
        self.plain += &format!(" and n{i} <= {limit}");
        let key = format!("KEYS[base + {}]", self.keys + 1);
        let ttl = match algorithm {
            Algorithm::SlidingLog { window, .. } => {
                self.set(i, limit, *window, &key);
                return Some(());
            }
            Algorithm::FixedWindow { window, .. } => window.to_string(),
            Algorithm::Calendar { .. } => format!("(e{i} - now)"),
            _ => return None,
        };
        self.periods.0 += "I8I8";
        self.periods.1 += &format!(", s{i}, e{i}");
        self.plain += &format!(" and s{i} <= now and now < e{i}");
        self.slots.extend([format!("a{i}"), format!("b{i}")]);
        self.empty.extend(["0", "0"]);
        self.reads += &format!(
            "local v{i} = redis.pcall('GET', {key})
v{i} = v{i} == false and 0 or type(v{i}) == 'string' and tonumber(v{i})
if not v{i} then plain, v{i} = false, 0 elseif v{i} < 0 then v{i} = 0 end\n"
        );
        self.rooms += &format!("if v{i} + n{i} > {limit} then r{i} = e{i} denied = true end\n");
        self.take += &format!(
            "if n{i} > 0 then
  v{i} = n{i} == 1 and redis.call('INCR', {key}) or redis.call('INCRBY', {key}, n{i})
  if v{i} == n{i} or redis.call('PTTL', {key}) < 0 then redis.call('PEXPIRE', {key}, ceil({ttl} / 1000) + slack) end
end\n"
        );
        self.figures += &format!(", r{i}, {limit}, v{i}, 0, v{i} < {limit} and {limit} - v{i} or 0, e{i}");
        Some(())
    }

    fn set(&mut self, i: usize, limit: u64, window: u64, key: &str) {
        self.is_named = true;
        // Shedding what has left the window is a write, but one that is right whatever the decision. Scores are passed as
        // numbers: a quotient of whole numbers is the very double that its decimals are read as.
        self.reads += &format!(
            "local o{i} = (now - {window}) / 1000000
local v{i} = redis.pcall('ZREMRANGEBYSCORE', {key}, '-inf', o{i})
if type(v{i}) == 'number' then v{i} = redis.call('ZCARD', {key}) else plain, v{i} = false, 0 end\n"
        );
        self.rooms += &format!(
            "if plain and v{i} + n{i} > {limit} then
  local nth = v{i} + n{i} - {limit} - 1
  r{i} = floor(tonumber(redis.call('ZRANGE', {key}, nth, nth, 'WITHSCORES')[2]) * 1000000 + 0.5) + {window}
  denied = true
end\n"
        );
        self.take += &format!(
            "if n{i} > 0 then
  local score = now / 1000000
  redis.call('ZADD', {key}, score, name)
  for m = 2, n{i} do redis.call('ZADD', {key}, score, name .. '-' .. m) end
  redis.call('PEXPIRE', {key}, slack == 0 and '{ttl}' or {ttl} + slack)
  v{i} = v{i} + n{i}
end\n",
            ttl = (window * 3).div_ceil(2_000),
        );
        self.after += &format!(
            "local x{i} = now
if not denied and n{i} > 0 then
  x{i} = now + {window}
elseif v{i} > 0 then
  x{i} = floor(tonumber(redis.call('ZREVRANGE', {key}, 0, 0, 'WITHSCORES')[2]) * 1000000 + 0.5) + {window}
end\n"
        );
        self.figures += &format!(", r{i}, {limit}, v{i}, 0, v{i} < {limit} and {limit} - v{i} or 0, x{i}");
    }

    /// A counter that ends at `end`.
    fn window(&mut self, i: usize, limit: u64, end: &str) {
        self.rooms += &format!("if b{i} + n{i} > {limit} then r{i} = {end} denied = true end\n");
        self.take += &format!("b{i} = b{i} + n{i}\n");
        self.keep += &format!("if b{i} > 0 and {end} > keep then keep = {end} end\n");
        self.figures += &format!(", r{i}, {limit}, b{i}, 0, b{i} < {limit} and {limit} - b{i} or 0, {end}");
    }

    /// `l` is the time of the newest entry.
    fn log(&mut self, i: usize, limit: u64, window: u64) {
        let _infallible = write!(
            self.advance,
            "local l{i} = 0
if a{i} ~= '' then
  local pos, size = 1, #a{i}
  while pos <= size do
    local t, m = sunpack('>I7I5', a{i}, pos)
    if t + {window} > now then break end
    b{i} = b{i} - m
    pos = pos + 12
  end
  if pos > 1 then a{i} = sub(a{i}, pos) end
  if a{i} ~= '' then l{i} = sunpack('>I7', a{i}, #a{i} - 11) end
end
"
        );
        self.rooms += &format!(
            "if b{i} + n{i} > {limit} then
  local t, m = sunpack('>I7I5', a{i}, 1)
  r{i} = t + {window}
  denied = true
  if m < b{i} + n{i} - {limit} then plain = false end
elseif now < l{i} then
  plain = false
end\n"
        );
        // Jobs of one call share their instant, and so do entries of one subject in it.
        self.take += &format!(
            "if n{i} > 0 then
  local m = n{i}
  if now == l{i} then
    m = m + sunpack('>I5', a{i}, #a{i} - 4)
    a{i} = sub(a{i}, 1, -13)
  end
  a{i}, b{i}, l{i} = a{i} .. spack('>I7I5', now, m), b{i} + n{i}, now
end\n"
        );
        self.keep += &format!("if a{i} ~= '' and l{i} + {window} > keep then keep = l{i} + {window} end\n");
        let reset = format!("a{i} ~= '' and l{i} + {window} or now");
        self.figures += &format!(", r{i}, {limit}, b{i}, 0, b{i} < {limit} and {limit} - b{i} or 0, {reset}");
    }

    fn assemble(&self, shape: &str) -> String {
        let Self { amounts, periods, plain, reads, advance, rooms, take, keep, after, figures, .. } = self;
        let slot = |slot: &String| format!(", {slot}");
        let (slots, empty) =
            (self.slots.iter().map(slot).collect::<String>(), self.empty.iter().map(|e| format!(", {e}")));
        let empty: String = empty.collect();
        let zero_rooms: String = (0..self.rules).map(|i| format!("local r{i} = 0\n")).collect();
        let reply = format!(">I1I7I7{}", "i8I7I7I7I7I7".repeat(self.rules));
        let (name_format, name) = if self.is_named { ("c12", ", name") } else { ("", "") };
        let save = if keep.is_empty() { String::new() } else { self.save(&slots) };
        format!(
            "local floor, ceil, sub, spack, sunpack = math.floor, math.ceil, string.sub, struct.pack, struct.unpack
local replies, time = {{}}, nil
for j = 1, #ARGV do
local base = (j - 1) * {stride}
local key = KEYS[base + 1]
local now, slack{amount_names}{period_names}{name} = sunpack('>I8I4{amount_format}{period_format}{name_format}', ARGV[j])
if now == 0 then
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  now = time
end
local raw = redis.pcall('GET', key)
local shape, holds, over{slots}, kept = {shape}, '', 0{empty}, 0
if raw then
  if type(raw) == 'string' then
    shape, holds, over{slots}, kept = cmsgpack.unpack(raw)
  else
    shape = nil
  end
end
local reply = '\\7'
if shape == {shape} and holds == '' and over == 0{plain} then
local plain, denied = true, false
{reads}{advance}{zero_rooms}{rooms}if plain then
if not denied then
{take}{save}end
{after}reply = spack('{reply}', denied and 0 or 1, now, 0{figures})
end
end
replies[j] = reply
end
return replies
",
            stride = self.keys + 1,
            amount_format = amounts.0,
            amount_names = amounts.1,
            period_format = periods.0,
            period_names = periods.1,
        )
    }

    /// Keeps the record for as long as it says anything, as `save` in take.lua does.
    fn save(&self, slots: &str) -> String {
        let keep = &self.keep;
        format!(
            "local keep = 0
{keep}if keep <= now then
  if raw then redis.call('DEL', key) end
elseif raw and keep <= kept then
  redis.call('SET', key, cmsgpack.pack(shape, holds, over{slots}, kept), 'KEEPTTL')
else
  local more = keep - now
  if more > 3600000000 then more = 3600000000 end
  kept = keep + more
  redis.call('SET', key, cmsgpack.pack(shape, holds, over{slots}, kept), 'PX', ceil((kept - now) / 1000) + slack)
end
"
        )
    }
}

/// Bytes as a Lua string.
fn literal(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
    format!("'{escaped}'")
}
