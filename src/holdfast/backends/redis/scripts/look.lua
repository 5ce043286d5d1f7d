-- look: a client's heartbeat for one line, asked in the name of its first waiter there.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 ttl (us)  3 window (us)  4 channel  5 hearing: 0, 1, 3  6 memory (us)
-- Result {1, token, remaining}: this owner holds it, and has claimed it by asking
--        {0, now, look at or 0}: it waits; at that time its turn may come without a call
--        -1: it has no place here
-- Laws   3 (refreshes, never creates a place), 6

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

--#include lines.lua

local owner, window, memory = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[6])
if not load(redis.pcall('GET', lock)) then return -1 end

local function step()
  if redis.call('ZSCORE', queue, owner) then
    if number == 0 then  -- somebody deleted the lock and left the queue
      number = tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
    end
    is_here(ARGV[4], ARGV[5], window, now)
  end
  advance(now, owner)
  local fence, expiry = held(owner, tonumber(ARGV[2]), now)
  save(now, memory)
  if fence then return { 1, fence, expiry - now } end
  local rank = redis.call('ZRANK', queue, owner)
  if not rank then return -1 end
  return { 0, now, rank == 0 and next_expiry() or 0 }
end

return ours(step) or -1  -- its next attempt is told what is wrong
