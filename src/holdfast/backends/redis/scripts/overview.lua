-- overview: everything about one line, as it is; changes nothing.
--
-- KEYS   as in lines.lua
-- ARGV   none
-- Result {now, lock, holders with expiry, owners in line, entries, clients}

local clock = redis.call('TIME')
return {
  clock[1] * 1000000 + clock[2],
  redis.call('GET', KEYS[1]),
  redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[2], 0, -1),
  redis.call('HGETALL', KEYS[3]),
  redis.call('HGETALL', KEYS[4]),
}
