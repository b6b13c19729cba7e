-- Most requests have one limit, and are allowed: nothing is made for these that
-- only others need.

if op == 'c' and not KEYS[2] then
    local key, argument = KEYS[1], ARGV[2]

    --- looked

    if allowed then

        --- charged

        return verdict
    end

    if not rebase and string.byte(argument, 4) == 0 then
        return verdict
    end
end
