-- attempt: take it if it is free; if not, stand in line in the same step.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 mode: x, s, p  3 permits  4 limit  5 ttl (us)  6 fair: 1, 0  7 queue: 1, 0
--        8 window (us)  9 channel  10 hearing: 0, 1, 3  11 info  12 memory (us): how long the last
--        token is remembered
-- Result an integer > 0: granted, and this is the token (permits: 1); or -1: refused by a tombstone
--        {1, token, remaining}: this owner held it already, for so long
--        {0, now, look at or 0, number in line or 0, ahead or -1, holder's info}: busy
-- Laws   2 and 3 (asking twice is asking once; a tombstone refuses), 6 (one round trip), 7

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local state = redis.call('HMGET', KEYS[1], 'm', 'f', 'w', 'g', 'o', 'e', 'u', 'p')
local ttl, memory = tonumber(ARGV[5]), tonumber(ARGV[12])

if not state[1] and not state[3] and not state[4] and ARGV[2] == 'x' then
  -- Nobody there, nobody waits: what is left of a line is its last token.
  local fence = math.max(tonumber(state[2] or '0') + 1, now)
  local number = string.format('%.0f', fence)
  redis.call('HSET', KEYS[1], 'm', 'x', 'o', ARGV[1], 'e', string.format('%.0f', now + ttl),
    'a', string.format('%.0f', now), 'i', ARGV[11], 'f', number)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(math.max(ttl, memory) / 1000)))
  return fence
end

--#include lines.lua

local owner = ARGV[1]
load(state)
if buried(owner, now) then return -1 end
local blocked = advance(now, memory)
local fence, expiry = held(owner, ttl, now)
if fence then return { 1, fence, expiry - now } end

local number = waiting and tonumber(redis.call('ZSCORE', queue, owner) or '0') or 0
if number == 0 then
  local entry = {
    state = 'h', mode = ARGV[2], permits = tonumber(ARGV[3]), limit = tonumber(ARGV[4]),
    ttl = ttl, window = tonumber(ARGV[8]), since = now, fence = 0, channel = ARGV[9],
    info = ARGV[11],
  }
  if admits(entry) and (not blocked or ARGV[6] == '0') then
    entry.fence = token(entry, now)
    hold(owner, entry, ttl, now, memory)
    return math.max(entry.fence, 1)
  end
  if ARGV[7] == '1' then
    entry.state = 'w'
    -- Numbers only grow, also when the line was empty in between: clients sort by them.
    number = math.max(tonumber(waiting or '0') + 1, now)
    redis.call('HSET', lock, 'w', text(number))
    redis.call('ZADD', queue, text(number), owner)
    write_entry(owner, entry)
  end
end
local ahead = -1
if number > 0 then
  is_here(ARGV[9], ARGV[10], tonumber(ARGV[8]), now)
  ahead = redis.call('ZRANK', queue, owner)
end
local info = ''
if mode == 'x' then
  info = redis.call('HGET', lock, 'i') or ''
elseif mode then
  local entry = read_entry(redis.call('ZRANGE', holders, 0, 0)[1] or '')
  info = entry and entry.info or ''
end
return { 0, now, ahead == 0 and next_expiry() or 0, number, ahead, info }
