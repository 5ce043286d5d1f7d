-- literal.lua: what holdfast keeps beside a lock that others understand. Included by literal_*.lua,
-- which stand behind plain.lua or redisson.lua.
--
-- KEYS   1 lock    see there: all that others look at
--        2 marks   hash  f  our last token                g  see graves.lua
--                        o a i  the last holder of ours: owner, since, info
--        3 graves  zset  see graves.lua
-- Times are microseconds of the server's clock. Every key expires by itself.
--
-- Laws kept here: 7 (tokens: max(last + 1, the clock); as text only by %.0f). Others have no tokens
-- and leave none, but time goes on while they hold.

local lock, marks, graves = KEYS[1], KEYS[2], KEYS[3]

--#include graves.lua

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
  redis.call('HDEL', marks, 'o', 'a', 'i')
  announce(channel, sharded)
end
