-- evict: the operator's force-release. Ends every holder, not the line.
--
-- KEYS   as in lines.lua
-- ARGV   1 memory (us)
-- Result how many held it; -2: the key is no lock, and stays
-- Laws   6 (hand-over in the same step)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local value = redis.pcall('GET', lock)
if not value then return 0 end
if not load(value) then return -2 end
drop_expired(now)
local count = 0
if mode == 'x' then
  count = 1
elseif mode then
  local owners = redis.call('ZRANGE', holders, 0, -1)
  count = #owners
  for _, owner in ipairs(owners) do redis.call('HDEL', entries, owner) end
  redis.call('DEL', holders)
end
nobody_holds()
advance(now)
save(now, tonumber(ARGV[1]))
return count
