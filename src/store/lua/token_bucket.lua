-- A bucket of tokens that is refilled steadily at N in a period; a request
-- takes as many as it costs, and may wait for them for a while.

local function token_bucket_look(it)
    bucket_view(it)

    local allowed, delay, retry = bucket_admit(it, it.wait)

    -- who waits for a token of a hard limit does not go above it

    bucket_verdict(it, it.capacity, allowed, delay, retry,
                   delay > 0 and it.ceiling <= it.capacity)
end

algorithms[3] = {
    load = bucket_load,
    look = token_bucket_look,
    charge = bucket_charge,
    punish = bucket_punish,
    refund = bucket_refund
}
