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
  alive = ours(function()
    local expiry = tonumber(redis.call('ZSCORE', holders, owner) or '0')
    if expiry <= now then return 0 end
    held(owner, ttl, now)
    shared_until = math.max(expiry, now + ttl)
    redis.call('ZADD', holders, text(shared_until), owner)
    keep(holders, ttl)
    keep(entries, ttl)
    return 1
  end)
  if not alive then  -- what is told to be lost must be gone
    forget(owner)
    alive = 0
  end
end
ours(advance, now)  -- who holds need not suffer for what was done to the line
if value then save(now, memory) end
return alive
