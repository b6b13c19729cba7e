-- The arithmetic of limit_req: one request is in progress, and as many more as
-- the burst allows may follow it.  They are delayed so that they pass at the
-- rate, except for the first few, which are free.

--- require divide_up

--- load

local above, wait, free = 1, 0, unpack('<I8', argument, 49)

--- include bucket
