-- Saves what quick() in save.lua did not: where there is a mark, a tombstone, a time of first sight, or something to compare.
-- It stands there inside a function, behind marks.lua, because making its parts costs every call that does not need them.

-- The latest mark that holds for a session: everyone's, its user's, and the one that all but one have. Their keys begin at k.
local function mark_of(sid, k, only, user, all, now)
  only, user = readable(KEYS[k], only, true, now), readable(KEYS[k + 1], user, false, now)
  local mark = math.max(tonumber(user or 0), tonumber(readable(KEYS[k + 2], all, false, now) or 0))
  if only then
    local at, kept, before = only_of(only)
    mark = math.max(mark, tonumber(kept == sid and before or at) or 0)
  end
  return mark
end

-- The earliest of those that are known.
local function earliest(...)
  local least
  for i = 1, select('#', ...) do
    local at = select(i, ...)
    if at and at > 0 and (not least or at < least) then least = at end
  end
  return least
end

-- A key that holds something else than a text counts as one that holds nothing.
local function text_at(key) return call('MGET', key)[1] end

local function save(k, a, now, over, keys, ttl, created, lifetime, mark, idle, began, counted)
  local session, sid = KEYS[k], ARGV[a + 1]
  local v = call('MGET', unpack(KEYS, k + 1, k + (keys == 8 and 6 or 3)))
  -- MGET does not tell what is not there from what is no string.
  if keys == 8 and call('EXISTS', KEYS[k + 4], KEYS[k + 5], KEYS[k + 6]) > 0 then
    mark = mark_of(sid, k + 4, v[4], v[5], v[6], now)
  end
  if v[1] then return { 'ended', mark } end
  if over == 116 then
    local had = text_at(session)
    if had ~= ARGV[a + 3] then return { 'changed', had } end
  elseif over == 110 and call('EXISTS', session) == 1 then
    return { 'changed', text_at(session) }
  end
  -- It was written already, and is to be confirmed; what somebody has written since stays.
  local has_gone = over == 99 and text_at(session) ~= ARGV[a + 3]
  if created > now + SKEW then created = 0 end
  local since = earliest(created, v[2] and tonumber(v[2]), began)
  if mark > 0 and (not since or floor(since / 1000) <= floor(mark / 1000)) then return { 'ended', mark } end
  since = since or now
  local left = since + lifetime - now
  if left <= 0 then return { 'ended', mark } end
  if has_gone then return { 'saved', 0, math.min(ttl, left), since } end
  local lives
  if over == 116 then
    ttl = call('PTTL', session)
    lives = format('%.0f', ttl < 0 and left or math.min(ttl, left))
    call('SET', session, ARGV[a + 2], 'KEEPTTL')
  else
    ttl = math.min(ttl, left)
    lives = format('%.0f', ttl)
    call('SET', session, ARGV[a + 2], 'PX', lives)
    if idle > 0 then
      call('SET', KEYS[k + 3], format('%.0f', idle), 'PX', format('%.0f', left))
    elseif v[3] then
      call('UNLINK', KEYS[k + 3])
    end
  end
  if since ~= created then call('SET', KEYS[k + 2], format('%.0f', since), 'PX', format('%.0f', lifetime * 2)) end
  if keys < 8 then return { 'saved', 0, ttl, since } end
  return { 'saved', index(KEYS[k + 7], sid, now, tonumber(lives), counted), ttl, since }
end
