-- Saves sessions: a script of its own, because it is called most, and every call makes its script anew.
--
-- KEYS  of a job: session ended seen idle, and on one server also only nbf:user nbf:all sidx. On Cluster these lie in other
--       slots, and the caller asks for them before and after.
-- ARGV  of a job: head sid json expected. The head is packed, because an argument costs more than what is done with it: over,
--       a byte; keys, a byte; counted, a byte; now, ttl, created, max_lifetime, mark, idle, since, of 8 bytes each (ms; 0 for none).
--       `over`: n nothing, a anything, t this (its ttl stays), c what was written a moment ago, to be confirmed. Without a now Redis is asked. `mark` is what the caller has read, on
--       Cluster; `since` is when it began under another id.
-- reply of a job: 'saved' known ttl since · 'ended' mark · 'changed' value. `known` is 0 unless it is to be counted.
--
-- It is a script because what is saved depends on what has ended, and nothing may come between. Every job reads before it
-- writes, because Redis rolls nothing back, and is caught for itself. Times are milliseconds, far below 2^53.

local call, format, floor, SKEW = redis.call, string.format, math.floor, 60000

-- An entry says for a while longer that its session is alive, so that most saves find nothing to write here. What has run out
-- goes, so that the index never grows past what is alive; and it lives as long as its last entry. To `GT` a key without an
-- expiry, which a new one is, lives longer than any other.
local function index(sidx, sid, now, lives, counted)
  local known = call('ZSCORE', sidx, sid)
  if not known or tonumber(known) < now + lives then
    local longer = format('%.0f', lives * 1.125)
    call('ZREMRANGEBYSCORE', sidx, '-inf', format('%.0f', now))
    call('ZADD', sidx, format('%.0f', now + longer), sid)
    if call('PEXPIRE', sidx, longer, 'GT') == 0 and call('PTTL', sidx) < 0 then call('PEXPIRE', sidx, longer) end
  end
  return counted == 1 and call('ZCARD', sidx) or 0
end

local function careful()
-- CAREFUL
return save
end

-- Most sessions say when they were made, and nothing speaks against them: no tombstone, no mark. Then one look at whether any
-- of their keys is there answers all questions.
local function quick(k, a, now, over, keys, ttl, created, lifetime, mark, idle, began, counted)
  local left = created + lifetime - now
  if keys == 8 and over ~= 116 and over ~= 99 and idle == 0 and began == 0 and created > 0 and created <= now + SKEW and left > 0
    and call('EXISTS', unpack(KEYS, over == 110 and k or k + 1, k + 6)) == 0 then
    if left < ttl then ttl = left end
    call('SET', KEYS[k], ARGV[a + 2], 'PX', format('%.0f', ttl))
    return { 'saved', index(KEYS[k + 7], ARGV[a + 1], now, ttl, counted), ttl, created }
  end
  return careful()(k, a, now, over, keys, ttl, created, lifetime, mark, idle, began, counted)
end

local replies, k, time = {}, 1, nil
for a = 1, #ARGV, 4 do
  local over, keys, counted, now, ttl, created, lifetime, mark, idle, began = struct.unpack('>BBBI8I8I8I8I8I8I8', ARGV[a])
  if now == 0 then
    if not time then
      local t = call('TIME')
      time = t[1] * 1000 + floor(t[2] / 1000)
    end
    now = time
  end
  local ok, reply = pcall(quick, k, a, now, over, keys, ttl, created, lifetime, mark, idle, began, counted)
  if not ok then reply = type(reply) == 'table' and reply or redis.error_reply(tostring(reply)) end
  replies[#replies + 1] = reply
  k = k + keys
end
return replies
