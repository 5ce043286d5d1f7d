-- renew: extend a lease to its full ttl, if it still holds; also the first claim of a grant that
-- was called out.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 ttl (us)  3 memory (us)
-- Result 1: it holds for another ttl   0: it does not hold
-- Laws   6 (never shortens, never brings back what is over)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local owner, ttl, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local value = redis.pcall('GET', lock)
if not load(value) then return 0 end
local alive = 0
if mode == 'x' then
  if owner_x == owner and expiry_x > now then
    alive, claimed, expiry_x = 1, true, math.max(expiry_x, now + ttl)
  end
elseif mode then
  local expiry = tonumber(redis.call('ZSCORE', holders, owner) or '0')
  if expiry > now then
    alive = 1
    held(owner, ttl, now)
    shared_until = math.max(expiry, now + ttl)
    redis.call('ZADD', holders, text(shared_until), owner)
    keep(holders, ttl)
    keep(entries, ttl)
  end
end
advance(now)
if value then save(now, memory) end
return alive
