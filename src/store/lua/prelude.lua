-- What all scripts begin with.  All times are microseconds, all numbers integers
-- below 2^53.

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local format, rep, sub = string.format, string.rep, string.sub

-- by number: load reads a state, look tells what would happen to a request,
-- charge, punish and refund change the state, as in src/core/

local algorithms = {}

-- a state that lies further in the future means that the clock was set back

local skew = 1000000
