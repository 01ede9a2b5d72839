-- The record of one policy and subject: a msgpack stream of shape, holds, override, then the slots of each rule.
--
-- A policy `p` is {shape, release on expiry, memory of ends, size of a hold, rules, shadow, names members, seed keys}.
-- `shape` names its rules; a record of another shape was written under another configuration and is taken over rule by
-- rule.
-- A hold is tag (16) · expires (7) · at (7) · provisional (1), then per rule amount (5) · mark (7) and, for a seed's
-- counter, the label of the period it was charged to (12). Soonest to expire first.

local FRESH = {
  [1] = { 0, 0, 0 }, [2] = { 0, 0, 0, 0 }, [3] = { '', 0 }, [4] = { '', 0, 0 }, [5] = { 0, 0, 0, 0, 0 },
  [6] = { 0, 0, 0 }, [7] = { 0 }, [8] = { 0, 0, 0 }, [9] = { 0 }, [11] = { 0, 0 }, [12] = { 0, 0 }, [13] = {},
}

local function fresh(p)
  local R = { p[1], '', 0 }
  for _, r in ipairs(p[5]) do
    for _, value in ipairs(FRESH[r[1]]) do R[#R + 1] = value end
  end
  return R
end

-- Keeps the state of rules that both configurations know. Shapes are 6 bytes a rule: its kind and a hash of what it is.
-- Open holds cannot be told apart by rule any more; they end with the configuration that made them.
local function take_over(old, p)
  local R, slots, slot = fresh(p), {}, 4
  for pos = 1, #old[1], 6 do
    slots[sub(old[1], pos, pos + 5)] = slot
    slot = slot + #FRESH[string.byte(old[1], pos)]
  end
  for i, r in ipairs(p[5]) do
    local from = slots[sub(p[1], i * 6 - 5, i * 6)]
    if from then
      for k = 0, #FRESH[r[1]] - 1 do R[r[7] + k] = old[from + k] end
    end
  end
  return R
end

local function load(key, p)
  local raw = redis.call('GET', key)
  if not raw then return fresh(p), false end
  local R = { cmsgpack.unpack(raw) }
  if R[1] == p[1] then return R, true end
  if type(R[1]) ~= 'string' or type(R[2]) ~= 'string' then error('not a record of this version') end
  return take_over(R, p), true
end

local function hex(tag)
  return (string.gsub(tag, '.', function(c) return string.format('%02x', string.byte(c)) end))
end

-- What the rules ask of the open holds. `part` is the place of the rule's amount in a hold.
local function holds_of(R, p, r)
  local size, part = p[4], r[8]
  local function each(f)
    local all = R[2]
    for pos = 1, #all, size do
      local amount, mark = sunpack('>I5I7', all, pos + part)
      local done = f(amount, mark, pos)
      if done then return done end
    end
  end
  return {
    frees_at = function(over)
      local freed = 0
      return each(function(amount, _, pos)
        freed = freed + amount
        if freed >= over then return (sunpack('>I7', R[2], pos + 16)) end
      end) or NEVER
    end,
    held_since = function(since)
      local held = 0
      each(function(amount, mark) if mark > since then held = held + amount end end)
      return held
    end,
    held_at = function(at)
      local held = 0
      each(function(amount, mark) if mark == at then held = held + amount end end)
      return held
    end,
    last_expiry = function()
      local last
      each(function(amount, _, pos) if amount > 0 then last = (sunpack('>I7', R[2], pos + 16)) end end)
      return last
    end,
    names = function()
      local names = {}
      each(function(_, _, pos) names[sub(hex(sub(R[2], pos, pos + 5)), 1, 12)] = true end)
      return names
    end,
  }
end

-- Limit and price of rule `i`: its own, or what an operator set, and until when.
local function terms(R, i, r)
  local o = R[3]
  if o ~= 0 and o[2 * i] >= 0 then return o[2 * i], o[2 * i + 1], o[1] end
  return r[2], r[3]
end

-- Room under an override: what does not fit as long as it lasts fits when the rule's own limit is back and has room.
local function room_of(R, p, i, now, n, per)
  local r = p[5][i]
  local limit, price, till = terms(R, i, r)
  local holds = r[1] == 7 and holds_of(R, p, r)
  local answer = room(r, R, r[7], now, n, limit, price, per, holds)
  if not till or answer < till then return answer end
  local own = room(r, R, r[7], now, n, r[2], r[3], per, holds)
  if own == NEVER then return own end
  return max(own, till)
end

-- The place of a hold, or nil.
local function find_hold(R, p, tag)
  local from = 1
  while true do
    local pos = string.find(R[2], tag, from, true)
    if not pos then return nil end
    if (pos - 1) % p[4] == 0 then return pos end
    from = pos + 1
  end
end

-- Holds in a bucket that lay above something now lie less deep.
local function move_down(R, p, r, given, is_above)
  local all, size, part, parts = R[2], p[4], r[8], {}
  for pos = 1, #all, size do
    local at = sunpack('>I7', all, pos + 23)
    local mark = sunpack('>I7', all, pos + part + 5)
    if is_above(at, mark) then
      parts[#parts + 1] = sub(all, pos, pos + part + 4) .. spack('>I7', max(0, mark - given))
      parts[#parts + 1] = sub(all, pos + part + 12, pos + size - 1)
    else
      parts[#parts + 1] = sub(all, pos, pos + size - 1)
    end
  end
  R[2] = table.concat(parts)
end

-- Replaces the amounts of the hold at `pos` by `actual` and takes it out. Returns when its lease ran out, and the amounts.
local function end_hold(R, p, pers, pos, now, actual)
  local all, size = R[2], p[4]
  local tag, expires, at = sunpack('>c16I7I7', all, pos)
  R[2] = sub(all, 1, pos - 1) .. sub(all, pos + size)
  local name, amounts = nil, {}
  for i, r in ipairs(p[5]) do
    local n, mark = sunpack('>I5I7', all, pos + r[8])
    local label
    if r[1] > 10 then
      name = name or sub(hex(sub(tag, 1, 6)), 1, 12)
      if r[1] < 13 then label = string.match(sub(all, pos + r[8] + 12, pos + r[8] + 23), '^(%S*)') end
    end
    amounts[i] = actual(i, n)
    local _, price = terms(R, i, r)
    local given = replace(r, R, r[7], now, n, amounts[i], price, { at, mark, label, name }, pers[i])
    if given > 0 and #R[2] > 0 then
      local deep = depth(r, mark, at, now)
      move_down(R, p, r, given, function(other, m) return depth(r, m, other, now) > deep end)
    end
  end
  return expires, amounts
end

-- `sekisho:…` becomes `sekisho-ended:…`, in the same slot. Behind the record's own prefix an endpoint could name it.
local function ended_key(key, tag) return 'sekisho-ended' .. sub(key, 8) .. ':' .. hex(tag) end

-- Remembers how a reservation ended: 1 settled, 2 released, 3 expired.
local function remember(key, tag, ending, expires, forget_at, amounts, now, slack)
  local value = cmsgpack.pack(ending, expires, forget_at, unpack(amounts))
  redis.call('SET', ended_key(key, tag), value, 'PX', max(1, ceil((forget_at - now) / 1000)) + slack)
end

-- Brings a record to `now`. Leases that have run out end first, each at its own instant, so that it makes no difference
-- when somebody looks. A provisional hold is released whatever the policy says. Returns true if any did.
local function bring(R, p, pers, key, now, slack)
  local rules, swept = p[5], false
  while #R[2] > 0 do
    local tag, expires, _, provisional = sunpack('>c16I7I7I1', R[2], 1)
    if expires > now then break end
    swept = true
    for i, r in ipairs(rules) do advance(r, R, r[7], expires, pers[i]) end
    local released = p[2] == 1 or provisional == 1
    local _, amounts = end_hold(R, p, pers, 1, expires, function(_, n) return released and 0 or n end)
    local forget_at = expires + p[3]
    if forget_at > now and provisional == 0 then remember(key, tag, 3, expires, forget_at, amounts, now, slack) end
  end
  for i, r in ipairs(rules) do advance(r, R, r[7], now, pers[i]) end
  if R[3] ~= 0 and R[3][1] <= now then R[3] = 0 end
  return swept
end

local LONGEST_PERIOD = 31 * 86400000000 + 3600000000 -- a month, with the hour that a change of the clocks can add

-- Writes a record for as long as it says anything, or takes it away.
local function save(key, R, p, now, existed, slack)
  local keep = R[3] ~= 0 and R[3][1] or 0
  for _, r in ipairs(p[5]) do keep = max(keep, idle_at(r, R, r[7])) end
  local holds = R[2]
  if #holds > 0 then
    keep = max(keep, (sunpack('>I7', holds, #holds - p[4] + 17)) + p[3])
    -- A seed's counter lives elsewhere. Whoever looks while it counts must still find what is to be given back to it.
    for _, r in ipairs(p[5]) do
      local kind = r[1]
      if kind == 11 or kind == 13 then keep = max(keep, now + r[3]) end
      if kind == 12 then keep = max(keep, now + LONGEST_PERIOD) end
    end
  end
  if keep > now then
    redis.call('SET', key, cmsgpack.pack(unpack(R)), 'PX', ceil((keep - now) / 1000) + slack)
  elseif existed then
    redis.call('DEL', key)
  end
end
