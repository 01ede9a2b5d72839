//! Puts the pieces of the rules together.

use super::rules::{Parts, SIZE};

/// Bytes of an end before its amounts, and of an amount; how many ends stand in a record.
const END_HEAD: usize = 47;
const END_RULE: usize = 6;
const ENDS: usize = 8;

/// Locals are found sooner than globals.
const LOCALS: [(&str, &str); 14] = [
    ("floor", "math.floor"),
    ("ceil", "math.ceil"),
    ("max", "math.max"),
    ("min", "math.min"),
    ("sub", "string.sub"),
    ("find", "string.find"),
    ("format", "string.format"),
    ("spack", "struct.pack"),
    ("sunpack", "struct.unpack"),
    ("call", "redis.call"),
    ("pcall", "redis.pcall"),
    ("try", "pcall"),
    ("KEYS", "KEYS"),
    ("ARGV", "ARGV"),
];

/// A whole script: before its `body` stand the locals that it uses; `time` is shared by the jobs of one call.
fn script(body: &str, hold_size: usize) -> String {
    let uses = |name: &str| body.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
    let used = LOCALS.iter().filter(|(name, _)| uses(name));
    let (names, values): (Vec<&str>, Vec<&str>) = used.copied().unzip();
    let head = format!("local {} = {}\nlocal replies, time = {{}}, nil\n", names.join(", "), values.join(", "));
    (head + body).replace(SIZE, &hold_size.to_string())
}

const CLOCK: &str = "if now == 0 then
  if not time then
    local t = call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  now = time
end
local reply = '\\7'
";

/// Runs each job for itself. A record that cannot be read is left to the general script, which says what is wrong with it;
/// what Redis itself says (a word in capitals; Redis 6 puts the place before it) concerns the whole call.
const RUN: &str = "for j = 1, #ARGV do
  local ok, reply = try(job, j)
  if not ok then
    reply = type(reply) == 'table' and reply.err or tostring(reply)
    if find(reply, 'user executing the script', 1, true) then return { err = 'NOPERM ' .. reply } end
    if find(reply, '^%u+ ') then return { err = reply } end
    if find(reply, ': %-%u+ ') then return { err = 'ERR ' .. reply } end
    reply = '\\7'
  end
  replies[j] = reply
end
return replies
";

const RECORD: &str = "local raw = pcall('GET', key)\n";

impl Parts {
    /// A check, or a reserve.
    pub(super) fn take(&self, is_reserve: bool) -> String {
        let Self { shape, once, names: keys, fits, plain, reads, advance, rooms, first, take, after, .. } = self;
        let slots = self.slots();
        let empty: String = self.empty.iter().map(|empty| format!(", {empty}")).collect();
        let zero_rooms: String = (0..self.rules).map(|i| format!("local r{i} = 0\n")).collect();
        let (figure_format, figures) = &self.figures;
        let rooms_format = "I7".repeat(self.rules);
        let room_names: String = (0..self.rules).map(|i| format!(", r{i}")).collect();
        let (head, expires) = if is_reserve { (">I1I7I7", ", expires") } else { (">I1I7", "") };
        let (format, names) = match (is_reserve, self.is_named) {
            (true, _) => ("c32I7I1", ", tag, lease, repeated"),
            (false, true) => ("c12", ", name"),
            (false, false) => ("", ""),
        };
        let (reads, hold) = if is_reserve { (Self::is_new(), self.hold()) } else { (reads.clone(), String::new()) };
        let first =
            if first.is_empty() { String::new() } else { format!("if plain and not denied then\n{first}end\n") };
        // Under a seed's key what is held is not in the slots.
        let open = if self.keys == 0 { OPEN } else { "holds == ''" };
        let save = if self.keep.is_empty() { String::new() } else { self.save("0") };
        let body = format!(
            "{once}local function job(j)
local base = (j - 1) * {stride}
local key = KEYS[base + 1]
{keys}local now, slack{amount_names}{period_names}{names} = sunpack('>I8I4{amount_format}{period_format}{format}', ARGV[j])
{CLOCK}{record}local shape, holds, over, ends{slots}, kept = {shape}, '', 0, ''{empty}, 0
if raw then
  if type(raw) == 'string' then
    shape, holds, over, ends{slots}, kept = cmsgpack.unpack(raw)
  else
    shape = nil
  end
end
if shape == {shape} and over == 0 and {open}{fits}{plain} then
local plain, denied, expires = true, false, 0
{reads}{advance}{zero_rooms}{rooms}{first}if plain then
if not denied then
{take}{hold}{save}end
{after}if denied then
  reply = spack('{head}{figure_format}{rooms_format}', 0, now{expires}{figures}{room_names})
else
  reply = spack('{head}{figure_format}', 1, now{expires}{figures})
end
end
end
return reply
end
{RUN}",
            record = self.record(),
            stride = self.keys + 1,
            amount_format = self.amounts.0,
            amount_names = self.amounts.1,
            period_format = self.periods.0,
            period_names = self.periods.1,
        );
        script(&body, self.hold_size)
    }

