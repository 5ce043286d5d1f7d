-- leave: nothing of this owner stays on this node. Release and withdraw are this.
--
-- KEYS   1 lock  2 grave to be made, as in attempt.lua
-- ARGV   1 owner  2 tombstone (ms): how long late attempts of it are refused; 0: not at all
--        3 channel of who waits; empty: it did not have the lock, so that nobody need look
-- Result 1: it had this node's vote until now   0: it had not
-- Laws   3 (tombstone), 5 (compare and act in one step)

local lock = redis.call('GET', KEYS[1])
local was = 0
if lock and string.sub(lock, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then
  redis.call('DEL', KEYS[1])
  was = 1
end
-- Also where it had no vote: who waits may listen to this node only.
if ARGV[3] ~= '' then redis.call('PUBLISH', ARGV[3], '0') end
-- Last: a Redis without memory refuses it, and should not refuse the release.
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[2]) end
return was
