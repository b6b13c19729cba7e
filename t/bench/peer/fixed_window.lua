-- A fixed window as a script of Redis: one counter that goes with its window.
-- KEYS: its name.  ARGV: limit, period in seconds, cost.
-- Returns whether it is admitted, what remains, milliseconds to the end.

local limit = tonumber(ARGV[1])
local period = tonumber(ARGV[2]) * 1000
local cost = tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local rest = period - now % period
local count = tonumber(redis.call('GET', KEYS[1]) or '0')

if count + cost > limit then
    return {0, limit - count, rest}
end

redis.call('INCRBY', KEYS[1], ARGV[3])

if count == 0 then
    redis.call('PEXPIRE', KEYS[1], rest)
end

return {1, limit - count - cost, rest}
