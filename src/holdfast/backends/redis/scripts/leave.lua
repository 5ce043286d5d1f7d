-- leave: nothing of this owner stays, neither its lease nor its place in line; the next one has it.
-- Release and withdraw are this.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 tombstone (us): how long late attempts of it are refused; 0: not at all
--        3 memory (us)  4 the same in ms
-- Result 1: it was this owner's until now   0: it was not
-- Laws   3 (tombstone), 5 (compare and act in one step), 6 (hand-over in the same step)

local value = redis.pcall('GET', KEYS[1])

-- x: held alone, nobody waits. Whoever is still named there has not been succeeded by anybody, late
-- as this may be.
if ARGV[2] == '0' and type(value) == 'string' and string.byte(value) == 120
  and string.sub(value, 18, 18 + #ARGV[1]) == ARGV[1] .. ' ' then
  redis.call('SET', KEYS[1], 'f' .. string.sub(value, 2, 9), 'PX', ARGV[4])
  return 1
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local owner, span, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local sound = load(value)
-- Each for itself: of what is not ours it has nothing, and the rest is left all the same.
if span > 0 then ours(bury, owner, span, now) end
local held = false
if mode == 'x' and owner_x == owner then
  held = true
  nobody_holds()
elseif mode == 's' or mode == 'p' then
  local left = ours(function()
    if not redis.call('ZSCORE', holders, owner) then return true end
    held = true
    stops_sharing(owner)
    return true
  end)
  if not left then forget(owner) end  -- its entry is not to be read: out of the lock all the same
end
if not held then
  ours(function()
    if redis.call('ZREM', queue, owner) == 0 then return end
    if redis.call('ZCARD', queue) == 0 then  -- the keys are gone: who comes next keeps new ones
      number, kept = 0, 0
      redis.call('HLEN', clients)  -- not if it is somebody else's
      redis.call('DEL', clients)
    end
    redis.call('HDEL', entries, owner)
  end)
end
ours(advance, now)
if sound and (value or grave > 0) then save(now, memory) end
return held and 1 or 0
