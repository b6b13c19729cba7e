-- Bounds what was taken so that its level can be computed: three times 2^62 is
-- the highest product of requests and period.  Neither a limit nor admitted
-- requests come near it, but refused requests that were counted may, or a state
-- that another rule has left.

if taken > ceiling + 2 * limit then
    local most = divide(6442450944, 2147483648, 0, period)

    most = (most < 1099511627775) and most or 1099511627775
    taken = (taken < most) and taken or most
end
