-- A bucket of tokens that is refilled steadily at N in a period.  A request
-- takes as many tokens as it costs, and may be delayed until they are there.

--- require divide_up

--- load

local above, free, wait = nil, nil, unpack('<I8', argument, 57)

--- include bucket
