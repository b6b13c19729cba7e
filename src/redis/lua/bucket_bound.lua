-- Neither a limit nor what was admitted passes the first test; requests that
-- were counted although refused do, or a state of another rule: three times
-- 2^62 is the highest level that is told apart.

if taken > ceiling + 2 * limit then
    local most = divide(6442450944, 2147483648, 0, period)

    most = (most < 1099511627775) and most or 1099511627775
    taken = (taken < most) and taken or most
end
