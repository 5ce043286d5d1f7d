-- overview: everything about one line, as it is; changes nothing.
--
-- KEYS   as in lines.lua
-- ARGV   none
-- Result {now, lock, holders with expiry, owners in line, entries, clients}

--#include foreign.lua

-- What somebody else has written hides neither the other keys nor other locks.
local function read(...)
  local found = redis.pcall(...)
  if type(found) ~= 'table' or not found.err then return found end
  of_another_kind(found)
  return {}
end

local clock = redis.call('TIME')
return {
  clock[1] * 1000000 + clock[2],
  read('GET', KEYS[1]),
  read('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
  read('ZRANGE', KEYS[2], 0, -1),
  read('HGETALL', KEYS[3]),
  read('HGETALL', KEYS[4]),
}
