-- plain.lua: a lock that is a string, as redis-py, redsync and many others write it. Put before the
-- scripts literal_*.lua.
--
-- KEYS   1 lock  string  the holder's token; expires with its lease
--
-- Laws kept here: 5 (comparing and acting is one step, as others do it too).

-- Take it if nobody has it.
local function take(key, owner, ms)
  return redis.call('SET', key, owner, 'NX', 'PX', ms)
end

-- The holder, as it wrote itself; nil: nobody; false: the key is something else than a lock.
local function holder_of(key)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then return false end
  return found or nil
end

local function is_held_by(key, owner)
  return holder_of(key) == owner
end
