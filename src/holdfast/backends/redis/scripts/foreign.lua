-- foreign.lua: keys of ours that somebody else has written to. Included by the others.

-- For an error of `redis.pcall`: returns if the key is of another kind than ours; any other error is
-- raised as it is.
local function of_another_kind(found)
  if not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err, 0) end
end

local kinds = {}  -- of the keys beside the lock, by their number: said by who includes this

-- Run a part of a step: what it returns, never nil. Or, where it met one of the keys beside the lock
-- and that is of another kind than ours: nil, and -1 minus its number. Any other error is raised.
-- Hazard: Redis takes back nothing of what that part had done by then.
local function ours(part, ...)
  local done, found = pcall(part, ...)
  if done then return found end
  local said = type(found) == 'table' and found.err or found  -- a text before Redis 7
  if string.find(said, 'WRONGTYPE', 1, true) then
    for at = 2, #KEYS do
      local kind = redis.call('TYPE', KEYS[at]).ok
      if kind ~= 'none' and kind ~= kinds[at] then return nil, -1 - at end
    end
  end
  error(found, 0)
end
