-- What a plain check does not need: the rarer algorithms, and giving back.

-- When `over` units have left a packed list; `leaves` says when an entry does.
function L.frees_at(list, format, size, over, leaves)
  local freed, pos = 0, 1
  while pos <= #list do
    local at, n = sunpack(format, list, pos)
    freed = freed + n
    if freed >= over then return leaves(at) end
    pos = pos + size
  end
  return math.huge
end

function L.weighed(count, window) return min(count, math.floor(9007199254740991 / window)) end

-- The two-bucket estimate at `now`, rounded up.
function L.estimate(R, o, window, now)
  local overlap = window - min(max(now, R[o]) - R[o], window)
  return ceil(L.weighed(R[o + 2], window) * overlap / window) + R[o + 1]
end

function L.falls_to(left, count, window)
  if count == 0 then return 0 end
  return max(0, window - math.floor(left * window / count))
end

-- Adds `n` at instant `at` of a log, in order, one entry per instant.
function L.log_add(R, o, at, n)
  if n == 0 then return end
  local entries = R[o]
  local pos = #entries - 11
  while pos >= 1 do
    local known, amount = sunpack('>I7I5', entries, pos)
    if known == at then
      local sum = min(amount + n, 1000000000000)
      R[o] = sub(entries, 1, pos - 1) .. spack('>I7I5', at, sum) .. sub(entries, pos + 12)
      R[o + 1] = R[o + 1] + sum - amount
      return
    end
    if known < at then break end
    pos = pos - 12
  end
  R[o] = sub(entries, 1, pos + 11) .. spack('>I7I5', at, n) .. sub(entries, pos + 12)
  R[o + 1] = R[o + 1] + n
end

function L.log_remove(R, o, at, n)
  local entries, pos = R[o], 1
  while pos <= #entries do
    local known, amount = sunpack('>I7I5', entries, pos)
    if known == at then
      n = min(n, amount)
      local left = amount > n and spack('>I7I5', at, amount - n) or ''
      R[o] = sub(entries, 1, pos - 1) .. left .. sub(entries, pos + 12)
      R[o + 1] = R[o + 1] - n
      return
    end
    pos = pos + 12
  end
end

-- Changes the count and held of bucket `index`, dropping it when empty.
function L.bucket_change(R, o, index, change)
  local buckets = R[o]
  local pos = #buckets - 20
  local count, held, after = 0, 0, pos + 21
  while pos >= 1 do
    local known, c, h = sunpack('>I7I7I7', buckets, pos)
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
  local entry = new_count > 0 and spack('>I7I7I7', index, new_count, new_held) or ''
  R[o] = sub(buckets, 1, pos + 20) .. entry .. sub(buckets, after)
  R[o + 1], R[o + 2] = R[o + 1] + new_count - count, R[o + 2] + new_held - held
end

-- Counts `n` under a seed's counter. A counter found without a TTL (an old client died between INCR and EXPIRE) gets one.
function L.counter_charge(r, now, n, per)
  local ttl = r[1] == 11 and r[3] or per[2] - now
  per[6] = redis.call('INCRBY', per[8], n)
  if redis.call('PTTL', per[8]) < 0 then redis.call('PEXPIRE', per[8], ceil(ttl / 1000) + per[9]) end
end

-- Adds members `from` to `to` of a reservation to a seed's sorted set.
function L.members_add(r, at, from, to, per, name)
  local score = string.format('%.6f', at / 1000000)
  for i = from, to do redis.call('ZADD', per[4], score, i == 1 and name or name .. '-' .. i) end
  redis.call('PEXPIRE', per[4], ceil(r[3] * 3 / 2000) + per[9])
end

-- How deep a hold lies in a bucket now.
function L.depth(r, mark, at, now) return max(0, mark - max(0, now - at) * r[4]) end

-- Returns how much could be given back.
function L.bucket_give(R, o, given)
  given = min(given, R[o + 1])
  R[o + 1] = R[o + 1] - given
  return given
end

