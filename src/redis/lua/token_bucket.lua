-- A bucket of tokens that is refilled steadily at N in a period; a request
-- takes as many as it costs, and may wait for them for a while.

--- require divide_up

--- load

local above, free, wait = nil, nil, unpack('<I8', argument, 57)

--- include bucket
