-- The algorithms, as in src/limits/algorithms: whole numbers below 2^53, so that Lua's doubles are exact.
--
-- A rule `r` is {kind, limit, p3, p4, p5, p6, slot, hold}: its parameters, the place of its state in a record and of its
-- part in a hold. Kinds: 1 fixed window {window}, 2 calendar, 3 sliding log {window}, 4 sliding counter {window, width},
-- 5 interpolated {window}, 6 bucket {price, leak, full, queue}, 7 concurrency, 8 interval {min, max, max_wait}, 9 block;
-- kept under a seed's key: 11 fixed window {window}, 12 calendar, 13 sliding log {window}.
--
-- A record `R` is an array; `o` is the slot of the rule in it:
--   1 start count held · 2 start count held end · 3 entries total · 4 buckets total held · 5 start cur prev hcur hprev ·
--   6 at level held · 7 held · 8 next step held · 9 until · 11, 12 start held · 13 nothing.
-- `per` is what is known of the period of a rule under a seed's key: {start, end, label, before, after, count, oldest score,
-- key, slack, newest if it was added now}; for a calendar it is the caller's part of the body, where start and end stand at byte p3.
-- `holds` answers what only open reservations know, and is false where there are none.
--
-- Room is a number: 0 fits, t > 0 denied until t, t < 0 admitted with its turn at -t, math.huge more than it can ever give.
--
-- Redis makes every function of a script anew in each call, and each local that a function uses from outside costs a search
-- then. So the functions live in one table, share few locals, and those that a plain check does not need are made only when
-- one of them is asked for (see `more`). Numbers and formats stand where they are used: 9007199254740991 is the largest
-- exact integer, '>I7I5' one entry of a log (12 bytes), '>I7I7I7' one bucket of a counter (21 bytes).

local L = {}
local ceil, max, min = math.ceil, math.max, math.min
local spack, sunpack, sub = struct.pack, struct.unpack, string.sub

-- Brings a state to `now`: windows roll, logs shed what has left, buckets leak.
function L.advance(r, R, o, now, per)
  local kind = r[1]
  if kind == 6 then
    local at = R[o]
    if now > at then
      R[o + 1] = max(0, R[o + 1] - (now - at) * r[4])
      R[o] = now
    end
  elseif kind == 3 then
    local entries = R[o]
    local size, pos = #entries, 1
    while pos <= size do
      local at, n = sunpack('>I7I5', entries, pos)
      if at + r[3] > now then break end
      R[o + 1] = R[o + 1] - n
      pos = pos + 12
    end
    if pos > 1 then R[o] = sub(entries, pos) end
  elseif kind == 1 then
    local start = now - now % r[3]
    if start > R[o] then R[o], R[o + 1], R[o + 2] = start, 0, 0 end
  elseif kind == 2 then
    if now >= R[o + 3] then
      local start, stop = sunpack('>I8I8', per, r[3])
      if start <= now then R[o], R[o + 1], R[o + 2], R[o + 3] = start, 0, 0, stop end
    end
  elseif kind == 11 or kind == 12 then
    if per[1] > R[o] and per[1] <= now then R[o], R[o + 1] = per[1], 0 end
  elseif kind == 4 then
    local buckets, oldest = R[o], math.floor(max(0, now + 1 - r[3]) / r[4])
    local size, pos = #buckets, 1
    while pos <= size do
      local index, n, held = sunpack('>I7I7I7', buckets, pos)
      if index >= oldest then break end
      R[o + 1], R[o + 2] = R[o + 1] - n, R[o + 2] - held
      pos = pos + 21
    end
    if pos > 1 then R[o] = sub(buckets, pos) end
  elseif kind == 5 then
    local window = r[3]
    local start = now - now % window
    if start > R[o] then
      if start == R[o] + window then
        R[o + 2], R[o + 4] = R[o + 1], R[o + 3]
      else
        R[o + 2], R[o + 4] = 0, 0
      end
      R[o], R[o + 1], R[o + 3] = start, 0, 0
    end
  end
end

-- Whether `n` fits under `limit` (and, in a bucket, at `price`). `holds` answers what only open reservations know.
function L.room(r, R, o, now, n, limit, price, per, holds)
  local kind = r[1]
  if n > limit and (limit == 0 or (kind ~= 8 and kind ~= 9)) then return math.huge end
  if kind == 6 then
    local level = R[o + 1]
    local over = level + n * price - r[5]
    if over > 0 then return R[o] + ceil(over / r[4]) end
    if r[6] == 1 and level > 0 and n > 0 then return -(R[o] + ceil(level / r[4])) end
    return 0
  elseif kind == 3 then
    local over = R[o + 1] + n - limit
    if over <= 0 then return 0 end
    return L.frees_at(R[o], '>I7I5', 12, over, function(at) return at + r[3] end)
  elseif kind == 1 then
    if R[o + 1] + n <= limit then return 0 end
    return R[o] + r[3]
  elseif kind == 2 then
    if R[o + 1] + n <= limit then return 0 end
    return R[o + 3]
  elseif kind == 11 or kind == 12 then
    if per[6] + n <= limit then return 0 end
    return per[2]
  elseif kind == 13 then
    local over = per[6] + n - limit
    if over <= 0 then return 0 end
    local nth = redis.call('ZRANGEBYSCORE', per[4], per[7], '+inf', 'WITHSCORES', 'LIMIT', over - 1, 1)
    if not nth[2] then return math.huge end
    return math.floor(tonumber(nth[2]) * 1000000 + 0.5) + r[3]
  elseif kind == 4 then
    local over = R[o + 1] + n - limit
    if over <= 0 then return 0 end
    return L.frees_at(R[o], '>I7I7I7', 21, over, function(index) return (index + 1) * r[4] + r[3] - 1 end)
  elseif kind == 5 then
    local window = r[3]
    if L.estimate(R, o, window, now) + n <= limit then return 0 end
    local left = limit - n
    if left >= R[o + 1] then return R[o] + L.falls_to(left - R[o + 1], L.weighed(R[o + 2], window), window) end
    return R[o] + window + L.falls_to(left, L.weighed(R[o + 1], window), window)
  elseif kind == 7 then
    local over = R[o] + n - limit
    if over <= 0 then return 0 end
    return holds and holds.frees_at(over) or math.huge
  elseif kind == 8 then
    local wait = R[o] - now
    if n == 0 or wait <= 0 then return 0 end
    if wait <= r[5] then return -R[o] end
    return R[o] - r[5]
  end
  if R[o] > now then return R[o] end
  return 0
