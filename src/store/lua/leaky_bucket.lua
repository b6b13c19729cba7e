-- The arithmetic of limit_req: one request is under way and may be followed by
-- as many more as the burst allows, which are delayed so that they leave at
-- the rate, except for the first few that are free.

looks[4] = function(key, argument)
    return bucket_look(key, argument, 1, 0, (unpack('<I8', argument, 49)))
end

refunds[4] = bucket_refund
