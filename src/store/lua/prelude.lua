-- What all scripts begin with.  All times are microseconds, all numbers are
-- integers below 2^53.
--
-- An algorithm, by its number, has two functions, which are called with the key
-- of a state and an argument, see ratelimit_script.c:
--
--   looks    reads the state and tells what would happen to the request:
--            allowed, rebase and the verdict; with what charge needs, which
--            counts a cost, whatever look said; and punish, if a cost that was
--            refused is counted otherwise
--   refunds  gives back what was charged; these are there only if they are
--            needed, since Redis makes all functions anew for each call

local call, pack, unpack = redis.call, struct.pack, struct.unpack
local op, looks, refunds = ARGV[1], {}, {}

-- a state that lies further in the future means that the clock was set back

local skew = 1000000
