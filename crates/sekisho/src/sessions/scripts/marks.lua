-- How marks are read: goes before both scripts, so that they read them alike.

local call, format = redis.call, string.format

-- All but one have ended: when, which one stays, and up to when that one had ended too because another was to stay.
local function only_of(text) return string.match(text or '', '^(%d+) (%S+) ?(%d*)$') end

-- What somebody wrote there that is no mark is one all the same, of nobody knows when: it becomes one of now, for tokens too.
-- A sid holds no colon, so that then none stays.
local function readable(key, value, is_only, now)
  if not value and call('EXISTS', key) == 0 then return false end
  if value then
    local digits = is_only and only_of(value) or not is_only and string.match(value, '^%s*(%d+)%s*$')
    if digits and #digits <= 15 then return value end
  end
  value = format(is_only and '%.0f :' or '%.0f', now)
  call('SET', key, value, 'KEEPTTL')
  return value
end

