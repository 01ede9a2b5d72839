-- Revokes a token, sets a mark, or asks for a token; many jobs at a time.
--
-- KEYS   one per job
-- ARGV   three per job: what ("revoke", "mark", "ask") · the mark in milliseconds · milliseconds to keep it
-- reply  one per job: 1 for a revocation, the mark that holds now as a string, 1 or 0 for a question
--
-- A script, because neither a deadline nor a mark may shrink, whoever else writes at the same time.

-- -1 stays as it is: a key without a deadline has a later one than any.
local function write(key, value, keep)
  local left = redis.call('PTTL', key)
  if left == -1 then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', string.format('%.0f', math.max(left, keep)))
  end
end

local out = {}
for i, key in ipairs(KEYS) do
  local what, value, keep = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  if what == 'ask' then
    out[i] = redis.call('EXISTS', key)
  elseif what == 'revoke' then
    write(key, 'true', keep)
    out[i] = 1
  else
    -- What is no number is a mark of nobody knows when: it has ended all until now.
    local held, mark = redis.pcall('GET', key), tonumber(value)
    if held then
      local digits = type(held) == 'string' and string.match(held, '^%s*(%d+)%s*$')
      local time = redis.call('TIME')
      mark = math.max(mark, digits and #digits <= 15 and tonumber(digits) or time[1] * 1000 + math.floor(time[2] / 1000))
    end
    local text = string.format('%.0f', mark)
    write(key, text, keep)
    out[i] = text
  end
end
return out
