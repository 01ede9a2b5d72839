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
-- `per` is what the caller knows of the rule's period: {start, end, label, before, after}, and, once read, its count in 6.
--
-- Room is a number: 0 fits, t > 0 denied until t, t < 0 admitted with its turn at -t, NEVER more than it can ever give.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local spack, sunpack, rep, sub = struct.pack, struct.unpack, string.rep, string.sub
local EXACT, MAX_AMOUNT, NEVER = 9007199254740991, 1000000000000, math.huge
local LOG, BUCKET = '>I7I5', '>I7I7I7' -- one entry of a log (12 bytes), one bucket of a counter (21 bytes)

-- Brings a state to `now`: windows roll, logs shed what has left, buckets leak.
local function advance(r, R, o, now, per)
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
      local at, n = sunpack(LOG, entries, pos)
      if at + r[3] > now then break end
      R[o + 1] = R[o + 1] - n
      pos = pos + 12
    end
    if pos > 1 then R[o] = sub(entries, pos) end
  elseif kind == 1 then
    local start = now - now % r[3]
    if start > R[o] then R[o], R[o + 1], R[o + 2] = start, 0, 0 end
  elseif kind == 2 then
    if per[1] > R[o] and per[1] <= now then R[o], R[o + 1], R[o + 2], R[o + 3] = per[1], 0, 0, per[2] end
  elseif kind == 11 or kind == 12 then
    if per[1] > R[o] and per[1] <= now then R[o], R[o + 1] = per[1], 0 end
  elseif kind == 4 then
    local buckets, oldest = R[o], floor(max(0, now + 1 - r[3]) / r[4])
    local size, pos = #buckets, 1
    while pos <= size do
      local index, n, held = sunpack(BUCKET, buckets, pos)
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

-- When `over` units have left a packed list; `leaves` says when an entry does.
local function frees_at(list, format, size, over, leaves)
  local freed, pos = 0, 1
  while pos <= #list do
    local at, n = sunpack(format, list, pos)
    freed = freed + n
    if freed >= over then return leaves(at) end
    pos = pos + size
  end
  return NEVER
end

local function weighed(count, window) return min(count, floor(EXACT / window)) end

-- The two-bucket estimate at `now`, rounded up.
local function estimate(R, o, window, now)
  local overlap = window - min(max(now, R[o]) - R[o], window)
  return ceil(weighed(R[o + 2], window) * overlap / window) + R[o + 1]
end

local function falls_to(left, count, window)
  if count == 0 then return 0 end
  return max(0, window - floor(left * window / count))
end

-- Whether `n` fits under `limit` (and, in a bucket, at `price`). `holds` answers what only open reservations know.
local function room(r, R, o, now, n, limit, price, per, holds)
  local kind = r[1]
  if n > limit and (limit == 0 or (kind ~= 8 and kind ~= 9)) then return NEVER end
  if kind == 6 then
    local level = R[o + 1]
    local over = level + n * price - r[5]
    if over > 0 then return R[o] + ceil(over / r[4]) end
    if r[6] == 1 and level > 0 and n > 0 then return -(R[o] + ceil(level / r[4])) end
    return 0
  elseif kind == 3 then
    local over = R[o + 1] + n - limit
    if over <= 0 then return 0 end
    return frees_at(R[o], LOG, 12, over, function(at) return at + r[3] end)
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
    if not nth[2] then return NEVER end
    return floor(tonumber(nth[2]) * 1000000 + 0.5) + r[3]
  elseif kind == 4 then
    local over = R[o + 1] + n - limit
    if over <= 0 then return 0 end
    return frees_at(R[o], BUCKET, 21, over, function(index) return (index + 1) * r[4] + r[3] - 1 end)
  elseif kind == 5 then
    local window = r[3]
    if estimate(R, o, window, now) + n <= limit then return 0 end
    local left = limit - n
    if left >= R[o + 1] then return R[o] + falls_to(left - R[o + 1], weighed(R[o + 2], window), window) end
    return R[o] + window + falls_to(left, weighed(R[o + 1], window), window)
  elseif kind == 7 then
    local over = R[o] + n - limit
    if over <= 0 then return 0 end
    return holds.frees_at(over)
  elseif kind == 8 then
    local wait = R[o] - now
    if n == 0 or wait <= 0 then return 0 end
    if wait <= r[5] then return -R[o] end
    return R[o] - r[5]
  end
  if R[o] > now then return R[o] end
  return 0
