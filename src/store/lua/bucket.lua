-- What both buckets share: since a time at which the bucket was whole some
-- requests were taken from it, and N of them return in each period.
--
--   7 bytes  since
--   5 bytes  taken
--
-- The exact level of a bucket is a fraction with the period as denominator: so
-- many requests are used, and a part of one more.

local function bucket_load(key)
    local state = call('GET', key)

    if state and #state == 12 then
        return unpack('<I7I5', state)
    end

    return 0, 0
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
    it.folded = true

    return elapsed - periods * period
end

local function bucket_far(time)
    return (time < 9007199254740991) and time or 9007199254740991
end

local function bucket_write(it, key, since, taken)
    local lasts = divide_up(taken, it.period, 0, it.limit)

    save(key, pack('<I7I5', since, taken), bucket_far(since + lasts))
end

local function bucket_charge(it, key, cost)
    if it.used == 0 and it.part == 0 then

        if cost > 0 then
            bucket_write(it, key, now, bucket_bound(it, cost))
        end

    elseif cost > 0 or it.rebase or it.folded then
        bucket_write(it, key, it.since, bucket_bound(it, it.taken + cost))
    end
end

-- what had dripped back since the last request is taken again, no more

local function bucket_punish(it, key, cost)
    if cost == 0 or it.used >= it.ceiling then
        return bucket_charge(it, key, 0)
    end

    bucket_write(it, key, now + it.lead, it.ceiling)
end

-- the bucket as it is now

local function bucket_view(key, argument)
    local cost, limit, period, capacity, ceiling = unpack('<I8I8I8I8I8',
                                                          argument, 9)
    local since, taken = bucket_load(key)
    local elapsed = 0

    local it = {
        allowed = true, rebase = false, verdict = '', charge = bucket_charge,
        punish = bucket_punish, cost = cost, limit = limit, period = period,
        capacity = capacity, ceiling = ceiling, since = since, taken = taken,
        used = 0, part = 0, lead = 0, folded = false
    }

    if taken == 0 then
        return it
    end

    if since <= now then
        elapsed = now - since

        if elapsed >= 2 * period then
            elapsed = bucket_fold(it, elapsed)
        end

    elseif since - now <= skew then
        it.lead = since - now

    else
        -- the clock was set back: all that was taken was taken now
        it.since = now
        it.rebase = true
    end

    it.taken = bucket_bound(it, it.taken)

    local returned, rest = divide(elapsed, limit, 0, period)
    local used = it.taken - returned

    if rest > 0 then
        used = used - 1
        rest = period - rest
    end

    if used >= 0 then
        it.used, it.part = used, rest
    end

    return it
end

-- the time until so many used requests have fallen to another number

local function bucket_until(it, used, target)
    used = used - target

    if used < 0 or (used == 0 and it.part == 0) then
        return 0
    end

    return it.lead + divide_up(used, it.period, it.part, it.limit)
end

-- A cost that finds no room is allowed and delayed if there will be room
-- within so long a wait.  Returns delay and retry.

local function bucket_admit(it, wait)
    local cost = it.cost

    if cost == 0 then
        return 0, 0
    end

    if cost > it.ceiling then
        it.allowed = false
        return 0, it.period
    end

    local time = bucket_until(it, it.used + cost, it.ceiling)

    if time <= wait then
        return time, 0
    end

    it.allowed = false

    return 0, time - wait
end

-- What is taken above so many requests is excess.  Above the capacity a
-- request is soft, unless it may not be.

local function bucket_verdict(it, above, hard, delay, retry)
    local used, part, capacity = it.used, it.part, it.capacity
    local after, allowed = used + it.cost, it.allowed
    local excess, flags = 0, 0

    if after >= above then
        excess = (after - above) * 1000

        if part > 0 then
            excess = excess + divide(part, 1000, 0, it.period)
        end
    end

    -- a request that has not returned altogether is a used one

    local whole = (part > 0) and 1 or 0
    local counted = (allowed and after or used) + whole

    if allowed then
        flags = (counted > capacity and not hard) and 3 or 1
    end

    it.verdict = pack('<I8I8I8I8I8I8I8', it.rebase and flags + 4 or flags,
        (capacity > counted) and capacity - counted or 0,
        bucket_far(bucket_until(it, allowed and after or used, 0)),
        bucket_far(retry), bucket_far(delay), bucket_far(excess),
        bucket_far(now + it.lead + divide_up(used, it.period, part, it.limit)))

    return it
end

-- What has dripped back meanwhile would have been lost had the charge not been
-- there: all that dripped after the bucket would have been whole, which is
-- what the stamp says.  That much is not given back a second time.

local function bucket_refund(key, argument)
    local cost, limit, period, _, ceiling = unpack('<I8I8I8I8I8', argument, 9)
    local stamp = unpack('<I8', argument, 65)
    local since, taken = bucket_load(key)

    if taken == 0 or since > stamp then
        return
    end

    if taken <= cost then
        call('DEL', key)
        return
    end

    if now > stamp then
        local most = (cost < ceiling) and cost or ceiling
        local lost = divide_up(most, period, 0, limit)

        lost = (lost < now - stamp) and lost or now - stamp
        since = (since + lost < now) and since + lost or now
    end

    bucket_write({ period = period, limit = limit }, key, since, taken - cost)
end
