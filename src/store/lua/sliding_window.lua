-- A period is cut into sub-windows, on a grid of steps of period / buckets.
-- Counted are the requests of the newest "buckets" sub-windows, and of the one
-- before them the share that is still inside the period, rounded up.
--
--   7 bytes  index of the newest sub-window
--   5 bytes  sum of all counters
--   then     buckets + 1 counters of 2 or 4 bytes; that of sub-window i stands
--            at i modulo (buckets + 1)
--
-- Positions inside of a sub-window are measured in units of 1 us / buckets, so
-- a sub-window has period units.

-- index of the sub-window of a time, and the units since its start

local function sliding_window_at(it, time)
    local period, buckets = it.period, it.buckets

    local past = time % period
    local units = past * buckets
    local elapsed = units % period

    return (time - past) / period * buckets + (units - elapsed) / period,
           elapsed
end

local function sliding_window_get(it, place)
    return (unpack(it.kind, it.state, 13 + place * it.width))
end

-- all counters, from the one of the newest sub-window back

local function sliding_window_counts(it)
    local ring = it.buckets + 1
    local counts = { unpack('<' .. rep(sub(it.kind, 2), ring), it.state, 13) }
    local back = {}

    for i = 0, ring - 1 do
        back[i] = counts[(it.place - i) % ring + 1]
    end

    return back
end

-- the state of a rule that had counters of another width

local function sliding_window_convert(it, state)
    local ring, total = it.buckets + 1, 0
    local other = (it.width == 2) and 'I4' or 'I2'
    local counts = { unpack('<' .. rep(other, ring), state, 13) }

    for i = 1, ring do
        local count = (counts[i] < it.most) and counts[i] or it.most

        counts[i] = pack(it.kind, count)
        total = total + count
    end

    it.total = total
    it.state = sub(state, 1, 12) .. table.concat(counts, '', 1, ring)
end

local function sliding_window_load(it)
    local ring, width = it.buckets + 1, it.width
    local state = call('GET', it.key)
    local length = state and #state - 12

    it.kind = (width == 2) and '<I2' or '<I4'
    it.most = (width == 2) and 65535 or 4294967295

    if length == ring * width then
        it.index, it.total = unpack('<I7I5', state)
        it.state = state

    elseif length == ring * (6 - width) then
        it.index = unpack('<I7', state)
        sliding_window_convert(it, state)

    else
        it.index, it.total = 0, 0
        it.state = rep('\0', 12 + ring * width)
    end
end

-- the sub-window that is current, and the counters that have not left

local function sliding_window_view(it)
    local ring = it.buckets + 1
    local index, elapsed = sliding_window_at(it, now)
    local newest, gap, ahead = it.index, 0, -elapsed

    it.rebase = false

    if newest <= index then

        -- of the sub-windows entered meanwhile the counters are stale

        gap = index - newest
        gap = (gap < ring) and gap or ring
        newest = index

    elseif newest <= sliding_window_at(it, now + skew) then
        ahead = (newest - index) * it.period - elapsed
        index = newest
        elapsed = 0

    else
        -- the clock was set back: what is newest there becomes current
        it.rebase = true
    end

    it.current, it.elapsed = index, elapsed
    it.place, it.gap, it.ahead = newest % ring, gap, ahead
    it.full, it.old = 0, 0

    if gap < ring then
        local full = it.total

        for i = 0, gap - 1 do
            full = full - sliding_window_get(it, (it.place - i) % ring)
        end

        it.old = sliding_window_get(it, (it.place + 1) % ring)
        it.full = full - it.old
    end
end

local function sliding_window_time(it, units)
    units = it.ahead + units

    local part = units % it.buckets

    return (part > 0) and (units - part) / it.buckets + 1
                      or units / it.buckets
end

-- the time until no more than room is used: looks into the sub-windows to
-- come, in each of which the share of the oldest one falls steadily

local function sliding_window_retry(it, counts, room)
    local units, distance, period = 0, it.buckets, it.period
    local full, old = it.full, it.old

    while full > room and distance > 0 do
        distance = distance - 1
        units = units + period
        old = 0

        if distance >= it.gap then
            old = counts[distance]
            full = full - old
        end
    end

    room = (room > full) and room - full or 0

    if old > room then
        units = units + period - divide(room, period, 0, old)
    end

    return sliding_window_time(it, units)
end

-- the time until the newest request that counts has left altogether

local function sliding_window_reset(it, counts)
    for distance = it.gap, it.buckets do
        if counts[distance] > 0 then
            return sliding_window_time(it, (it.buckets + 1 - distance)
                                           * it.period)
        end
    end

    return 0
end

local function sliding_window_look(it)
    sliding_window_view(it)

    local cost, ceiling, period = it.cost, it.ceiling, it.period
    local old, retry = it.old, 0

    if old > 0 and it.elapsed > 0 then
        old = divide_up(old, period - it.elapsed, 0, period)
    end

    if admit(it, it.full + old) and cost > 0 then
        return window_verdict(it,
                         sliding_window_time(it, (it.buckets + 1) * period), 0,
                         it.current)
    end

    local counts = sliding_window_counts(it)

    if it.allowed then
        retry = 0

    elseif cost > ceiling then
        retry = period

    else
        retry = sliding_window_retry(it, counts, ceiling - cost)
    end

    window_verdict(it, sliding_window_reset(it, counts), retry, it.current)
end

-- puts each counter where it belongs when the newest index is another one

local function sliding_window_rotate(it)
    local ring = it.buckets + 1
    local counts = sliding_window_counts(it)
    local state = {}

    it.place = it.current % ring

    for i = 0, ring - 1 do
        state[(it.place - i) % ring + 1] = pack(it.kind, counts[i])
    end

    it.state = sub(it.state, 1, 12) .. table.concat(state)
end

-- writes a count, and zeros to so many places before it

local function sliding_window_put(it, place, count, zeros)
    local width, state = it.width, it.state
    local first = place - zeros

    count = pack(it.kind, count)

    if first >= 0 then
        return sub(state, 13, 12 + first * width) .. rep('\0', zeros * width)
               .. count .. sub(state, 13 + (place + 1) * width)
    end

    first = first + it.buckets + 1

    return rep('\0', place * width) .. count
           .. sub(state, 13 + (place + 1) * width, 12 + first * width)
           .. rep('\0', (it.buckets + 1 - first) * width)
end

local function sliding_window_charge(it, cost)
    if it.rebase then
        sliding_window_rotate(it)

    elseif cost == 0 then
        return
    end

    local gap, place = it.gap, it.place
    local before = (gap == 0) and sliding_window_get(it, place) or 0
    local count = before + cost

    if count > it.most then
        count = it.most
    end

    local total = it.full + it.old - before + count
    local zeros = (gap > 0) and gap - 1 or 0

    save(it.key, pack('<I7I5', it.current, total)
                 .. sliding_window_put(it, place, count, zeros),
         now + sliding_window_time(it, (it.buckets + 1) * it.period))
end

local function sliding_window_refund(it)
    local stamp = it.stamp

    if it.total == 0 or stamp > it.index or it.index - stamp > it.buckets then
        return
    end

    local place = stamp % (it.buckets + 1)
    local before = sliding_window_get(it, place)
    local count = (before > it.cost) and before - it.cost or 0

    restore(it.key, pack('<I7I5', it.index, it.total - before + count)
                    .. sliding_window_put(it, place, count, 0))
end

algorithms[1] = {
    load = sliding_window_load,
    look = sliding_window_look,
    charge = sliding_window_charge,
    punish = sliding_window_charge,
    refund = sliding_window_refund
}
