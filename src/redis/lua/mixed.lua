-- The script for limits of different algorithms.

--- include prelude
--- require decide

local _, verdicts = decide(#KEYS, op == 'c')

return verdicts
