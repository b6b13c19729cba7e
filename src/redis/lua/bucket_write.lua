-- The state expires when all that was taken has returned, and when all that is
-- reserved would be forgotten.

local expires = (taken > 0) and since + divide_up(taken, period, 0, limit) or 0
local state = pack('<I7I5', since, taken)

if last + earlier > 0 then
    local forgotten = (epoch + ((last > 0) and 2 or 1)) * 300000000

    expires = (expires > forgotten) and expires or forgotten
    state = state .. pack('<I4I5I5', epoch, last, earlier)
end

expires = (expires < 9007199254740991) and expires or 9007199254740991

--- include write
