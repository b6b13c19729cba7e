-- A period is cut into sub-windows, each of period / buckets.  Counted are the
-- requests of the newest "buckets" sub-windows, and of the one before them the
-- share that is still inside the period, rounded up; but no more of them than a
-- sub-window's part of the ceiling are taken to have left.
--
--   5 bytes  index of the newest sub-window, modulo 2^40; with buckets=1 there
--            are 4 bytes, modulo 2^32
--   5 bytes  sum of the counters in the ring, not with buckets=1
--   then     counters of 2 or 4 bytes: that of the newest sub-window, which is
--            the only one that changes while that is the newest; then the ring
--            of those before it, where sub-window i is at i modulo buckets
--
-- Positions inside a sub-window are measured in units of 1 us / buckets: a
-- sub-window has period units.

--- require divide

--- load

local buckets, width, _, cost, limit, period, ceiling
    = unpack('<BBI5I8I8I8I8', argument, 2)

-- index of the current sub-window, and the units since its start

local past = now % period
local units = past * buckets
local elapsed = units % period
local index = (now - past) / period * buckets + (units - elapsed) / period

local start = (buckets == 1) and 4 or 10
local ring = start + width
local kind = (width == 2) and '<I2' or '<I4'

local state = read('GET', key)
local same = state and #state == ring + buckets * width
local newest, sum, count = index, 0, 0

if state and not same then

    if #state == start + (buckets + 1) * (6 - width) then

        -- the rule was changed since, and its counters had another width

        local most = (width == 2) and 65535 or 4294967295
        local counts = { unpack(string.rep((width == 2) and '<I4' or '<I2',
                                           buckets + 1), state, start + 1) }
        for i = 1, buckets + 1 do
            counts[i] = (counts[i] < most) and counts[i] or most
            sum = (i > 1) and sum + counts[i] or 0
            counts[i] = pack(kind, counts[i])
        end

        state = ((buckets == 1) and string.sub(state, 1, 4)
                                or string.sub(state, 1, 5) .. pack('<I5', sum))
                .. table.concat(counts, '', 1, buckets + 1)

    else
        state = false
    end
end

if state then
    local low, range = 0, 1099511627776

    if buckets > 1 then
        low, sum, count = unpack((width == 2) and '<I5I5I2' or '<I5I5I4',
                                 state)
    else
        low, count, sum = unpack((width == 2) and '<I4I2I2' or '<I4I4I4',
                                 state)
        range = 4294967296
    end

    -- only the low bits of the index are stored: it is the one that is nearest
    -- to the current index

    local behind = (index - low) % range

    newest = index - ((behind < range / 2) and behind or behind - range)
end

--- level

-- If the newest sub-window is not the current one, the state becomes that of
-- the current one, and begins with the ring.

local ahead, rebase = -elapsed, false

if newest > index then
    local later = (newest - index) * period - elapsed

    if later <= skew * buckets then
        ahead, index, elapsed = later, newest, 0

    else
        -- the clock was set back: the newest sub-window becomes the current
        -- one, and the ring is rotated accordingly

        local cut = ring + (newest - index) % buckets * width

        state = string.sub(state, cut + 1)
                .. string.sub(state, ring + 1, cut)
        rebase, ring = true, 0
    end

elseif not state or index - newest > buckets then
    state = string.rep('\0', buckets * width)
    ring, sum, count = 0, 0, 0

elseif newest < index then

    -- the newest counter goes to the ring, and the sub-windows that have left
    -- the period are cleared

    local sub, rep = string.sub, string.rep
    local gap, place = index - newest, newest % buckets
    local at, over = ring + place * width, place + gap - buckets

    for i = place, place + gap - 1 do
        sum = sum - unpack(kind, state, ring + i % buckets * width + 1)
    end

    if over <= 0 then
        state = sub(state, ring + 1, at) .. pack(kind, count)
                .. rep('\0', (gap - 1) * width)
                .. sub(state, at + gap * width + 1)
    else
        state = rep('\0', over * width)
                .. sub(state, ring + over * width + 1, at)
                .. pack(kind, count) .. rep('\0', (gap - over - 1) * width)
    end

    ring, sum, count = 0, sum + count, 0
end

local old = unpack(kind, state, ring + index % buckets * width + 1)

sum = (sum > old) and sum or old

local used, part = count + sum, (ceiling - ceiling % buckets) / buckets

if old > 0 and elapsed > 0 then
    local share, rest = divide(old, period - elapsed, 0, period)

    share = (rest > 0) and share + 1 or share
    used = used - ((old - share < part) and old - share or part)
end

local lasts = ahead + (buckets + 1) * period + buckets - 1

