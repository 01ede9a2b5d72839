-- Limits: check, reserve, peek, settle, release, reset, grant, override.
--
-- KEYS  of a job: per target the record, then the current key of each rule that is kept under a seed's key.
-- ARGV  of a job: a msgpack array, then one msgpack policy per target:
--       {op, targets, now (0: ask Redis), slack, tag, ...}, by op:
--       1 take  {…, kind (0 check, 1 peek, 2 reserve), lease, repeated, provisional, entropy, amounts…, periods…}
--       2 end   {…, how (0 release, 1 settle, 2 confirm, 3 take back), amounts… (-1: as reserved), periods…}
--       3 admin {…, what (0 reset, 1 grant, 2 override), until, amounts… or limit and price…, periods…}
--       `periods` are {start, end, label, before, after} for each rule that counts by period or under a seed's key.
-- reply One string per job: a msgpack stream whose first value says what follows:
--       0 denied, 1 admitted: now, expires, then per rule limit used held remaining reset room
--       2 never fits: target, rule, the most · 3 the caller's period is not Redis's: now · 4 unreadable: key, reason
--       5 ended: per target ending (0 unknown), expires, amounts… · 6 confirmed: how many targets
--
-- It is a script because a decision reads and writes several rules at once, and nothing may come between. Many jobs run
-- in one call; each is caught for itself, and reads every key before it writes the first: Redis rolls nothing back.

local time
local function redis_now()
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  return time
end

local policies = {}
local function policy(packed)
  local p = policies[packed]
  if not p then
    p = cmsgpack.unpack(packed)
    policies[packed] = p
  end
  return p
end

-- Reads everything a target needs. Returns its record, its periods and whether the record was there, or, when the caller's
-- idea of the period is off, nothing.
local function open(p, k, job, at, now, slack)
  local pers = {}
  for i, r in ipairs(p[5]) do
    local kind = r[1]
    if kind == 2 or kind > 10 then
      local per = job[at]
      at = at + 1
      if kind ~= 13 and (now < per[1] or now >= per[2]) then return nil end
      pers[i] = per
    end
  end
  local R, existed = load(KEYS[k], p)
  local key = k + 1
  for i, r in ipairs(p[5]) do
    local kind = r[1]
    if kind > 10 then
      local per = pers[i]
      per[8], per[9] = KEYS[key], slack
      key = key + 1
      if kind == 13 then
        per[4] = per[8]
        per[7] = '(' .. string.format('%.6f', (now - r[3]) / 1000000)
        per[6] = redis.call('ZCOUNT', per[4], per[7], '+inf')
      else
        local count = redis.call('GET', per[8])
        per[6] = count and tonumber(count) or 0
        if count and not tonumber(count) then error('not a number') end
        per[6] = max(0, per[6])
      end
    end
  end
  return R, pers, existed, key, at
end

local function write_figures(out, R, p, pers, now, rooms)
  for i, r in ipairs(p[5]) do
    local limit, price = terms(R, i, r)
    local kind = r[1]
    local holds = (kind == 3 or kind == 7 or kind == 13) and holds_of(R, p, r)
    local a, b, c, d, e = figures(r, R, r[7], now, limit, price, pers[i], holds)
    local at = #out
    out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5], out[at + 6] = a, b, c, d, e, rooms and rooms[i] or 0
  end
end

