-- foreign.lua: keys of ours that somebody else has written to. Included by the others.

-- For an error of `redis.pcall`: returns if the key is of another kind than ours; any other error is
-- raised as it is.
local function of_another_kind(found)
  if not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err, 0) end
end