end

-- Adds `n` at instant `at` of a log, in order, one entry per instant.
local function log_add(R, o, at, n)
  if n == 0 then return end
  local entries = R[o]
  local pos = #entries - 11
  while pos >= 1 do
    local known, amount = sunpack(LOG, entries, pos)
    if known == at then
      local sum = min(amount + n, MAX_AMOUNT)
      R[o] = sub(entries, 1, pos - 1) .. spack(LOG, at, sum) .. sub(entries, pos + 12)
      R[o + 1] = R[o + 1] + sum - amount
      return
    end
    if known < at then break end
    pos = pos - 12
  end
  R[o] = sub(entries, 1, pos + 11) .. spack(LOG, at, n) .. sub(entries, pos + 12)
  R[o + 1] = R[o + 1] + n
end

local function log_remove(R, o, at, n)
  local entries, pos = R[o], 1
  while pos <= #entries do
    local known, amount = sunpack(LOG, entries, pos)
    if known == at then
      n = min(n, amount)
      local left = amount > n and spack(LOG, at, amount - n) or ''
      R[o] = sub(entries, 1, pos - 1) .. left .. sub(entries, pos + 12)
      R[o + 1] = R[o + 1] - n
      return
    end
    pos = pos + 12
  end
end

-- Changes the count and held of bucket `index`, dropping it when empty.
local function bucket_change(R, o, index, change)
  local buckets = R[o]
  local pos = #buckets - 20
  local count, held, after = 0, 0, pos + 21
  while pos >= 1 do
    local known, c, h = sunpack(BUCKET, buckets, pos)
    if known == index then
      count, held, after = c, h, pos + 21
      pos = pos - 21
      break
    end
    if known < index then break end
    after = pos
    pos = pos - 21
  end
  local new_count, new_held = change(count, held)
  local entry = new_count > 0 and spack(BUCKET, index, new_count, new_held) or ''
  R[o] = sub(buckets, 1, pos + 20) .. entry .. sub(buckets, after)
  R[o + 1], R[o + 2] = R[o + 1] + new_count - count, R[o + 2] + new_held - held
end

-- Counts `n` under a seed's counter. A counter found without a TTL (an old client died between INCR and EXPIRE) gets one.
local function counter_charge(r, now, n, per)
  local ttl = r[1] == 11 and r[3] or per[2] - now
  per[6] = redis.call('INCRBY', per[8], n)
  if redis.call('PTTL', per[8]) < 0 then redis.call('PEXPIRE', per[8], ceil(ttl / 1000) + per[9]) end
end

-- Adds members `from` to `to` of a reservation to a seed's sorted set.
local function members_add(r, at, from, to, per, name)
  local score = string.format('%.6f', at / 1000000)
  for i = from, to do redis.call('ZADD', per[4], score, i == 1 and name or name .. '-' .. i) end
  redis.call('PEXPIRE', per[4], ceil(r[3] * 3 / 2000) + per[9])
end

-- Counts `n`, as held or as settled, and returns the mark by which `replace` finds it again.
local function take(r, R, o, now, n, price, hold, entropy, per, name)
  local kind, held = r[1], hold and n or 0
  if kind == 6 then
    R[o + 1] = min(R[o + 1] + n * price, EXACT)
    R[o + 2] = R[o + 2] + held
    return R[o + 1]
  elseif kind == 3 then
    local entries, at = R[o], now
    if #entries > 0 then at = max(at, (sunpack('>I7', entries, #entries - 11))) end
    log_add(R, o, at, n)
    return at
  elseif kind == 1 or kind == 2 then
    R[o + 1], R[o + 2] = R[o + 1] + n, R[o + 2] + held
    return R[o]
  elseif kind == 11 or kind == 12 then
    if n > 0 then counter_charge(r, now, n, per) end
    R[o + 1] = R[o + 1] + held
    return per[1]
  elseif kind == 13 then
    if n > 0 then
      redis.call('ZREMRANGEBYSCORE', per[4], '-inf', sub(per[7], 2))
      members_add(r, now, 1, n, per, name)
      per[6] = per[6] + n
    end
    return now
  elseif kind == 4 then
    local index = floor(now / r[4])
    if #R[o] > 0 then index = max(index, (sunpack('>I7', R[o], #R[o] - 20))) end
    if n > 0 then bucket_change(R, o, index, function(c, h) return c + n, h + held end) end
    return index
  elseif kind == 5 then
    R[o + 1], R[o + 3] = R[o + 1] + n, R[o + 3] + held
    return R[o]
  elseif kind == 7 then
    R[o] = R[o] + held
  elseif kind == 8 then
    if n > 0 then
      local range, part = r[4] - r[3], floor(entropy / 65536)
      local gap = r[3] + floor(range / 65536) * part + floor((range % 65536) * part / 65536)
      R[o + 1] = gap * n
      R[o] = max(R[o], now) + R[o + 1]
      R[o + 2] = R[o + 2] + held
    end
    return R[o]
  end
  return 0
