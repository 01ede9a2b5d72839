-- Open holds, leases, overrides, ends; records of another configuration.
--
-- A hold is tag (32, hex) · expires (7) · at (7) · provisional (1), then per rule amount (5) · mark (7) and, in a bucket, the price
-- it was taken at, in an interval the step before (7), for a seed's counter the label of the period it was charged to (12). Soonest to expire first.
--
-- An end is tag (32, hex) · ending (1: 1 settled, 2 released, 3 expired) · expires (7) · forget at (7), then per rule amount
-- (6). The last eight stand in the record, because a key for each costs more than all the rest of a settle. Older ones have
-- keys of their own; those of a busy subject would fill a record.

-- How many slots a kind takes.
function L.width(kind)
  if kind == 13 then return 0 end
  if kind == 7 or kind == 9 then return 1 end
  if kind == 3 or kind > 10 then return 2 end
  if kind == 2 then return 4 end
  return kind == 5 and 5 or 3
end

-- Bytes of a rule of this kind in a hold.
function L.part(kind)
  if kind == 6 or kind == 8 then return 19 end
  return (kind == 11 or kind == 12) and 24 or 12
end

-- Keeps the state of rules that both configurations know, and of open holds what they have of these rules: of one that is new they
-- have nothing. Shapes are 6 bytes a rule: its kind and a hash of what it is. Ends are only told.
function L.take_over(old, p)
  if type(old[1]) ~= 'string' or type(old[2]) ~= 'string' or type(old[4]) ~= 'string' then error('not a record of this version') end
  local R, slots, slot, parts, size, was = L.fresh(p), {}, 5, {}, 47, L.end_size(old)
  for pos = 1, #old[1], 6 do
    local shape, kind = sub(old[1], pos, pos + 5), string.byte(old[1], pos)
    slots[shape], parts[shape] = slot, size
    slot, size = slot + L.width(kind), size + L.part(kind)
  end
  if #old[2] % size ~= 0 then error('not a record of this version') end
  for i, r in ipairs(p[5]) do
    local from = slots[sub(p[1], i * 6 - 5, i * 6)]
    if from then
      for k = 0, L.width(r[1]) - 1 do R[r[7] + k] = old[from + k] end
    end
  end
  for pos = 1, #old[2], size do
    local hold = sub(old[2], pos, pos + 46)
    for i, r in ipairs(p[5]) do
      local from, width = parts[sub(p[1], i * 6 - 5, i * 6)], L.part(r[1])
      if from then
        hold = hold .. sub(old[2], pos + from, pos + from + width - 1)
      else
        hold = hold .. string.rep('\0', width == 24 and 12 or width) .. string.rep(' ', width == 24 and 12 or 0)
      end
    end
    R[2] = R[2] .. hold
  end
  for pos = 1, #old[4], was do
    local known = sub(old[4], pos, pos + was - 1) .. string.rep('\0', #R[1])
    R[4] = R[4] .. sub(known, 1, L.end_size(R))
  end
  return R
end

-- What the rules ask of the open holds. `part` is the place of the rule's amount in a hold.
function L.holds_of(R, p, r)
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
        if freed >= over then return (sunpack('>I7', R[2], pos + 32)) end
      end) or math.huge
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
      each(function(amount, _, pos) if amount > 0 then last = (sunpack('>I7', R[2], pos + 32)) end end)
      return last
    end,
    names = function()
      local names = {}
      each(function(_, _, pos) names[sub(R[2], pos, pos + 11)] = true end)
      return names
    end,
  }
end

-- Limit and price of rule `i`: its own, or what an operator set, and until when.
function L.terms(R, i, r)
  local o = R[3]
  if o ~= 0 and o[2 * i] >= 0 then return o[2 * i], o[2 * i + 1], o[1] end
  return r[2], r[3]
end

-- Room under an override: what does not fit as long as it lasts fits when the rule's own limit is back and has room.
function L.room_of(R, p, i, now, n, per)
  local r = p[5][i]
  local limit, price, till = L.terms(R, i, r)
  local holds = r[1] == 7 and R[2] ~= '' and L.holds_of(R, p, r)
  local answer = L.room(r, R, r[7], now, n, limit, price, per, holds)
  if not till or answer < till then return answer end
  local own = L.room(r, R, r[7], now, n, r[2], r[3], per, holds)
  if own == math.huge then return own end
  return max(own, till)