lasts = (lasts - lasts % buckets) / buckets

--- look

--- include window

local reset, retry = lasts, 0

if not allowed or last or cost == 0 then
    local counts = { unpack(string.rep(kind, buckets), state, ring + 1) }
    local back, held = 0, count

    -- reset: until the newest request that counts has left the period

    if last then
        held = count + cost

    elseif count == 0 then
        repeat
            back = back + 1
        until back > buckets or counts[(index - back) % buckets + 1] > 0
    end

    reset = (back <= buckets) and ahead + (buckets + 1 - back) * period
                                  + buckets - 1 or 0
    reset = (reset - reset % buckets) / buckets

    if cost > ceiling then
        retry = period

    elseif last or not allowed then

        -- retry: until no more than "room" is used.  Goes through the coming
        -- sub-windows, in each of which the share of the oldest one decreases
        -- steadily, though by no more than that part.

        local room, full = ceiling - cost, held + sum - old
        local wait, back = ahead, buckets

        while full > room and back > 0 do
            back = back - 1
            wait = wait + period
            old = (back > 0) and counts[(index - back) % buckets + 1] or held
            full = full - old
        end

        room = (room > full) and room - full or 0

        if old > room + part then
            wait = wait + period

        elseif old > room then
            wait = wait + period - divide(room, period, 0, old)
        end

        wait = wait + buckets - 1
        retry = (wait - wait % buckets) / buckets
    end
end

local verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                     remaining, reset, retry, 0, excess, index)

--- charge

if cost > 0 or rebase then
    local most = (width == 2) and 65535 or 4294967295
    local more = count + cost

    more = (more < most) and more or most

    local expires = now + lasts
    local state = ((buckets == 1)
                   and pack((width == 2) and '<I4I2' or '<I4I4', index, more)
                   or pack((width == 2) and '<I5I5I2' or '<I5I5I4', index, sum,
                           more))
                  .. string.sub(state, ring + 1)

    --- include write
end

--- add

if index - stamp > buckets then
    return
end

if stamp < index then
    local most = (width == 2) and 65535 or 4294967295
    local place = ring + stamp % buckets * width
    local before = unpack(kind, state, place + 1)
    local after = (before + cost < most) and before + cost or most

    sum = sum + after - before
    state = string.sub(state, 1, place) .. pack(kind, after)
            .. string.sub(state, place + width + 1)

    -- the share of the oldest one is to be worked out again

    used = (stamp > index - buckets) and used + after - before or nil

    -- all of it is counted, and is to be written

    cost, rebase = 0, true

else
    used = used + cost
end

--- section charge

--- refund

-- takes some of a sub-window; returns what it had

local function take(i, cost)
    if i == newest then
        local before = count

        count = (before > cost) and before - cost or 0

        return before
    end

    local place = ring + i % buckets * width
    local before = unpack(kind, state, place + 1)
    local left = (before > cost) and before - cost or 0

    if left < before then
        sum = (sum > before) and sum - before + left or left
        state = string.sub(state, 1, place) .. pack(kind, left)
                .. string.sub(state, place + width + 1)
    end

    return before
end

if not state then
    return

elseif stamp == latest then

    -- From the newest sub-window on.  Of the oldest one, which counts in part,
    -- so many go that the rest counts as much less as was asked.

    local first, after = (newest > index) and newest or index, elapsed

    if newest > index and (newest - index) * period - elapsed <= skew * buckets
    then
        after = 0
    end

    for i = newest, first - buckets + 1, -1 do
        local before = take(i, cost)

        cost = (cost > before) and cost - before or 0
    end

    local oldest = first - buckets

    if cost > 0 and oldest <= newest then
        local old, part = take(oldest, 0), (ceiling - ceiling % buckets) / buckets
        local weight, rest = divide(old, period - after, 0, period)

        weight = (rest > 0) and weight + 1 or weight
        weight = (old - weight < part) and weight or old - part

        local left = (weight > cost) and weight - cost or 0
        local more = divide((left < ceiling) and left or ceiling, after, 0,
                            period - after)

        take(oldest, old - left - ((more < part) and more or part))
    end

elseif stamp > newest or newest - stamp > buckets then
    return

else
    take(stamp, cost)
end

if count + sum == 0 then
    -- all zeros equal a state never seen
    call('DEL', key)
    return
end

-- it lasts as long as the newest sub-window counts

local lasts = (newest - index + buckets + 1) * period - elapsed + buckets - 1
local expires = now + (lasts - lasts % buckets) / buckets

state = ((buckets == 1) and pack('<I4', newest) or pack('<I5I5', newest, sum))
        .. pack(kind, count) .. string.sub(state, ring + 1)

--- include write
