-- All limits of a request are one decision.  KEYS are the states; ARGV[1] says
-- what is to be done, and then there is one argument for each key.
--
--   c  check: charges all if all allow; otherwise those that insist
--   i  insist: the request was refused elsewhere
--   r  refund: gives back what was charged with these stamps
--
-- Returns the verdicts, see ratelimit_script.c.

local byte = string.byte
local n = #KEYS

if op == 'r' then
    for i = 1, n do
        local argument = ARGV[i + 1]

        refunds[byte(argument)](KEYS[i], argument)
    end

    return redis.status_reply('OK')
end

if op == 'c' and n == 1 then
    local it = looks[byte(ARGV[2])](KEYS[1], ARGV[2])

    if it.allowed then
        it:charge(KEYS[1], it.cost)
        return it.verdict
    end

    if not it.rebase and byte(ARGV[2], 4) == 0 then
        return it.verdict
    end
end

local function look(i)
    local argument = ARGV[i + 1]

    return looks[byte(argument)](KEYS[i], argument)
end

local items, verdicts, allowed = {}, {}, (op == 'c')

for i = 1, n do
    local it = look(i)

    items[i] = it
    verdicts[i] = it.verdict
    allowed = allowed and it.allowed
end

-- of two limits of one state, the second is charged on top of the first

local function current(i)
    for j = 1, i - 1 do
        if KEYS[j] == KEYS[i] then
            return look(i)
        end
    end

    return items[i]
end

for i = 1, n do
    local it, cost = items[i], items[i].cost

    if allowed then
        current(i):charge(KEYS[i], cost)

    elseif byte(ARGV[i + 1], 4) == 1 then

        -- a refused request is counted only where somebody insists

        if it.allowed then
            current(i):charge(KEYS[i], cost)

        else
            local now = current(i)

            if now.punish then
                now:punish(KEYS[i], cost)
            else
                now:charge(KEYS[i], cost)
            end

            -- who was refused waits for this one, too

            verdicts[i] = look(i).verdict
        end

    elseif it.rebase then

        -- what the clock left in the future must not stay there

        current(i):charge(KEYS[i], 0)
    end
end

if op == 'i' then
    return redis.status_reply('OK')
end

return table.concat(verdicts)
