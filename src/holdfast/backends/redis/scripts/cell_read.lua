-- cell_read: the value and its version.
--
-- KEYS   1 cell  hash  v value (absent: empty)  n version  f highest fence  e expiry, if any
-- ARGV   none
-- Result {value or false, version, microseconds until it expires or -1}

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local cell = redis.call('HMGET', KEYS[1], 'v', 'n', 'e')
local expiry = tonumber(cell[3] or '0')
if not cell[1] or (expiry > 0 and expiry <= now) then return { false, 0, -1 } end
return { cell[1], tonumber(cell[2]), expiry > 0 and expiry - now or -1 }