    /// A settle or a release of a hold that is open.
    pub(super) fn end(&self) -> String {
        let Self { shape, plain, advance, replace, hold_format, hold_names, .. } = self;
        let (slots, save, memory) = (self.slots(), self.save("forget"), self.memory);
        let settled: String =
            (0..self.rules).map(|i| format!("if n{i} == 281474976710655 then n{i} = q{i} end\n")).collect();
        let body = format!(
            "local function job(j)
local key = KEYS[j]
local now, slack, tag, ending{amount_names}{period_names} = sunpack('>I8I4c32I1{amount_format}{period_format}', ARGV[j])
{CLOCK}{RECORD}if type(raw) == 'string' then
local shape, holds, over, ends{slots}, kept = cmsgpack.unpack(raw)
local pos = shape == {shape} and over == 0 and holds ~= '' and {OPEN}{plain} and find(holds, tag, 1, true)
if pos and pos % {SIZE} == 1 then
local plain = true
local expires, at, _{hold_names} = sunpack('>I7I7I1{hold_format}', holds, pos + 32)
local forget = max(now + {memory}, expires)
holds = #holds == {SIZE} and '' or sub(holds, 1, pos - 1) .. sub(holds, pos + {SIZE})
{settled}{advance}{replace}if plain then
{remember}{save}reply = spack('>I1I1{amount_format}', 5, ending{amount_names})
end
end
end
return reply
end
{RUN}",
            amount_format = self.amounts.0,
            amount_names = self.amounts.1,
            period_format = self.periods.0,
            period_names = self.periods.1,
            remember = self.remember(),
        );
        script(&body, self.hold_size)
    }

    /// Remembers the end until `forget`, as `remember` in holds.lua does.
    fn remember(&self) -> String {
        let (size, ended) = (END_HEAD + END_RULE * self.rules, ended_key("sub(ends, 1, 32)"));
        format!(
            "if ends ~= '' then
  local left = sunpack('>I7', ends, 41) - now
  if left <= 0 then
    ends = sub(ends, {next})
  elseif #ends >= {most} then
    call('SET', {ended}, sub(ends, 33, {size}), 'PX', ceil(left / 1000) + slack)
    ends = sub(ends, {next})
  end
end
ends = ends .. spack('>c32I1I7I7{amount_format}', tag, ending, expires, forget{amount_names})\n",
            next = size + 1,
            most = size * ENDS,
            amount_format = self.amounts.0,
            amount_names = self.amounts.1,
        )
    }

    /// Reads the record, and the counters under seeds' keys.
    fn record(&self) -> String {
        if self.counters.is_empty() {
            return RECORD.to_owned();
        }
        let counters = self.counters.join(", ");
        // `MGET` takes a key of another type for one that is not there. So it may read the record only where nothing is ever
        // written to it.
        if self.keep.is_empty() {
            format!("local counts = call('MGET', {counters}, key)\nlocal raw = counts[{}]\n", self.counters.len() + 1)
        } else {
            format!("local counts = call('MGET', {counters})\n{RECORD}")
        }
    }

    fn slots(&self) -> String {
        self.slots.iter().map(|slot| format!(", {slot}")).collect()
    }

    /// A tag that was used before, or a lease that ends before another's, is left to the general script.
    fn is_new() -> String {
        let ended = ended_key("tag");
        format!(
            "if repeated == 1 and (find(holds, tag, 1, true) or find(ends, tag, 1, true) or call('EXISTS', {ended}) == 1) then plain = false end
if holds ~= '' and sunpack('>I7', holds, #holds - {SIZE} + 33) > now + lease then plain = false end\n"
        )
    }

    fn hold(&self) -> String {
        let Self { hold, hold_format, hold_values, .. } = self;
        format!(
            "{hold}expires = now + lease
holds = holds .. spack('>c32I7I7I1{hold_format}', tag, expires, now, 0{hold_values})\n"
        )
    }

    /// Keeps the record for as long as it says anything, as `save` in take.lua does. For ends it is kept since they were
    /// written.
    fn save(&self, at_least: &str) -> String {
        let Self { keep, memory, .. } = self;
        let slots = self.slots();
        format!(
            "local keep = {at_least}
{keep}if holds ~= '' then
  local k = sunpack('>I7', holds, #holds - {SIZE} + 33) + {memory}
  if k > keep then keep = k end
end
if keep <= now and ends == '' then
  if raw then call('DEL', key) end
elseif raw and keep <= kept then
  call('SET', key, cmsgpack.pack(shape, holds, over, ends{slots}, kept), 'KEEPTTL')
else
  local more = keep - now
  if more > 3600000000 then more = 3600000000 end
  kept = keep + more
  call('SET', key, cmsgpack.pack(shape, holds, over, ends{slots}, kept), 'PX', ceil((kept - now) / 1000) + slack)
end
"
        )
    }
}

/// No lease has run out.
const OPEN: &str = "(holds == '' or sunpack('>I7', holds, 33) > now)";

/// Where an end is remembered that is not in the record, as `ended_key` in holds.lua says.
fn ended_key(tag: &str) -> String {
    format!("'sekisho-ended' .. sub(key, 8) .. ':' .. {tag}")
}
