-- What every script begins with.  A call is
--
--   EVALSHA sha n key... op argument...
--
-- where a key names the state of one limit, and the argument of the same number
-- says its rule (ratelimit_script.c has the format).  The letter op is one of
--
--   c  decide: charges all limits if all allow the request, otherwise only
--      those that count refused requests; returns their verdicts
--   i  the request was refused elsewhere: charges the limits that count
--      refused requests; returns the verdicts, also of the others
--   s  settle: the reservations that have these stamps count; returns OK
--   r  refund: takes back the charges or reservations that have these stamps;
--      returns OK
--
-- All numbers are integers below 2^53.
--
-- Redis runs a script from its first line for each call, and creates all
-- functions and tables on the way.  That is why an algorithm is not a set of
-- functions but of sections, which "embed" puts where a script needs them.
-- They find the key and the argument of a limit in the variables key and
-- argument:
--
--   load    reads the state
--   look    what would happen to the request: sets allowed, rebase, cost and
--           verdict
--   charge  counts the cost, whatever look has found
--   punish  counts the cost of a refused request; if missing, it is charge
--   commit  counts a reservation; if missing, there are none
--   refund  after load: takes back a charge or a reservation
--
-- Functions that an algorithm cannot do without are before its sections.

local op = ARGV[1]
local call, pack, unpack = redis.call, struct.pack, struct.unpack

-- States are read by a call whose errors are tables: of length 0, as no state
-- is.  So a value of a wrong type counts as a state never seen, and the next
-- write replaces it.

local read = redis.pcall

-- a state that lies further in the future means that the clock was set back

local skew = 1000000

--- include clock
--- functions

if op == 'r' or op == 's' then
    local function settle(key, argument)
        if op == 'r' then
            --- algorithms refund
        else
            --- algorithms commit
        end
    end

    for i = 1, #KEYS do
        settle(KEYS[i], ARGV[i + 1])
    end

    return redis.status_reply('OK')
end
