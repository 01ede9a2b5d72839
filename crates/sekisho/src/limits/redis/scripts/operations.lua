-- Settle, release, confirm; reset, grant, override, block, charge.

-- A body says 'as reserved' or 'no override' by the largest number of its six bytes.
function L.run_end(body, count, k, a, now, slack)
  local tag, how, at = sunpack('>c32I1', body, 15)
  local out, confirmed, targets = '\5', 0, {}
  for t = 1, count do
    local p, key, first = L.policy(ARGV[a + t]), KEYS[k], at
    local R, pers, existed
    R, pers, existed, k, at = L.open(p, k, body, at + 6 * #p[5], now, slack)
    if not R then return spack('>I1I8', 3, now) end
    -- What is still open has not ended.
    local ended = not L.find_hold(R, p, tag) and L.ended(key, R, tag, now)
    targets[t] = { p, R, pers, existed, key, first, ended }
  end
  for t = 1, count do
    local p, R, pers, existed, key, first, ended = unpack(targets[t])
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
        return settled == 281474976710655 and n or settled
      end
      local expires
      ending = how == 1 and 1 or 2
      expires, amounts = L.end_hold(R, p, pers, pos, now, actual)
      if how ~= 3 then L.remember(key, R, tag, ending, expires, now + p[3], amounts, now, slack) end
    end
    if pos or swept then L.save(key, R, p, now, existed, slack) end
    out = out .. spack('>I1', ending)
    for i = 1, #p[5] do out = out .. spack('>I6', amounts[i] or 0) end
  end
  if how == 2 then return spack('>I1I1', 6, confirmed) end
  return out
end

function L.run_admin(body, _, k, a, now, slack)
  local what, till, first = sunpack('>I1I8', body, 15)
  local p, key = L.policy(ARGV[a + 1]), KEYS[k]
  local rules = p[5]
  local R, pers, existed = L.open(p, k, body, first + #rules * (what == 2 and 14 or 6), now, slack)
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
    for i, r in ipairs(rules) do
      local _, price = L.terms(R, i, r)
      local n = sunpack('>I6', body, first + 6 * i - 6)
      L.take(r, R, r[7], now, n, price, false, 4294967295, pers[i], string.format('%012x', till))
    end
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
