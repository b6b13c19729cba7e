-- What both buckets share: some requests were taken from the bucket since a
-- time at which it was whole, and N of them return in each period.
--
--   7 bytes  since
--   5 bytes  taken
--
-- and, if something was reserved and is not settled yet, of which nothing
-- returns:
--
--   4 bytes  the epoch of the last reservation, 300 s each
--   5 bytes  reserved in that epoch
--   5 bytes  reserved in the epoch before it
--
-- The exact level of a bucket is a fraction with the period as denominator:
-- "used" whole requests, and a "part" of one more.
--
-- The algorithm sets three parameters before this text:
--
--   wait   a request that finds no room is allowed, and delayed, if there will
--          be room within this time
--   free   if not nil, requests above so many are delayed
--   above  requests above so many are excess; capacity if nil

local cost, limit, period, ceiling, capacity = unpack('<I8I8I8I8I8', argument,
                                                      9)
local state = read('GET', key)
local since, taken, epoch, last, earlier = 0, 0, 0, 0, 0
local reserve, reserved = string.byte(argument, 4) >= 2, 0

if state and #state == 12 then
    since, taken = unpack('<I7I5', state)

elseif state and #state == 26 then
    since, taken, epoch, last, earlier = unpack('<I7I5I4I5I5', state)
end

-- bytes that no bucket has written; no clock is set back by nine years

if since - now > 281474976710656 then
    since, taken, epoch, last, earlier = 0, 0, 0, 0, 0
end

-- the epoch that is now, or that of a clock that was a little ahead; what was
-- reserved before the last one is forgotten

local present = 0

if reserve or last + earlier > 0 then
    present = (now - now % 300000000) / 300000000

    if last + earlier > 0 and epoch == present + 1 then
        present = epoch
    end

    reserved = (epoch == present) and last + earlier
               or (epoch == present - 1) and last or 0
end

--- level

local used, part, lead = 0, 0, 0
local rebase, folded = false, false

if taken > 0 then
    local elapsed = 0

    if since <= now then
        elapsed = now - since

    elseif since - now <= skew then
        lead = since - now

    else
        -- the clock was set back: all that was taken counts from now on
        since = now
        rebase = true
    end

    -- All whole periods but the last one are folded: since moves forward, and
    -- what they returned is no longer taken.  A charge of the last period can
    -- still be refunded.

    if elapsed >= 2 * period then
        local periods = (elapsed - elapsed % period) / period - 1

        if (taken - taken % limit) / limit <= periods then
            taken, elapsed = 0, 0

        else
            taken = taken - periods * limit
            since = since + periods * period
            elapsed = elapsed - periods * period
            folded = true
        end
    end

    --- include bucket_clamp

    local returned, rest = divide(elapsed, limit, 0, period)

    used = taken - returned

    if rest > 0 then
        used, part = used - 1, period - rest
    end
end

if used < 0 or (used == 0 and part == 0) then
    used, part, since, taken, folded = 0, 0, now, 0, false
end

-- the time until the bucket is whole, without the cost

local whole = lead + divide_up(used, period, part, limit)

-- what is reserved is as good as taken just now

if reserved > 0 then

    if used + reserved >= ceiling + 2 * limit then
        local most = divide(6442450944, 2147483648, 0, period) - used - 1

        most = (most > 0) and most or 0
        reserved = (reserved < most) and reserved or most
    end

    used = used + reserved
end

--- look

local reset = (reserved > 0) and lead + divide_up(used, period, part, limit)
              or whole
local allowed, delay, retry = true, 0, 0
local after, counted = used + cost, used

if cost > ceiling then
    allowed, retry = false, period

elseif cost > 0 and (after > ceiling or (after == ceiling and part > 0)) then
    delay = lead + divide_up(after - ceiling, period, part, limit)

    if delay > wait then
        allowed, delay, retry = false, 0, delay - wait
    end
end

local flags = allowed and 1 or 0

if allowed and cost > 0 then
    counted = after
    reset = lead + divide_up(after, period, part, limit)

    if free and free < ceiling
       and (after > free + 1 or (after == free + 1 and part > 0))
    then
        delay = lead + divide_up(after - free - 1, period, part, limit)
    end

    -- if this is the last of its cost that is allowed, the next one waits

    local more = after + cost

    if more > ceiling or (more == ceiling and part > 0) then
        retry = lead + divide_up(more - ceiling, period, part, limit) - wait
        retry = (retry > 0) and retry or 0
    end
end

local excess = 0

above = above or capacity

if after >= above then
    excess = (after - above) * 1000

    if part > 0 then
        excess = excess + divide(part, 1000, 0, period)
    end
end

-- a request that has returned in part still counts as used

counted = (part > 0) and counted + 1 or counted

-- a request that is delayed until a hard limit has a token is not above it

if allowed and counted > capacity
   and (free or delay == 0 or ceiling > capacity)
then
    flags = 3
end

local most = 9007199254740991
local stamp = reserve and present or now + whole

local verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                     (capacity > counted) and capacity - counted or 0,
                     (reset < most) and reset or most,
                     (retry < most) and retry or most,
                     (delay < most) and delay or most,
                     (excess < most) and excess or most,
                     (stamp < most) and stamp or most)

--- charge

if cost > 0 or rebase or folded then
    local taken = taken

    if reserve and admitted and cost > 0 then

        if epoch ~= present then
            epoch, last, earlier = present, 0, (epoch == present - 1) and last
                                              or 0
        end

        last = (last + cost < 4294967295) and last + cost or 4294967295

    else
        taken = taken + cost
    end

    --- include bucket_clamp
    --- include bucket_write
end

--- punish

-- Takes again what has returned since the last request, and no more.

if cost > 0 and used < ceiling then
    since, taken, folded = now + lead, ceiling - reserved, true
end

if rebase or folded then

    --- include bucket_write
end

--- commit

-- What was reserved is taken from now on.

--- section load

if not reserve or cost == 0 then
    return
end

--- section level
--- include bucket_release

taken = taken + cost

--- include bucket_clamp
--- include bucket_write

--- add

-- What was taken at any time since the bucket was whole has the same effect.
-- Of what was taken before that, some had returned by then.

stamp = (stamp < now) and stamp or now

local elapsed = (taken == 0) and now - stamp
                or (since > stamp) and since - stamp or 0
local returned = divide(elapsed, limit, 0, period)

if cost <= returned then
    return
end

if taken == 0 then
    since, taken = stamp, cost
else
    taken = taken + cost - returned
end

--- include bucket_clamp
--- include bucket_write

used = nil

--- refund

if reserve then

    --- include bucket_release

    if taken == 0 and last + earlier == 0 then
        call('DEL', key)
        return
    end

    --- include bucket_write

    return
end

-- The stamp is the time at which the bucket would have been whole without the
-- charge.  What has returned since that time would have been lost without the
-- charge, so it is not refunded a second time.
--
-- A bucket that has been whole since then holds nothing of the charge.  That it
-- began after the stamp does not say so before all of the charge can be back:
-- with write-back a charge may be added at a later time than it was made.

local most = (cost < ceiling) and cost or ceiling
local lost = divide_up(most, period, 0, limit)

if taken == 0 or (since > stamp and now - stamp >= lost) then
    return
end

if taken <= cost and last + earlier == 0 then
    call('DEL', key)
    return
end

if taken > cost and now > stamp and now > since then
    lost = (lost < now - stamp) and lost or now - stamp
    since = (since + lost < now) and since + lost or now
end

taken = (taken > cost) and taken - cost or 0

--- include bucket_write
