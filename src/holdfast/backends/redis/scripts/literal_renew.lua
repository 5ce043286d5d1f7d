-- literal_renew: extend a lease to its full ttl, if it still holds.
--
-- KEYS   as in literal.lua
-- ARGV   1 owner  2 ttl (us)  3 memory (us)
-- Result 1: it holds for another ttl   0: it does not hold
-- Laws   5 (compare and act in one step), 6 (never shortens, never brings back what is over)

--#include literal.lua

if not is_held_by(lock, ARGV[1]) then return 0 end
-- Always a write, though it may change nothing: WAIT confirms what its connection has written.
local ms = math.ceil(ARGV[2] / 1000)
redis.call('PEXPIRE', lock, text(math.max(ms, redis.call('PTTL', lock))))
ours(function()
  redis.call('HEXISTS', marks, 'f')  -- what is somebody else's is given no end
  keep(marks, math.max(tonumber(ARGV[2]), tonumber(ARGV[3])))
end)
return 1
