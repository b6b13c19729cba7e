-- Windows of one period, aligned to the clock.
--
--   7 bytes  end of the window
--   5 bytes  requests in it

--- load

local cost, limit, period, ceiling = unpack('<I8I8I8I8', argument, 9)
local state = read('GET', key)
local finish, count = 0, 0

if state and #state == 12 then
    finish, count = unpack('<I7I5', state)
end

--- level

local rebase = false

if finish <= now then
    finish, count = now + period - wall % period, 0

elseif finish - now > period + skew then
    -- the clock was set back: the count stays, but its window ends earlier
    finish = now + period - wall % period
    rebase = count > 0
end

local used = count

--- look

--- include window

local left = finish - now
local reset, retry = left, 0

if not allowed or last then
    retry = (cost > ceiling) and period or left
end

if count == 0 and (cost == 0 or not allowed) then
    reset = 0
end

local verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                     remaining, reset, retry, 0, excess, finish)

--- charge

if cost > 0 or rebase then
    local more = count + cost
    local expires = finish
    local state = pack('<I7I5', finish,
                       (more < 1099511627775) and more or 1099511627775)

    --- include write
end

--- add

-- The window of the stamp is the one that is open, or it is past.

if stamp < finish then
    return
end

--- section charge

used = used + cost

--- refund

stamp = (stamp == latest and finish > now) and finish or stamp

if finish == stamp and count > cost then
    local expires = finish
    local state = pack('<I7I5', finish, count - cost)

    --- include write

elseif finish == stamp then
    -- a count of zero equals a state never seen
    call('DEL', key)
end
