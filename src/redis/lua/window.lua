-- The part of a verdict that all windows share: used requests are counted
-- against the limit, and admitted up to the ceiling.

local after = used + cost
local allowed, flags, remaining, excess = true, 1, limit - after, 0

if after > limit or after > ceiling then
    allowed = (cost == 0 or after <= ceiling)
    excess = (after > limit) and (after - limit) * 1000 or 0
    flags = (not allowed) and 0 or (excess > 0) and 3 or 1
    remaining = allowed and remaining or limit - used
    remaining = (remaining > 0) and remaining or 0
end

-- whether this is the last of its cost that is allowed

local last = allowed and cost > 0 and after + cost > ceiling
