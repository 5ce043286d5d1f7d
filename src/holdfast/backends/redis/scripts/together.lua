-- together: take several locks, all or none, if every one is free and nobody waits for it. Else
-- nothing is changed: they are then asked for one after another, by attempt.
--
-- KEYS   the first key of each (see lines.lua), all in one slot
-- ARGV   1 ttl (us)  2 info  3 how long the keys are kept (ms)  4... the owner of each, in the same
--        order
-- Result the token of each; or an integer: the number of the first that is not simply free
-- Laws   3 (a lock with a tombstone is not simply free, so a late one takes nothing), 6, 7

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local fences = {}
for at, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  local free = not value or #value == 9 and string.byte(value) == 102  -- f: nobody there
  if not free then return at end
  local last = value and struct.unpack('<d', value, 2) + 1 or now
  fences[at] = last < now and now or last
end
for at, key in ipairs(KEYS) do
  redis.call('SET', key, 'x' .. struct.pack('<dd', fences[at], now + ARGV[1]) .. ARGV[3 + at] ..
    ' ' .. ARGV[2], 'PX', ARGV[3])
end
return fences
