-- What the argument of limit i says, and its record: sync.lua tells their bytes.
-- A question has an entry for each limit that was charged for it.

local key, argument = KEYS[i], ARGV[i + 1]
local quota, period, ceiling = unpack('<I8I8I8', argument, 17)
local machine, number, interval, batch, open
    = unpack('<c8I8I8I2I2', argument, 73)
local before = get('GET', KEYS[n + i])
local others, questions, asked, own = '', '', nil, false
local counted, kept, machines, leased, standing = 0, 0, 1, 0, 0
local size, rest, worker, question, settled = 0, 3, nil, nil, nil

if before and #before > 2 then
    size, rest = #before, 3 + unpack('<I2', before) * record_size
end

if rest > size + 1 or (size + 1 - rest) % question_size ~= 0 then
    size, rest = 0, 3
end

for at = 3, rest - 1, record_size do
    local name, last = unpack('<c8I7', before, at)

    if name == machine then
        counted, own = last, sub(before, at, at + record_size - 1)

    else
        local fresh, stands, keep, lease, small
            = unpack('<I7I7I7I5I5', before, at + 15)

        if keep > now then
            others = others .. sub(before, at, at + record_size - 1)
            kept = (keep > kept) and keep or kept
        end

        if stands > now then
            machines = machines + 1
            leased = leased + ((fresh > now) and lease or small)
            standing = standing + small
        end
    end
end

if op ~= 'x' or rest <= size then
    worker, question, settled = unpack('<I4I8I8', argument, 101)
end

for at = rest, size, question_size do
    local name, by, last, stamp, cost, keep
        = unpack(question_format, before, at)
    local mine = by == worker and name == machine

    if mine and last == question then
        asked = asked or {}
        asked[#asked + 1] = { stamp = stamp, cost = cost }

    elseif keep > now and not (mine and last < settled) then
        kept = (keep > kept) and keep or kept
        questions = questions .. sub(before, at, at + question_size - 1)
    end
end

local ends = now + 3 * interval + 60000000
local matters = now + period * (4 + (ceiling - ceiling % quota) / quota)

matters = (matters > ends) and matters or ends
