-- How often keys are asked for.
--
-- KEYS  of a job: the ranks (a sorted set) · `decay:{ranks}`, how far the daily decay is (a hash) · `decayed:{ranks}`, who has
--       been through today (a set). The hash tag is the first one's own key: all lie in one slot.
-- ARGV  of a job: operation, time ('' asks Redis; else microseconds), decay ("seed" or "forward"), factor a day, number of
--       arguments, then the arguments.
-- reply Per job a table, described at its operation.
--
-- The hash says: day, until which all scores have decayed; target and cursor, while a decay is under way; or epoch, the day on
-- which an access weighs 1, when weights grow instead.
--
-- It is a script because a score and what says that it has decayed are written together: whoever dies between two batches
-- leaves a decay that the next one goes on with, and no score loses twice.

local call = redis.call
local function exact(number) return string.format('%.17g', number) end

-- What 1 in the set is worth today, and the day on which it is 1 if that is not said yet.
local function worth(job)
  if job.decay ~= 'forward' then return 1 end
  local said = call('HMGET', job.state, 'epoch', 'day')
  local epoch = tonumber(said[1] or said[2] or job.today)
  return job.factor ^ (job.today - epoch), not said[1] and epoch
end

local ops = {}

-- pairs of member and accesses → their scores, then how many members there are
function ops.count(job, a, count)
  local now, epoch = worth(job)
  if epoch then
    call('HSET', job.state, 'epoch', epoch)
    call('HDEL', job.state, 'day', 'target', 'cursor')
  end
  local scores = {}
  for i = a, a + count - 1, 2 do
    if now == 1 then
      -- As it came and as it comes: to read and write numbers would take as long as to count.
      scores[#scores + 1] = call('ZINCRBY', job.ranks, ARGV[i + 1], ARGV[i])
    else
      local score = call('ZINCRBY', job.ranks, exact(tonumber(ARGV[i + 1]) / now), ARGV[i])
      scores[#scores + 1] = exact(tonumber(score) * now)
    end
  end
  scores[#scores + 1] = call('ZCARD', job.ranks)
  return scores
end

-- members → their scores
function ops.scores(job, a, count)
  local now, scores = worth(job), {}
  for i = a, a + count - 1 do
    scores[#scores + 1] = exact((tonumber(call('ZSCORE', job.ranks, ARGV[i]) or '0')) * now)
  end
  return scores
end

-- Removes some of what has come to nothing, or is too much. → whether there is more
local function trim(job, floor, most, batch)
  local low = call('ZRANGE', job.ranks, '-inf', '(' .. exact(floor / worth(job)), 'BYSCORE', 'LIMIT', 0, batch)
  if #low > 0 then call('ZREM', job.ranks, unpack(low)) end
  local surplus = call('ZCARD', job.ranks) - most
  if surplus > 0 then call('ZPOPMIN', job.ranks, math.min(surplus, batch)) end
  return { (#low == batch or surplus > batch) and 1 or 0 }
end

-- floor, most, batch → whether there is more
function ops.decay(job, a)
  local floor, most, batch = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  if job.decay == 'forward' then return trim(job, floor, most, batch) end
  local said = call('HMGET', job.state, 'day', 'target', 'cursor', 'epoch')
  local day, target = tonumber(said[1] or ''), tonumber(said[2] or '')
  if said[4] then
    -- Weights have grown since that day: it is as if nothing had decayed.
    call('HSET', job.state, 'day', said[4])
    call('HDEL', job.state, 'epoch')
    return { 1 }
  elseif not day then
    -- What is there was written by others, who know how old it is.
    call('HSET', job.state, 'day', job.today)
    return { 1 }
  elseif not target then
    if job.today <= day then return trim(job, floor, most, batch) end
    call('UNLINK', job.decayed)
    call('HSET', job.state, 'target', job.today, 'cursor', '0')
    return { 1 }
  end
  local left = job.factor ^ (target - day)
  local page = call('ZSCAN', job.ranks, said[3] or '0', 'COUNT', batch)
  for i = 1, #page[2], 2 do
    local member, score = page[2][i], tonumber(page[2][i + 1]) * left
    -- A scan may show a member twice.
    if call('SADD', job.decayed, member) == 1 then
      if score < floor then call('ZREM', job.ranks, member) else call('ZADD', job.ranks, exact(score), member) end
    end
  end
  if page[1] ~= '0' then
    call('HSET', job.state, 'cursor', page[1])
  else
    call('HSET', job.state, 'day', target)
    call('HDEL', job.state, 'target', 'cursor')
    call('UNLINK', job.decayed)
  end
  return { 1 }
end

local replies, k, a = {}, 1, 1
while a <= #ARGV do
  local op, now, count = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 4])
  local job = { ranks = KEYS[k], state = KEYS[k + 1], decayed = KEYS[k + 2], decay = ARGV[a + 2] }
  job.factor = tonumber(ARGV[a + 3])
  local seconds = now == '' and tonumber(call('TIME')[1]) or tonumber(now) / 1000000
  job.today = math.floor(seconds / 86400)
  local ok, reply = pcall(ops[op], job, a + 5, count)
  if not ok then reply = type(reply) == 'table' and reply or redis.error_reply(tostring(reply)) end
  replies[#replies + 1] = reply
  k, a = k + 3, a + 5 + count
end
return replies
