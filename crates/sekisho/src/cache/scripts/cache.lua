-- Entries of a cache and the leases of those who fill them.
--
-- KEYS  of a job: the entry · `fill:{entry}`, its lease. The hash tag is the entry's own key: both lie in one slot.
-- ARGV  of a job: operation, form ("hash" or "json"), number of arguments, then the arguments.
-- reply Per job a table, described at its operation.
--
-- The lease says, with its own expiry:
--   <token> <print>    whoever has the token fills, as long as the entry is still what it was when the lease was given
--   missing <seconds>  the origin had nothing there, at that time
--   failed <note>      the origin failed lately
--
-- While nothing is there to be renewed, an entry of no content stands in its place. So a plain DEL by a client that knows
-- nothing of leases is seen: what was fetched before it is not kept after it. Such clients read it as "not there": a hash
-- without `content`, or an empty string.
--
-- It is a script because what may be written depends on what is there, and nothing may come between. Every operation reads
-- before it writes, because Redis rolls nothing back. Many jobs run in one call; each is caught for itself.

local call = redis.call

-- The day of the Gregorian calendar, by counting from the first of March: leap days then come last.
local function iso(seconds)
  local days = math.floor(seconds / 86400)
  local second = seconds - days * 86400
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02dZ', year, month, day,
    math.floor(second / 3600), math.floor(second / 60) % 60, second % 60)
end

-- Each form: print (what is there, in short: '' for nothing), blank (no content, to be seen when it goes), read, write.
local forms = { hash = {}, json = {} }

function forms.hash.print(key)
  local v = call('HMGET', key, 'updated_at', 'version', 'fill')
  local length = call('HSTRLEN', key, 'content')
  if length == 0 and not v[1] and not v[2] and not v[3] and call('EXISTS', key) == 0 then return '' end
  return (v[1] or '') .. ':' .. (v[2] or '') .. ':' .. (v[3] or '') .. ':' .. length
end

-- What is refused by a full server comes first: after another write it would be let through, whatever it takes.
function forms.hash.blank(key, token, ttl)
  call('HSET', key, 'fill', token)
  call('HDEL', key, 'content', 'updated_at', 'etag', 'last_modified', 'version')
  call('PEXPIRE', key, ttl)
end

function forms.hash.is_blank(key) return call('HEXISTS', key, 'content') == 0 end

function forms.hash.read(key) return call('HMGET', key, 'content', 'updated_at', 'etag', 'last_modified') end

function forms.hash.write(key, ttl, now, content, etag, last_modified)
  local version = tonumber(call('HGET', key, 'version') or '') or 0
  call('HSET', key, 'content', content, 'updated_at', now, 'version', string.format('%.0f', version + 1))
  call('HDEL', key, 'fill', 'etag', 'last_modified')
  if etag ~= '' then call('HSET', key, 'etag', etag) end
  if last_modified ~= '' then call('HSET', key, 'last_modified', last_modified) end
  call('PEXPIRE', key, ttl)
end

function forms.json.print(key)
  local value = call('GET', key)
  return value and (value == '' and 'blank' or redis.sha1hex(value)) or ''
end

function forms.json.blank(key, _, ttl) call('SET', key, '', 'PX', ttl) end

function forms.json.is_blank(key) return call('STRLEN', key) == 0 end

-- When it was written stands inside, and is the reader's to find.
function forms.json.read(key)
  local value = call('GET', key)
  return { value ~= '' and value, false, false, false }
end

-- The object comes in two parts, and the time stands between them.
function forms.json.write(key, ttl, now, head, tail) call('SET', key, head .. iso(now) .. tail, 'PX', ttl) end

local function holds(form, entry, lease, token) return call('GET', lease) == token .. ' ' .. form.print(entry) end

local ops = {}

-- → now (s) · ttl (ms) · print · lease · content updated_at etag last_modified
function ops.look(form, entry, lease, a, now)
  local v = form.read(entry)
  return { now, call('PTTL', entry), form.print(entry), call('GET', lease), v[1], v[2], v[3], v[4] }
end

-- The same, but of a hash that has content not the content itself: it can be long, and a touch does without it.
function ops.glance(form, entry, lease, a, now)
  if form ~= forms.hash then return ops.look(form, entry, lease, a, now) end
  local v = call('HMGET', entry, 'updated_at', 'etag', 'last_modified')
  local content = call('HEXISTS', entry, 'content') == 1 and ''
  return { now, call('PTTL', entry), form.print(entry), call('GET', lease), content, v[1], v[2], v[3] }
end

local function take(form, entry, lease, token, ttl, print)
  local held = call('GET', lease)
  if held then
    local who, rest = string.match(held, '^(%S+) ?(.*)$')
    if who == 'failed' then return { 'failed', rest, call('PTTL', lease) } end
    -- A lease on what is no longer there ends in nothing, so it is not waited for.
    if who ~= 'missing' and who ~= token and rest == print then return { 'led' } end
  end
  if print == '' or form.is_blank(entry) then
    form.blank(entry, token, ttl)
    print = form.print(entry)
  end
  call('SET', lease, token .. ' ' .. print, 'PX', ttl)
  return { 'lead' }
