-- The state expires when all that was taken has returned.

local expires = since + divide_up(taken, period, 0, limit)
local state = pack('<I7I5', since, taken)

expires = (expires < 9007199254740991) and expires or 9007199254740991

--- include write
