-- A bucket of tokens that is refilled steadily at N in a period; a request
-- takes as many as it costs, and may wait for them for a while.

looks[3] = function(key, argument)
    return bucket_look(key, argument, nil, (unpack('<I8', argument, 57)))
end

refunds[3] = bucket_refund
