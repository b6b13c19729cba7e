-- All limits of a request are one decision.  KEYS are the states; ARGV[1] says
-- what is to be done, and then there is one limit for each key.
--
--   c  check: charges all if all allow; otherwise those that insist
--   i  insist: the request was refused elsewhere
--   r  refund: gives back what was charged with these stamps
--
-- Returns the verdicts, see ratelimit_script.c.

local op = ARGV[1]
local items = {}
local allowed = (op == 'c')

for i = 1, #KEYS do
    local algorithm, buckets, width, flags, ring, cost, limit, period,
          capacity, ceiling, free, wait, stamp
        = unpack('<BBBBI4I8I8I8I8I8I8I8I8', ARGV[i + 1])

    local it = {
        key = KEYS[i], algorithm = algorithms[algorithm], buckets = buckets,
        width = width, insist = (flags == 1), ring = ring, cost = cost,
        limit = limit, period = period, capacity = capacity,
        ceiling = ceiling, free = free, wait = wait, stamp = stamp
    }

    -- of two limits of one state, the second is charged on top of the first

    for j = 1, i - 1 do
        if KEYS[j] == KEYS[i] then
            it.again = true
        end
    end

    items[i] = it
    it.algorithm.load(it)

    if op ~= 'r' then
        it.algorithm.look(it)
        allowed = allowed and it.allowed
    end
end

local function reload(it)
    it.algorithm.load(it)

    if op ~= 'r' then
        it.algorithm.look(it)
    end
end

-- a refused request is counted only where somebody insists

local function settle(it)
    if it.insist and not it.allowed then
        it.algorithm.punish(it, it.cost)

        -- who was refused waits for this one, too

        reload(it)

    elseif it.insist then
        it.algorithm.charge(it, it.cost)

    elseif it.rebase then
        it.algorithm.charge(it, 0)
    end
end

local verdicts = {}

for i, it in ipairs(items) do
    local passed, verdict = it.allowed, it.verdict

    if it.again then
        reload(it)
        it.allowed, it.verdict = passed, verdict
    end

    if op == 'r' then
        it.algorithm.refund(it)

    elseif allowed then
        it.algorithm.charge(it, it.cost)

    else
        settle(it)
    end

    verdicts[i] = it.verdict
end

if op ~= 'c' then
    return redis.status_reply('OK')
end

return table.concat(verdicts)
