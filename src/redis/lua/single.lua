-- The script for limits of one algorithm.  The last limit is decided without a
-- function, because a function costs Redis a tenth of the time of a call with
-- one limit; limits before it, if any, by the function that limit.lua requires.

local n = #KEYS

--- include prelude

local i, admitted, verdicts = n, (op == 'c'), nil
local key, argument = KEYS[i], ARGV[i + 1]

--- algorithms limit

return echo .. verdicts
