-- The times of the newest admitted requests in a ring: exact.
--
--   7 bytes  reference time, not before any other
--   4 bytes  head: where the next time goes; the highest bit says that times
--            were overwritten that a ring of full size would still have
--   4 bytes  how many times there are
--   then     the places of the ring, 5 bytes each
--
-- A time is kept as the low 40 bits of a count of ticks, and read as an age:
-- how many ticks it lies before the reference.  A tick is 1 us, for periods
-- that are too long for it 1 ms, rounded up: a time is never kept too early.
--
-- The ring grows as it is needed, up to the number that the argument says; a
-- long one is read and written in pieces.

local rep, sub, format = string.rep, string.sub, string.format

local function sliding_log_load(key, argument)
    local ring, cost, _, period = unpack('<I4I8I8I8', argument, 5)
    local length, state, time, head, n
    local lossy = false

    if ring > 1024 then
        state = call('GETRANGE', key, '0', '14')
        length = call('STRLEN', key)
    else
        state = call('GET', key)
        length = state and #state or 0
    end

    local places = (length - 15) / 5

    if places >= 1 and places % 1 == 0 then
        time, head, n = unpack('<I7I4I4', state)

        if head >= 2147483648 then
            head, lossy = head - 2147483648, true
        end

        if head >= places or n > places then
            n = 0
        end
    end

    if not n or n == 0 then
        time, head, n, places, lossy = now, 0, 0, 0, false
    end

    local tick = (period < 549755813888) and 1 or 1000

    return {
        allowed = true, rebase = false, verdict = '', charge = false,
        key = key, ring = ring, cost = cost, period = period, tick = tick,
        state = (ring <= 1024) and state, places = places, time = time,
        head = head, n = (n < ring) and n or ring,
        lossy = lossy and n < ring, base = (time - time % tick) / tick
    }
end

-- the age of the i'th last time

local function sliding_log_age(it, i)
    local place = it.head - i
    local at = 15 + ((place < 0) and place + it.places or place) * 5
    local ticks

    if it.state then
        ticks = unpack('<I5', it.state, at + 1)
    else
        ticks = unpack('<I5', call('GETRANGE', it.key, format('%d', at),
                                   format('%d', at + 4)))
    end

    return (it.base - ticks) % 1099511627776
end

-- how many times are younger than that; ages grow from the last one on

local function sliding_log_younger(it, age)
    local low, high = 0, it.n

    if high == 0 or sliding_log_age(it, high) < age then
        return high
    end

    while high - low > 1 do
        local middle = low + high
        middle = (middle - middle % 2) / 2

        if sliding_log_age(it, middle) < age then
            low = middle
        else
            high = middle
        end
    end

    return low
end

-- up to a whole tick

local function sliding_log_round(time, tick)
    local part = time % tick

    return (part > 0) and time - part + tick or time
end

-- the bytes of the times from the i'th last to the j'th last

local function sliding_log_slice(it, i, j)
    if i < j then
        return ''
    end

    if not it.state then
        it.state = call('GET', it.key)
    end

    local state, places = it.state, it.places
    local first, last = it.head - i, it.head - j

    if last < 0 then
        first, last = first + places, last + places
    end

    if first >= 0 then
        return sub(state, 16 + first * 5, 20 + last * 5)
    end

    return sub(state, 16 + (first + places) * 5)
           .. sub(state, 16, 20 + last * 5)
end

local function sliding_log_head(it, head, n)
    if it.lossy and n < it.ring then
        head = head + 2147483648
    end

    return pack('<I7I4I4', it.time, head, n)
end

-- a ring with so many places for these times

local function sliding_log_pack(it, times, places)
    local n = #times / 5

    return sliding_log_head(it, n % places, n) .. times
           .. rep('\0', (places - n) * 5)
end

-- after the clock was set back: all times move with it

local function sliding_log_rebase(it)
    local times = {}
    local base = it.time / it.tick

    it.n = sliding_log_younger(it, 549755813888)

    for i = it.n, 1, -1 do
        times[it.n - i + 1] = pack('<I5', base - sliding_log_age(it, i))
    end

    return table.concat(times)
end

-- all anew, in a ring that has room for some more; if the rule has none for
-- all times, without the oldest

local function sliding_log_rewrite(it, times, added, expires)
    local n = #times / 5
    local need = n + #added / 5
    local places = n + (n - n % 4) / 4 + 3

    places = (places > need) and places or need
    places = (places < it.ring) and places or it.ring

    if need > places then
        times = sub(times, (need - places) * 5 + 1)
    end

    save(it.key, sliding_log_pack(it, times .. added, places), expires)
end

