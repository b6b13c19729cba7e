-- What every script begins with, once it has set the number of limits, n.  A
-- call is
--
--   EVALSHA sha n key... op argument... echo
--
-- where a key names the state of one limit, and the argument of the same number
-- says its rule (ratelimit_script.c has the format).  A reply begins with the
-- echo, by which the caller knows that it is the reply to this call.  The letter
-- op is one of
--
--   c  decide: charges all limits if all allow the request, otherwise only
--      those that count refused requests; returns their verdicts
--   i  the request was refused elsewhere: charges the limits that count
--      refused requests; returns the verdicts, also of the others
--   s  settle: the reservations that have these stamps count; returns nothing
--   r  refund: takes back the charges or reservations that have these stamps;
--      returns nothing
--   p  peek: charges nothing; returns the verdicts
--   d  reset: deletes the states; returns nothing
--   b  debit: charges all limits, whatever they say; returns nothing
--
-- The scripts for write-back have letters of their own, which sync.lua tells.
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
--   level   what it is now: sets rebase, cost, and used, which is compared with
--           the ceiling
--   look    what would happen to the request: sets allowed and verdict.  If the
--           request is the last of its cost that is allowed, the verdict says
--           how long the next one has to wait.
--   charge  counts the cost, whatever look has found
--   punish  counts the cost of a refused request; if missing, it is charge
--   commit  counts a reservation; if missing, there are none
--   refund  after load: takes back a charge or a reservation of this stamp
--   add     after level: counts a charge that was made elsewhere, where its
--           stamp says; sets used to what it is then, or to nil
--
-- Functions that an algorithm cannot do without are before its sections.

--- include begin
--- functions

if op == 'r' or op == 's' or op == 'b' or op == 'd' then
    local function settle(key, argument)
        if op == 'd' then
            call('DEL', key)
        elseif op == 'r' then
            local amount, stamp = nil, unpack('<I8', argument, 65)

            --- algorithms refund
        elseif op == 'b' then
            --- algorithms charge
        else
            --- algorithms commit
        end
    end

    for i = 1, n do
        settle(KEYS[i], ARGV[i + 1])
    end

    return echo
end
