-- literal_overview: who holds it; changes nothing.
--
-- KEYS   as in literal.lua
-- ARGV   none
-- Result {now, holder as it wrote itself or '', remaining or -1, 1: a holdfast client has it, marks}

--#include literal.lua

local holder = holder_of(lock) or ''
local found = ours(redis.call, 'HGETALL', marks) or {}  -- what is not ours hides nothing
local owner
for at = 1, #found, 2 do
  if found[at] == 'o' then owner = found[at + 1] end
end
local is_ours = owner and is_held_by(lock, owner)
return { now, holder, remaining(), is_ours and 1 or 0, found }
