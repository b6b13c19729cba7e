-- What both buckets share: since a time at which the bucket was whole some
-- requests were taken from it, and N of them return in each period.
--
--   7 bytes  since
--   5 bytes  taken
--
-- The exact level of a bucket is a fraction with the period as denominator: so
-- many requests are used, and a part of one more.

local function bucket_load(it)
    local state = call('GET', it.key)

    it.since, it.taken = 0, 0

    if state and #state == 12 then
        it.since, it.taken = unpack('<I7I5', state)
    end
end

-- Neither a limit nor what was admitted passes the first test; requests that
-- were counted although refused do, or a state of another rule: three times
-- 2^62 is the highest level that is told apart.

local function bucket_bound(it, taken)
    if taken > it.ceiling + 2 * it.limit then
        local most = divide(6442450944, 2147483648, 0, it.period)

        most = (most < 1099511627775) and most or 1099511627775
        taken = (taken < most) and taken or most
    end

    return taken
end

-- Whole periods, all but the last one, are settled: since moves forward, what
-- they returned is no longer taken.  A charge of the last period can still be
-- given back.

local function bucket_fold(it, elapsed)
    local period, limit = it.period, it.limit
    local periods = (elapsed - elapsed % period) / period

    if (it.taken - it.taken % limit) / limit < periods then
        it.taken = 0
        return 0
    end

    periods = periods - 1

    it.taken = it.taken - periods * limit
    it.since = it.since + periods * period

    return elapsed - periods * period
end

-- the bucket as it is now

local function bucket_view(it)
    local period = it.period
    local elapsed = 0

    it.was = it.since
    it.used, it.part, it.lead = 0, 0, 0
    it.rebase = false

    if it.taken == 0 then
        return
    end

    if it.since <= now then
        elapsed = now - it.since

        if elapsed >= 2 * period then
            elapsed = bucket_fold(it, elapsed)
        end

    elseif it.since - now <= skew then
        it.lead = it.since - now

    else
        -- the clock was set back: all that was taken was taken now
        it.since = now
        it.rebase = true
    end

    it.taken = bucket_bound(it, it.taken)

    local returned, rest = divide(elapsed, it.limit, 0, period)
    local used = it.taken - returned

    if rest > 0 then
        used = used - 1
        rest = period - rest
    end

    if used >= 0 then
        it.used, it.part = used, rest
    end
end

-- the time until a level has fallen to a number of whole requests

local function bucket_until(it, used, target)
    used = used - target

    if used < 0 or (used == 0 and it.part == 0) then
        return 0
    end

    return it.lead + divide_up(used, it.period, it.part, it.limit)
end

-- A cost that finds no room is allowed and delayed if there will be room
-- within so long a wait.  Returns allowed, delay and retry.

local function bucket_admit(it, wait)
    local cost, ceiling = it.cost, it.ceiling

    if cost == 0 then
        return true, 0, 0
    end

    if cost > ceiling then
        return false, 0, it.period
    end

    local time = bucket_until(it, it.used + cost, ceiling)

    if time <= wait then
        return true, time, 0
    end

    return false, 0, time - wait
end

local function bucket_far(time)
    return (time < 9007199254740991) and time or 9007199254740991
end

-- what is taken above so many requests is excess; soft is nil if that depends

local function bucket_verdict(it, above, allowed, delay, retry, hard)
    local cost, part, capacity = it.cost, it.part, it.capacity
    local used = it.used
    local after, excess = used + cost, 0

    if after > above then
        excess = (after - above) * 1000
    end

    if part > 0 and after >= above then
        excess = excess + divide(part, 1000, 0, it.period)
    end

    -- a request that has not returned altogether is a used one

    local counted = (part > 0) and used + 1 or used
    local whole = counted + cost
    local soft = allowed and whole > capacity and not hard

    if allowed then
        counted = whole
    end

    local flags = allowed and 1 or 0

    it.allowed = allowed

    it.verdict = pack('<I8I8I8I8I8I8I8',
        flags + (soft and 2 or 0) + (it.rebase and 4 or 0),
        (capacity > counted) and capacity - counted or 0,
        bucket_far(bucket_until(it, allowed and after or used, 0)),
        bucket_far(retry), bucket_far(delay), bucket_far(excess),
        bucket_far(now + it.lead + divide_up(used, it.period, part, it.limit)))
end

local function bucket_write(it, since, taken)
    local lasts = divide_up(taken, it.period, 0, it.limit)

    save(it.key, pack('<I7I5', since, taken), bucket_far(since + lasts))
end

local function bucket_charge(it, cost)
    if it.used > 0 or it.part > 0 then

        if cost == 0 and not it.rebase and it.since == it.was then
            return
        end

        bucket_write(it, it.since, bucket_bound(it, it.taken + cost))

    elseif cost > 0 then
        bucket_write(it, now, bucket_bound(it, cost))
    end
end

-- what had dripped back since the last request is taken again, no more

local function bucket_punish(it, cost)
    if cost == 0 or it.used >= it.ceiling then
        return bucket_charge(it, 0)
    end

    bucket_write(it, now + it.lead, it.ceiling)
end

-- What has dripped back meanwhile would have been lost had the charge not been
-- there: all that dripped after the bucket would have been whole, which is
-- what the stamp says.  That much is not given back a second time.

local function bucket_refund(it)
    local since, stamp, cost = it.since, it.stamp, it.cost

    if it.taken == 0 or since > stamp then
        return
    end

    if it.taken <= cost then
        call('DEL', it.key)
        return
    end

    if now > stamp then
        local most = (cost < it.ceiling) and cost or it.ceiling
        local lost = divide_up(most, it.period, 0, it.limit)

        lost = (lost < now - stamp) and lost or now - stamp
        since = (since + lost < now) and since + lost or now
    end

    bucket_write(it, since, it.taken - cost)
end
