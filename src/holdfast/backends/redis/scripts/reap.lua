-- reap: end one holder whose client has died, if nothing was heard of it since; the next one has it.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 its expiry as it was seen (us): every grant and renewal changes it  3 memory (us)
-- Result 1: it was ended   2: it had ended by itself, and is cleared away   0: it is another by now
-- Laws   5 (compare and act in one step), 6 (hand-over in the same step)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local owner, stamp = ARGV[1], tonumber(ARGV[2])
local value = redis.pcall('GET', lock)
if not value or not load(value) then return 0 end
if mode == 'x' then
  if owner_x ~= owner or expiry_x ~= stamp then return 0 end
  nobody_holds()
elseif not mode or not ours(function()
  if tonumber(redis.call('ZSCORE', holders, owner) or '-1') ~= stamp then return false end
  stops_sharing(owner)
  return true
end) then
  return 0
end
ours(advance, now)
save(now, tonumber(ARGV[3]))
return stamp > now and 1 or 2
