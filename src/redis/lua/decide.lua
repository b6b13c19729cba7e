-- All limits of a request are one decision.  KEYS are the states; ARGV[1] says
-- what is to be done, and then there is one argument for each key.
--
--   c  check: charges all if all allow; otherwise those that insist
--   i  insist: the request was refused elsewhere
--   r  refund: gives back what was charged with these stamps
--
-- Returns the verdicts, see ratelimit_script.c.

local acts = {}

--- limits

local byte = string.byte
local n = #KEYS

local function act(i)
    local argument = ARGV[i + 1]

    return acts[byte(argument)](KEYS[i], argument)
end

if op == 'r' then
    for i = 1, n do
        act(i)
    end

    return redis.status_reply('OK')
end

local items, verdicts, allowed = {}, {}, (op == 'c')

for i = 1, n do
    local it = act(i)

    items[i] = it
    verdicts[i] = it.verdict
    allowed = allowed and it.allowed
end

-- of two limits of one state, the second is charged on top of the first

local function current(i)
    for j = 1, i - 1 do
        if KEYS[j] == KEYS[i] then
            return act(i)
        end
    end

    return items[i]
end

for i = 1, n do
    local it = items[i]

    if allowed then
        current(i).charge(it.cost)

    elseif byte(ARGV[i + 1], 4) == 1 then

        -- a refused request is counted only where somebody insists

        if it.allowed then
            current(i).charge(it.cost)

        else
            current(i).punish(it.cost)

            -- who was refused waits for this one, too

            verdicts[i] = act(i).verdict
        end

    elseif it.rebase then

        -- what the clock left in the future must not stay there

        current(i).charge(0)
    end
end

if op == 'i' then
    return redis.status_reply('OK')
end

return table.concat(verdicts)
