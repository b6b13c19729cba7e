-- The script for limits of different algorithms.

local n = #KEYS

--- include prelude
--- require decide

local _, verdicts = decide(n, op == 'c')

return echo .. verdicts
