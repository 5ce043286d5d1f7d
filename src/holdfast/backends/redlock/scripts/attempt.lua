-- attempt: take this node's vote if it is free.
--
-- KEYS   1 lock   string  `owner info`; expires with its lease
--        2 fence  string  `token owner`: the largest token that was written here, and by whom
--        3 grave  string  there as long as late attempts of this owner are refused
--        4 grave  string  the same of the whole claim, whose owner has a new name in each round
-- ARGV   1 owner  2 ttl (ms)  3 info  4 whether tokens are wanted: 1, 0
-- Result 1: this node votes for the owner
--        {1, the largest token here, now (us)}: the same, where tokens are wanted
--        {0, remaining (ms; -1: no end), the holder's mark, its info}: it votes for somebody else
--        -1: refused by a tombstone
-- Laws   2 and 3 (asking twice is asking once, and makes it last a full ttl again; a tombstone
--        refuses), 7 (the token is chosen by the client, from a quorum of these answers)

local fence, grave, claims_grave = unpack(redis.call('MGET', KEYS[2], KEYS[3], KEYS[4]))
if grave or claims_grave then return -1 end

local owner, ttl = ARGV[1], ARGV[2]
if not redis.call('SET', KEYS[1], owner .. ' ' .. ARGV[3], 'NX', 'PX', ttl) then
  local value = redis.call('GET', KEYS[1])
  local space = string.find(value, ' ', 1, true) or #value + 1
  local holder = string.sub(value, 1, space - 1)
  local left = redis.call('PTTL', KEYS[1])
  if holder ~= owner then
    -- A mark, so that a client sees whether all nodes mean the same one: who knows an owner can
    -- release its lock.
    return { 0, left, redis.sha1hex(holder), string.sub(value, space + 1) }
  end
  if left < tonumber(ttl) then redis.call('PEXPIRE', KEYS[1], ttl) end
end
if ARGV[4] == '0' then return 1 end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
return { 1, fence and tonumber(string.match(fence, '^%d+')) or 0, now }
