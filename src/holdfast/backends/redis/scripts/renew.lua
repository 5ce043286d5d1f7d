-- renew: extend a lease to its full ttl, if it still holds; also the first claim of a grant that
-- was called out.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 ttl (us)  3 memory (us)
-- Result 1: it holds for another ttl   0: it does not hold
-- Laws   6 (never shortens, never brings back what is over)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local state = redis.call('HMGET', KEYS[1], 'm', 'f', 'w', 'g', 'o', 'e', 'u', 'p')
local ttl = tonumber(ARGV[2])

--#include lines.lua

local owner, memory = ARGV[1], tonumber(ARGV[3])
load(state)
local alive = false
if mode == 'x' then
  if owner_x == owner and expiry_x > now then
    alive = true
    expiry_x = math.max(expiry_x, now + ttl)
    redis.call('HSET', lock, 'e', text(expiry_x))
    if unconfirmed_x then redis.call('HDEL', lock, 'u') end
    keep(lock, math.max(ttl, memory))
    return 1
  end
elseif mode then
  local expiry = tonumber(redis.call('ZSCORE', holders, owner) or '0')
  if expiry > now then
    alive = true
    local entry = read_entry(owner)
    if entry and entry.state == 'u' then
      entry.state = 'h'
      write_entry(owner, entry)
    end
    redis.call('ZADD', holders, text(math.max(expiry, now + ttl)), owner)
    keep(holders, ttl)
    keep(entries, ttl)
    keep(lock, math.max(ttl, memory))
  end
end
advance(now, memory)
return alive and 1 or 0
