-- redisson.lua: Redisson's RLock. Put before the scripts literal_*.lua.
--
-- KEYS   1 lock  hash  owner -> how often it has entered; expires with its lease. An owner is a
--                      uuid, a colon and a thread's number; ours has a uuid for each claim and always
--                      the number 1, and enters once: re-entry is counted by the client.
--
-- Laws kept here: 5 (comparing and acting is one step, as Redisson does it too).

local function field(owner)
  local sub = string.sub
  return table.concat({ sub(owner, 1, 8), sub(owner, 9, 12), sub(owner, 13, 16),
    sub(owner, 17, 20), sub(owner, 21) }, '-') .. ':1'
end

-- Take it if nobody has it.
local function take(key, owner, ms)
  if redis.call('EXISTS', key) == 1 then return false end
  redis.call('HSET', key, field(owner), '1')
  redis.call('PEXPIRE', key, ms)
  return true
end

-- The holder, as it wrote itself; nil: nobody; false: the key is something else than a lock.
local function holder_of(key)
  local found = redis.pcall('HKEYS', key)
  if found.err then return false end
  return found[1]
end

local function is_held_by(key, owner)
  return redis.pcall('HEXISTS', key, field(owner)) == 1
end
