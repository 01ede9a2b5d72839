//! What each kind of rule puts into the scripts, under the record's own key.

use std::fmt::Write as _;

use super::super::super::policy::Policy;
use super::super::super::rule::Algorithm;
use super::super::encode::{HOLD_HEAD, HOLD_PRICE, HOLD_RULE, shape};

/// The pieces of the scripts, one line or block a rule. `a`, `b`, `c`, `d` with the number of the rule are its slots, `n` is
/// its amount and `r` its room. Of a hold `q` is the amount, `m` the mark, `p` the price.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) shape: String,
    pub(super) rules: usize,
    /// Microseconds for which an end is remembered.
    pub(super) memory: u64,
    /// Formats and names of what a body holds: amounts first, then periods.
    pub(super) amounts: (String, String),
    pub(super) periods: (String, String),
    pub(super) slots: Vec<String>,
    pub(super) empty: Vec<&'static str>,
    /// What jobs of one call share.
    pub(super) once: String,
    /// What must be so for a take to be plain, and what for an end as well.
    pub(super) fits: String,
    pub(super) plain: String,
    /// Counts under seeds' keys, read before anything is written.
    pub(super) reads: String,
    pub(super) advance: String,
    pub(super) rooms: String,
    pub(super) take: String,
    /// What a reserve does besides.
    pub(super) hold: String,
    pub(super) keep: String,
    /// Seeds' keys, and whether members of a sorted set need a name.
    pub(super) keys: usize,
    /// Those of them that are counters, read by one command.
    pub(super) counters: Vec<String>,
    /// The keys as locals.
    pub(super) names: String,
    /// What is written before all else, and may find that it cannot be.
    pub(super) first: String,
    pub(super) is_named: bool,
    /// What figures need after the decision.
    pub(super) after: String,
    /// Formats and values of what is used, held, and when it is back, per rule. What the caller knows is not sent: packing
    /// costs more than counting.
    pub(super) figures: (String, String),
    /// Bytes of a hold; formats, what a reserve writes and what an end reads.
    pub(super) hold_size: usize,
    pub(super) hold_format: String,
    pub(super) hold_values: String,
    pub(super) hold_names: String,
    /// Replaces what was held by what is settled.
    pub(super) replace: String,
}

pub(super) fn parts(policy: &Policy) -> Option<Parts> {
    let mut parts = Parts {
        shape: literal(&shape(policy)),
        memory: policy.memory_of_ends(),
        hold_size: HOLD_HEAD,
        ..Parts::default()
    };
    for (i, rule) in policy.rules().iter().enumerate() {
        parts.rules += 1;
        parts.amounts.0 += "I6";
        parts.amounts.1 += &format!(", n{i}");
        parts.fits += &format!(" and n{i} <= {}", rule.algorithm.capacity());
        if rule.key().is_some() { parts.add_shared(&rule.algorithm, i) } else { parts.add(&rule.algorithm, i) }?;
    }
    Some(parts)
}

