-- The times of the newest admitted requests in a ring: exact.
--
--   7 bytes  reference time, which no other time exceeds
--   4 bytes  head: the place of the next time; the highest bit is set if times
--            were overwritten that a ring of full size would still have, the
--            next one if some were refunded where they are
--   4 bytes  number of times
--   then     the places of the ring, 5 bytes each
--   then     an index of refunded times, if the ring is large
--
-- A time is stored as the low 40 bits of a count of ticks, and read as an age:
-- the number of ticks from it to the reference.  A tick is 1 us, or 1 ms for
-- periods that are too long for that.  Times are rounded up to a tick, so that
-- no request leaves the period too early.
--
-- The ring grows on demand, up to the size in the argument; a long one is read
-- and written in pieces.
--
-- A refund closes the gap that it leaves in the ring, if there are few times to
-- move.  In a large ring, of 4096 places or more, there may be many: then the
-- time stays in its place, and the index says that it does not count.

local rep, sub = string.rep, string.sub

-- writes the bytes of times from some place on

local function sliding_log_put(log, place, times)
    local room = (log.places - place) * 5

    if times == '' then
        return
    end

    call('SETRANGE', log.key, format('%d', 15 + place * 5), sub(times, 1, room))

    if #times > room then
        call('SETRANGE', log.key, '15', sub(times, room + 1))
    end
end

-- The index of a large ring:
--
--   1 bit    for each place: whether the time there was refunded
--   4 bytes  for each 256 places: how many were, in a binary indexed tree
--   4 bytes  edge: the place up to which refunded times were swept out
--   4 bytes  gap: the number of places before it that are empty
--
-- Each refund sweeps on, from the newest times to the oldest: those that count
-- move over the gap, which takes the places of the others.  At the oldest time
-- it is gone.  The more is refunded the faster it moves, so that refunded times
-- and the gap never need more than a sixteenth of the ring.
--
-- The i'th newest time is the i'th that is in the ring, whether it counts or
-- not, unless something else is said.

