-- literal.lua: what holdfast keeps beside a lock that others understand. Included by literal_*.lua,
-- which stand behind plain.lua or redisson.lua.
--
-- KEYS   1 lock    see there: all that others look at
--        2 marks   hash  f  our last token   g  when the last tombstone ends; absent: there are none
--                        o a i  the last holder of ours: owner, since, info
--        3 graves  zset  owner -> until, of claims that were withdrawn while a request of theirs may
--                        still be on its way
-- Times are microseconds of the server's clock. Every key expires by itself.
--
-- Laws kept here: 3 (late attempts take nothing), 7 (tokens: max(last + 1, the clock); as text only
-- by %.0f). Others have no tokens and leave none, but time goes on while they hold.

--#include foreign.lua

kinds = { 'any', 'hash', 'zset' }
local lock, marks, graves = KEYS[1], KEYS[2], KEYS[3]

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
  return ends ~= false and tonumber(ends) > now
end

local function bury(owner, span, now)
  -- First, whatever the graves are: who cannot be looked up there is refused (law 3).
  if grave < now + span then
    grave = now + span
    redis.call('HSET', marks, 'g', text(grave))
  end
  keep(marks, span)
  redis.call('ZREMRANGEBYSCORE', graves, '-inf', text(now))
  redis.call('ZADD', graves, text(now + span), owner)
  keep(graves, span)
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- What is left of a lease; -1: it never ends.
local function remaining()
  local ms = redis.call('PTTL', lock)
  return ms < 0 and -1 or ms * 1000
end

-- Tell whoever waits. Redisson in a cluster listens to shard channels, where there are any.
local function announce(channel, sharded)
  redis.call('PUBLISH', channel, '0')
  if sharded == '1' then redis.pcall('SPUBLISH', channel, '0') end
end

local function set_free(channel, sharded)
  redis.call('DEL', lock)
  ours(redis.call, 'HDEL', marks, 'o', 'a', 'i')
  announce(channel, sharded)
end
