-- The times of the newest admitted requests in a ring: exact.
--
--   7 bytes  reference time, which no other time exceeds
--   4 bytes  head: the place of the next time; the highest bit is set if times
--            were overwritten that a ring of full size would still have
--   4 bytes  number of times
--   then     the places of the ring, 5 bytes each
--
-- A time is stored as the low 40 bits of a count of ticks, and read as an age:
-- the number of ticks from it to the reference.  A tick is 1 us, or 1 ms for
-- periods that are too long for that.  Times are rounded up to a tick, so that
-- no request leaves the period too early.
--
-- The ring grows on demand, up to the size in the argument; a long one is read
-- and written in pieces.

local rep, sub = string.rep, string.sub

local function sliding_log_load(key, argument)
    local ring, cost, _, period = unpack('<I4I8I8I8', argument, 5)
    local length, state, time, head, n
    local lossy = false

    if ring > 1024 then
        state = read('GETRANGE', key, '0', '14')
        length = (#state > 0) and call('STRLEN', key) or 0
    else
        state = read('GET', key)
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

-- the age of the i'th newest time

local function sliding_log_age(log, i)
    local place = log.head - i
    local at = 15 + ((place < 0) and place + log.places or place) * 5
    local ticks

    if log.state then
        ticks = unpack('<I5', log.state, at + 1)
    else
        ticks = unpack('<I5', call('GETRANGE', log.key, format('%d', at),
                                   format('%d', at + 4)))
    end

    return (log.base - ticks) % 1099511627776
end

-- the number of times that are younger than this age: a binary search, as ages
-- increase from the newest time on

local function sliding_log_younger(log, age)
    local low, high = 0, log.n

    if high == 0 or sliding_log_age(log, high) < age then
        return high
    end

    while high - low > 1 do
        local middle = low + high
        middle = (middle - middle % 2) / 2

        if sliding_log_age(log, middle) < age then
            low = middle
        else
            high = middle
        end
    end

    return low
end

-- rounds up to a whole tick

local function sliding_log_round(time, tick)
    local part = time % tick

    return (part > 0) and time - part + tick or time
end

-- the bytes of some places of the ring

local function sliding_log_bytes(log, first, last)
    first, last = 15 + first * 5, 19 + last * 5

    if log.state then
        return sub(log.state, first + 1, last + 1)
    end

    return call('GETRANGE', log.key, format('%d', first), format('%d', last))
end

-- the bytes of the times from the i'th newest to the j'th newest, i >= j

local function sliding_log_slice(log, i, j)
    if i < j then
        return ''
    end

    local places = log.places
    local first, last = log.head - i, log.head - j

    if last < 0 then
        first, last = first + places, last + places
    end

    if first >= 0 then
        return sliding_log_bytes(log, first, last)
    end

    return sliding_log_bytes(log, first + places, places - 1)
           .. sliding_log_bytes(log, 0, last)
end

-- writes the bytes of times from some place on

local function sliding_log_put(log, place, times)
    local room = (log.places - place) * 5

    call('SETRANGE', log.key, format('%d', 15 + place * 5), sub(times, 1, room))

    if #times > room then
        call('SETRANGE', log.key, '15', sub(times, room + 1))
    end
end

-- the first bytes of a state

local function sliding_log_header(log, head, n)
    if log.lossy and n < log.ring then
        head = head + 2147483648
    end

    return pack('<I7I4I4', log.time, head, n)
end

-- Writes the whole state, with a ring that has room for some more times.  If
-- that would exceed the full size, the oldest times are dropped.

local function sliding_log_rewrite(log, times, added, expires)
    local n = #times / 5
    local need = n + #added / 5
    local places = n + (n - n % 4) / 4 + 3

    places = (places > need) and places or need
    places = (places < log.ring) and places or log.ring

    if need > places then
        times = sub(times, (need - places) * 5 + 1)
        need = places
    end

    local key = log.key
    local state = sliding_log_header(log, need % places, need) .. times .. added
                  .. rep('\0', (places - need) * 5)

    --- include write
end

-- the clock was set back: all times are moved back with it

local function sliding_log_rebase(log, added, expires)
    local times, base = {}, log.time / log.tick

    log.n = sliding_log_younger(log, 549755813888)

    for i = log.n, 1, -1 do
        times[log.n - i + 1] = pack('<I5', base - sliding_log_age(log, i))
    end

    log.time = sliding_log_round((log.time > now) and log.time or now, log.tick)

    sliding_log_rewrite(log, table.concat(times), added, expires)
end

local function sliding_log_charge(log, key, cost)
    local tick, period, ring = log.tick, log.period, log.ring
    local head, places = log.head, log.places

    if cost == 0 then

        if log.rebase then
            sliding_log_rebase(log, '', log.time + period
                                        - sliding_log_age(log, 1) * tick)
        end

        return
    end

    cost = (cost < ring) and cost or ring

    local time = sliding_log_round((log.time > now) and log.time or now, tick)
    local step = time / tick - log.base
    local added = pack('<I5', time / tick)

    added = (cost == 1) and added or rep(added, cost)

    if log.rebase then
        return sliding_log_rebase(log, added, time + period)
    end

    log.time = time

    -- ages are below 2^39: times that are older than that are dropped

    if log.n > 0 and step + sliding_log_age(log, log.n) >= 549755813888 then
        log.n = sliding_log_younger(log, (step < 549755813888)
                                         and 549755813888 - step or 0)
        log.lossy = false
    end

    -- the ring is written again, larger, unless there is room, if only at the
    -- places of times that have left the period

    local n = log.n + cost

    if cost > places
       or (n > places and places < ring
           and (step + sliding_log_age(log, places - cost + 1) - 2) * tick
               < period + skew)
    then
        return sliding_log_rewrite(log, sliding_log_slice(log, log.n, 1), added,
                                   time + period)
    end

    sliding_log_put(log, head, added)

    if n > places then
        n = places
        log.lossy = log.lossy or places < ring
    end

    call('SETRANGE', key, '0',
         sliding_log_header(log, (head + cost) % places,
                            (n < ring) and n or ring))
    call('PEXPIREAT', key, format('%d', (time + period + 999) / 1000))
end

--- load

local log = sliding_log_load(key, argument)
local cost = log.cost

--- level

local limit, period, ceiling = unpack('<I8I8I8', argument, 17)
local time, tick = log.time, log.tick
local used = 0

if time - now > skew then
    time = sliding_log_round(now, tick)
    log.time = time
    log.rebase = true
end

-- times of this age, counted from the reference, have left the period

local span = time + period - now

if log.n > 0 and span > 0 then
    used = sliding_log_younger(log, sliding_log_round(span, tick) / tick)
end

--- look

local stamp = sliding_log_round((time > now) and time or now, tick)
local reset, retry = 0, 0

--- include window

if allowed and cost > 0 then
    reset = stamp + period - now

elseif used > 0 then
    reset = span - sliding_log_age(log, 1) * tick
end

if last then

    -- until a request leaves that was there before, or this one

    retry = (ceiling < 2 * cost) and reset
            or span - sliding_log_age(log, ceiling - 2 * cost + 1) * tick

elseif not allowed then
    retry = period

    -- until the request leaves that makes room for this one

    if cost <= ceiling then
        retry = span - sliding_log_age(log, ceiling - cost + 1) * tick
    end
end

local rebase = log.rebase
local verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                     remaining, (reset > 0) and reset or 0,
                     (retry > 0 or (allowed and not last)) and retry or 1, 0, excess, stamp)