impl Parts {
    fn add(&mut self, algorithm: &Algorithm, i: usize) -> Option<()> {
        let (a, b, d) = (format!("a{i}"), format!("b{i}"), format!("d{i}"));
        let limit = algorithm.capacity();
        self.hold_format += "I5I7";
        self.hold_names += &format!(", q{i}, m{i}");
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
                self.bucket(i, limit, rate.price, rate.leak, rate.full);
                (&["a", "b", "c"], &["0"; 3])
            }
            _ => return None,
        };
        self.hold_size += HOLD_RULE;
        if matches!(algorithm, Algorithm::Bucket { .. }) {
            self.hold_size += HOLD_PRICE;
        }
        self.slots.extend(slots.iter().map(|slot| format!("{slot}{i}")));
        self.empty.extend(empty);
        Some(())
    }

    fn figures(&mut self, values: &str) {
        self.figures.0 += "I7I7I7";
        self.figures.1 += &format!(", {values}");
    }

    fn bucket(&mut self, i: usize, limit: u64, price: u64, leak: u64, full: u64) {
        self.advance += &format!(
            "if now > a{i} then b{i} = b{i} - (now - a{i}) * {leak} if b{i} < 0 then b{i} = 0 end a{i} = now end\n"
        );
        self.rooms += &format!(
            "local o = b{i} + n{i} * {price} - {full} if o > 0 then r{i} = a{i} + ceil(o / {leak}) denied = true end\n"
        );
        self.take += &format!("b{i} = b{i} + n{i} * {price}\n");
        self.hold += &format!("c{i} = c{i} + n{i}\n");
        self.hold_format += "I7";
        self.hold_values += &format!(", n{i}, b{i}, {price}");
        self.hold_names += &format!(", p{i}");
        self.keep +=
            &format!("if b{i} > 0 then local k = a{i} + ceil(b{i} / {leak}) if k > keep then keep = k end end\n");
        self.after += &format!(
            "local f{i} = b{i} < {full} and floor(({full} - b{i}) / {price}) or 0
local h{i} = c{i} < {limit} - f{i} and c{i} or {limit} - f{i}\n"
        );
        self.figures(&format!("{limit} - f{i} - h{i}, h{i}, a{i} + ceil(b{i} / {leak})"));
        // What is given back lay in the bucket below the holds that came later.
        self.replace += &format!(
            "c{i} = c{i} > q{i} and c{i} - q{i} or 0
if n{i} < q{i} then
  local deep = max(0, m{i} - (a{i} - at) * {leak})
  local given = min(deep, q{i} * p{i}, (q{i} - n{i}) * p{i}, b{i})
  b{i} = b{i} - given
  if given > 0 and holds ~= '' then
    if a{i} ~= now then plain = false end
    for from = 1, #holds, {SIZE} do
      local since, mark = sunpack('>I7', holds, from + 39), sunpack('>I7', holds, from + {part} + 5)
      if mark - max(0, now - since) * {leak} > deep then
        holds = sub(holds, 1, from + {part} + 4) .. spack('>I7', max(0, mark - given)) .. sub(holds, from + {part} + 12)
      end
    end
  end
else
  b{i} = min(b{i} + (n{i} - q{i}) * p{i}, 9007199254740991)
end\n",
            part = self.hold_size,
        );
    }

    /// A counter that ends at `end`.
    fn window(&mut self, i: usize, limit: u64, end: &str) {
        self.rooms += &format!("if b{i} + n{i} > {limit} then r{i} = {end} denied = true end\n");
        self.take += &format!("b{i} = b{i} + n{i}\n");
        self.hold += &format!("c{i} = c{i} + n{i}\n");
        self.hold_values += &format!(", n{i}, a{i}");
        self.keep += &format!("if b{i} > 0 and {end} > keep then keep = {end} end\n");
        self.after += &format!("local h{i} = c{i} < b{i} and c{i} or b{i}\n");
        self.figures(&format!("b{i} - h{i}, h{i}, {end}"));
        self.replace +=
            &format!("if m{i} == a{i} then b{i}, c{i} = max(0, b{i} - q{i}) + n{i}, max(0, c{i} - q{i}) end\n");
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
        self.hold_values += &format!(", n{i}, now");
        self.keep += &format!("if a{i} ~= '' and l{i} + {window} > keep then keep = l{i} + {window} end\n");
        self.after += &format!(
            "local h{i} = 0
for from = {first}, #holds, {SIZE} do
  local held, mark = sunpack('>I5I7', holds, from)
  if mark + {window} > now then h{i} = h{i} + held end
end
if h{i} > b{i} then h{i} = b{i} end\n",
            first = self.hold_size + 1,
        );
        self.figures(&format!("b{i} - h{i}, h{i}, a{i} ~= '' and l{i} + {window} or now"));
        self.replace += &format!(
            "if n{i} ~= q{i} and m{i} + {window} > now then
  local from, t, m = #a{i} - 11, 0, 0
  while from >= 1 do
    t, m = sunpack('>I7I5', a{i}, from)
    if t <= m{i} then break end
    from = from - 12
  end
  if t ~= m{i} then plain = false end
  local sum = max(0, min(m + n{i} - q{i}, 1000000000000))
  b{i} = b{i} + sum - m
  a{i} = sub(a{i}, 1, from - 1) .. (sum > 0 and spack('>I7I5', t, sum) or '') .. sub(a{i}, from + 12)
  l{i} = a{i} ~= '' and sunpack('>I7', a{i}, #a{i} - 11) or 0
end\n"
        );
    }
}

/// Stands for the size of a hold until all rules are known.
pub(super) const SIZE: &str = "HOLD_SIZE";

/// Bytes as a Lua string.
fn literal(bytes: &[u8]) -> String {
    let escaped: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
    format!("'{escaped}'")
}
