-- Keys that are to be refreshed.
--
-- KEYS  of a job: the queue (a set, shared with older clients) · `order:{queue}`, those that are due, by urgency · `held:{queue}`,
--       those that are in work or put off, by when that ends (milliseconds) · `jobs:{queue}`, what is known of each (a hash). The
--       hash tag is the first one's own key: all lie in one slot. Only a Cluster has to be told of the other three; elsewhere
--       they would be half of what a call sends.
-- ARGV  of a job: operation, time ('' asks Redis; else microseconds), number of arguments, then the arguments.
-- reply Per job a table, described at its operation.
--
-- A member of the set is a job, whatever stands beside it, until it is done: it stays there while it is in work, so that
-- another client's SADD finds it. What stands beside it is in `order` or in `held`; what is in neither was put there by an older
-- client, and what is no longer in the set was taken by one. Of each `jobs` says
--   <token or -> <repeats> <urgency> <reason> <queued at, milliseconds>
--
-- It is a script because whether a job is given, and to whom, depends on all four, and nothing may come between.

local call = redis.call

local function read(q, member)
  local job = {}
  local said = call('HGET', q.jobs, member) or ''
  job.token, job.repeats, job.urgency, job.reason, job.at = string.match(said, '^(%S+) (%d+) (%S+) (%S+) (%d+)$')
  if not job.token then
    job.token, job.repeats, job.urgency, job.reason, job.at = '-', '0', '0', 'stranger', string.format('%.0f', q.now)
  end
  return job
end

local function write(q, member, job)
  local parts = { job.token, job.repeats, job.urgency, job.reason, job.at }
  call('HSET', q.jobs, member, table.concat(parts, ' '))
end

local function forget(q, member)
  call('ZREM', q.order, member)
  call('ZREM', q.held, member)
  call('HDEL', q.jobs, member)
end

local function is_queued(q, member) return call('SISMEMBER', q.queue, member) == 1 end

local ops = {}