local function reserve(R, p, pers, now, tag, name, expires, provisional, amounts, first, entropy)
  local parts = { spack('>c16I7I7I1', tag, expires, now, provisional) }
  for i, r in ipairs(p[5]) do
    local n = amounts[first + i]
    local _, price = terms(R, i, r)
    local mark = take(r, R, r[7], now, n, price, true, entropy, pers[i], name)
    parts[#parts + 1] = spack('>I5I7', n, mark)
    if r[1] == 11 or r[1] == 12 then parts[#parts + 1] = sub(pers[i][3] .. rep(' ', 12), 1, 12) end
  end
  local hold, all, size = table.concat(parts), R[2], p[4]
  local pos = #all - size + 1
  while pos >= 1 and (sunpack('>I7', all, pos + 16)) > expires do pos = pos - size end
  R[2] = sub(all, 1, pos + size - 1) .. hold .. sub(all, pos + size)
end

-- When the lease of an earlier reservation under the same tag runs or ran out.
local function earlier(key, R, p, tag, now)
  local pos = find_hold(R, p, tag)
  if pos then return (sunpack('>I7', R[2], pos + 16)) end
  local ended = redis.call('GET', ended_key(key, tag))
  if ended then
    local _, expires, forget_at = cmsgpack.unpack(ended)
    if forget_at > now then return expires end
  end
end

local function run_take(job, k, a, now, slack)
  local count, tag, kind, lease, entropy = job[2], job[5], job[6], job[7], job[10]
  local targets, at, first = {}, 11, 0
  for t = 1, count do
    local p = policy(ARGV[a + t])
    first, at = at - 1, at + #p[5]
    local R, pers, existed, next_key, next_at = open(p, k, job, at, now, slack)
    if not R then return cmsgpack.pack(3, now) end
    targets[t] = { p, R, pers, existed, KEYS[k], first }
    k, at = next_key, next_at
  end
  for t = 1, count do
    local x = targets[t]
    x[7] = bring(x[2], x[1], x[3], x[5], now, slack)
  end

  local known
  if kind == 2 and job[8] == 1 then
    -- Any of them tells: a shadow charge that would have been denied was never held.
    for t = 1, count do known = known or earlier(targets[t][5], targets[t][2], targets[t][1], tag, now) end
  end
  local allowed = true
  for t = 1, count do
    local x = targets[t]
    local p, R, pers, f, rooms, fits = x[1], x[2], x[3], x[6], {}, true
    if not known then
      for i = 1, #p[5] do
        local answer = room_of(R, p, i, now, job[f + i], pers[i])
        rooms[i] = answer
        if answer > 0 then
          fits = false
          if answer == NEVER then
            for s = 1, count do
              if targets[s][7] then save(targets[s][5], targets[s][2], targets[s][1], now, targets[s][4], slack) end
            end
            return cmsgpack.pack(2, t - 1, i - 1, max(p[5][i][2], (terms(R, i, p[5][i]))))
          end
        end
      end
    end
    x[8], x[9] = rooms, fits
    allowed = allowed and (fits or p[6] == 1)
  end

  local expires = known or (kind == 2 and allowed and now + lease) or 0
  local out = { allowed and 1 or 0, now, expires }
  for t = 1, count do
    local x = targets[t]
    local p, R, pers, f, dirty = x[1], x[2], x[3], x[6], x[7]
    if allowed and x[9] and not known and kind ~= 1 then
      dirty = true
      local name
      if p[7] == 1 then name = sub(hex(sub(tag, 1, 6)), 1, 12) end
      if kind == 2 then
        reserve(R, p, pers, now, tag, name, expires, job[9], job, f, entropy)
      else
        for i, r in ipairs(p[5]) do
          local _, price = terms(R, i, r)
          take(r, R, r[7], now, job[f + i], price, false, entropy, pers[i], name)
        end
      end
    end
    write_figures(out, R, p, pers, now, x[8])
    if dirty then save(x[5], R, p, now, x[4], slack) end
  end
  return cmsgpack.pack(unpack(out))
end

local function run_end(job, k, a, now, slack)
  local count, tag, how, at, out, confirmed = job[2], job[5], job[6], 7, { 5 }, 0
  for t = 1, count do
    local p, key = policy(ARGV[a + t]), KEYS[k]
    local first = at - 1
    at = at + #p[5]
    local R, pers, existed, next_key, next_at = open(p, k, job, at, now, slack)
    if not R then return cmsgpack.pack(3, now) end
    k, at = next_key, next_at
    local swept = bring(R, p, pers, key, now, slack)
    local ended = redis.call('GET', ended_key(key, tag))
    local ending, expires, forget_at, amounts = 0, 0, 0, {}
    if ended then
      local e = { cmsgpack.unpack(ended) }
      if e[3] > now then
        ending, expires = e[1], e[2]
        for i = 1, #p[5] do amounts[i] = e[3 + i] end
      end
    end
    local pos = ending == 0 and find_hold(R, p, tag)
    if how == 2 then
      if pos then R[2] = sub(R[2], 1, pos + 29) .. '\0' .. sub(R[2], pos + 31) end
      -- What has ended was confirmed before: this is a repeat.
      if pos or ending ~= 0 then confirmed = confirmed + 1 end
    elseif pos then
      local function actual(i, n)
        if how ~= 1 then return 0 end
        return job[first + i] < 0 and n or job[first + i]
      end
      ending = how == 1 and 1 or 2
      expires, amounts = end_hold(R, p, pers, pos, now, actual)
      if how ~= 3 then remember(key, tag, ending, expires, now + p[3], amounts, now, slack) end
    end
    if pos or swept then save(key, R, p, now, existed, slack) end
    out[#out + 1], out[#out + 2] = ending, expires
    for i = 1, #p[5] do out[#out + 1] = amounts[i] or 0 end
  end
  if how == 2 then return cmsgpack.pack(6, confirmed) end
  return cmsgpack.pack(unpack(out))
end

local function run_admin(job, k, a, now, slack)
  local what, till, p, key = job[6], job[7], policy(ARGV[a + 1]), KEYS[k]
  local at = 8 + #p[5] * (what == 2 and 2 or 1)
  local R, pers, existed = open(p, k, job, at, now, slack)
  if not R then return cmsgpack.pack(3, now) end
  bring(R, p, pers, key, now, slack)
  if what == 0 then
    R = fresh(p)
    for i, r in ipairs(p[5]) do
      if pers[i] and pers[i][8] then
        redis.call('DEL', pers[i][8])
        pers[i][6] = 0
      end
      advance(r, R, r[7], now, pers[i])
    end
  elseif what == 1 then
    for i, r in ipairs(p[5]) do
      local _, price = terms(R, i, r)
      local given = grant(r, R, r[7], now, job[7 + i], price, pers[i], holds_of(R, p, r))
      -- What is settled has no place in the bucket any more: it is taken to have lain below all holds.
      if given > 0 and #R[2] > 0 then move_down(R, p, r, given, function() return true end) end
    end
  else
    local o = { till }
    for i, r in ipairs(p[5]) do
      o[2 * i], o[2 * i + 1] = job[6 + 2 * i], job[7 + 2 * i]
      if r[1] == 9 and o[2 * i] >= 0 then
        R[r[7]] = o[2 * i] == 0 and till or 0
        o[2 * i] = -1
      end
    end
    R[3] = o
    if till <= now then R[3] = 0 end
  end
  local out = { 1, now, 0 }
  write_figures(out, R, p, pers, now)
  save(key, R, p, now, existed, slack)
  return cmsgpack.pack(unpack(out))
end

local replies, k, a = {}, 1, 1
while a <= #ARGV do
  local job = cmsgpack.unpack(ARGV[a])
  local op, targets, now, slack = job[1], job[2], job[3], job[4]
  if now == 0 then now = redis_now() end
  local run = op == 1 and run_take or op == 2 and run_end or run_admin
  local ok, reply = pcall(run, job, k, a, now, slack)
  if not ok then
    local reason = type(reply) == 'table' and reply.err or tostring(reply)
    reply = cmsgpack.pack(4, KEYS[k], reason)
  end
  replies[#replies + 1] = reply
  for t = 1, targets do k = k + 1 + policy(ARGV[a + t])[8] end
  a = a + 1 + targets
end
return replies
