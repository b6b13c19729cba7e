-- The arithmetic of limit_req: one request is under way and may be followed by
-- as many more as the burst allows, which are delayed so that they leave at
-- the rate, except for the first few that are free.

local function leaky_bucket_look(it)
    bucket_view(it)

    local allowed, delay, retry = bucket_admit(it, 0)

    -- an admitted level never exceeds the ceiling, so there is no delay if so
    -- many are free; a request that costs nothing does not queue

    if allowed and it.cost > 0 and it.free < it.ceiling then
        delay = bucket_until(it, it.used + it.cost, it.free + 1)
    end

    bucket_verdict(it, 1, allowed, delay, retry, false)
end

algorithms[4] = {
    load = bucket_load,
    look = leaky_bucket_look,
    charge = bucket_charge,
    punish = bucket_punish,
    refund = bucket_refund
}
