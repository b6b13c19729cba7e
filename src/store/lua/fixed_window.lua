-- Windows of one period, aligned to the clock.
--
--   7 bytes  end of the window
--   5 bytes  requests in it

local function fixed_window_load(it)
    local state = call('GET', it.key)

    it.finish, it.count = 0, 0

    if state and #state == 12 then
        it.finish, it.count = unpack('<I7I5', state)
    end
end

local function fixed_window_look(it)
    local period = it.period
    local finish, count = it.finish, it.count

    it.rebase = false

    if finish <= now or finish - now > period + skew then

        -- a new window; if the clock was set back, with the count of the old

        if finish <= now then
            count = 0
        end

        it.rebase = (count ~= 0)
        it.fresh = true
        it.finish = now + period - wall % period
        it.count = count

        finish = it.finish
    end

    local left = finish - now

    if admit(it, count) then
        return window_verdict(it, (count > 0 or it.cost > 0) and left or 0, 0,
                              finish)
    end

    window_verdict(it, (count > 0) and left or 0,
                   (it.cost > it.ceiling) and period or left, finish)
end

local function fixed_window_charge(it, cost)
    if cost == 0 and not it.rebase then
        return
    end

    local count = it.count + cost

    if count > 1099511627775 then
        count = 1099511627775
    end

    local state = pack('<I7I5', it.finish, count)

    if it.fresh then
        save(it.key, state, it.finish)
    else
        restore(it.key, state)
    end
end

local function fixed_window_refund(it)
    if it.finish ~= it.stamp or it.count == 0 then
        return
    end

    local count = (it.count > it.cost) and it.count - it.cost or 0

    restore(it.key, pack('<I7I5', it.finish, count))
end

algorithms[0] = {
    load = fixed_window_load,
    look = fixed_window_look,
    charge = fixed_window_charge,
    punish = fixed_window_charge,
    refund = fixed_window_refund
}
