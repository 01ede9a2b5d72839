-- What users see of a rule, when it may be forgotten, and what an operator gives back.

-- Limit, used, held, remaining, reset at.
local function figures(r, R, o, now, limit, price, per, holds)
  local kind = r[1]
  local total, held, reset
  if kind == 1 then
    total, held, reset = R[o + 1], R[o + 2], R[o] + r[3]
  elseif kind == 2 then
    total, held, reset = R[o + 1], R[o + 2], R[o + 3]
  elseif kind == 3 then
    total, held, reset = R[o + 1], holds.held_since(now - r[3]), now
    if #R[o] > 0 then reset = (sunpack('>I7', R[o], #R[o] - 11)) + r[3] end
  elseif kind == 11 or kind == 12 then
    total, held, reset = per[6], R[o + 1], per[2]
  elseif kind == 13 then
    total, held, reset = per[6], holds.held_since(now - r[3]), now
    if total > 0 then
      local newest = redis.call('ZREVRANGE', per[4], 0, 0, 'WITHSCORES')[2]
      if newest then reset = floor(tonumber(newest) * 1000000 + 0.5) + r[3] end
    end
  elseif kind == 4 then
    total, held, reset = R[o + 1], R[o + 2], now
    if #R[o] > 0 then reset = ((sunpack('>I7', R[o], #R[o] - 20)) + 1) * r[4] + r[3] - 1 end
  elseif kind == 5 then
    total, held = estimate(R, o, r[3], now), R[o + 3] + R[o + 4]
    reset = max(now, R[o + 1] > 0 and R[o] + 2 * r[3] or R[o + 2] > 0 and R[o] + r[3] or 0)
  elseif kind == 7 then
    return limit, 0, R[o], max(0, limit - R[o]), holds.last_expiry() or now
  else
    local remaining
    if kind == 6 then
      remaining = limit == 0 and 0 or floor(max(0, r[5] - R[o + 1]) / price)
      held, reset = R[o + 2], R[o] + ceil(R[o + 1] / r[4])
    elseif kind == 8 then
      remaining = min(limit, R[o] - now <= max(0, r[5]) and 1 or 0)
      held, reset = R[o + 2], max(R[o], now)
    else
      remaining = min(limit, R[o] <= now and 1 or 0)
      held, reset = 0, max(R[o], now)
    end
    held = min(held, limit - remaining)
    return limit, limit - remaining - held, held, remaining, reset
  end
  held = min(held, total)
  return limit, total - held, held, max(0, limit - total), reset
end

-- From then on the state says no more than none at all.
local function idle_at(r, R, o)
  local kind = r[1]
  if kind == 6 then return R[o + 1] == 0 and 0 or R[o] + ceil(R[o + 1] / r[4]) end
  if kind == 3 then return #R[o] == 0 and 0 or (sunpack('>I7', R[o], #R[o] - 11)) + r[3] end
  if kind == 1 then return R[o + 1] == 0 and 0 or R[o] + r[3] end
  if kind == 2 then return R[o + 1] == 0 and 0 or R[o + 3] end
  if kind == 4 then return #R[o] == 0 and 0 or ((sunpack('>I7', R[o], #R[o] - 20)) + 1) * r[4] + r[3] - 1 end
  if kind == 5 then return R[o + 1] > 0 and R[o] + 2 * r[3] or R[o + 2] > 0 and R[o] + r[3] or 0 end
  if kind == 8 or kind == 9 then return R[o] end
  return 0
end

-- Gives back up to `n` of what is settled, the newest first, never what is held. Returns by how much the holds in a bucket
-- move down.
local function grant(r, R, o, now, n, price, per, holds)
  local kind = r[1]
  if kind == 1 or kind == 2 then
    R[o + 1] = R[o + 1] - min(n, max(0, R[o + 1] - R[o + 2]))
  elseif kind == 6 then
    return bucket_give(R, o, min(n * price, max(0, R[o + 1] - R[o + 2] * price)))
  elseif kind == 3 then
    local pos = #R[o] - 11
    while pos >= 1 and n > 0 do
      local at, amount = sunpack(LOG, R[o], pos)
      local given = min(n, max(0, amount - holds.held_at(at)))
      log_remove(R, o, at, given)
      n, pos = n - given, pos - 12
    end
  elseif kind == 4 then
    local pos = #R[o] - 20
    while pos >= 1 and n > 0 do
      local index, count, held = sunpack(BUCKET, R[o], pos)
      local given = min(n, count - held)
      bucket_change(R, o, index, function(c, h) return c - given, h end)
      n, pos = n - given, pos - 21
    end
  elseif kind == 5 then
    local given = min(n, max(0, R[o + 1] - R[o + 3]))
    R[o + 1] = R[o + 1] - given
    R[o + 2] = R[o + 2] - min(n - given, max(0, R[o + 2] - R[o + 4]))
  elseif kind == 8 then
    R[o], R[o + 1] = 0, 0
  elseif kind == 9 then
    R[o] = 0
  elseif kind == 11 or kind == 12 then
    counter_add(per[8], -min(n, max(0, per[6] - R[o + 1])))
    per[6] = tonumber(redis.call('GET', per[8])) or 0
  elseif kind == 13 and n > 0 then
    local names = holds.names()
    for _, member in ipairs(redis.call('ZREVRANGE', per[4], 0, -1)) do
      if n == 0 then break end
      if not names[sub(member, 1, 12)] then
        redis.call('ZREM', per[4], member)
        n = n - 1
      end
    end
    per[6] = redis.call('ZCOUNT', per[4], per[7], '+inf')
  end
  return 0
end
