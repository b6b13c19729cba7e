-- What all scripts begin with.  All times are microseconds, all numbers are
-- integers below 2^53.
--
-- Redis runs a script from its first line on for each call, and makes anew all
-- functions and tables on the way.  So an algorithm is not written as functions
-- but as sections, which are put into a script where they are needed, and find
-- the key of a state and an argument, see ratelimit_script.c, in the variables
-- key and argument:
--
--   functions  what the others need, if they need any
--   load       reads the state
--   look       tells what would happen to the request: allowed, rebase, cost
--              and the verdict
--   charge     counts a cost, whatever look said
--   punish     counts a cost that was refused, if that is not the same
--   refund     gives back, after load, what was charged

local op = ARGV[1]
local call, pack, unpack = redis.call, struct.pack, struct.unpack

-- a state that lies further in the future means that the clock was set back

local skew = 1000000
