-- Sessions: touch, end, marks and the index of a user's sessions. What is saved is decided in save.lua.
--
-- KEYS  of a job: what its operation names below, in that order. On one server all that stands in brackets is there too, and
--       the job is the whole decision. On Cluster these lie in other slots: the caller asks for them in jobs of their own, in
--       the order that store.rs of this domain and its contract need.
-- ARGV  of a job: operation, number of keys, number of arguments, now (ms; empty asks Redis), then the arguments.
-- reply Per job a table, described at its operation.
--
-- It is a script because what is written depends on what is there, and nothing may come between. Every operation reads before
-- it writes, because Redis rolls nothing back. Many jobs run in one call; each is caught for itself.
-- Times are milliseconds, far below 2^53.

local function whole(text) return text and tonumber(text) end

local function max(a, b) return a and b and math.max(a, b) or a or b end

-- What has run out goes first, so that the index never grows past what is alive.
local function index(key, sid, expires, now)
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  call('ZADD', key, expires, sid)
  local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  call('PEXPIRE', key, string.format('%.0f', math.max(1, last[2] - now)))
  return call('ZCARD', key)
end

-- A mark only ever grows, and so does its time to live.
local function keep(key, value, ttl)
  local had = call('PTTL', key)
  if had == -1 then return call('SET', key, value) end
  call('SET', key, value, 'PX', string.format('%.0f', math.max(ttl, had)))
end

local ops = {}

-- session ended seen idle → value ttl ended seen idle now. On one server plain commands do this.
function ops.get(k, _, _, now)
  local v = call('MGET', unpack(KEYS, k, k + 3))
  return { v[1], call('PTTL', KEYS[k]), v[2], v[3], v[4], now }
end

-- session ended [sidx] · sid ttl until [told] → 1 and what it has left, or 0 where it is not there or has ended. `until` is the
-- absolute cap. With `told`, the session as well.
function ops.touch(k, a, keys, now, count)
  local sid, ttl, left = ARGV[a], whole(ARGV[a + 1]), whole(ARGV[a + 2]) - now
  local had = call('PTTL', KEYS[k])
  if had == -2 or left <= 0 or call('EXISTS', KEYS[k + 1]) == 1 then return { 0 } end
  local value = keys > 2 and count > 3 and call('GET', KEYS[k])
  ttl = math.min(ttl, left)
  -- Without an expiry it already lives as long as it may.
  if had >= 0 and had < ttl then
    call('PEXPIRE', KEYS[k], string.format('%.0f', ttl))
    had = ttl
  end
  if keys > 2 then index(KEYS[k + 2], sid, had < 0 and now + left or math.min(now + had, now + left), now) end
  return { 1, had, value }
end

-- session ended seen idle [sidx] · sid keep expected strict → 1 if it was there, else 0. Where something is expected, only that
-- ends; `strict`: and only if it has not ended before.
function ops.finish(k, a, keys)
  local expected, there = ARGV[a + 2], call('EXISTS', KEYS[k])
  if expected ~= '' and call('GET', KEYS[k]) ~= expected then return { 0 } end
  if ARGV[a + 3] == '1' and call('EXISTS', KEYS[k + 1]) == 1 then return { 0 } end
  call('SET', KEYS[k + 1], 'true', 'PX', ARGV[a + 1])
  call('UNLINK', KEYS[k], KEYS[k + 2], KEYS[k + 3])
  if keys > 4 then call('ZREM', KEYS[k + 4], ARGV[a]) end
  return { there }
end

-- seen · keep → when it was first seen
function ops.see(k, a, _, now)
  call('SET', KEYS[k], string.format('%.0f', now), 'NX', 'PX', ARGV[a])
  return { call('GET', KEYS[k]) }
end

-- a mark · 1 if it is `only` → its value
function ops.marked(k, a, _, now)
  local value = redis.pcall('GET', KEYS[k])
  return { readable(KEYS[k], type(value) == 'string' and value, ARGV[a] == '1', now) }
end

-- sidx · sid left → known. What is about to end, see below, is not put back.
function ops.index(k, a, _, now)
  if call('ZSCORE', KEYS[k], ':' .. ARGV[a]) then return { call('ZCARD', KEYS[k]) } end
  return { index(KEYS[k], ARGV[a], now + whole(ARGV[a + 1]), now) }
end

-- sidx · sid → 1 or 0
function ops.known(k, a)
  return { call('ZSCORE', KEYS[k], ARGV[a]) and 1 or 0 }
end

-- sidx · sids … → how many went
function ops.forget(k, a, _, _, count)
  return { call('ZREM', KEYS[k], unpack(ARGV, a, a + count - 1)) }
end

