-- overview: who has this node's vote; changes nothing.
--
-- KEYS   1 lock  2 fence, as in attempt.lua
-- ARGV   none
-- Result {lock or nil, remaining (ms), fence or nil, now}

local clock = redis.call('TIME')
return {
  redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2]),
  clock[1] * 1000000 + clock[2],
}