-- reason, pairs of member and urgency → of each 'queued', 'waiting', 'working' or 'gone'
function ops.queue(q, a, count)
  local reason, replies = ARGV[a], {}
  for i = a + 1, a + count - 1, 2 do
    local member, urgency = ARGV[i], ARGV[i + 1]
    local held, is_there = call('ZSCORE', q.held, member), is_queued(q, member)
    local is_known = held or call('ZSCORE', q.order, member)
    local job = read(q, member)
    local reply
    if held and job.token ~= '-' and tonumber(held) > q.now then
      reply = 'working'
    elseif is_there and is_known then
      reply = 'waiting'
      local is_first_asked, is_urgent =
        reason == 'asked' and job.reason ~= 'asked', tonumber(urgency) > tonumber(job.urgency)
      if is_first_asked then job.reason, job.at = reason, string.format('%.0f', q.now) end
      if is_urgent then
        -- Whoever is asked for more often while it waits moves ahead.
        job.urgency = urgency
        if not held then call('ZADD', q.order, urgency, member) end
      end
      if is_first_asked or is_urgent then write(q, member, job) end
    elseif reason == 'stranger' and not is_there then
      reply = 'gone'
    else
      reply = 'queued'
      call('SADD', q.queue, member)
      call('ZREM', q.held, member)
      call('ZADD', q.order, urgency, member)
      job.token, job.repeats, job.urgency, job.reason, job.at = '-', '0', urgency, reason, string.format('%.0f', q.now)
      write(q, member, job)
    end
    replies[#replies + 1] = reply
  end
  return replies
end

local function has_strangers(q) return call('SCARD', q.queue) ~= call('ZCARD', q.order) + call('ZCARD', q.held) end

-- cursor, count → the next cursor, then members that nobody has weighed yet
function ops.strangers(q, a)
  if not has_strangers(q) then return { '0' } end
  local page = call('SSCAN', q.queue, ARGV[a], 'COUNT', ARGV[a + 1])
  local reply = { page[1] }
  for _, member in ipairs(page[2]) do
    if not call('ZSCORE', q.order, member) and not call('ZSCORE', q.held, member) then reply[#reply + 1] = member end
  end
  return reply
end

-- member that can be no key → 1
function ops.drop(q, a)
  forget(q, ARGV[a])
  return { call('SREM', q.queue, ARGV[a]) }
end

-- token, lease (ms) → 1, member, repeats, reason, waited (ms); or 0, ms until the next is due (-1: none is known)
local function claim(q, token, lease)
  for _, member in ipairs(call('ZRANGE', q.held, '-inf', string.format('%.0f', q.now), 'BYSCORE', 'LIMIT', 0, 64)) do
    if is_queued(q, member) then
      local job = read(q, member)
      call('ZREM', q.held, member)
      call('ZADD', q.order, job.urgency, member)
      job.token = '-'
      write(q, member, job)
    else
      forget(q, member)
    end
  end
  for _, member in ipairs(call('ZRANGE', q.order, 0, 63, 'REV')) do
    if is_queued(q, member) then
      local job = read(q, member)
      call('ZREM', q.order, member)
      call('ZADD', q.held, string.format('%.0f', q.now + lease), member)
      job.token = token
      write(q, member, job)
      return { 1, member, tonumber(job.repeats), job.reason, math.max(0, q.now - tonumber(job.at)) }
    end
    forget(q, member)
  end
  if call('ZCARD', q.order) > 0 then return { 0, 0 } end
  local next = call('ZRANGE', q.held, 0, 0, 'WITHSCORES')
  return { 0, next[2] and math.max(0, tonumber(next[2]) - q.now) or -1 }
end

function ops.claim(q, a) return claim(q, ARGV[a], tonumber(ARGV[a + 1])) end

local function holds(q, member, token)
  local job = read(q, member)
  return job.token == token and call('ZSCORE', q.held, member) and job
end

-- member, token, lease (ms) → 1 if it is still held
function ops.renew(q, a)
  if not holds(q, ARGV[a], ARGV[a + 1]) then return { 0 } end
  call('ZADD', q.held, string.format('%.0f', q.now + tonumber(ARGV[a + 2])), ARGV[a])
  return { 1 }
end

-- member, token, 'done', 'retry' or 'back', ms until it is due → 1 if it was held
function ops.finish(q, a)
  local member, how, after = ARGV[a], ARGV[a + 2], tonumber(ARGV[a + 3])
  local job = holds(q, member, ARGV[a + 1])
  if not job then return { 0 } end
  if how == 'done' then
    call('SREM', q.queue, member)
    forget(q, member)
  elseif not is_queued(q, member) then
    forget(q, member)
  else
    job.token = '-'
    if how == 'retry' then job.repeats = string.format('%.0f', tonumber(job.repeats) + 1) end
    write(q, member, job)
    if after > 0 then
      call('ZADD', q.held, string.format('%.0f', q.now + after), member)
    else
      call('ZREM', q.held, member)
      call('ZADD', q.order, job.urgency, member)
    end
  end
  return { 1 }
end

-- member, token, how and ms of the job that has ended ('' for none), lease (ms) → as a claim with the same token; or -1: somebody
-- else's members are to be weighed first
function ops.next(q, a)
  if ARGV[a] ~= '' then ops.finish(q, a) end
  if has_strangers(q) then return { -1 } end
  return claim(q, ARGV[a + 1], tonumber(ARGV[a + 4]))
end

-- member → jobs in the queue, whether it is one, how many are before it (-1: it is not due), ms until it is (-1: it is),
-- whether it is in work, repeats
function ops.find(q, a)
  local member = ARGV[a]
  local job, rank, held = read(q, member), call('ZREVRANK', q.order, member), call('ZSCORE', q.held, member)
  local is_there, left = is_queued(q, member) and 1 or 0, held and tonumber(held) - q.now or -1
  local works = job.token ~= '-' and left > 0
  return { call('SCARD', q.queue), is_there, rank or -1, math.max(-1, left), works and 1 or 0, tonumber(job.repeats) }
end

local replies, k, a = {}, 1, 1
while a <= #ARGV do
  local op, now, count = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
  local tag = ':{' .. KEYS[k] .. '}'
  local q = { queue = KEYS[k], order = 'order' .. tag, held = 'held' .. tag, jobs = 'jobs' .. tag }
  if now == '' then
    local time = call('TIME')
    q.now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  else
    q.now = math.floor(tonumber(now) / 1000)
  end
  local ok, reply = pcall(ops[op], q, a + 3, count)
  if not ok then reply = type(reply) == 'table' and reply or redis.error_reply(tostring(reply)) end
  replies[#replies + 1] = reply
  k, a = k + (KEYS[k + 1] == q.order and 4 or 1), a + 3 + count
end
return replies
