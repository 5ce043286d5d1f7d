-- literal_attempt: take it if it is free.
--
-- KEYS   as in literal.lua
-- ARGV   1 owner  2 ttl (us)  3 memory (us): how long the last token is remembered  4 info
-- Result an integer > 0: granted, and this is the token; -1: refused by a tombstone; -2: the key is
--        no lock; -3, -4: the one of this number beside it is of another kind
--        {1, token, remaining}: this owner held it already, for so long
--        {0, remaining or -1, 1: a holdfast client has it, 0: somebody else, its info}: busy
-- Laws   2 and 3 (asking twice is asking once; a tombstone refuses), 6 (one round trip), 7

--#include literal.lua

local owner, ttl, memory = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ms = text(math.ceil(ttl / 1000))
local state, foreign = ours(redis.call, 'HMGET', marks, 'f', 'g', 'o')
if not state then return foreign end
grave = tonumber(state[2] or '0')
local refused, unknown = ours(buried, owner, now)
if refused == nil then return unknown end
if refused then return -1 end

-- The token of a new holder of ours.
local function new_token()
  local fence = math.max(tonumber(state[1] or '0') + 1, now)
  redis.call('HSET', marks, 'f', text(fence), 'o', owner, 'a', text(now), 'i', ARGV[4])
  keep(marks, math.max(ttl, memory, grave - now))
  return fence
end

if take(lock, owner, ms) then return new_token() end

if is_held_by(lock, owner) then
  local left = remaining()
  if left < 0 then  -- somebody made it last for ever
    redis.call('PEXPIRE', lock, ms)
    left = ttl
  end
  return { 1, state[3] == owner and tonumber(state[1]) or new_token(), left }
end

if holder_of(lock) == false then return -2 end
local is_ours = state[3] and is_held_by(lock, state[3])
return { 0, remaining(), is_ours and 1 or 0, is_ours and redis.call('HGET', marks, 'i') or '' }
