-- A sliding window as a script of Redis: a hash with a counter for each tenth
-- of a period, and the oldest of them counts by the share that is still inside.
-- KEYS: its name.  ARGV: limit, period in seconds, cost.
-- Returns whether it is admitted, what remains, milliseconds to the end.

local limit = tonumber(ARGV[1])
local width = tonumber(ARGV[2]) * 100
local cost = tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local slot = math.floor(now / width)
local rest = width - now % width
local fields = redis.call('HGETALL', KEYS[1])
local count = 0
local gone = {}

for i = 1, #fields, 2 do
    local age = slot - fields[i]

    if age > 10 then
        gone[#gone + 1] = fields[i]

    elseif age == 10 then
        count = count + fields[i + 1] * rest / width

    else
        count = count + fields[i + 1]
    end
end

count = math.ceil(count)

if count + cost > limit then
    return {0, limit - count, rest}
end

if #gone > 0 then
    redis.call('HDEL', KEYS[1], unpack(gone))
end

redis.call('HINCRBY', KEYS[1], string.format('%d', slot), ARGV[3])
redis.call('PEXPIRE', KEYS[1], 11 * width)

return {1, limit - count - cost, rest}
