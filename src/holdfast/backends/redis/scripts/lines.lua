-- lines.lua: one line of claims, and `advance`, which ends every script. Included by the others.
--
-- KEYS   1 lock     hash  f  last exclusive token      m  mode of the holders: x, s or p
--                         o e a i u  the exclusive holder: owner, expiry, since, info, unconfirmed
--                         p  permits taken             w  last number given to a waiter, if any waits
--                         g  when the last tombstone ends
--        2 queue    zset  owner -> number in line
--        3 entries  hash  owner -> entry, of every waiter and of every shared or permits holder:
--                         state:mode:permits:limit:ttl:window:since:fence:channel info
--                         (state: w waits, u was granted and has not claimed yet, h holds)
--        4 clients  hash  channel -> alive-until:hearing, of every client that waits
--                         (hearing: 0 not yet, 1 yes, 2 a call reached nobody, 3 cannot be told)
--        5 holders  zset  owner -> expiry, of shared and permits holders
--        6 graves   zset  owner -> until, of withdrawn claims
-- Times are microseconds of the server's clock. Every key expires by itself.
--
-- Laws kept here: 6 (one message to one waiter), 7 (tokens: max(last + 1, the clock); as text only
-- by %.0f), and: nobody else wakes waiters, so whatever changes a line advances it.

local lock, queue, entries, clients, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local marks, graves = lock, KEYS[6]

--#include graves.lua

local ENTRY = '^(%a):(%a):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%S*) (.*)$'

local function read_entry(owner)
  local packed = redis.call('HGET', entries, owner)
  if not packed then return nil end
  local state, mode, permits, limit, ttl, window, since, fence, channel, info =
    string.match(packed, ENTRY)
  if not state then return nil end
  return {
    state = state, mode = mode, permits = tonumber(permits), limit = tonumber(limit),
    ttl = tonumber(ttl), window = tonumber(window), since = tonumber(since),
    fence = tonumber(fence), channel = channel, info = info,
  }
end

local function write_entry(owner, entry)
  redis.call('HSET', entries, owner, table.concat({
    entry.state, entry.mode, text(entry.permits), text(entry.limit), text(entry.ttl),
    text(entry.window), text(entry.since), text(entry.fence), entry.channel,
  }, ':') .. ' ' .. entry.info)
end

local mode, last, waiting, owner_x, expiry_x, unconfirmed_x, taken

-- What `HMGET lock m f w g o e u p` said.
local function load(state)
  mode, last, waiting = state[1], tonumber(state[2] or '0'), state[3]
  grave, owner_x, expiry_x = tonumber(state[4] or '0'), state[5], tonumber(state[6] or '0')
  unconfirmed_x, taken = state[7], tonumber(state[8] or '0')
end

-- THE compatibility rule (`admits` in backends/local.py is the same in Python).
local function admits(entry)
  if not mode then return true end
  if mode == 'x' or mode ~= entry.mode then return false end
  return mode == 's' or taken + entry.permits <= entry.limit
end

local function token(entry, now)
  if entry.mode == 'x' then return math.max(last + 1, now) end
  if entry.mode == 's' then return last > 0 and last or now end
  return 0
end

-- From now on `owner` holds, for `span`.
local function hold(owner, entry, span, now, memory)
  if entry.fence > last then last = entry.fence end
  if entry.mode == 'x' then
    mode, owner_x, expiry_x, unconfirmed_x = 'x', owner, now + span, entry.state == 'u' and '1'
    redis.call('HSET', lock, 'm', 'x', 'o', owner, 'e', text(expiry_x), 'a', text(now),
      'i', entry.info, 'f', text(last))
    if unconfirmed_x then redis.call('HSET', lock, 'u', '1') end
  else
    entry.since = now
    write_entry(owner, entry)
    redis.call('ZADD', holders, text(now + span), owner)
    mode, taken = entry.mode, taken + entry.permits
    redis.call('HSET', lock, 'm', mode, 'p', text(taken), 'f', text(last))
    keep(entries, span)
    keep(holders, span)
  end
  keep(lock, math.max(span, memory, grave - now))
end

local function nobody_holds()
  redis.call('HDEL', lock, 'm', 'o', 'e', 'a', 'i', 'u', 'p')
  mode, owner_x, unconfirmed_x, taken = nil, nil, nil, 0
