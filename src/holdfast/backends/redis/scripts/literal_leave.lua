-- literal_leave: nothing of this owner stays. Release and withdraw are this.
--
-- KEYS   as in literal.lua
-- ARGV   1 owner  2 tombstone (us): how long late attempts of it are refused; 0: not at all
--        3 channel of those who wait  4 also as a shard's: 1, 0
-- Result 1: it held until now   0: it did not
-- Laws   3 (tombstone), 5 (compare and act in one step)

--#include literal.lua

local owner, span = ARGV[1], tonumber(ARGV[2])
local was = is_held_by(lock, owner)
if was then set_free(ARGV[3], ARGV[4]) end
if span > 0 then  -- last: a Redis without memory refuses it, and should not refuse the release
  ours(function()
    grave = tonumber(redis.call('HGET', marks, 'g') or '0')
    bury(owner, span, now)
  end)
end
return was and 1 or 0
