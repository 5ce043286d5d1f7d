-- overview: who has this node's vote; changes nothing.
--
-- KEYS   1 lock  2 fence, as in attempt.lua
-- ARGV   none
-- Result {lock or nil, remaining (ms), fence or nil, now}

local clock = redis.call('TIME')
local lock, fence = unpack(redis.call('MGET', KEYS[1], KEYS[2]))  -- of another kind: nil
return { lock, redis.call('PTTL', KEYS[1]), fence, clock[1] * 1000000 + clock[2] }
