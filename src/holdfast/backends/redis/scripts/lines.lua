-- lines.lua: one line of claims, and `advance`, which ends every script. Included by the others.
--
-- KEYS   1 lock     string, one of (numbers are 8 bytes, little-endian doubles)
--                     f token                     free; its last token is remembered
--                     x token expiry owner info   held alone; nobody waits
--                     c mode claimed token expiry number grave taken kept owner info   the rest:
--                       mode - (free), x, s or p; claimed 0 when an exclusive grant was called out
--                       and not claimed yet; number: the last one given to a waiter, 0 when none
--                       waits; grave: when the last tombstone ends; taken: permits; kept: until
--                       when keys 2 to 4 are kept for those who wait
--        2 queue    zset  owner -> number in line
--        3 entries  hash  owner -> entry, of every waiter and of every shared or permits holder:
--                         state mode permits limit ttl window since fence channel info
--                         (state: w waits, u was granted and has not claimed yet, h holds)
--        4 clients  hash  channel -> hearing:alive-until, of every client that waits
--                         (hearing: 0 not yet, 1 yes, 2 a call reached nobody, 3 cannot be told)
--        5 holders  zset  owner -> expiry, of shared and permits holders
--        6 graves   zset  owner -> until, of withdrawn claims
-- Times are microseconds of the server's clock. Every key expires by itself. The state is one
-- string, and binary, because each redis.call and each pattern costs as much as the network.
--
-- Laws kept here: 6 (one message to one waiter), 7 (tokens: max(last + 1, the clock); as text only
-- by %.0f), and: nobody else wakes waiters, so whatever changes a line advances it.

--#include foreign.lua

kinds = { 'string', 'zset', 'hash', 'hash', 'zset', 'zset' }
local lock, queue, entries, clients, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local graves = KEYS[6]

local function text(number) return string.format('%.0f', number) end

-- Keep a key for so many microseconds at least.
local function keep(key, span)
  local ms = math.ceil(span / 1000)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, text(ms)) end
end

local mode, claimed, last, expiry_x, number, grave, taken, kept, owner_x, info_x
local shared_until = 0  -- of those whose leases were made or extended in this step

-- Read what `redis.pcall` found under the first key; false when that is no lock: somebody else has
-- written there, or a version of holdfast that is not known here, and it is not ours to replace.
local function load(value)
  mode, claimed, last, expiry_x, number, grave, taken, kept = false, true, 0, 0, 0, 0, 0, 0
  owner_x, info_x = '', ''
  if not value then return true end
  if type(value) == 'table' then
    of_another_kind(value)
    return false
  end
  local kind = string.byte(value)
  if kind == 102 and #value == 9 then  -- f
    last = struct.unpack('<d', value, 2)
    return true
  end
  local start = kind == 120 and 18 or kind == 99 and 52  -- x, c
  local space = start and string.find(value, ' ', start, true)
  if not space then return false end
  owner_x, info_x = string.sub(value, start, space - 1), string.sub(value, space + 1)
  if kind == 120 then
    mode = 'x'
    last, expiry_x = struct.unpack('<dd', value, 2)
  else
    mode, claimed = string.sub(value, 2, 2), string.sub(value, 3, 3) == '1'
    if mode == '-' then mode = false end
    last, expiry_x, number, grave, taken, kept = struct.unpack('<dddddd', value, 4)
  end
  return true
end

-- Write it back, for as long as anything in it matters; `memory`: how long the last token does.
local function save(now, memory)
  if grave <= now then grave = 0 end
  local span = math.max(memory, expiry_x - now, grave - now, shared_until - now)
  local value
  if grave > 0 or number > 0 or not claimed or mode == 's' or mode == 'p' then
    value = 'c' .. (mode or '-') .. (claimed and '1' or '0') ..
      struct.pack('<dddddd', last, expiry_x, number, grave, taken, kept) .. owner_x .. ' ' .. info_x
    if mode == 's' or mode == 'p' then
      span = math.max(span, redis.call('PTTL', lock) * 1000)
    end
  elseif mode then
    value = 'x' .. struct.pack('<dd', last, expiry_x) .. owner_x .. ' ' .. info_x
  elseif last > 0 then
    value = 'f' .. struct.pack('<d', last)
  else
    redis.call('DEL', lock)
    return
  end
  redis.call('SET', lock, value, 'PX', text(math.ceil(span / 1000)))
end

local function read_entry(owner)
  local packed = redis.call('HGET', entries, owner)
  if not packed then return nil end
  local permits, limit, ttl, window, since, fence = struct.unpack('<dddddd', packed, 3)
  local space = string.find(packed, ' ', 51, true)
  return {
    state = string.sub(packed, 1, 1), mode = string.sub(packed, 2, 2), permits = permits,
    limit = limit, ttl = ttl, window = window, since = since, fence = fence,
    channel = string.sub(packed, 51, space - 1), info = string.sub(packed, space + 1),
  }
end

local function write_entry(owner, entry)
  redis.call('HSET', entries, owner, entry.state .. entry.mode .. struct.pack('<dddddd',
    entry.permits, entry.limit, entry.ttl, entry.window, entry.since, entry.fence) ..
    entry.channel .. ' ' .. entry.info)
end

local function buried(owner, now)
  if grave <= now then return false end
  local ends = redis.call('ZSCORE', graves, owner)
  return ends and tonumber(ends) > now
end

local function bury(owner, span, now)
  -- First, and saved whatever the graves are: who cannot be looked up there is refused (law 3).
  grave = math.max(grave, now + span)
  redis.call('ZREMRANGEBYSCORE', graves, '-inf', text(now))
  redis.call('ZADD', graves, text(now + span), owner)
  keep(graves, span)
  return true
