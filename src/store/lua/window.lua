-- The part of a verdict that all windows share: used requests are counted
-- against the limit, and admitted up to the ceiling.

local function admit(it, used)
    local cost, limit, ceiling = it.cost, it.limit, it.ceiling
    local after = used + cost

    if after <= limit and after <= ceiling then
        it.allowed = true
        it.flags = 1
        it.remaining = limit - after
        it.excess = 0
        return true
    end

    local allowed = (cost == 0 or after <= ceiling)
    local counted = allowed and after or used
    local soft = allowed and after > limit

    it.allowed = allowed
    it.flags = soft and 3 or allowed and 1 or 0
    it.remaining = (limit > counted) and limit - counted or 0
    it.excess = (after > limit) and (after - limit) * 1000 or 0

    return allowed
end

local function window_verdict(it, reset, retry, stamp)
    it.verdict = pack('<I8I8I8I8I8I8I8',
                      it.rebase and it.flags + 4 or it.flags,
                      it.remaining, reset, retry, 0, it.excess, stamp)
end
