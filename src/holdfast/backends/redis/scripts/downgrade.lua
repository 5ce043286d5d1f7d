-- downgrade: who holds alone shares from now on, whoever waits; readers at the front are let in.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 ttl (us)  3 memory (us)
-- Result 1: it shares, for another ttl   0: it does not hold
-- Laws   5 (compare and act in one step), 6 (never shortens); asking twice is asking once

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local owner, ttl, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local value = redis.pcall('GET', lock)
if not load(value) then return 0 end
local shares = 0
if mode == 'x' and owner_x == owner and expiry_x > now then
  local entry = {
    state = 'h', mode = 's', permits = 1, limit = 1, ttl = ttl, window = 0, since = now,
    fence = last, channel = '-', info = info_x,
  }
  local span = math.max(expiry_x - now, ttl)
  nobody_holds()
  hold(owner, entry, span, now)
  shares = 1
elseif mode == 's' and tonumber(redis.call('ZSCORE', holders, owner) or '0') > now then
  shares = 1
end
advance(now)
if value then save(now, memory) end
return shares
