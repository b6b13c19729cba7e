-- A period is cut into sub-windows, on a grid of steps of period / buckets.
-- Counted are the requests of the newest "buckets" sub-windows, and of the one
-- before them the share that is still inside the period, rounded up.
--
--   5 bytes  index of the newest sub-window, modulo 2^40; with buckets=1 there
--            are 4 bytes, modulo 2^32
--   5 bytes  sum of all counters, not with buckets=1
--   then     buckets + 1 counters of 2 or 4 bytes; that of sub-window i stands
--            at i modulo (buckets + 1)
--
-- Positions inside of a sub-window are measured in units of 1 us / buckets, so
-- a sub-window has period units.

local kinds = { [2] = '<I2', [4] = '<I4' }
local most = { [2] = 65535, [4] = 4294967295 }

-- index of the sub-window of a time, and the units since its start

local function sliding_window_at(time, period, buckets)
    local past = time % period
    local units = past * buckets
    local elapsed = units % period

    return (time - past) / period * buckets + (units - elapsed) / period,
           elapsed
end

-- an index of which only the low bits are known is near to another one

local function sliding_window_near(index, low, ring)
    local range = (ring == 2) and 4294967296 or 1099511627776
    local behind = (index - low) % range

    return index - ((behind < range / 2) and behind or behind - range)
end

-- the newest index, if the current one is that; the sum; and the state

local function sliding_window_load(key, ring, width, index)
    local state = call('GET', key)
    local length = state and #state - ((ring == 2) and 4 or 10)

    if length == ring * width then
        local low, one, other

        if ring > 2 then
            low, one = unpack('<I5I5', state)
            return sliding_window_near(index, low, ring), one, state
        end

        low, one, other = unpack((width == 2) and '<I4I2I2' or '<I4I4I4',
                                 state)
        return sliding_window_near(index, low, ring), one + other, state
    end

    if length == ring * (6 - width) then
        -- counters of another width, of a rule that was changed

        local low = unpack((ring == 2) and '<I4' or '<I5', state)
        local start, total = (ring == 2) and 4 or 10, 0
        local counts = { unpack('<' .. string.rep((width == 2) and 'I4' or 'I2',
                                                  ring), state, start + 1) }
        for i = 1, ring do
            local count = (counts[i] < most[width]) and counts[i]
                                                    or most[width]
            counts[i] = pack(kinds[width], count)
            total = total + count
        end

        return sliding_window_near(index, low, ring), total,
               string.sub(state, 1, start)
               .. table.concat(counts, '', 1, ring)
    end

    return 0, 0, string.rep('\0', ((ring == 2) and 4 or 10) + ring * width)
end

local function sliding_window_get(state, ring, width, place)
    return (unpack(kinds[width], state,
                   ((ring == 2) and 5 or 11) + place * width))
end

-- the state with a count at a place, and zeros at so many before it

local function sliding_window_put(it, index, total, place, count, zeros)
    local rep, sub = string.rep, string.sub
    local state, width, ring = it.state, it.width, it.ring
    local start = (ring == 2) and 5 or 11
    local first = place - zeros
    local rest = start + (place + 1) * width
    local head = (ring == 2) and pack('<I4', index)
                              or pack('<I5I5', index, total)

    count = pack(kinds[width], count)

    if first >= 0 then
        return head .. sub(state, start, start - 1 + first * width)
               .. rep('\0', zeros * width) .. count .. sub(state, rest)
    end

    return head .. rep('\0', place * width) .. count
           .. sub(state, rest, start - 1 + (first + ring) * width)
           .. rep('\0', -first * width)
end

local function sliding_window_charge(it, key, cost)
    local width, place, gap, ring = it.width, it.place, it.gap, it.ring
    local before = 0

    if it.rebase then

        -- each counter moves to where it belongs by the current index

        local counts = {}

        place = it.index % ring

        for i = 0, ring - 1 do
            counts[(place - i) % ring + 1]
                = pack(kinds[width],
                       sliding_window_get(it.state, ring, width,
                                          (it.place - i) % ring))
        end

        it.state = string.sub(it.state, 1, (ring == 2) and 4 or 10)
                   .. table.concat(counts)

    elseif cost == 0 then
        return
    end

    if gap == 0 then
        before = sliding_window_get(it.state, ring, width, place)
    end

    local count = before + cost

    if count > most[width] then
        count = most[width]
    end

    local state = sliding_window_put(it, it.index, it.total - before + count,
                                     place, count, (gap > 0) and gap - 1 or 0)

    -- in the same sub-window it lasts as long as before

    local same = (gap == 0 and it.total > 0 and not it.rebase)

    save(key, state, not same and now + it.lasts)