end

-- Counts `n`, as held or as settled, and returns the mark by which `replace` finds it again.
function L.take(r, R, o, now, n, price, hold, entropy, per, name)
  local kind, held = r[1], hold and n or 0
  if kind == 6 then
    R[o + 1] = min(R[o + 1] + n * price, 9007199254740991)
    R[o + 2] = R[o + 2] + held
    return R[o + 1]
  elseif kind == 3 then
    local entries = R[o]
    local newest = entries ~= '' and (sunpack('>I7', entries, #entries - 11)) or 0
    if now > newest and n > 0 then
      R[o], R[o + 1] = entries .. spack('>I7I5', now, n), R[o + 1] + n
      return now
    end
    if newest < now then newest = now end
    L.log_add(R, o, newest, n)
    return newest
  elseif kind == 1 or kind == 2 then
    R[o + 1], R[o + 2] = R[o + 1] + n, R[o + 2] + held
    return R[o]
  elseif kind == 11 or kind == 12 then
    if n > 0 then L.counter_charge(r, now, n, per) end
    R[o + 1] = R[o + 1] + held
    return per[1]
  elseif kind == 13 then
    if n > 0 then
      redis.call('ZREMRANGEBYSCORE', per[4], '-inf', sub(per[7], 2))
      L.members_add(r, now, 1, n, per, name)
      per[6], per[10] = per[6] + n, now
    end
    return now
  elseif kind == 4 then
    local index = math.floor(now / r[4])
    if #R[o] > 0 then index = max(index, (sunpack('>I7', R[o], #R[o] - 20))) end
    if n > 0 then L.bucket_change(R, o, index, function(c, h) return c + n, h + held end) end
    return index
  elseif kind == 5 then
    R[o + 1], R[o + 3] = R[o + 1] + n, R[o + 3] + held
    return R[o]
  elseif kind == 7 then
    R[o] = R[o] + held
  elseif kind == 8 then
    if n > 0 then
      local range, part = r[4] - r[3], math.floor(entropy / 65536)
      local gap = r[3] + math.floor(range / 65536) * part + math.floor((range % 65536) * part / 65536)
      R[o + 1] = gap * n
      R[o] = max(R[o], now) + R[o + 1]
      R[o + 2] = R[o + 2] + held
    end
    return R[o]
  end
  return 0
end

-- Limit, used, held, remaining, reset at.
function L.figures(r, R, o, now, limit, price, per, holds)
  local kind = r[1]
  local total, held, reset
  if kind == 1 then
    total, held, reset = R[o + 1], R[o + 2], R[o] + r[3]
  elseif kind == 2 then
    total, held, reset = R[o + 1], R[o + 2], R[o + 3]
  elseif kind == 3 then
    total, held, reset = R[o + 1], holds and holds.held_since(now - r[3]) or 0, now
    if #R[o] > 0 then reset = (sunpack('>I7', R[o], #R[o] - 11)) + r[3] end
  elseif kind == 11 or kind == 12 then
    total, held, reset = per[6], R[o + 1], per[2]
  elseif kind == 13 then
    total, held, reset = per[6], holds and holds.held_since(now - r[3]) or 0, now
    if per[10] then
      reset = per[10] + r[3]
    elseif total > 0 then
      local newest = redis.call('ZREVRANGE', per[4], 0, 0, 'WITHSCORES')[2]
      if newest then reset = math.floor(tonumber(newest) * 1000000 + 0.5) + r[3] end
    end
  elseif kind == 4 then
    total, held, reset = R[o + 1], R[o + 2], now
    if #R[o] > 0 then reset = ((sunpack('>I7', R[o], #R[o] - 20)) + 1) * r[4] + r[3] - 1 end
  elseif kind == 5 then
    total, held = L.estimate(R, o, r[3], now), R[o + 3] + R[o + 4]
    reset = max(now, R[o + 1] > 0 and R[o] + 2 * r[3] or R[o + 2] > 0 and R[o] + r[3] or 0)
  elseif kind == 7 then
    return limit, 0, R[o], max(0, limit - R[o]), holds and holds.last_expiry() or now
  else
    local remaining
    if kind == 6 then
      remaining = limit == 0 and 0 or math.floor(max(0, r[5] - R[o + 1]) / price)
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
function L.idle_at(r, R, o)
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
