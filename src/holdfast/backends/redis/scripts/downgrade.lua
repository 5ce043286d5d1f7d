-- downgrade: who holds alone shares from now on, whoever waits; readers at the front are let in.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 ttl (us)  3 memory (us)
-- Result 1: it shares, for another ttl   0: it does not hold
--        -3...: as in attempt.lua: it holds alone
-- Laws   5 (compare and act in one step), 6 (never shortens); asking twice is asking once

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local owner, ttl, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local value = redis.pcall('GET', lock)
if not load(value) then return 0 end
local shares, foreign = 0, nil
if mode == 'x' and owner_x == owner and expiry_x > now then
  local entry = {
    state = 'h', mode = 's', permits = 1, limit = 1, ttl = ttl, window = 0, since = now,
    fence = last, channel = '-', info = info_x,
  }
  local span = math.max(expiry_x - now, ttl)
  nobody_holds()
  shares, foreign = ours(function()
    hold(owner, entry, span, now)
    return 1
  end)
  if not shares then
    forget(owner)
    return foreign  -- and nothing was saved
  end
elseif mode == 's' then
  shares = ours(function()
    return tonumber(redis.call('ZSCORE', holders, owner) or '0') > now and 1 or 0
  end) or 0
end
ours(advance, now)
if value then save(now, memory) end
return shares
