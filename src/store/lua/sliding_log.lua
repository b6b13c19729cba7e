-- The times of the newest admitted requests in a ring: exact.
--
--   7 bytes  reference time, not before any other
--   4 bytes  head: where the next time goes
--   4 bytes  how many times there are
--   then     the places of the ring, 5 bytes each
--
-- A time is kept as the low 40 bits of a count of ticks, and read as an age:
-- how many ticks it lies before the reference.  A tick is 1 us, for periods
-- that are too long for it 1 ms, rounded up: a time is never kept too early.
--
-- The ring grows as it is needed, up to it.ring places.  A long one is read
-- and written in pieces.

local function sliding_log_load(it)
    local length, state

    it.tick = (it.period < 549755813888) and 1 or 1000
    it.long = (it.ring > 1024)

    if it.long then
        state = call('GETRANGE', it.key, '0', '14')
        length = call('STRLEN', it.key)
    else
        state = call('GET', it.key)
        length = state and #state or 0
    end

    it.places = (length - 15) / 5
    it.state = state
    it.n = 0

    if it.places >= 1 and it.places % 1 == 0 then
        it.time, it.head, it.n = unpack('<I7I4I4', state)
    end

    if it.n == 0 or it.n > it.places or it.head >= it.places then
        it.time, it.head, it.n, it.places = now, 0, 0, 0
    end

    if it.n > it.ring then
        it.n = it.ring
    end

    it.base = (it.time - it.time % it.tick) / it.tick
end

-- the age of the i'th last time

local function sliding_log_age(it, i)
    local place = it.head - i
    local at = 15 + ((place < 0) and place + it.places or place) * 5
    local ticks

    if it.long then
        ticks = unpack('<I5', call('GETRANGE', it.key, format('%d', at),
                                   format('%d', at + 4)))
    else
        ticks = unpack('<I5', it.state, at + 1)
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

local function sliding_log_up(it, time)
    local part = time % it.tick

    return (part > 0) and time - part + it.tick or time
end

local function sliding_log_look(it)
    local time, tick, period = it.time, it.tick, it.period

    it.rebase = false

    if time - now > skew then
        -- the clock was set back: all times move with it
        time = sliding_log_up(it, now)
        it.time = time
        it.rebase = true
    end

    -- times that lie so far before the reference have left the period

    local span = time + period - now
    local used = 0

    if it.n > 0 and span > 0 then
        used = sliding_log_younger(it, sliding_log_up(it, span) / tick)
    end

    local stamp = sliding_log_up(it, (time > now) and time or now)

    if admit(it, used) and it.cost > 0 then
        return window_verdict(it, stamp + period - now, 0, stamp)
    end

    local reset, retry = 0, 0

    if used > 0 then
        reset = span - sliding_log_age(it, 1) * tick
    end

    if it.allowed then
        retry = 0

    elseif it.cost > it.ceiling then
        retry = period

    else
        -- the one that has to leave
        retry = span - sliding_log_age(it, it.ceiling - it.cost + 1) * tick
    end

    window_verdict(it, reset, retry, stamp)
end

-- the bytes of the times from the i'th last to the j'th last

local function sliding_log_slice(it, i, j)
    if i < j then
        return ''
    end

    if it.long then
        it.state = call('GET', it.key)
        it.long = false
    end

    local first, last = it.head - i, it.head - j
    local state, places = it.state, it.places

    if last < 0 then
        first, last = first + places, last + places
    end

    if first >= 0 then
        return sub(state, 16 + first * 5, 20 + last * 5)
    end

    return sub(state, 16 + (first + places) * 5) .. sub(state, 16, 20 + last * 5)
end

-- all times as they are when the reference is the time now

local function sliding_log_rebased(it)
    local times = {}
    local base = it.time / it.tick

    it.n = sliding_log_younger(it, 549755813888)

    sliding_log_slice(it, 1, 1)

    for i = it.n, 1, -1 do
        times[it.n - i + 1] = pack('<I5', base - sliding_log_age(it, i))
    end

    return table.concat(times)
