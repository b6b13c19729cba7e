-- The part of a verdict that all windows share: used requests are counted
-- against the limit, and admitted up to the ceiling.  Returns allowed, the
-- flags, remaining and excess.

local function admit(used, cost, limit, ceiling)
    local after = used + cost

    if after <= limit and after <= ceiling then
        return true, 1, limit - after, 0
    end

    local allowed = (cost == 0 or after <= ceiling)
    local counted = allowed and after or used
    local excess = (after > limit) and (after - limit) * 1000 or 0

    return allowed,
           (not allowed) and 0 or (excess > 0) and 3 or 1,
           (limit > counted) and limit - counted or 0,
           excess
end