-- forgets what would be too old to be told apart with another reference

local function sliding_log_prune(it, step)
    if it.n > 0 and step + sliding_log_age(it, it.n) >= 549755813888 then
        it.n = sliding_log_younger(it, (step < 549755813888)
                                       and 549755813888 - step or 0)
        it.lossy = false
    end
end

-- whether there is room, if only at the places of times that count no more

local function sliding_log_fits(it, cost, step)
    local places = it.places

    if cost > places then
        return false
    end

    if it.n + cost <= places or places >= it.ring then
        return true
    end

    local age = step + sliding_log_age(it, places - cost + 1)

    return (age - 2) * it.tick >= it.period + skew
end

local function sliding_log_write(it, added, cost)
    local key, head, places = it.key, it.head, it.places
    local room = places - head
    local n = it.n + cost
    local at = format('%d', 15 + head * 5)

    if cost <= room then
        call('SETRANGE', key, at, added)
    else
        call('SETRANGE', key, at, sub(added, 1, room * 5))
        call('SETRANGE', key, '15', sub(added, room * 5 + 1))
    end

    if n > places then
        n = places
        it.lossy = it.lossy or places < it.ring
    end

    n = (n < it.ring) and n or it.ring

    call('SETRANGE', key, '0', sliding_log_head(it, (head + cost) % places, n))
end

local function sliding_log_charge(it, key, cost)
    local time, tick, period = it.time, it.tick, it.period

    if cost == 0 then

        if it.rebase then
            local newest = sliding_log_age(it, 1) * tick

            sliding_log_rewrite(it, sliding_log_rebase(it), '',
                                time - newest + period)
        end

        return
    end

    cost = (cost < it.ring) and cost or it.ring

    local moved = it.rebase and sliding_log_rebase(it)

    time = sliding_log_round((time > now) and time or now, tick)
    it.time = time

    local ticks = time / tick
    local added = rep(pack('<I5', ticks), cost)

    if moved then
        return sliding_log_rewrite(it, moved, added, time + period)
    end

    sliding_log_prune(it, ticks - it.base)

    if sliding_log_fits(it, cost, ticks - it.base) then
        sliding_log_write(it, added, cost)
        save(key, nil, time + period)
    else
        sliding_log_rewrite(it, sliding_log_slice(it, it.n, 1), added,
                            time + period)
    end
end

looks[2] = function(key, argument)
    local it = sliding_log_load(key, argument)
    local cost, limit, period, _, ceiling = unpack('<I8I8I8I8I8', argument, 9)
    local time, tick = it.time, it.tick
    local used, reset, retry = 0, 0, 0

    it.charge = sliding_log_charge

    if time - now > skew then
        time = sliding_log_round(now, tick)
        it.time = time
        it.rebase = true
    end

    -- times that lie so far before the reference have left the period

    local span = time + period - now

    if it.n > 0 and span > 0 then
        used = sliding_log_younger(it, sliding_log_round(span, tick) / tick)
    end

    local stamp = sliding_log_round((time > now) and time or now, tick)
    local allowed, flags, remaining, excess = admit(used, cost, limit, ceiling)

    if allowed and cost > 0 then
        reset = stamp + period - now

    elseif used > 0 then
        reset = span - sliding_log_age(it, 1) * tick
    end

    if not allowed then
        retry = period

        -- the one that has to leave

        if cost <= ceiling then
            retry = span - sliding_log_age(it, ceiling - cost + 1) * tick
        end
    end

    it.allowed = allowed
    it.verdict = pack('<I8I8I8I8I8I8I8', it.rebase and flags + 4 or flags,
                      remaining, (reset > 0) and reset or 0,
                      (retry > 0 or allowed) and retry or 1, 0, excess, stamp)

    return it
end

if op == 'r' then
    refunds[2] = function(key, argument)
        local it = sliding_log_load(key, argument)
        local stamp = sliding_log_round((unpack('<I8', argument, 65)), it.tick)
        local age = (it.base - stamp / it.tick) % 1099511627776
        local later = sliding_log_younger(it, age)
        local found = 0

        while found < it.cost and later + found < it.n
              and sliding_log_age(it, later + found + 1) == age
        do
            found = found + 1
        end

        if found == 0 then
            return
        end

        local times = sliding_log_slice(it, it.n, later + found + 1)
                      .. sliding_log_slice(it, later, 1)

        if times == '' and not it.lossy then
            call('DEL', key)
            return
        end

        -- in the place of all that were overwritten: one that counts no more

        if times == '' then
            times = pack('<I5', it.base - 549755813887)
        end

        save(key, sliding_log_pack(it, times, it.places))
    end
end
