-- (a * b + c) / d as quotient and remainder.  Exact although the product may be
-- far beyond 2^53, as long as the quotient is below 2^53; a larger quotient is
-- rounded, and has no remainder.

local function divide(a, b, c, d)
    local p = a * b + c

    if p < 9007199254740992 then
        local r = p % d
        return (p - r) / d, r
    end

    local q = p / d

    if q >= 9007199254740992 then
        return q, 0
    end

    q = q - q % 1

    -- The quotient may be wrong by a few.  The exact remainder, computed in
    -- halves of 26 bits, shows by how many.

    local a0, b0 = a % 67108864, b % 67108864
    local q0, d0 = q % 67108864, d % 67108864
    local a1, b1 = (a - a0) / 67108864, (b - b0) / 67108864
    local q1, d1 = (q - q0) / 67108864, (d - d0) / 67108864

    local r = ((a1 * b1 - q1 * d1) * 67108864
               + (a1 * b0 + a0 * b1 - q1 * d0 - q0 * d1)) * 67108864
              + (a0 * b0 - q0 * d0 + c)

    while r < 0 do
        q = q - 1
        r = r + d
    end

    while r >= d do
        q = q + 1
        r = r - d
    end

    return q, r
end
