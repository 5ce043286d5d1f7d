-- commit: remember the token of whoever has this node's vote.
--
-- KEYS   1 lock  2 fence, as in attempt.lua
-- ARGV   1 owner  2 token  3 memory (ms): how long it is remembered
-- Result 1: it is   0: the owner has no longer this node's vote, and nothing was written
-- Laws   5 (the owner's condition: between any two grants that share a node, one has written its
--        token before the other asked for its vote), 7 (never smaller than before)

local lock, fence = unpack(redis.call('MGET', KEYS[1], KEYS[2]))
if not lock or string.sub(lock, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return 0 end
if fence and tonumber(string.match(fence, '^%d+')) > tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
else
  redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[1], 'PX', ARGV[3])
end
return 1
