-- evict: the operator's force-release. Ends every holder, not the line.
--
-- KEYS   as in lines.lua
-- ARGV   1 memory (us)
-- Result how many held it
-- Laws   6 (hand-over in the same step)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

load(redis.call('HMGET', lock, 'm', 'f', 'w', 'g', 'o', 'e', 'u', 'p'))
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
if mode then nobody_holds() end
advance(now, tonumber(ARGV[1]))
return count