end

-- a ring with so many places for these times, and some that are added

local function sliding_log_rewrite(it, times, added, places, expires)
    local n = #times / 5 + #added / 5

    save(it.key, pack('<I7I4I4', it.time, (n < places) and n or 0, n)
                 .. times .. added .. rep('\0', (places - n) * 5),
         expires)
end

-- a request in a ring that is too small, though not too small for the rule

local function sliding_log_grow(it, times, added, cost, expires)
    local n = #times / 5
    local places = n + (n - n % 4) / 4 + 3

    places = (places > n + cost) and places or n + cost
    places = (places < it.ring) and places or it.ring

    if n + cost > places then
        times = sub(times, (n + cost - places) * 5 + 1)
    end

    sliding_log_rewrite(it, times, added, places, expires)
end

-- whether the ring needs to grow: not if what is overwritten has left

local function sliding_log_full(it, cost, ticks)
    if it.n + cost <= it.places or it.places >= it.ring then
        return false
    end

    if cost > it.places then
        return true
    end

    local age = ticks - it.base + sliding_log_age(it, it.places - cost + 1)

    return (age - 2) * it.tick < it.period + skew
end

-- forgets what would be too old to be told apart with this reference

local function sliding_log_prune(it, ticks)
    local step = ticks - it.base

    if it.n > 0 and step + sliding_log_age(it, it.n) >= 549755813888 then
        step = (step < 549755813888) and 549755813888 - step or 0
        it.n = sliding_log_younger(it, step)
    end
end

local function sliding_log_write(it, added, cost, expires)
    local head, places = it.head, it.places
    local room = places - head
    local n = it.n + cost
    local at = format('%d', 15 + head * 5)

    if cost <= room then
        call('SETRANGE', it.key, at, added)
    else
        call('SETRANGE', it.key, at, sub(added, 1, room * 5))
        call('SETRANGE', it.key, '15', sub(added, room * 5 + 1))
    end

    n = (n < places) and n or places
    n = (n < it.ring) and n or it.ring

    call('SETRANGE', it.key, '0',
         pack('<I7I4I4', it.time, (head + cost) % places, n))
    extend(it.key, expires)
end

local function sliding_log_charge(it, cost)
    local tick, expires = it.tick, nil

    cost = (cost < it.ring) and cost or it.ring

    if cost == 0 then
        if it.rebase and it.n > 0 then
            expires = it.time - sliding_log_age(it, 1) * tick + it.period
            local times = sliding_log_rebased(it)
            sliding_log_rewrite(it, times, '', it.n, expires)
        end

        return
    end

    local time = sliding_log_up(it, (it.time > now) and it.time or now)
    local ticks = time / tick
    local added = rep(pack('<I5', ticks), cost)

    expires = time + it.period

    if it.rebase then
        local times = sliding_log_rebased(it)
        it.time = time
        return sliding_log_grow(it, times, added, cost, expires)
    end

    sliding_log_prune(it, ticks)
    it.time = time

    if it.places == 0 or sliding_log_full(it, cost, ticks) then
        return sliding_log_grow(it, sliding_log_slice(it, it.n, 1), added,
                                cost, expires)
    end

    sliding_log_write(it, added, cost, expires)
end

local function sliding_log_refund(it)
    if it.n == 0 then
        return
    end

    local age = (it.base - sliding_log_up(it, it.stamp) / it.tick)
                % 1099511627776
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

    local n = it.n - found

    if n == 0 then
        call('DEL', it.key)
        return
    end

    restore(it.key, pack('<I7I4I4', it.time, n % it.places, n)
                    .. sliding_log_slice(it, it.n, later + found + 1)
                    .. sliding_log_slice(it, later, 1)
                    .. rep('\0', (it.places - n) * 5))
end

algorithms[2] = {
    load = sliding_log_load,
    look = sliding_log_look,
    charge = sliding_log_charge,
    punish = sliding_log_charge,
    refund = sliding_log_refund
}
