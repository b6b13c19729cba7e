-- What every script needs: the operation, the echo, short names, and the time.

local op, echo = ARGV[1], ARGV[n + 2]
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local format = string.format

-- States are read by a call whose errors are tables: of length 0, as no state
-- is.  So a value of a wrong type counts as a state never seen, and the next
-- write replaces it.

local read = redis.pcall

-- a state that lies further in the future means that the clock was set back

local skew = 1000000

-- the stamp of a refund of what was charged last, whatever it was stamped

local latest = 9007199254740991

--- include clock