end

local function stops_sharing(owner)
  local entry = read_entry(owner)
  redis.call('HDEL', entries, owner)
  if redis.call('ZREM', holders, owner) == 1 and entry then taken = taken - entry.permits end
end

local function count_sharers()
  if redis.call('ZCARD', holders) == 0 then
    nobody_holds()
  else
    redis.call('HSET', lock, 'p', text(taken))
  end
end

local function drop_expired(now)
  if mode == 'x' then
    if expiry_x <= now then nobody_holds() end
  elseif mode then
    local over = redis.call('ZRANGEBYSCORE', holders, '-inf', text(now))
    for _, owner in ipairs(over) do stops_sharing(owner) end
    if #over > 0 or redis.call('ZCARD', holders) == 0 then count_sharers() end
  end
end

-- When the next holder expires; 0 when none does.
local function next_expiry()
  if mode == 'x' then return expiry_x end
  if not mode then return 0 end
  return tonumber(redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or '0')
end

-- Until when a client is alive, and whether it hears.
local function client(channel)
  local alive, hearing = string.match(redis.call('HGET', clients, channel) or '0:2', '^(%d+):(%d)$')
  return tonumber(alive or '0'), hearing
end

local function is_here(channel, hearing, window, now)
  redis.call('HSET', clients, channel, text(now + window) .. ':' .. hearing)
  keep(clients, window)
  keep(queue, window)
  keep(entries, window)
  keep(lock, window)
end

-- Drop who expired, and waiters whose client has died; grant from the front while compatible, and
-- call each who was granted. True when a live waiter stays who cannot have it yet.
local function advance(now, memory)
  drop_expired(now)
  if not waiting then return false end
  local at, blocked = 0, false
  while true do
    if mode == 'x' then
      blocked = true
      break
    end
    local owner = redis.call('ZRANGE', queue, at, at)[1]
    if not owner then break end
    local entry = read_entry(owner)
    local alive, hearing = 0, '2'
    if entry then alive, hearing = client(entry.channel) end
    if alive <= now then
      redis.call('ZREM', queue, owner)
      redis.call('HDEL', entries, owner)
    elseif hearing == '2' then
      at = at + 1  -- it keeps its place for when it is heard of again; the others need not wait
    elseif not admits(entry) then
      blocked = true
      break
    else
      local span = math.min(entry.ttl, entry.window)
      entry.fence, entry.state = token(entry, now), 'u'
      local reached = 1
      if hearing ~= '0' then
        reached = redis.call('PUBLISH', entry.channel,
          table.concat({ owner, text(entry.fence), text(now), text(span) }, ' '))
      end
      if reached == 0 and hearing == '1' then
        redis.call('HSET', clients, entry.channel, text(alive) .. ':2')
        at = at + 1
      else
        redis.call('ZREM', queue, owner)
        if entry.mode == 'x' then redis.call('HDEL', entries, owner) end
        hold(owner, entry, span, now, memory)
      end
    end
  end
  if redis.call('ZCARD', queue) == 0 then
    redis.call('DEL', clients)
    redis.call('HDEL', lock, 'w')
    waiting, blocked = nil, false
  end
  return blocked
end

-- What `owner` holds now: its token and until when; nil when it does not. Who asks is alive, so a
-- grant that was called out and not claimed yet becomes the full lease.
local function held(owner, ttl, now)
  if owner_x == owner and mode == 'x' and expiry_x > now then
    if unconfirmed_x then
      expiry_x = math.max(expiry_x, now + ttl)
      redis.call('HSET', lock, 'e', text(expiry_x))
      redis.call('HDEL', lock, 'u')
      unconfirmed_x = nil
      keep(lock, expiry_x - now)
    end
    return last, expiry_x
  end
  if mode == 'x' or not mode then return nil end
  local expiry = tonumber(redis.call('ZSCORE', holders, owner) or '0')
  if expiry <= now then return nil end
  local entry = read_entry(owner)
  if not entry then return nil end
  if entry.state == 'u' then
    entry.state, expiry = 'h', math.max(expiry, now + ttl)
    write_entry(owner, entry)
    redis.call('ZADD', holders, text(expiry), owner)
    keep(holders, expiry - now)
    keep(entries, expiry - now)
    keep(lock, expiry - now)
  end
  return entry.fence, expiry
end
