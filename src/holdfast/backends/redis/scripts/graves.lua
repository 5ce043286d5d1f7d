-- graves.lua: owners that were withdrawn while a request of theirs may still be on its way. Included
-- by the others, after these locals:
--
-- marks   hash  g  when the last tombstone ends; absent: there are none
-- graves  zset  owner -> until
--
-- Laws kept here: 3 (late attempts take nothing), and every key expires by itself.

local function text(number) return string.format('%.0f', number) end

-- Keep a key for so many microseconds at least.
local function keep(key, span)
  local ms = math.ceil(span / 1000)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, text(ms)) end
end

local grave = 0  -- what `g` says

local function buried(owner, now)
  if grave == 0 then return false end
  if grave <= now then
    redis.call('HDEL', marks, 'g')
    grave = 0
    return false
  end
  local ends = redis.call('ZSCORE', graves, owner)
  return ends and tonumber(ends) > now
end

local function bury(owner, span, now)
  redis.call('ZREMRANGEBYSCORE', graves, '-inf', text(now))
  redis.call('ZADD', graves, text(now + span), owner)
  keep(graves, span)
  if grave < now + span then
    grave = now + span
    redis.call('HSET', marks, 'g', text(grave))
  end
  keep(marks, span)
end