end

-- The place of what begins with `tag` in a packed list, or nil.
function L.find(list, size, tag)
  local from = 1
  while true do
    local pos = string.find(list, tag, from, true)
    if not pos then return nil end
    if (pos - 1) % size == 0 then return pos end
    from = pos + 1
  end
end

function L.find_hold(R, p, tag) return L.find(R[2], p[4], tag) end

-- Until when a record with open holds must be kept: a settle after the last lease still gets its answer. A seed's counter
-- lives elsewhere, and whoever looks while it counts must still find what is to be given back to it; the longest period is a
-- month, with the hour that a change of the clocks can add.
function L.kept_for_holds(R, p, now)
  local keep = (sunpack('>I7', R[2], #R[2] - p[4] + 33)) + p[3]
  for _, r in ipairs(p[5]) do
    local kind = r[1]
    if kind == 11 or kind == 13 then keep = max(keep, now + r[3]) end
    if kind == 12 then keep = max(keep, now + 31 * 86400000000 + 3600000000) end
  end
  return keep
end

-- Holds in a bucket that lay above something now lie less deep.
function L.move_down(R, p, r, given, is_above)
  local all, size, part, parts = R[2], p[4], r[8], {}
  for pos = 1, #all, size do
    local at = sunpack('>I7', all, pos + 39)
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
function L.end_hold(R, p, pers, pos, now, actual)
  local all, size = R[2], p[4]
  local tag, expires, at = sunpack('>c32I7I7', all, pos)
  R[2] = sub(all, 1, pos - 1) .. sub(all, pos + size)
  local name, amounts = nil, {}
  for i, r in ipairs(p[5]) do
    local n, mark = sunpack('>I5I7', all, pos + r[8])
    local label
    if r[1] > 10 then
      name = name or sub(tag, 1, 12)
      if r[1] < 13 then label = string.match(sub(all, pos + r[8] + 12, pos + r[8] + 23), '^(%S*)') end
    end
    amounts[i] = actual(i, n)
    local price = (r[1] == 6 or r[1] == 8) and (sunpack('>I7', all, pos + r[8] + 12)) or 1
    local given = L.replace(r, R, r[7], now, n, amounts[i], price, { at, mark, label, name }, pers[i])
    if given > 0 and #R[2] > 0 then
      local deep = L.depth(r, mark, at, now)
      L.move_down(R, p, r, given, function(other, m) return L.depth(r, m, other, now) > deep end)
    end
  end
  return expires, amounts
end

-- `sekisho:…` becomes `sekisho-ended:…`, in the same slot. Behind the record's own prefix an endpoint could name it.
function L.ended_key(key, tag) return 'sekisho-ended' .. sub(key, 8) .. ':' .. tag end

-- Six bytes a rule, as in a shape.
function L.end_size(R) return 47 + #R[1] end

-- Remembers how a reservation ended. Whoever calls this saves the record.
function L.remember(key, R, tag, ending, expires, forget_at, amounts, now, slack)
  local ends, size = R[4], L.end_size(R)
  if #ends >= 8 * size then
    local left = sunpack('>I7', ends, 41) - now
    local ended = L.ended_key(key, sub(ends, 1, 32))
    if left > 0 then redis.call('SET', ended, sub(ends, 33, size), 'PX', ceil(left / 1000) + slack) end
    ends = sub(ends, size + 1)
  end
  ends = ends .. spack('>c32I1I7I7', tag, ending, expires, forget_at)
  for i = 1, #amounts do ends = ends .. spack('>I6', amounts[i]) end
  R[4] = ends
end

-- How a reservation ended, from the byte of its ending on, or nil.
function L.ended(key, R, tag, now)
  local size = L.end_size(R)
  local pos = L.find(R[4], size, tag)
  local ended = pos and sub(R[4], pos + 32, pos + size - 1) or redis.call('GET', L.ended_key(key, tag))
  if ended and (sunpack('>I7', ended, 9)) > now then return ended end
end

-- What is over stands in front, but for leases that were looked at late.
function L.forget(R, now)
  local size, pos = L.end_size(R), 1
  while pos < #R[4] and (sunpack('>I7', R[4], pos + 40)) <= now do pos = pos + size end
  if pos > 1 then R[4] = sub(R[4], pos) end
end

function L.kept_for_ends(R)
  local keep = 0
  for pos = 41, #R[4], L.end_size(R) do keep = max(keep, (sunpack('>I7', R[4], pos))) end
  return keep
end

-- Leases that have run out end, each at its own instant, so that it makes no difference when somebody looks. A provisional
-- hold is released whatever the policy says, and was never a reservation: its tag may be used again.
function L.sweep(R, p, pers, key, now, slack)
  local swept = false
  while #R[2] > 0 do
    local tag, expires, _, provisional = sunpack('>c32I7I7I1', R[2], 1)
    if expires > now then break end
    swept = true
    for i, r in ipairs(p[5]) do L.advance(r, R, r[7], expires, pers[i]) end
    local released = p[2] == 1 or provisional == 1
    local _, amounts = L.end_hold(R, p, pers, 1, expires, function(_, n) return released and 0 or n end)
    local forget_at = expires + p[3]
    if provisional == 0 and forget_at > now then L.remember(key, R, tag, 3, expires, forget_at, amounts, now, slack) end
  end
  return swept
end

-- Nothing is taken; leases that ran out meanwhile have ended all the same.
function L.never(targets, count, t, i, now, slack)
  for s = 1, count do
    local x = targets[s]
    if x[7] then L.save(x[5], x[2], x[1], now, x[4], slack) end
  end
  local p, R = targets[t][1], targets[t][2]
  return spack('>I1I1I1I8', 2, t - 1, i - 1, max(p[5][i][2], (L.terms(R, i, p[5][i]))))
end

function L.reserve(R, p, pers, now, tag, name, expires, provisional, body, f, entropy)
  local parts = { spack('>c32I7I7I1', tag, expires, now, provisional) }
  for i, r in ipairs(p[5]) do
    local n = sunpack('>I6', body, f + 6 * i - 6)
    local _, price = L.terms(R, i, r)
    local step_before = r[1] == 8 and R[r[7] + 1]
    local mark = L.take(r, R, r[7], now, n, price, true, entropy, pers[i], name)
    parts[#parts + 1] = spack('>I5I7', n, mark)
    if r[1] == 6 or r[1] == 8 then parts[#parts + 1] = spack('>I7', step_before or price) end
    if r[1] == 11 or r[1] == 12 then parts[#parts + 1] = sub(pers[i][3] .. '            ', 1, 12) end
  end
  local hold, all, size = table.concat(parts), R[2], p[4]
  local pos = #all - size + 1
  while pos >= 1 and (sunpack('>I7', all, pos + 32)) > expires do pos = pos - size end
  R[2] = sub(all, 1, pos + size - 1) .. hold .. sub(all, pos + size)
end

-- When the lease of an earlier reservation under the same tag runs or ran out.
function L.earlier(key, R, p, tag, now)
  local pos = L.find_hold(R, p, tag)
  if pos then return (sunpack('>I7', R[2], pos + 32)) end
  local ended = L.ended(key, R, tag, now)
  return ended and (sunpack('>I7', ended, 2))
end

-- A counter or a set under a seed's key: its period and what it counts now. Returns nothing when the period is not Redis's.
function L.seed_key(r, key, part, body, at, now, slack)
  if r[1] == 13 then
    local oldest = '(' .. string.format('%.6f', (now - r[3]) / 1000000)
    return { 0, 0, '', key, '', redis.call('ZCOUNT', key, oldest, '+inf'), oldest, key, slack }, at
  end
  local start, stop = sunpack('>I8I8', part, r[4])
  if now < start or now >= stop then return nil end
  local label, before, after, next_at = sunpack('>I2c0I2c0I2c0', body, at)
  local count = redis.call('GET', key)
  if count and not tonumber(count) then error('not a number') end
  return { start, stop, label, before, after, max(0, count and tonumber(count) or 0), '', key, slack }, next_at
end
