-- All times are microseconds of Redis' clock.  The wall clock, to which
-- fixed_window aligns its windows, is the same one.

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local wall = now
