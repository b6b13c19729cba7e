-- Decides the first i limits.  Takes whether all limits after them allow the
-- request; returns whether all do, and the verdicts of the first i.

local function decide(i, admitted)
    local key, argument, verdicts = KEYS[i], ARGV[i + 1], nil

    --- algorithms limit

    return admitted, verdicts
end
