-- Windows of one period, aligned to the clock.
--
--   7 bytes  end of the window
--   5 bytes  requests in it

local function fixed_window_charge(it, key, cost)
    if cost == 0 and not it.rebase then
        return
    end

    local count = it.count + cost
    local state = pack('<I7I5', it.finish,
                       (count < 1099511627775) and count or 1099511627775)

    save(key, state, it.opens and it.finish)
end

looks[0] = function(key, argument)
    local cost, limit, period, _, ceiling = unpack('<I8I8I8I8I8', argument, 9)
    local state = call('GET', key)
    local finish, count, opens, rebase = 0, 0, false, false

    if state and #state == 12 then
        finish, count = unpack('<I7I5', state)
    end

    if finish <= now then
        finish, count = now + period - wall % period, 0
        opens = true

    elseif finish - now > period + skew then
        -- the clock was set back: the count stays, the end would be too far
        finish = now + period - wall % period
        opens, rebase = true, count > 0
    end

    local left = finish - now
    local reset = (count > 0) and left or 0
    local retry = 0

    local allowed, flags, remaining, excess = admit(count, cost, limit,
                                                    ceiling)
    if not allowed then
        retry = (cost > ceiling) and period or left

    elseif cost > 0 then
        reset = left
    end

    return {
        allowed = allowed, rebase = rebase, charge = fixed_window_charge,
        cost = cost, finish = finish, count = count, opens = opens,
        verdict = pack('<I8I8I8I8I8I8I8', rebase and flags + 4 or flags,
                       remaining, reset, retry, 0, excess, finish)
    }
end

if op == 'r' then
    refunds[0] = function(key, argument)
        local cost = unpack('<I8', argument, 9)
        local stamp = unpack('<I8', argument, 65)
        local state = call('GET', key)

        if not state or #state ~= 12 then
            return
        end

        local finish, count = unpack('<I7I5', state)

        if finish == stamp and count > 0 then
            count = (count > cost) and count - cost or 0
            save(key, pack('<I7I5', finish, count))
        end
    end
end
