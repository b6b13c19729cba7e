-- A bucket of tokens that is refilled steadily at N in a period; a request
-- takes as many as it costs, and may wait for them for a while.

looks[3] = function(key, argument)
    local it = bucket_view(key, argument)
    local delay, retry = bucket_admit(it, (unpack('<I8', argument, 57)))

    -- who waits for a token of a hard limit does not go above it

    return bucket_verdict(it, it.capacity,
                          delay > 0 and it.ceiling <= it.capacity,
                          delay, retry)
end

refunds[3] = bucket_refund
