-- Limits: check, reserve, peek, settle, release, reset, grant, override, block, charge, adopt.
--
-- KEYS  of a job: per target the record, then the current key of each rule that is kept under a seed's key.
-- ARGV  of a job: a body, then one msgpack policy per target. A body is binary, big-endian, the number of bytes in brackets:
--       op (1) targets (1) now (8; 0 asks Redis) slack (4), then by op:
--       1 take  tag (32, hex) kind (1: 0 check, 1 peek, 2 reserve) lease (7) repeated (1) provisional (1) entropy (4)
--       2 end   tag (32, hex) how (1: 0 release, 1 settle, 2 confirm, 3 take back) end of the lease (7; until then it was lost
--               if it is not known, 0: it was not)
--       3 admin what (1: 0 reset, 1 grant, 2 override, 3 block, 4 charge, 5 adopt) until (8; of a charge: a name)
--       then per target: an amount (6) per rule (for an override: limit (6) and price (8); to adopt, the amounts spent, then
--       those that stood here at least, tag (32, hex), holds (2), and of each tag (32), expires (7), amounts), start (8) and end (8) of the
--       period of each rule that has one, and label, before, after, each with its length (2), of each seed's counter.
-- reply One string per job, binary as well. Its first byte says what follows:
--       0 denied, 1 admitted: now (7) expires (7), per rule room (8, signed) limit used held remaining reset (7 each)
--       2 never fits: target (1) rule (1) the most (8) · 3 the caller's period is not Redis's: now (8)
--       4 unreadable: key and reason, each with its length (2) · 6 confirmed: how many targets (1)
--       5 ended: per target ending (1; 0 unknown), then an amount (6) per rule
--
-- It is a script because a decision reads and writes several rules at once, and nothing may come between. Many jobs run
-- in one call; each is caught for itself, and reads every key before it writes the first: Redis rolls nothing back. What the
-- server refuses altogether it refuses the whole call.

setmetatable(L, { __index = function(_, name)
  more()
  return rawget(L, name)
end })

-- What the whole server refuses, and no fault of a subject's. All of them are said before the first write. Redis 6 says
-- where it was said before it says what.
local REFUSALS = { MISCONF = true, NOPERM = true, NOREPLICAS = true, OOM = true, READONLY = true }
local function refusal(reason)
  local said = string.match(reason, '^%u+ .*') or string.match(reason, ': %-(%u+ .*)')
  if not said then return nil end
  if REFUSALS[string.match(said, '^%u+')] then return said end
  if string.find(said, 'user executing the script', 1, true) or string.find(said, 'ACL failure', 1, true) then
    return 'NOPERM ' .. said
  end
  return nil
end

local replies, k, a, count, time = {}, 1, 1, #ARGV, nil
while a <= count do
  local body = ARGV[a]
  local op, targets, now, slack = sunpack('>I1I1I8I4', body, 1)
  if now == 0 then
    if not time then
      local t = redis.call('TIME')
      time = t[1] * 1000000 + t[2]
    end
    now = time
  end
  local run = op == 1 and L.run_take or op == 2 and L.run_end or L.run_admin
  local ok, reply = pcall(run, body, targets, k, a, now, slack)
  if not ok then
    local reason = type(reply) == 'table' and reply.err or tostring(reply)
    local refused = refusal(reason)
    if refused then return { err = refused } end
    reply = spack('>I1I2c0I2c0', 4, #KEYS[k], KEYS[k], #reason, reason)
  end
  replies[#replies + 1] = reply
  for t = 1, targets do k = k + 1 + L.policy(ARGV[a + t])[7] end
  a = a + 1 + targets
end
return replies
