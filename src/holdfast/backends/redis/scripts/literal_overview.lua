-- literal_overview: who holds it; changes nothing.
--
-- KEYS   as in literal.lua
-- ARGV   none
-- Result {now, holder as it wrote itself or '', remaining or -1, 1: a holdfast client has it, marks}

--#include literal.lua

local holder = holder_of(lock) or ''
local owner = redis.call('HGET', marks, 'o')
local ours = owner and is_held_by(lock, owner)
return { now, holder, remaining(), ours and 1 or 0, redis.call('HGETALL', marks) }
