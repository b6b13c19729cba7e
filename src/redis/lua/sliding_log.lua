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
        rebase = false, key = key, ring = ring, cost = cost, period = period,
        tick = tick,
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

-- the first bytes of a state

local function sliding_log_head(it, head, n)
    if it.lossy and n < it.ring then
        head = head + 2147483648
    end

    return pack('<I7I4I4', it.time, head, n)
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
        need = places
    end

    local key = it.key
    local state = sliding_log_head(it, need % places, need) .. times .. added
                  .. rep('\0', (places - need) * 5)

    --- include write
end

-- the clock was set back: all times move with it

local function sliding_log_rebase(it, added, expires)
    local times, base = {}, it.time / it.tick

    it.n = sliding_log_younger(it, 549755813888)

    for i = it.n, 1, -1 do
        times[it.n - i + 1] = pack('<I5', base - sliding_log_age(it, i))
    end

    it.time = sliding_log_round((it.time > now) and it.time or now, it.tick)

    sliding_log_rewrite(it, table.concat(times), added, expires)
end

local function sliding_log_charge(it, key, cost)
    local tick, period, ring = it.tick, it.period, it.ring
    local head, places = it.head, it.places

    if cost == 0 then

        if it.rebase then
            sliding_log_rebase(it, '', it.time + period
                                       - sliding_log_age(it, 1) * tick)
        end

        return
    end

    cost = (cost < ring) and cost or ring

    local time = sliding_log_round((it.time > now) and it.time or now, tick)
    local step = time / tick - it.base
    local added = pack('<I5', time / tick)

    added = (cost == 1) and added or rep(added, cost)

    if it.rebase then
        return sliding_log_rebase(it, added, time + period)
    end

    it.time = time

    -- forget what would be too old to be told apart with this reference

    if it.n > 0 and step + sliding_log_age(it, it.n) >= 549755813888 then
        it.n = sliding_log_younger(it, (step < 549755813888)
                                       and 549755813888 - step or 0)
        it.lossy = false
    end

    -- there is room, if only at the places of times that count no more

    local n, room = it.n + cost, places - head

    if cost > places
       or (n > places and places < ring
           and (step + sliding_log_age(it, places - cost + 1) - 2) * tick
               < period + skew)
    then
        return sliding_log_rewrite(it, sliding_log_slice(it, it.n, 1), added,
                                   time + period)
    end

    if cost <= room then
        call('SETRANGE', key, format('%d', 15 + head * 5), added)
    else
        call('SETRANGE', key, format('%d', 15 + head * 5),
             sub(added, 1, room * 5))
        call('SETRANGE', key, '15', sub(added, room * 5 + 1))
    end

    if n > places then
        n = places
        it.lossy = it.lossy or places < ring
    end

    call('SETRANGE', key, '0',
         sliding_log_head(it, (head + cost) % places, (n < ring) and n or ring))
    call('PEXPIREAT', key, format('%d', (time + period + 999) / 1000))
end

--- load

local it = sliding_log_load(key, argument)

--- look

local cost, limit, period, ceiling = unpack('<I8I8I8I8', argument, 9)
local time, tick = it.time, it.tick
local used, reset, retry = 0, 0, 0

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

--- include window

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

local rebase = it.rebase
local verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                     remaining, (reset > 0) and reset or 0,
                     (retry > 0 or allowed) and retry or 1, 0, excess, stamp)

--- charge

sliding_log_charge(it, key, cost)

--- refund

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

local n = #times / 5

call('SET', key, sliding_log_head(it, n % it.places, n) .. times
                 .. rep('\0', (it.places - n) * 5), 'KEEPTTL')