-- Adds to a seed's counter, or takes from it: never below 0, and never a key that has expired.
function L.counter_add(key, n)
  if n == 0 then return end
  local count = tonumber(redis.call('GET', key))
  if count then redis.call('INCRBY', key, max(n, -max(count, 0))) end
end

-- Replaces a held `n` by `actual`. The state was brought to `now`; `h` is the hold: {at, mark, label, name}. Returns by how
-- much holds that lie above it in a bucket move down.
function L.replace(r, R, o, now, n, actual, price, h, per)
  local kind, mark = r[1], h[2]
  if kind == 6 then
    R[o + 2] = max(0, R[o + 2] - n)
    if actual < n then
      local left = min(L.depth(r, mark, h[1], R[o]), n * price)
      return L.bucket_give(R, o, min(left, (n - actual) * price))
    end
    R[o + 1] = min(R[o + 1] + (actual - n) * price, 9007199254740991)
  elseif kind == 3 then
    if mark + r[3] > now then
      if actual >= n then L.log_add(R, o, mark, actual - n) else L.log_remove(R, o, mark, n - actual) end
    end
  elseif kind == 1 or kind == 2 then
    if mark == R[o] then R[o + 1], R[o + 2] = max(0, R[o + 1] - n) + actual, max(0, R[o + 2] - n) end
  elseif kind == 11 or kind == 12 then
    if mark == R[o] then R[o + 1] = max(0, R[o + 1] - n) end
    if n == 0 and actual > 0 and mark == per[1] then
      L.counter_charge(r, now, actual, per)
    else
      L.counter_add(per[4] .. h[3] .. per[5], actual - n)
    end
    if per[6] and mark == per[1] then per[6] = tonumber(redis.call('GET', per[8])) or 0 end
  elseif kind == 13 then
    if mark + r[3] > now and (n == 0 or redis.call('EXISTS', per[4]) == 1) then
      if actual > n then L.members_add(r, mark, n + 1, actual, per, h[4]) end
      for i = actual + 1, n do redis.call('ZREM', per[4], i == 1 and h[4] or h[4] .. '-' .. i) end
    end
    if per[6] then per[6] = redis.call('ZCOUNT', per[4], per[7], '+inf') end
  elseif kind == 4 then
    if mark >= math.floor(max(0, now + 1 - r[3]) / r[4]) then
      L.bucket_change(R, o, mark, function(c, held) return max(0, c - n) + actual, max(0, held - n) end)
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
      R[o + 1] = price
    end
  end
  return 0
end

-- Gives back up to `n` of what is settled, the newest first, never what is held. Returns by how much the holds in a bucket
-- move down.
function L.grant(r, R, o, now, n, price, per, holds)
  local kind = r[1]
  if kind == 1 or kind == 2 then
    R[o + 1] = R[o + 1] - min(n, max(0, R[o + 1] - R[o + 2]))
  elseif kind == 6 then
    return L.bucket_give(R, o, min(n * price, max(0, R[o + 1] - R[o + 2] * price)))
  elseif kind == 3 then
    local pos = #R[o] - 11
    while pos >= 1 and n > 0 do
      local at, amount = sunpack('>I7I5', R[o], pos)
      local given = min(n, max(0, amount - holds.held_at(at)))
      L.log_remove(R, o, at, given)
      n, pos = n - given, pos - 12
    end
  elseif kind == 4 then
    local pos = #R[o] - 20
    while pos >= 1 and n > 0 do
      local index, count, held = sunpack('>I7I7I7', R[o], pos)
      local given = min(n, count - held)
      L.bucket_change(R, o, index, function(c, h) return c - given, h end)
      n, pos = n - given, pos - 21
    end
  elseif kind == 5 then
    local given = min(n, max(0, R[o + 1] - R[o + 3]))
    R[o + 1] = R[o + 1] - given
    R[o + 2] = R[o + 2] - min(n - given, max(0, R[o + 2] - R[o + 4]))
  elseif kind == 8 and n > 0 then
    R[o], R[o + 1] = 0, 0
  elseif kind == 9 and n > 0 then
    R[o] = 0
  elseif kind == 11 or kind == 12 then
    L.counter_add(per[8], -min(n, max(0, per[6] - R[o + 1])))
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
