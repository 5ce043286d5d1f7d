-- cell_write: replace the value, or delete it, if the version and the fence allow.
--
-- KEYS   1 cell (see cell_read)
-- ARGV   1 value  2 delete: 1, 0  3 expected version, 0: must not exist, -1: whatever is there
--        4 fence, empty: none  5 ttl (us), 0: for ever  6 channel of those who wait for a change
--        7 memory (us): how long version and fence of an empty cell are remembered
-- Result {1, version}: written   {0, reason, value or false, version}: refused
-- Laws   5, 7 (versions only grow, also over a deletion: max(last + 1, the clock))

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local cell = redis.call('HMGET', KEYS[1], 'v', 'n', 'f', 'e')
local function text(number) return string.format('%.0f', number) end

local expiry, version = tonumber(cell[4] or '0'), tonumber(cell[2] or '0')
local value = cell[1]
if expiry > 0 and expiry <= now then value = false end
local current = value and version or 0
local expect, fence, ttl = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local seen = cell[3] or '0'
-- As text: a fence of another store may have more digits than a number here can hold.
if fence ~= '' and (#seen > #fence or (#seen == #fence and seen > fence)) then
  return { 0, 'fence', value, current }
end
if expect >= 0 and expect ~= current then return { 0, 'version', value, current } end

version = math.max(version + 1, now)
local memory = tonumber(ARGV[7])
redis.call('HSET', KEYS[1], 'n', text(version))
if fence ~= '' then redis.call('HSET', KEYS[1], 'f', fence) end
if ARGV[2] == '1' then
  redis.call('HDEL', KEYS[1], 'v', 'e')
  redis.call('PEXPIRE', KEYS[1], text(math.ceil(memory / 1000)))
else
  redis.call('HSET', KEYS[1], 'v', ARGV[1])
  if ttl > 0 then
    redis.call('HSET', KEYS[1], 'e', text(now + ttl))
    redis.call('PEXPIRE', KEYS[1], text(math.ceil((ttl + memory) / 1000)))
  else
    redis.call('HDEL', KEYS[1], 'e')
    redis.call('PERSIST', KEYS[1])
  end
end
redis.call('PUBLISH', ARGV[6], text(version))
return { 1, version }