-- sidx · how many at most, 0 for all → sids
function ops.sids(k, a, _, now)
  call('ZREMRANGEBYSCORE', KEYS[k], '-inf', now)
  return call('ZRANGE', KEYS[k], 0, whole(ARGV[a]) - 1)
end

-- sidx · most own prefix keep_ended sids …, the oldest first → those that go, so that with `own` no more than `most` are left of
-- them. None goes where `own` has gone itself: whoever took it has counted already. On one server they end here; their keys are
-- `prefix` and the sid. On Cluster, where there is no prefix, the caller ends them after this. For a minute `:` and the sid say so,
-- so that nobody who found it alive a moment ago puts it back; no sid holds a colon.
function ops.surplus(k, a, _, now, count)
  local most, own, prefix, keep_ended = whole(ARGV[a]), ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local known, gone = {}, {}
  for i = a + 4, a + count - 1 do
    if call('ZSCORE', KEYS[k], ARGV[i]) then
      known[#known + 1] = ARGV[i]
    elseif call('ZSCORE', KEYS[k], ':' .. ARGV[i]) then
      gone[#gone + 1] = ARGV[i]
    end
  end
  if not call('ZSCORE', KEYS[k], own) then return gone end
  for i = 1, math.min(#known, #known + 1 - most) do
    local sid, session = known[i], prefix .. known[i]
    call('ZREM', KEYS[k], sid)
    if prefix == '' then
      call('ZADD', KEYS[k], now + 60000, ':' .. sid)
    else
      call('SET', 'ended:{' .. session .. '}', 'true', 'PX', keep_ended)
      call('UNLINK', session, 'seen:{' .. session .. '}', 'idle:{' .. session .. '}')
    end
    gone[#gone + 1] = sid
  end
  return gone
end

-- A mark [sidx] · at (ms; empty: now) keep kept [prefix keep_ended batch] → at, how many known sessions are left to be removed.
-- `kept` names the session that stays, for `only`. On one server the first of the known sessions go at once; their keys are
-- `prefix` and the sid, and no caller can know them beforehand.
function ops.mark(k, a, keys, now)
  local at, ttl, kept = whole(ARGV[a]) or now, whole(ARGV[a + 1]), ARGV[a + 2]
  local old = redis.pcall('GET', KEYS[k])
  old = readable(KEYS[k], type(old) == 'string' and old, kept ~= '', now)
  local before = old and whole(string.match(old, '%d+'))
  ttl = ttl + math.max(0, at - now)
  if kept ~= '' then
    -- One that has ended because another stayed must not live again because it stays now.
    local _, was, had_ended = only_of(old)
    if was ~= kept then had_ended = before and string.format('%.0f', before) or '' end
    local value = string.format('%.0f %s', max(before, at), kept)
    keep(KEYS[k], had_ended ~= '' and value .. ' ' .. had_ended or value, ttl)
  elseif not before or at > before then
    keep(KEYS[k], string.format('%.0f', at), ttl)
  end
  if keys == 1 then return { at, 0 } end
  local prefix, keep_ended, batch = ARGV[a + 3], ARGV[a + 4], whole(ARGV[a + 5])
  call('ZREMRANGEBYSCORE', KEYS[k + 1], '-inf', now)
  local known, stays = call('ZRANGE', KEYS[k + 1], 0, batch - 1), 0
  for _, sid in ipairs(known) do
    if sid == kept then
      stays = 1
    else
      local session = prefix .. sid
      call('SET', 'ended:{' .. session .. '}', 'true', 'PX', keep_ended)
      call('UNLINK', session, 'seen:{' .. session .. '}', 'idle:{' .. session .. '}')
      call('ZREM', KEYS[k + 1], sid)
    end
  end
  return { at, call('ZCARD', KEYS[k + 1]) - stays }
end

-- only · old new → 1 if the one that stays had the old id
function ops.rename(k, a)
  local only = call('GET', KEYS[k])
  local at, kept, before = only_of(only)
  if kept ~= ARGV[a] then return { 0 } end
  call('SET', KEYS[k], at .. ' ' .. ARGV[a + 1] .. (before ~= '' and ' ' .. before or ''), 'KEEPTTL')
  return { 1 }
end

local replies, k, a, time = {}, 1, 1, nil
while a <= #ARGV do
  local keys, count, now = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  if not now then
    if not time then
      local t = call('TIME')
      time = t[1] * 1000 + math.floor(t[2] / 1000)
    end
    now = time
  end
  local ok, reply = pcall(ops[ARGV[a]], k, a + 4, keys, now, count)
  if not ok then reply = type(reply) == 'table' and reply or redis.error_reply(tostring(reply)) end
  replies[#replies + 1] = reply
  k, a = k + keys, a + 4 + count
end
return replies
