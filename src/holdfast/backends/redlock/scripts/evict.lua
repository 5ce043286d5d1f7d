-- evict: the operator's force-release, whoever holds it.
--
-- KEYS   1 lock, as in attempt.lua
-- ARGV   1 channel of who waits
-- Result 1: somebody had this node's vote   0: nobody had
-- Laws   5 (compare and act in one step)

if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('PUBLISH', ARGV[1], '0')
return 1
