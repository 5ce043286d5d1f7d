-- renew: make a vote last another ttl, if the owner still has it.
--
-- KEYS   1 lock  2 fence, as in attempt.lua
-- ARGV   1 owner  2 ttl (ms)  3 memory (ms)
-- Result 1: it does   0: it has not this node's vote
-- Laws   5 (compare and act in one step), 6 (never shortens, never brings back what is over)

local lock = redis.call('GET', KEYS[1])
if not lock or string.sub(lock, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return 1
