-- The clock is that of Redis.

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local wall = now
