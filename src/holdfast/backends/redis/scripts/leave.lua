-- leave: nothing of this owner stays, neither its lease nor its place in line; the next one has it.
-- Release and withdraw are this.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 tombstone (us): how long late attempts of it are refused; 0: not at all
--        3 memory (us)
-- Result 1: it held until now   0: it did not
-- Laws   3 (tombstone), 5 (compare and act in one step), 6 (hand-over in the same step)

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local state = redis.call('HMGET', KEYS[1], 'm', 'f', 'w', 'g', 'o', 'e', 'u', 'p')

if state[5] == ARGV[1] and not state[3] and ARGV[2] == '0' then
  redis.call('HDEL', KEYS[1], 'm', 'o', 'e', 'a', 'i', 'u')
  return tonumber(state[6] or '0') > now and 1 or 0
end

--#include lines.lua

local owner, span, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
load(state)
if span > 0 then bury(owner, span, now) end
local was = 0
if mode == 'x' then
  if owner_x == owner then
    was = expiry_x > now and 1 or 0
    nobody_holds()
  end
elseif mode then
  local expiry = redis.call('ZSCORE', holders, owner)
  if expiry then
    was = tonumber(expiry) > now and 1 or 0
    stops_sharing(owner)
    count_sharers()
  end
end
if waiting and redis.call('ZREM', queue, owner) == 1 then redis.call('HDEL', entries, owner) end
advance(now, memory)
return was
