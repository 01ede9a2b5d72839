//! Counters and sets that are shared with older clients, under seeds' keys. `v` with the number of the rule is what it counts.

use super::super::super::rule::Algorithm;
use super::rules::Parts;

impl Parts {
    pub(super) fn add_shared(&mut self, algorithm: &Algorithm, i: usize) -> Option<()> {
        self.keys += 1;
        let limit = algorithm.capacity();
        let key = format!("k{i}");
        self.names += &format!("local {key} = KEYS[base + {}]\n", self.keys + 1);
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
        self.counters.push(key.clone());
        // Where there is none, one is made before anything else is written: a key of another type reads as none.
        self.reads += &format!(
            "local v{i} = counts[{place}]
if v{i} then
  v{i} = tonumber(v{i})
  if not v{i} then plain, v{i} = false, 0 elseif v{i} < 0 then v{i} = 0 end
else
  v{i} = 0{is_other}
end\n",
            place = self.counters.len(),
            // The first one finds out by itself, when it is made.
            is_other = if self.counters.len() > 1 {
                format!("\n  if call('EXISTS', {key}) == 1 then plain = false end")
            } else {
                String::new()
            },
        );
        self.rooms += &format!("if v{i} + n{i} > {limit} then r{i} = e{i} denied = true end\n");
        // Redis writes a number with 17 digits, which is slow.
        let made = format!(
            "if n{i} > 0 and not counts[{place}] then
  v{i} = n{i}
  plain = call('SET', {key}, n{i} == 1 and '1' or n{i}, 'PX', format('%d', ceil({ttl} / 1000) + slack), 'NX')
end\n",
            place = self.counters.len(),
        );
        if self.counters.len() == 1 {
            self.first = made
        } else {
            self.take += &made
        }
        self.take += &format!(
            "if n{i} > 0 and counts[{place}] then
  v{i} = n{i} == 1 and call('INCR', {key}) or call('INCRBY', {key}, n{i})
  if call('PTTL', {key}) < 0 then call('PEXPIRE', {key}, ceil({ttl} / 1000) + slack) end
end\n",
            place = self.counters.len(),
        );
        self.figures.0 += "I7";
        self.figures.1 += &format!(", v{i}");
        Some(())
    }

    fn set(&mut self, i: usize, limit: u64, window: u64, key: &str) {
        self.is_named = true;
        // Jobs of one call share their instant, and writing a score costs as much as a command. A job alone passes numbers,
        // which Redis writes itself: a quotient of whole numbers is the very double that its decimals are read as.
        self.once += &format!("local t{i}, w{i}, o{i}\n");
        // Shedding what has left the window is a write, but one that is right whatever the decision.
        self.reads += &format!(
            "if now ~= t{i} then
  t{i}, w{i}, o{i} = now, now / 1000000, (now - {window}) / 1000000
  if #ARGV > 1 then w{i}, o{i} = format('%.6f', w{i}), format('%.6f', o{i}) end
end
local v{i} = pcall('ZCARD', {key})
if type(v{i}) ~= 'number' then
  plain, v{i} = false, 0
elseif v{i} > 0 then
  v{i} = v{i} - call('ZREMRANGEBYSCORE', {key}, '-inf', o{i})
end\n"
        );
        self.rooms += &format!(
            "if plain and v{i} + n{i} > {limit} then
  local nth = v{i} + n{i} - {limit} - 1
  r{i} = floor(tonumber(call('ZRANGE', {key}, nth, nth, 'WITHSCORES')[2]) * 1000000 + 0.5) + {window}
  denied = true
end\n"
        );
        self.take += &format!(
            "if n{i} > 0 then
  call('ZADD', {key}, w{i}, name)
  for m = 2, n{i} do call('ZADD', {key}, w{i}, name .. '-' .. m) end
  call('PEXPIRE', {key}, slack == 0 and '{ttl}' or {ttl} + slack)
  v{i} = v{i} + n{i}
end\n",
            ttl = (window * 3).div_ceil(2_000),
        );
        self.after += &format!(
            "local x{i} = now
if not denied and n{i} > 0 then
  x{i} = now + {window}
elseif v{i} > 0 then
  x{i} = floor(tonumber(call('ZREVRANGE', {key}, 0, 0, 'WITHSCORES')[2]) * 1000000 + 0.5) + {window}
end\n"
        );
        self.figures.0 += "I7I7";
        self.figures.1 += &format!(", v{i}, x{i}");
    }
}
