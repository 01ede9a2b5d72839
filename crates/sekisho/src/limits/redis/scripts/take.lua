-- A take: check, peek or reserve, over all rules of all targets or none.
--
-- A policy `p` is {shape, release on expiry, memory of ends, size of a hold, rules, shadow, seed keys, periods, an empty
-- record}. `shape` names its rules; a record of another shape was written under another configuration and is taken over
-- rule by rule. A record is a msgpack stream of shape, holds, override, ends, then the slots of each rule, last the time
-- until which Redis keeps it.

L.policies = {}
function L.policy(packed)
  local p = L.policies[packed]
  if not p then
    p = cmsgpack.unpack(packed)
    L.policies[packed] = p
  end
  return p
end

function L.fresh(p) return { cmsgpack.unpack(p[9]) } end

function L.load(key, p)
  local raw = redis.call('GET', key)
  if not raw then return L.fresh(p), false end
  local R = { cmsgpack.unpack(raw) }
  if R[1] == p[1] then return R, true end
  return L.take_over(R, p), true
end

-- Writes a record for as long as it says anything, or takes it away. Redis keeps it up to twice as long, so that most writes
-- leave its TTL as it is: setting one costs as much as the rest of the write.
function L.save(key, R, p, now, existed, slack)
  local keep, rules, holds = R[3] ~= 0 and R[3][1] or 0, p[5], R[2]
  for i = 1, #rules do
    local idle = L.idle_at(rules[i], R, rules[i][7])
    if idle > keep then keep = idle end
  end
  if holds ~= '' then keep = max(keep, L.kept_for_holds(R, p, now)) end
  if R[4] ~= '' then keep = max(keep, L.kept_for_ends(R)) end
  if keep <= now then
    if existed then redis.call('DEL', key) end
  elseif existed and keep <= R[#R] then
    redis.call('SET', key, cmsgpack.pack(unpack(R)), 'KEEPTTL')
  else
    keep = keep + min(keep - now, 3600000000)
    R[#R] = keep
    redis.call('SET', key, cmsgpack.pack(unpack(R)), 'PX', ceil((keep - now) / 1000) + slack)
  end
end

-- Reads everything a target needs: its record, its periods, whether the record was there, the next key and the next byte of
-- the body. Returns nothing when the caller's idea of a period that starts now is not Redis's.
function L.open(p, k, body, at, now, slack)
  local R, existed = L.load(KEYS[k], p)
  if p[8] == 0 then return R, p, existed, k + 1, at end
  local rules, pers, part = p[5], {}, sub(body, at, at + 16 * p[8] - 1)
  at = at + 16 * p[8]
  for i = 1, #rules do
    local r = rules[i]
    if r[1] == 2 then
      if now >= R[r[7] + 3] then
        local start, stop = sunpack('>I8I8', part, r[3])
        if now < start or now >= stop then return nil end
      end
      pers[i] = part
    elseif r[1] > 10 then
      pers[i], at = L.seed_key(r, KEYS[k + r[6]], part, body, at, now, slack)
      if not pers[i] then return nil end
    end
  end
  return R, pers, existed, k + 1 + p[7], at
end

-- Brings a record to `now`; true if leases ran out in it.
function L.bring(R, p, pers, key, now, slack)
  if R[4] ~= '' then L.forget(R, now) end
  local swept = R[2] ~= '' and L.sweep(R, p, pers, key, now, slack)
  local rules = p[5]
  for i = 1, #rules do L.advance(rules[i], R, rules[i][7], now, pers[i]) end
  if R[3] ~= 0 and R[3][1] <= now then R[3] = 0 end
  return swept
end

-- What users see of every rule, one string a rule: room, limit, used, held, remaining, reset at.
function L.outcome(R, p, pers, now, rooms)
  local rules, out = p[5], ''
  for i = 1, #rules do
    local r = rules[i]
    local limit, price, kind, holds = r[2], r[3], r[1], false
    if R[3] ~= 0 then limit, price = L.terms(R, i, r) end
    if R[2] ~= '' and (kind == 3 or kind == 7 or kind == 13) then holds = L.holds_of(R, p, r) end
    out = out .. spack('>i8I7I7I7I7I7', rooms[i] or 0, L.figures(r, R, r[7], now, limit, price, pers[i], holds))
  end
  return out
end

function L.run_take(body, count, k, a, now, slack)
  local tag, kind, lease, repeated, provisional, entropy, at = sunpack('>c32I1I7I1I1I4', body, 15)
  local targets, allowed, known = {}, true, nil
  for t = 1, count do
    local p = L.policy(ARGV[a + t])
    local first, key = at, KEYS[k]
    local R, pers, existed
    R, pers, existed, k, at = L.open(p, k, body, at + 6 * #p[5], now, slack)
    if not R then return spack('>I1I8', 3, now) end
    targets[t] = { p, R, pers, existed, key, first, false, {}, true }
  end
  for t = 1, count do
    local x = targets[t]
    x[7] = L.bring(x[2], x[1], x[3], x[5], now, slack)
    -- Any of them tells: a shadow charge that would have been denied was never held.
    if kind == 2 and repeated == 1 then known = known or L.earlier(x[5], x[2], x[1], tag, now) end
  end

  for t = 1, known and 0 or count do
    local x = targets[t]
    local p, R, pers, f, rooms = x[1], x[2], x[3], x[6], x[8]
    local rules = p[5]
    for i = 1, #rules do
      local r, n, answer = rules[i], (sunpack('>I6', body, f + 6 * i - 6)), nil
      if R[3] == 0 and r[1] ~= 7 then
        answer = L.room(r, R, r[7], now, n, r[2], r[3], pers[i], false)
      else
        answer = L.room_of(R, p, i, now, n, pers[i])
      end
      rooms[i] = answer
      if answer > 0 then
        x[9] = false
        if answer == math.huge then return L.never(targets, count, t, i, now, slack) end
      end
    end
    allowed = allowed and (x[9] or p[6] == 1)
  end

  local expires = known or (kind == 2 and allowed and now + lease) or 0
  local out = spack('>I1I7I7', allowed and 1 or 0, now, expires)
  for t = 1, count do
    local x = targets[t]
    local p, R, pers, f, dirty = x[1], x[2], x[3], x[6], x[7]
    if allowed and x[9] and not known and kind ~= 1 then
      dirty = true
      local name = sub(tag, 1, 12)
      if kind == 2 then
        L.reserve(R, p, pers, now, tag, name, expires, provisional, body, f, entropy)
      else
        local rules = p[5]
        for i = 1, #rules do
          local r = rules[i]
          local _, price = nil, r[3]
          if R[3] ~= 0 then _, price = L.terms(R, i, r) end
          L.take(r, R, r[7], now, (sunpack('>I6', body, f + 6 * i - 6)), price, false, entropy, pers[i], name)
        end
      end
    end
    out = out .. L.outcome(R, p, pers, now, x[8])
    if dirty then L.save(x[5], R, p, now, x[4], slack) end
  end
  return out
end
