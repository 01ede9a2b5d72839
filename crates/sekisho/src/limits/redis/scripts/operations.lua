-- Settle, release, confirm; reset, grant, override, block, charge, adopt.

-- A body says 'as reserved' by the highest bit of its six bytes, and below it how much that was; 'no override' by all of them.
function L.run_end(body, count, k, a, now, slack)
  local tag, how, lease, at = sunpack('>c32I1I7', body, 15)
  local confirmed, targets, asked = 0, {}, how == 1 and 1 or 2
  -- No lease is longer than a day.
  local is_lost, only_shadow = how < 2 and lease > now and lease <= now + 86400000000, true
  for t = 1, count do
    local p, key, first = L.policy(ARGV[a + t]), KEYS[k], at
    local R, pers, existed
    R, pers, existed, k, at = L.open(p, k, body, at + 6 * #p[5], now, slack)
    if not R then return spack('>I1I8', 3, now) end
    -- What is still open has not ended.
    local ended = not L.find_hold(R, p, tag) and L.ended(key, R, tag, now)
    targets[t] = { p, R, pers, existed, key, first, ended or false }
    only_shadow = only_shadow and p[6] == 1
  end
  for t = 1, count do
    local x = targets[t]
    local p, R, pers, existed, key, first, ended = unpack(x)
    local swept = L.bring(R, p, pers, key, now, slack)
    if swept then ended = L.ended(key, R, tag, now) end
    local ending, amounts = 0, {}
    if ended then
      ending = sunpack('>I1', ended)
      for i = 1, (#ended - 15) / 6 do amounts[i] = sunpack('>I6', ended, 10 + 6 * i) end
    end
    local pos = ending == 0 and L.find_hold(R, p, tag)
    if how == 2 then
      if pos then R[2] = sub(R[2], 1, pos + 45) .. '\0' .. sub(R[2], pos + 47) end
      -- What has ended was confirmed before: this is a repeat.
      if pos or ending ~= 0 then confirmed = confirmed + 1 end
    elseif pos then
      local function actual(i, n)
        if how ~= 1 then return 0 end
        local settled = sunpack('>I6', body, first + 6 * i - 6)
        return settled >= 140737488355328 and n or settled
      end
      local expires
      ending = asked
      expires, amounts = L.end_hold(R, p, pers, pos, now, actual)
      if how ~= 3 then L.remember(key, R, tag, ending, expires, max(now + p[3], expires), amounts, now, slack) end
    end
    if pos or swept then L.save(key, R, p, now, existed, slack) end
    -- The first end decides, for what was lost of it as well.
    if ending ~= 0 and ending ~= asked then is_lost = false end
    x[7], x[8] = ending, amounts
  end
  if how == 2 then return spack('>I1I1', 6, confirmed) end
  local out = '\5'
  for t = 1, count do
    local x = targets[t]
    local p, ending, amounts = x[1], x[7], x[8]
    -- In shadow mode it may never have been held, so that only what is held nowhere else is ended there.
    if is_lost and ending == 0 and (p[6] == 0 or only_shadow) then
      ending, amounts = asked, L.end_lost(x, tag, asked, lease, now, slack, body)
    end
    out = out .. spack('>I1', ending)
    for i = 1, #p[5] do out = out .. spack('>I6', amounts[i] or 0) end
  end
  return out
end

-- Ends a reservation that Redis does not know though its lease has not ended: it was lost, and counts now with what it cost.
-- What only holds or paces has nothing left of it.
function L.end_lost(x, tag, ending, lease, now, slack, body)
  local p, R, pers, existed, key, first = unpack(x)
  local amounts, rules = {}, p[5]
  for i = 1, #rules do
    local n = ending == 1 and p[6] == 0 and (sunpack('>I6', body, first + 6 * i - 6)) or 0
    amounts[i] = n >= 140737488355328 and n - 140737488355328 or n
  end
  L.charge(R, p, pers, now, sub(tag, 1, 12), function(i)
    local kind = rules[i][1]
    return kind > 6 and kind < 10 and 0 or amounts[i]
  end)
  L.remember(key, R, tag, ending, lease, max(now + p[3], lease), amounts, now, slack)
  L.save(key, R, p, now, existed, slack)
  return amounts
end

-- Counts whatever the limits say. The longest gap of an interval: nobody drew any entropy.
function L.charge(R, p, pers, now, name, amount)
  for i, r in ipairs(p[5]) do
    local _, price = L.terms(R, i, r)
    L.take(r, R, r[7], now, amount(i), price, false, 4294967295, pers[i], name)
  end
end

-- Counts what an instance admitted by itself, once: what it last saw here and is gone, what it spent, what it still holds.
function L.adopt(R, p, pers, key, now, slack, till, body, first)
  local rules, size = p[5], 6 * #p[5]
  local tag, count, at = sunpack('>c32I2', body, first + 2 * size)
  if L.ended(key, R, tag, now) then return end
  local holds = {}
  for _ = 1, count do
    local held, expires, amounts = sunpack('>c32I7', body, at)
    if not L.find_hold(R, p, held) and not L.ended(key, R, held, now) then holds[#holds + 1] = { held, expires, amounts } end
    at = amounts + size
  end
  local name, spent = sub(tag, 1, 12), {}
  L.charge(R, p, pers, now, name, function(i)
    local r = rules[i]
    local n, least = sunpack('>I6', body, first + 6 * i - 6), (sunpack('>I6', body, first + size + 6 * i - 6))
    spent[i] = n
    if r[1] > 6 and r[1] < 10 then return n end
    local limit, price = L.terms(R, i, r)
    local _, used, held = L.figures(r, R, r[7], now, limit, price, pers[i], R[2] ~= '' and L.holds_of(R, p, r))
    return n + max(0, least - used - held)
  end)
  for _, hold in ipairs(holds) do
    L.reserve(R, p, pers, now, hold[1], sub(hold[1], 1, 12), hold[2], 0, body, hold[3], 4294967295)
  end
  for _, r in ipairs(rules) do
    if r[1] == 9 then R[r[7]] = max(R[r[7]], till) end
  end
  L.remember(key, R, tag, 1, now, now + p[3], spent, now, slack)
end

function L.is_readable(p, ...)
  local ok, R = pcall(L.open, p, ...)
  if not ok or not R then return ok end
  local holds, ends = R[2], R[4]
  return type(holds) == 'string' and type(ends) == 'string' and #holds % p[4] == 0 and #ends % L.end_size(R) == 0
end

function L.run_admin(body, _, k, a, now, slack)
  local what, till, first = sunpack('>I1I8', body, 15)
  local p, key = L.policy(ARGV[a + 1]), KEYS[k]
  local rules = p[5]
  local size = #rules * (what == 2 and 14 or 6)
  if what == 5 then size = 2 * size + 34 + (sunpack('>I2', body, first + 2 * size + 32)) * (39 + size) end
  -- A reset mends what cannot be read.
  if what == 0 and not L.is_readable(p, k, body, first + size, now, slack) then
    for t = k, k + p[7] do redis.call('DEL', KEYS[t]) end
  end
  local R, pers, existed = L.open(p, k, body, first + size, now, slack)
  if not R then return spack('>I1I8', 3, now) end
  L.bring(R, p, pers, key, now, slack)
  if what == 0 then
    local ends, kept = R[4], R[#R]
    R = L.fresh(p)
    R[4], R[#R] = ends, kept
    for i, r in ipairs(rules) do
      if r[1] > 10 then
        redis.call('DEL', pers[i][8])
        pers[i][6] = 0
      end
      L.advance(r, R, r[7], now, pers[i])
    end
  elseif what == 1 then
    for i, r in ipairs(rules) do
      local _, price = L.terms(R, i, r)
      local n = sunpack('>I6', body, first + 6 * i - 6)
      local given = L.grant(r, R, r[7], now, n, price, pers[i], L.holds_of(R, p, r))
      -- What is settled has no place in the bucket any more: it is taken to have lain below all holds.
      if given > 0 and #R[2] > 0 then L.move_down(R, p, r, given, function() return true end) end
    end
  elseif what == 3 then
    for _, r in ipairs(rules) do
      if r[1] == 9 then R[r[7]] = max(R[r[7]], till) end
    end
  elseif what == 4 then
    L.charge(R, p, pers, now, string.format('%012x', till), function(i) return (sunpack('>I6', body, first + 6 * i - 6)) end)
  elseif what == 5 then
    L.adopt(R, p, pers, key, now, slack, till, body, first)
  else
    local o = { till }
    for i, r in ipairs(rules) do
      local limit, price = sunpack('>I6I8', body, first + 14 * i - 14)
      if limit == 281474976710655 then limit = -1 end
      if r[1] == 9 and limit >= 0 then
        R[r[7]] = limit == 0 and till or 0
        limit = -1
      end
      o[2 * i], o[2 * i + 1] = limit, price
    end
    R[3] = till > now and o or 0
  end
  L.save(key, R, p, now, existed, slack)
  return spack('>I1I7I7', 1, now, 0) .. L.outcome(R, p, pers, now, {})
end