end

-- How deep a hold lies in a bucket now.
local function depth(r, mark, at, now) return max(0, mark - max(0, now - at) * r[4]) end

-- Returns how much could be given back.
local function bucket_give(R, o, given)
  given = min(given, R[o + 1])
  R[o + 1] = R[o + 1] - given
  return given
end

-- Adds to a seed's counter, or takes from it: never below 0, and never a key that has expired.
local function counter_add(key, n)
  if n == 0 then return end
  local count = tonumber(redis.call('GET', key))
  if count then redis.call('INCRBY', key, max(n, -max(count, 0))) end
end

-- Replaces a held `n` by `actual`. The state was brought to `now`; `h` is the hold: {at, mark, label, name}. Returns by how
-- much holds that lie above it in a bucket move down.
local function replace(r, R, o, now, n, actual, price, h, per)
  local kind, mark = r[1], h[2]
  if kind == 6 then
    R[o + 2] = max(0, R[o + 2] - n)
    if actual < n then
      local left = min(depth(r, mark, h[1], R[o]), n * price)
      return bucket_give(R, o, min(left, (n - actual) * price))
    end
    R[o + 1] = min(R[o + 1] + (actual - n) * price, EXACT)
  elseif kind == 3 then
    if mark + r[3] > now then
      if actual >= n then log_add(R, o, mark, actual - n) else log_remove(R, o, mark, n - actual) end
    end
  elseif kind == 1 or kind == 2 then
    if mark == R[o] then R[o + 1], R[o + 2] = max(0, R[o + 1] - n) + actual, max(0, R[o + 2] - n) end
  elseif kind == 11 or kind == 12 then
    if mark == R[o] then R[o + 1] = max(0, R[o + 1] - n) end
    if n == 0 and actual > 0 and mark == per[1] then
      counter_charge(r, now, actual, per)
    else
      counter_add(per[4] .. h[3] .. per[5], actual - n)
    end
    if per[6] and mark == per[1] then per[6] = tonumber(redis.call('GET', per[8])) or 0 end
  elseif kind == 13 then
    if mark + r[3] > now and (n == 0 or redis.call('EXISTS', per[4]) == 1) then
      if actual > n then members_add(r, mark, n + 1, actual, per, h[4]) end
      for i = actual + 1, n do redis.call('ZREM', per[4], i == 1 and h[4] or h[4] .. '-' .. i) end
    end
    if per[6] then per[6] = redis.call('ZCOUNT', per[4], per[7], '+inf') end
  elseif kind == 4 then
    if mark >= floor(max(0, now + 1 - r[3]) / r[4]) then
      bucket_change(R, o, mark, function(c, held) return max(0, c - n) + actual, max(0, held - n) end)
    end
  elseif kind == 5 then
    if mark == R[o] then
      R[o + 1], R[o + 3] = max(0, R[o + 1] - n) + actual, max(0, R[o + 3] - n)
    elseif mark + r[3] == R[o] then
      R[o + 2], R[o + 4] = max(0, R[o + 2] - n) + actual, max(0, R[o + 4] - n)
    end
  elseif kind == 7 then
    R[o] = max(0, R[o] - n)
  elseif kind == 8 then
    R[o + 2] = max(0, R[o + 2] - n)
    if actual == 0 and n > 0 and mark == R[o] then
      R[o] = R[o] - R[o + 1]
      R[o + 1] = 0
    end
  end
  return 0
end