end

-- units as a time, rounded up

local function sliding_window_time(units, buckets)
    local part = units % buckets

    return (units - part) / buckets + ((part > 0) and 1 or 0)
end

-- how long the newest request that counts still does, and when there is no more
-- used than room: looks into the sub-windows to come, in each of which the
-- share of the oldest one falls steadily

local function sliding_window_wait(it, ahead, period, room)
    local ring, gap, place = it.ring, it.gap, it.place
    local counts = { unpack('<' .. string.rep((it.width == 2) and 'I2' or 'I4',
                                              ring), it.state,
                            (ring == 2) and 5 or 11) }
    local full, old = it.total - it.old, it.old
    local units, distance, reset = ahead, ring - 1, 0

    for back = gap, ring - 1 do
        if counts[(place - back) % ring + 1] > 0 then
            reset = sliding_window_time(ahead + (ring - back) * period,
                                        ring - 1)
            break
        end
    end

    if it.allowed then
        return reset, 0
    end

    if room < 0 then
        return reset, period
    end

    while full > room and distance > 0 do
        distance = distance - 1
        units = units + period
        old = 0

        if distance >= gap then
            old = counts[(place - distance) % ring + 1]
            full = full - old
        end
    end

    room = (room > full) and room - full or 0

    if old > room then
        units = units + period - divide(room, period, 0, old)
    end

    return reset, sliding_window_time(units, ring - 1)
end

looks[1] = function(key, argument)
    local _, buckets, width, cost, limit, period, ceiling

    _, buckets, width, _, _, cost, limit, period, _, ceiling
        = unpack('<BBBBI4I8I8I8I8I8', argument)

    local ring = buckets + 1
    local index, elapsed = sliding_window_at(now, period, buckets)
    local newest, total, state = sliding_window_load(key, ring, width, index)

    local ahead, gap, old, rebase = -elapsed, 0, 0, false

    if newest <= index then
        gap = (index - newest < ring) and index - newest or ring
        newest = index

    elseif newest <= sliding_window_at(now + skew, period, buckets) then
        ahead = (newest - index) * period - elapsed
        index, elapsed = newest, 0

    else
        -- the clock was set back: what is newest there becomes current
        rebase = true
    end

    local place = newest % ring

    -- the counters of the sub-windows entered meanwhile are stale

    if gap == ring then
        total = 0

    else
        for i = place - gap + 1, place do
            total = total - sliding_window_get(state, ring, width, i % ring)
        end

        old = sliding_window_get(state, ring, width, (place + 1) % ring)
        total = (total > old) and total or old
    end

    local used = total

    if old > 0 and elapsed > 0 then
        used = total - old + divide_up(old, period - elapsed, 0, period)
    end

    local allowed, flags, remaining, excess = admit(used, cost, limit, ceiling)
    local reset, retry = sliding_window_time(ahead + ring * period, buckets), 0

    local it = {
        allowed = allowed, rebase = rebase, charge = sliding_window_charge,
        cost = cost, ring = ring, width = width, state = state, index = index,
        place = place, gap = gap, total = total, old = old, lasts = reset,
        verdict = ''
    }

    if not allowed or cost == 0 then
        reset, retry = sliding_window_wait(it, ahead, period, ceiling - cost)
    end

    it.verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                      remaining, reset, retry, 0, excess, index)

    return it
end

if op == 'r' then
    refunds[1] = function(key, argument)
        local _, buckets, width, cost, __, period
            = unpack('<BBBxxxxxI8I8I8', argument)
        local stamp = unpack('<I8', argument, 65)
        local ring = buckets + 1
        local index, total, state
            = sliding_window_load(key, ring, width,
                                  (sliding_window_at(now, period, buckets)))

        if total == 0 or stamp > index or index - stamp > buckets then
            return
        end

        local place = stamp % ring
        local before = sliding_window_get(state, ring, width, place)
        local count = (before > cost) and before - cost or 0
        local it = { state = state, ring = ring, width = width }

        save(key, sliding_window_put(it, index, total - before + count, place,
                                     count, 0))
    end
end
