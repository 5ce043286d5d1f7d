-- literal_evict: the operator's force-release, whoever holds it.
--
-- KEYS   as in literal.lua
-- ARGV   1 channel of those who wait  2 also as a shard's: 1, 0
-- Result 1: somebody held it   0: nobody did   -2: the key is no lock, and stays
-- Laws   5 (compare and act in one step)

--#include literal.lua

local holder = holder_of(lock)
if holder == nil then return 0 end
if not holder then return -2 end
set_free(ARGV[1], ARGV[2])
return 1
