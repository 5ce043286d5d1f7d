-- attempt: take it if it is free; if not, stand in line in the same step.
--
-- KEYS   as in lines.lua
-- ARGV   1 owner  2 mode: x, s, p  3 ttl (us)  4 info  5 how long the lock's key is kept if it is
--        taken at once (ms)  6 channel
--        7 permits:limit:fair:queue:window:hearing:memory (fair, queue: 1, 0; hearing: 0, 1, 3;
--        window and memory in us; memory: how long the last token is remembered)
-- Result an integer > 0: granted, and this is the token (permits: 1); -1: refused by a tombstone; -2,
--        -3...: the key is no lock, or the one of this number beside it is of another kind
--        {1, token, remaining}: this owner held it already, for so long
--        {0, now, look at or 0, number in line or 0, ahead or -1, holder's info}: busy
-- Laws   2 and 3 (asking twice is asking once; a tombstone refuses), 6 (one round trip), 7

local value = redis.pcall('GET', KEYS[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- f: nobody there
if ARGV[2] == 'x' and (not value or #value == 9 and string.byte(value) == 102) then
  local fence = value and struct.unpack('<d', value, 2) + 1 or now
  if fence < now then fence = now end
  redis.call('SET', KEYS[1],
    'x' .. struct.pack('<dd', fence, now + ARGV[3]) .. ARGV[1] .. ' ' .. ARGV[4], 'PX', ARGV[5])
  return fence
end

--#include lines.lua

local owner, ttl = ARGV[1], tonumber(ARGV[3])
local permits, limit, fair, queueing, window, hearing, memory =
  string.match(ARGV[7], '^(%d+):(%d+):(%d):(%d):(%d+):(%d):(%d+)$')
window, memory = tonumber(window), tonumber(memory)
if not load(value) then return -2 end

local function step()
  if buried(owner, now) then return -1 end
  local place = number > 0 and tonumber(redis.call('ZSCORE', queue, owner) or '0') or 0
  if place > 0 then is_here(ARGV[6], hearing, window, now) end
  local blocked = advance(now, owner)
  local fence, expiry = held(owner, ttl, now)
  if fence then
    save(now, memory)
    return { 1, fence, expiry - now }
  end

  local enlisted = false
  if place > 0 and number == 0 then place = 0 end
  if place == 0 then
    local entry = {
      state = 'h', mode = ARGV[2], permits = tonumber(permits), limit = tonumber(limit), ttl = ttl,
      window = window, since = now, fence = 0, channel = ARGV[6], info = ARGV[4],
    }
    if admits(entry) and (not blocked or fair == '0') then
      entry.fence = token(entry, now)
      hold(owner, entry, ttl, now)
      save(now, memory)
      return math.max(entry.fence, 1)
    end
    if queueing == '1' then
      entry.state = 'w'
      -- Numbers only grow, also when the line was empty in between: clients sort by them.
      place = math.max(number + 1, now)
      number = place
      redis.call('ZADD', queue, text(place), owner)
      write_entry(owner, entry)
      enlisted = true
    end
  end
  local ahead = place > 0 and redis.call('ZRANK', queue, owner) or -1
  if enlisted then
    if ahead == 0 then kept = 0 end  -- the keys are new ones, whatever is known of those before
    is_here(ARGV[6], hearing, window, now)
  end
  save(now, memory)
  local info = info_x
  if mode == 's' or mode == 'p' then
    local entry = read_entry(redis.call('ZRANGE', holders, 0, 0)[1] or '')
    info = entry and entry.info or ''
  end
  return { 0, now, ahead == 0 and next_expiry() or 0, place, ahead, info }
end

local answer, foreign = ours(step)
if answer then return answer end
forget(owner)
return foreign