end

-- token, ms, print that was seen → 'lead' · 'led' · 'failed' note ms · 'changed'
function ops.lease(form, entry, lease, a)
  local print = form.print(entry)
  if print ~= ARGV[a + 2] then return { 'changed' } end
  return take(form, entry, lease, ARGV[a], ARGV[a + 1], print)
end

-- token, ms, seconds → 'lead' etag last_modified · 'led' · 'failed' note ms · 'young': it was written less than so long ago ·
-- 'unsaid': it does not say when. A glance and a lease in one, for hashes.
function ops.borrow(form, entry, lease, a, now)
  local v = call('HMGET', entry, 'updated_at', 'etag', 'last_modified')
  if not form.is_blank(entry) then
    local at = tonumber(string.match(v[1] or '', '^%s*(%d+)'))
    if not at then return { 'unsaid' } end
    if math.max(0, now - at) < tonumber(ARGV[a + 2]) then return { 'young' } end
  end
  local reply = take(form, entry, lease, ARGV[a], ARGV[a + 1], form.print(entry))
  if reply[1] == 'lead' then reply[2], reply[3] = v[2], v[3] end
  return reply
end

-- token, ms → 1 if it is still held
function ops.renew(form, entry, lease, a)
  if not holds(form, entry, lease, ARGV[a]) then return { 0 } end
  call('PEXPIRE', lease, ARGV[a + 1])
  if form.is_blank(entry) then call('PEXPIRE', entry, ARGV[a + 1]) end
  return { 1 }
end

-- token, ms, the form's parts → 1 if it was written
function ops.fill(form, entry, lease, a, now, count)
  if not holds(form, entry, lease, ARGV[a]) then return { 0 } end
  form.write(entry, ARGV[a + 1], now, unpack(ARGV, a + 2, a + count - 1))
  call('UNLINK', lease)
  return { 1 }
end

-- token, ms → 1 if it was renewed: only for hashes, where the time stands beside the content
function ops.touch(form, entry, lease, a, now)
  if not holds(form, entry, lease, ARGV[a]) or form.is_blank(entry) then return { 0 } end
  call('HSET', entry, 'updated_at', now)
  call('HINCRBY', entry, 'version', 1)
  call('PEXPIRE', entry, ARGV[a + 1])
  call('UNLINK', lease)
  return { 1 }
end

-- token, ms (0: not remembered) → 1 if it was so written
function ops.missing(form, entry, lease, a, now)
  local token, ttl = ARGV[a], ARGV[a + 1]
  if not holds(form, entry, lease, token) then return { 0 } end
  if ttl == '0' then
    call('UNLINK', entry, lease)
  else
    form.blank(entry, token, ttl)
    call('SET', lease, 'missing ' .. now, 'PX', ttl)
  end
  return { 1 }
end

-- token, ms (0: nobody is told), note → 1 if it was held
function ops.failed(form, entry, lease, a)
  local token, ttl, note = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  if not holds(form, entry, lease, token) then return { 0 } end
  if form.is_blank(entry) then call('UNLINK', entry) end
  if ttl == '0' then call('UNLINK', lease) else call('SET', lease, 'failed ' .. note, 'PX', ttl) end
  return { 1 }
end

-- ms, the form's parts → 1
function ops.put(form, entry, lease, a, now, count)
  form.write(entry, ARGV[a], now, unpack(ARGV, a + 1, a + count - 1))
  call('UNLINK', lease)
  return { 1 }
end

-- → how many of entry and lease there were
function ops.invalidate(form, entry, lease) return { call('UNLINK', entry, lease) } end

-- print → 1 if that is what was there, and went, with all that was known of it; only that the origin failed lately is still so.
-- Of another type than the form's, it goes in any case.
function ops.discard(form, entry, lease, a)
  if form.print(entry) ~= ARGV[a] then return { 0 } end
  call('UNLINK', entry)
  if not string.match(call('GET', lease) or '', '^failed ') then call('UNLINK', lease) end
  return { 1 }
end

local TYPES = { hash = 'hash', json = 'string' }
local time = call('TIME')[1]
local replies, k, a = {}, 1, 1
while a <= #ARGV do
  local op, name, count = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
  local entry = KEYS[k]
  local ok, reply = pcall(function()
    local kind = call('TYPE', entry).ok
    -- Nobody can have meant this as a value of the cache.
    if kind ~= 'none' and kind ~= TYPES[name] then call('UNLINK', entry) end
    return ops[op](forms[name], entry, KEYS[k + 1], a + 3, time, count)
  end)
  if not ok then reply = type(reply) == 'table' and reply or redis.error_reply(tostring(reply)) end
  replies[#replies + 1] = reply
  k, a = k + 2, a + 3 + count
end
return replies