end

-- Nothing of this owner stays beside the lock, as far as those keys are ours: a step of its failed.
local function forget(owner)
  redis.pcall('ZREM', queue, owner)
  redis.pcall('HDEL', entries, owner)
  redis.pcall('ZREM', holders, owner)
end

-- THE compatibility rule (`admits` in backends/common.py is the same in Python).
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
local function hold(owner, entry, span, now)
  last = math.max(last, entry.fence)
  mode = entry.mode
  if mode == 'x' then
    claimed, expiry_x, owner_x, info_x = entry.state ~= 'u', now + span, owner, entry.info
  else
    entry.since = now
    write_entry(owner, entry)
    redis.call('ZADD', holders, text(now + span), owner)
    taken, shared_until = taken + entry.permits, now + span
    keep(entries, span)
    keep(holders, span)
  end
end

local function nobody_holds()
  mode, claimed, expiry_x, taken, owner_x, info_x = false, true, 0, 0, '', ''
end

local function stops_sharing(owner)
  local entry = read_entry(owner)
  redis.call('HDEL', entries, owner)
  if redis.call('ZREM', holders, owner) == 1 and entry then taken = taken - entry.permits end
  if redis.call('ZCARD', holders) == 0 then nobody_holds() end
end

local function drop_expired(now)
  if mode == 'x' then
    if expiry_x <= now then nobody_holds() end
  elseif mode then
    if redis.call('EXISTS', holders) == 0 then nobody_holds() end
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', text(now))) do
      stops_sharing(owner)
    end
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
  local said = redis.call('HGET', clients, channel)
  if not said then return 0, '2' end
  return tonumber(string.sub(said, 3)), string.sub(said, 1, 1)
end

local function is_here(channel, hearing, window, now)
  local new = redis.call('HSET', clients, channel, hearing .. ':' .. text(now + window))
  local count = new == 1 and redis.call('HLEN', clients)
  if count == 1 then kept = 0 end  -- a new key, whatever is known of the one before it
  if count and count % 32 == 0 then
    -- A line that is never empty would keep every client that ever waited in it.
    local all = redis.call('HGETALL', clients)
    for at = 1, #all, 2 do
      if tonumber(string.sub(all[at + 1], 3)) <= now then redis.call('HDEL', clients, all[at]) end
    end
  end
  if kept < now + window then
    kept = now + 3 * window
    keep(clients, 3 * window)
    keep(queue, 3 * window)
    redis.call('HLEN', entries)  -- what is somebody else's is given no end
    keep(entries, 3 * window)
  end
end

-- Drop who expired, and waiters whose client has died; grant from the front while compatible, and
-- call each who was granted, except who asks: that one hears it now. True when a live waiter stays
-- who cannot have it yet.
local function advance(now, asks)
  drop_expired(now)
  if number == 0 then return false end
  local at, blocked = 0, mode == 'x'
  while not blocked do
    local owner, behind = unpack(redis.call('ZRANGE', queue, at, at + 1))
    if not owner then
      if at == 0 then
        redis.call('HLEN', clients)  -- it is deleted below: not if it is somebody else's
        number = 0
      end
      break
    end
    local entry = read_entry(owner)
    local alive, hearing = 0, '2'
    if entry then alive, hearing = client(entry.channel) end
    if alive <= now then
      redis.call('ZREM', queue, owner)
      redis.call('HDEL', entries, owner)
    elseif hearing == '2' and owner ~= asks then
      at = at + 1  -- it keeps its place for when it is heard of again; the others need not wait
    elseif not admits(entry) then
      blocked = true
    else
      -- Whoever is called must hold: no key that `hold` writes to may turn out to be another's.
      if entry.mode ~= 'x' and not mode then redis.call('ZCARD', holders) end
      local span = math.min(entry.ttl, entry.window)
      entry.fence, entry.state = token(entry, now), 'u'
      -- Also if nobody hears it here: a replica may pass it on, and no token is called out twice.
      last = math.max(last, entry.fence)
      local reached = 1
      if hearing ~= '0' and owner ~= asks then
        reached = redis.call('PUBLISH', entry.channel,
          string.format('%s %.0f %.0f %.0f', owner, entry.fence, now, span))
      end
      if reached == 0 and hearing == '1' then
        redis.call('HSET', clients, entry.channel, '2:' .. text(alive))
        at = at + 1
      else
        redis.call('ZREM', queue, owner)
        if entry.mode == 'x' then redis.call('HDEL', entries, owner) end
        hold(owner, entry, span, now)
        if not behind and at == 0 then
          number = 0
          break
        end
        blocked = mode == 'x'
      end
    end
  end
  if number == 0 then
    redis.call('DEL', clients)
    kept = 0
  end
  return blocked
end

-- What `owner` holds now: its token and until when; nil when it does not. Who asks is alive, so a
-- grant that was called out and not claimed yet becomes the full lease.
local function held(owner, ttl, now)
  if mode == 'x' then
    if owner_x ~= owner or expiry_x <= now then return nil end
    if not claimed then claimed, expiry_x = true, math.max(expiry_x, now + ttl) end
    return last, expiry_x
  end
  if not mode then return nil end
  local expiry = tonumber(redis.call('ZSCORE', holders, owner) or '0')
  if expiry <= now then return nil end
  local entry = read_entry(owner)
  if not entry then return nil end
  if entry.state == 'u' then
    entry.state, expiry = 'h', math.max(expiry, now + ttl)
    write_entry(owner, entry)
    redis.call('ZADD', holders, text(expiry), owner)
    shared_until = expiry
    keep(holders, expiry - now)
    keep(entries, expiry - now)
  end
  return entry.fence, expiry
end