--- charge

sliding_log_charge(log, key, cost)

--- add

-- Between the times of others, which come from clocks of other machines.

if log.rebase then
    sliding_log_charge(log, key, 0)
    log = sliding_log_load(key, argument)
end

local last = (log.time > now) and log.time or now

stamp = sliding_log_round((stamp < last) and stamp or last, log.tick)
cost = (cost < log.ring) and cost or log.ring

if stamp + period <= now then
    return
end

local step, later = stamp / log.tick - log.base, 0

if log.n > 0 and step < 0 then
    later = sliding_log_younger(log, -step)

elseif log.n > 0 and step + sliding_log_age(log, log.n) >= 549755813888 then
    log.n = sliding_log_younger(log, (step < 549755813888)
                                     and 549755813888 - step or 0)
end

if later == log.ring then
    return
end

local before = sliding_log_slice(log, log.n, later + 1)
               .. rep(pack('<I5', stamp / log.tick), cost)
local after = sliding_log_slice(log, later, 1)

log.time = (stamp > log.time or log.n == 0) and stamp or log.time

sliding_log_rewrite(log, before, after, log.time + period)

used = nil

--- refund

local later, found = 0, 0

if stamp == latest then

    -- with all that count, also those that do not

    local time = (log.time - now > skew) and sliding_log_round(now, log.tick)
                 or log.time
    local span = time + log.period - now
    local used = (log.n > 0 and span > 0)
                 and sliding_log_younger(log, sliding_log_round(span, log.tick)
                                              / log.tick)
                 or 0

    found = (cost < used) and cost or log.n
    log.lossy = log.lossy and found < log.n

else
    stamp = sliding_log_round(stamp, log.tick)

    local age = (log.base - stamp / log.tick) % 1099511627776

    later = sliding_log_younger(log, age)

    while found < cost and later + found < log.n
          and sliding_log_age(log, later + found + 1) == age
    do
        found = found + 1
    end
end

if found == 0 then
    return
end

local n = log.n - found

if n == 0 and not log.lossy then
    call('DEL', key)
    return
end

-- The later ones take the places of those that go, or the earlier ones do: there
-- may be fewer of them.

local earlier = n - later
local head = (log.head - found) % log.places
local times, place

if n == 0 then

    -- in the place of all that were overwritten: one that counts no more

    n, head = 1, (head + 1) % log.places
    times, place = pack('<I5', log.base - 549755813887), head - 1

elseif earlier < later then
    head = log.head
    times, place = sliding_log_slice(log, log.n, later + found + 1), head - n

else
    times, place = sliding_log_slice(log, later, 1), head - later
end

if times ~= '' then
    sliding_log_put(log, place % log.places, times)
end

call('SETRANGE', key, '0', sliding_log_header(log, head, n))
call('PEXPIREAT', key, format('%d', (log.time + log.period + 999) / 1000))
