-- evict: the operator's force-release. Ends every holder, not the line.
--
-- KEYS   as in lines.lua
-- ARGV   1 memory (us)
-- Result how many held it; -2, -3...: as in attempt.lua: what is there stays
-- Laws   6 (hand-over in the same step)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local value = redis.pcall('GET', lock)
if not value then return 0 end
if not load(value) then return -2 end
local count, foreign = ours(function()
  drop_expired(now)
  if mode == 'x' then return 1 end
  if not mode then return 0 end
  local owners = redis.call('ZRANGE', holders, 0, -1)
  for _, owner in ipairs(owners) do redis.call('HDEL', entries, owner) end
  redis.call('DEL', holders)
  return #owners
end)
if not count then return foreign end
nobody_holds()
ours(advance, now)
save(now, tonumber(ARGV[1]))
return count