local function sliding_log_index(log, lossy)
    local key, places, ring = log.key, log.places, log.ring
    local groups, bits = places / 256, 15 + places * 5
    local tree = bits + places / 8
    local total, index = 0, {}

    local function get(at, size)
        return call('GETRANGE', key, format('%d', at),
                    format('%d', at + size - 1))
    end

    local function node(i)
        return (unpack('<I4', get(tree + i * 4 - 4, 4)))
    end

    local function ones(byte)
        local sum = 0

        while byte > 0 do
            sum = sum + byte % 2
            byte = (byte - byte % 2) / 2
        end

        return sum
    end

    -- how many of the first places have a refunded time

    local function before(place)
        local rest = place % 256
        local i, step, sum = (place - rest) / 256, 1, 0

        if rest > 0 then
            local size = (rest + -rest % 8) / 8
            local bytes = get(bits + i * 256 / 8, size)

            for k = 1, size - 1 do
                sum = sum + ones(string.byte(bytes, k))
            end

            local byte = string.byte(bytes, size)

            sum = sum + ones(byte - byte % 2 ^ (-rest % 8))
        end

        while i > 0 do
            if i % (2 * step) > 0 then
                sum = sum + node(i)
                i = i - step
            end

            step = 2 * step
        end

        return sum
    end

    -- the place of the r'th time in the ring that was not refunded

    local function find(r)
        local i, step = 0, 1

        while 2 * step <= groups do
            step = 2 * step
        end

        while step >= 1 do
            local counted = (i + step <= groups)
                            and step * 256 - node(i + step)

            if counted and counted < r then
                i, r = i + step, r - counted
            end

            step = step / 2
        end

        local bytes = get(bits + i * 256 / 8, 256 / 8)
        local place = i * 256

        for k = 1, #bytes do
            local byte = string.byte(bytes, k)
            local counted = 8 - ones(byte)

            if counted >= r then
                for bit = 7, 0, -1 do
                    r = (byte % (2 * 2 ^ bit) < 2 ^ bit) and r - 1 or r

                    if r == 0 then
                        return place + 7 - bit
                    end
                end
            end

            r, place = r - counted, place + 8
        end

        return 0
    end

    -- says of some places whether their times were refunded

    local function mark(place, count, refunded)
        while count > 0 do
            local rest = place % 256
            local i, changed = (place - rest) / 256, 0
            local n = (count < 256 - rest) and count or 256 - rest
            local first = (rest - rest % 8) / 8
            local last = (rest + n + -(rest + n) % 8) / 8
            local at = bits + i * 256 / 8 + first
            local bytes, new = get(at, last - first), {}

            for k = first, last - 1 do
                local byte = string.byte(bytes, k - first + 1)
                local old = byte

                for bit = (rest > 8 * k) and rest - 8 * k or 0,
                          (rest + n < 8 * k + 8) and rest + n - 8 * k - 1 or 7
                do
                    local value = 2 ^ (7 - bit)
                    local set = byte % (2 * value) >= value

                    if set ~= refunded then
                        byte = set and byte - value or byte + value
                    end
                end

                changed = changed + ones(byte) - ones(old)
                new[#new + 1] = string.char(byte)
            end

            if changed ~= 0 then
                local step = 1

                call('SETRANGE', key, format('%d', at), table.concat(new))

                total, i = total + changed, i + 1

                while i <= groups do
                    if i % (2 * step) > 0 then
                        call('SETRANGE', key, format('%d', tree + i * 4 - 4),
                             pack('<I4', (node(i) + changed) % 4294967296))
                        i = i + step
                    end

                    step = 2 * step
                end
            end

            place, count = (place + n) % places, count - n
        end
    end

    -- the bytes of the times in some places that were not refunded

    local function counted(place, count)
        local parts = {}

        while count > 0 do
            local n = (count < places - place) and count or places - place
            local rest, from = place % 8, 0
            local times = get(15 + place * 5, n * 5)
            local flags = get(bits + (place - rest) / 8,
                              (rest + n + -(rest + n) % 8) / 8)
            local at = string.find(flags, '[^%z]')

            while at do
                local byte = string.byte(flags, at)

                for bit = 0, 7 do
                    local i = 8 * at - 8 + bit - rest

                    if byte % (2 * 2 ^ (7 - bit)) >= 2 ^ (7 - bit)
                       and i >= 0 and i < n
                    then
                        parts[#parts + 1] = sub(times, from * 5 + 1, i * 5)
                        from = i + 1
                    end
                end

                at = string.find(flags, '[^%z]', at + 1)
            end

            parts[#parts + 1] = sub(times, from * 5 + 1)
            place, count = (place + n) % places, count - n
        end

        return table.concat(parts)
    end

    -- how many places before the head the i'th newest time is

    function index.skip(i)
        return (i > log.after) and i + log.gap or i
    end

    local function where(i)
        return (log.head - index.skip(i)) % places
    end

    -- how many of the newest times were refunded

    function index.count(n)
        if n <= 0 then
            return 0
        end

        local first = where(n)
        local sum = before(log.head) - before(first)

        sum = (first >= log.head) and sum + total or sum

        return (sum < 0) and 0 or (sum < n) and sum or n
    end

    -- which of the newest times is the i'th that counts

    function index.find(i)
        local gap = log.gap

        if gap > 0 and i <= log.after - index.count(log.after) then
            gap = 0
        end

        local r = log.head - before(log.head) - i - gap + 1
        local place = find((r < 1) and r + places - total or r)
        local k = (log.head - place - 1) % places + 1 - gap

        return (k < 1) and 1 or (k < log.n) and k or log.n
    end

    -- the bytes of the times from the i'th newest to the j'th newest that count

    function index.slice(i, j)
        local after = log.after

        if i > after and j <= after then
            return counted(where(i), i - after)
                   .. counted(where(after), after - j + 1)
        end

        return counted(where(i), i - j + 1)
    end

    -- how many times there is room for, and how many of these would count if
    -- some were added

    function index.room(cost)
        local room = places - log.gap
        local full = log.n + cost > room and cost <= room

        return room, full and room - index.count(room - cost) or room
    end

    -- some times were added, n are there; returns how many of them stay

    function index.added(cost, head, n)
        local after = log.after

        if n - cost <= after then
            log.gap = 0
        end

        mark(log.head, cost, false)

        log.head, log.after, log.n = head, after + cost, n
        log.live = n - index.count(n)

        if log.live >= ring then
            log.n, log.live = index.find(ring), ring
        end

        index.save()

        return log.n
    end

    -- takes out the newest that count

    function index.cut(found)
        local k, after = index.find(found), log.after

        if k >= after then
            log.head, log.gap, log.after = log.head - log.gap, 0, k
        end

        log.head = (log.head - k) % places
        log.n, log.after = log.n - k, log.after - k

        return log.head, log.n
    end

    -- whether the newest times all count and lie before the gap

    function index.clean(n)
        return (log.gap == 0 or n <= log.after) and index.count(n) == 0
    end

    -- the times up to the i'th newest do not count any more

    function index.refund(i, found)
        local after = log.after
        local older = (i > after) and i - after or 0

        older = (older < found) and older or found

        mark(where(i), older, true)
        mark(where(i - older), found - older, true)

        local n = log.n - after

        n = (48 * found < n) and 48 * found or n

        local first = where(after + n)
        local times = counted(first, n)
        local k = #times / 5

        if log.gap > 0 or k < n then
            sliding_log_put(log, (log.head - after - k) % places, times)
            mark(first, n, false)
        end

        log.n, log.gap, log.after = log.n - n + k, log.gap + n - k, after + k

        return log.n
    end

    function index.save()
        if total == 0 and log.gap == 0 then
            log.index = nil
        end

        call('SETRANGE', key, format('%d', tree + groups * 4),
             pack('<I4I4', (log.head - log.after) % places, log.gap))
    end

    local edge, gap = unpack('<I4I4', get(tree + groups * 4, 8))

    total = before(places)
    log.state, log.index = false, index
    log.gap, log.after = gap, (log.head - edge) % places

    if log.after >= log.n then
        log.gap, log.after = 0, 0
    end

    log.live = (log.n + log.gap <= places) and log.n - index.count(log.n) or 0

    if log.live >= ring then
        log.n, log.live = index.find(ring), ring
    end

    log.lossy = lossy and log.live < ring
end

local function sliding_log_load(key, argument)
    local ring, cost, _, period = unpack('<I4I8I8I8', argument, 5)
    local length, state, time, head, n
    local lossy, refunded = false, false

    if ring > 1024 then
        state = read('GETRANGE', key, '0', '14')
        length = (#state > 0) and call('STRLEN', key) or 0
    else
        state = read('GET', key)
        length = state and #state or 0
    end

    local places = (length - 15) / 5

    if places >= 4096 then
        places = (length - 23) / (256 * 41 / 8 + 4)
        places = (places % 1 == 0) and places * 256 or 0
    end

    if places >= 1 and places % 1 == 0 then
        time, head, n = unpack('<I7I4I4', state)

        if head >= 2147483648 then
            head, lossy = head - 2147483648, true
        end

        if head >= 1073741824 and places >= 4096 then
            head, refunded = head - 1073741824, true
        end

        if head >= places or n > places then
            n = 0
        end
    end

    if not n or n == 0 then
        time, head, n, places, lossy, refunded = now, 0, 0, 0, false, false
    end

    local tick = (period < 549755813888) and 1 or 1000
    local log = {
        rebase = false, key = key, ring = ring, cost = cost, period = period,
        tick = tick,
        state = (ring <= 1024) and state, places = places, time = time,
        head = head, n = (n < ring or refunded) and n or ring,
        lossy = lossy and n < ring, base = (time - time % tick) / tick
    }

    if refunded then
        sliding_log_index(log, lossy)
    end

    if refunded and log.live < 1 then
        log.time, log.head, log.n, log.places = now, 0, 0, 0
        log.base, log.lossy = (now - now % tick) / tick, false
        log.index = nil
    end

    return log
end

-- the age of the i'th newest time, or of the i'th newest that counts

local function sliding_log_age(log, i, counts)
    local state = log.state

    if not state and log.index then
        i = log.index.skip(counts and log.index.find(i) or i)
    end

    local place = log.head - i
    local at = 15 + ((place < 0) and place + log.places or place) * 5
    local ticks

    if state then
        ticks = unpack('<I5', state, at + 1)
    else
        ticks = unpack('<I5', call('GETRANGE', log.key, format('%d', at),
                                   format('%d', at + 4)))
    end

    return (log.base - ticks) % 1099511627776
end

-- the number of times that are younger than this age: a binary search, as ages
-- increase from the newest time on; between bounds, if these are known

local function sliding_log_younger(log, age, low, high)
    low, high = low or 0, high or log.n

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

-- the bytes of the times from the i'th newest to the j'th newest that count

local function sliding_log_slice(log, i, j)
    if i < j then
        return ''
    end

    if log.index then
        return log.index.slice(i, j)
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

-- the first bytes of a state

local function sliding_log_header(log, head, n)
    if log.lossy and (log.index and log.live or n) < log.ring then
        head = head + 2147483648
    end

    if log.index then
        head = head + 1073741824
    end

    return pack('<I7I4I4', log.time, head, n)
end

-- Writes the whole state, with a ring that has room for some more times.  If
-- that would exceed the full size, the oldest times are dropped.  A large ring
-- of full size has room for a sixteenth of refunded times, too.

local function sliding_log_rewrite(log, times, added, expires)
    local n, ring = #times / 5, log.ring
    local need = n + #added / 5
    local places = n + (n - n % 4) / 4 + 3
    local index = 0

    places = (places > need) and places or need
    places = (places < ring) and places or ring

    if need > places then
        times = sub(times, (need - places) * 5 + 1)
        need = places
    end

    if places >= 4096 then
        places = (places < ring) and places or ring + (ring - ring % 16) / 16
        places = places + -places % 256
        index = places / 8 + places / 256 * 4 + 8
    end

    log.index = nil

    local key = log.key
    local state = sliding_log_header(log, need % places, need) .. times .. added
                  .. rep('\0', (places - need) * 5 + index)

    --- include write
end

-- the clock was set back: all times are moved back with it

local function sliding_log_rebase(log, added, expires)
    local times, base = {}, log.time / log.tick
    local bytes = sliding_log_slice(log, sliding_log_younger(log, 549755813888),
                                    1)

    for at = 1, #bytes, 5 do
        local age = (log.base - unpack('<I5', bytes, at)) % 1099511627776

        times[#times + 1] = pack('<I5', base - age)
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
                                        - sliding_log_age(log, 1, true) * tick)
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

    local n, index = log.n + cost, log.index
    local room, held = places, places

    if index then
        room, held = index.room(cost)
    end

    if cost > room
       or (n > room and held < ring
           and (step + sliding_log_age(log, room - cost + 1) - 2) * tick
               < period + skew)
    then
        return sliding_log_rewrite(log, sliding_log_slice(log, log.n, 1), added,
                                   time + period)
    end

    sliding_log_put(log, head, added)

    if n > room then
        n = room
        log.lossy = log.lossy or held < ring
    end

    head = (head + cost) % places

    if index then
        n = index.added(cost, head, n)
    else
        n = (n < ring) and n or ring
    end

    call('SETRANGE', key, '0', sliding_log_header(log, head, n))
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
    used = log.index and used - log.index.count(used) or used
end

--- look

local stamp = sliding_log_round((time > now) and time or now, tick)
local reset, retry = 0, 0

--- include window

if allowed and cost > 0 then
    reset = stamp + period - now

elseif used > 0 then
    reset = span - sliding_log_age(log, 1, true) * tick
end

if last then

    -- until a request leaves that was there before, or this one

    retry = (ceiling < 2 * cost) and reset
            or span - sliding_log_age(log, ceiling - 2 * cost + 1, true) * tick

elseif not allowed then
    retry = period

    -- until the request leaves that makes room for this one

    if cost <= ceiling then
        retry = span - sliding_log_age(log, ceiling - cost + 1, true) * tick
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

local after = sliding_log_slice(log, later, 1)

if #after / 5 == log.ring then
    return
end

local before = sliding_log_slice(log, log.n, later + 1)
               .. rep(pack('<I5', stamp / log.tick), cost)

log.time = (stamp > log.time or log.n == 0) and stamp or log.time

sliding_log_rewrite(log, before, after, log.time + period)

used = nil

--- refund

local index = log.index
local live = index and log.live or log.n
local later, same, found, age = 0, 0, 0, 0

if stamp == latest then

    -- with all that count, also those that do not

    local time = (log.time - now > skew) and sliding_log_round(now, log.tick)
                 or log.time
    local span = time + log.period - now
    local used = (log.n > 0 and span > 0)
                 and sliding_log_younger(log, sliding_log_round(span, log.tick)
                                              / log.tick)
                 or 0

    used = index and used - index.count(used) or used
    found = (cost < used) and cost or live
    log.lossy = log.lossy and found < live

else
    stamp = sliding_log_round(stamp, log.tick)

    local last = log.n

    age = (log.base - stamp / log.tick) % 1099511627776
    later = sliding_log_younger(log, age)

    if not index and later + cost < last then
        last = later + cost
    end

    same = sliding_log_younger(log, age + 1, later, last)
    found = same - later

    if index then
        same = same - index.count(same) + index.count(later)
        found = same - later
        found = (cost < found) and cost or found
    end
end

if found < 1 then
    return
end

if found == live and not log.lossy then
    call('DEL', key)
    return
end

if found == live then

    -- in the place of all that were overwritten: one that counts no more

    sliding_log_rewrite(log, pack('<I5', log.base - 549755813887), '',
                        log.time + log.period)
    return
end

-- The later ones take the places of those that go, or the earlier ones do: there
-- may be fewer of them.

local n, head = log.n - found, (log.head - found) % log.places
local earlier = n - later
local most = 1024 + 48 * found

if log.places >= 4096 and not index and later > most and earlier > most then
    sliding_log_index(log, log.lossy)
    index, same = log.index, sliding_log_younger(log, age + 1, later)
end

if index and stamp == latest then
    head, n = index.cut(found)

elseif index and not (later <= most and index.clean(later + found)) then
    head, n = log.head, index.refund(same, found)

elseif index or later <= earlier then
    sliding_log_put(log, (head - later) % log.places,
                    sliding_log_slice(log, later, 1))
else
    head = log.head
    sliding_log_put(log, (head - n) % log.places,
                    sliding_log_slice(log, log.n, later + found + 1))
end

if index then
    index.save()
end

call('SETRANGE', key, '0', sliding_log_header(log, head, n))
call('PEXPIREAT', key, format('%d', (log.time + log.period + 999) / 1000))
