-- The arithmetic of limit_req: one request is under way and may be followed by
-- as many more as the burst allows, which are delayed so that they leave at
-- the rate, except for the first few that are free.

--- require divide_up

--- load

local above, wait, free = 1, 0, unpack('<I8', argument, 49)

--- include bucket
