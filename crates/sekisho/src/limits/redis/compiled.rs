//! A check as a script of its own for one policy: the rules unrolled, their numbers written in.
//!
//! The general script interprets a policy; for the commonest call by far, a check on a record without holds or override,
//! that costs more than the commands it sends. The script made here does the same arithmetic in a straight line. Whatever is
//! not plain (a hold, an override, a record of another shape, a clock that stepped back) it leaves untouched and answers with
//! 7, and the caller asks the general script instead.

use std::fmt::Write as _;

use super::super::policy::{Mode, Policy};
use super::super::rule::Algorithm;
use super::encode::{Body, When, shape};
use crate::store::redis::{Job, Script};

/// The script, if every rule of the policy is one that can be unrolled.
pub(in crate::limits) fn script(policy: &Policy) -> Option<Script> {
    if policy.mode() == Mode::Shadow
        || policy.rules().len() > 4
        || policy.rules().iter().any(|rule| rule.key().is_some())
    {
        return None;
    }
    let mut parts = Parts::default();
    for (i, rule) in policy.rules().iter().enumerate() {
        parts.add(&rule.algorithm, i)?;
    }
    Some(Script::new(parts.assemble(&literal(&shape(policy)))))
}

pub(super) fn job(when: When, policy: &Policy, key: String, amounts: &[u64]) -> Job {
    let mut body = Body::default();
    body.time(when);
    for amount in amounts {
        body.amount(Some(*amount));
    }
    for rule in policy.rules() {
        if let Algorithm::Calendar { calendar, .. } = &rule.algorithm {
            let (start, end) = calendar.around(when.now);
            body.period(start, end);
        }
    }
    Job { keys: [key.into_bytes()].into_iter().collect(), args: [body.0].into_iter().collect(), repeatable: false }
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
    advance: String,
    rooms: String,
    take: String,
    keep: String,
    rules: usize,
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
        let Self { amounts, periods, plain, advance, rooms, take, keep, figures, .. } = self;
        let (slots, empty) = (self.slots.join(", "), self.empty.join(", "));
        let zero_rooms: String = (0..self.rules).map(|i| format!("local r{i} = 0\n")).collect();
        let reply = format!(">I1I7I7{}", "i8I7I7I7I7I7".repeat(self.rules));
        format!(
            "local floor, ceil, sub, spack, sunpack = math.floor, math.ceil, string.sub, struct.pack, struct.unpack
local replies, time = {{}}, nil
for j = 1, #KEYS do
local key = KEYS[j]
local now, slack{amount_names}{period_names} = sunpack('>I8I4{amount_format}{period_format}', ARGV[j])
if now == 0 then
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  now = time
end
local raw = redis.pcall('GET', key)
local shape, holds, over, {slots}, kept = {shape}, '', 0, {empty}, 0
if raw then
  if type(raw) == 'string' then
    shape, holds, over, {slots}, kept = cmsgpack.unpack(raw)
  else
    shape = nil
  end
end
local reply = '\\7'
if shape == {shape} and holds == '' and over == 0{plain} then
local plain, denied = true, false
{advance}{zero_rooms}{rooms}if plain then
if not denied then
{take}local keep = 0
{keep}if keep <= now then
  if raw then redis.call('DEL', key) end
elseif raw and keep <= kept then
  redis.call('SET', key, cmsgpack.pack(shape, holds, over, {slots}, kept), 'KEEPTTL')
else
  local more = keep - now
  if more > 3600000000 then more = 3600000000 end
  kept = keep + more
  redis.call('SET', key, cmsgpack.pack(shape, holds, over, {slots}, kept), 'PX', ceil((kept - now) / 1000) + slack)
end
end
reply = spack('{reply}', denied and 0 or 1, now, 0{figures})
end
end
replies[j] = reply
end
return replies
",
            amount_format = amounts.0,
            amount_names = amounts.1,
            period_format = periods.0,
            period_names = periods.1,
        )
    }
}

/// Bytes as a Lua string.
fn literal(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
    format!("'{escaped}'")
}
