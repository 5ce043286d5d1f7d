-- reap: take this node's vote from an owner whose client has died, if nothing was heard of it since.
--
-- KEYS   1 lock, as in attempt.lua
-- ARGV   1 owner  2 when its vote ends, as it was seen (ms); 0: no vote of it was seen here
--        3 how exactly that is known (ms)  4 channel of who waits
-- Result 1: it had this node's vote until now   0: it has not, or was renewed
-- Laws   5 (compare and act in one step)

if ARGV[2] == '0' then
  redis.call('PUBLISH', ARGV[4], '0') -- who waits may listen to this node only
  return 0
end
local lock = redis.call('GET', KEYS[1])
if not lock or string.sub(lock, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then return 0 end
local clock = redis.call('TIME')
local ends = clock[1] * 1000 + math.floor(clock[2] / 1000) + redis.call('PTTL', KEYS[1])
if math.abs(ends - tonumber(ARGV[2])) > tonumber(ARGV[3]) then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[4], '0')
return 1
