--- require divide

-- the same, rounded up

local function divide_up(a, b, c, d)
    local q, r = divide(a, b, c, d)

    return (r > 0) and q + 1 or q
end
