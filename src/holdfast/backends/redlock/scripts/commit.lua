-- commit: remember the token of whoever has this node's vote.
--
-- KEYS   1 lock  2 fence, as in attempt.lua
-- ARGV   1 owner  2 token  3 memory (ms): how long it is remembered
-- Result 1: it is   0: the owner has no longer this node's vote, or lost it in between; nothing was
--        written
-- Laws   5 (the owner's condition: of any two grants that share a node, one has written its token
--        before the other had its vote), 7 (never smaller than before)

local lock, fence = unpack(redis.call('MGET', KEYS[1], KEYS[2]))
if not lock or string.sub(lock, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return 0 end
if fence then
  local token, writer = string.match(fence, '^(%d+) (.*)$')  -- nil: it is no token, and replaced
  -- Somebody else was here since the vote: its token may not be overtaken from behind.
  if token and tonumber(token) >= tonumber(ARGV[2]) and writer ~= ARGV[1] then return 0 end
end
redis.call('SET', KEYS[2], ARGV[2] .. ' ' .. ARGV[1], 'PX', ARGV[3])
return 1
