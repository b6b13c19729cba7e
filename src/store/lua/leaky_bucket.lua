-- The arithmetic of limit_req: one request is under way and may be followed by
-- as many more as the burst allows, which are delayed so that they leave at
-- the rate, except for the first few that are free.

looks[4] = function(key, argument)
    local it = bucket_view(key, argument)
    local delay, retry = bucket_admit(it, 0)
    local free = unpack('<I8', argument, 49)

    -- an admitted level never exceeds the ceiling, so there is no delay if so
    -- many are free; a request that costs nothing does not queue

    if it.allowed and it.cost > 0 and free < it.ceiling then
        delay = bucket_until(it, it.used + it.cost, free + 1)
    end

    return bucket_verdict(it, 1, false, delay, retry)
end

refunds[4] = bucket_refund
