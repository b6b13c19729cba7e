-- The only way by which a state is written: always with its expiry, which is the
-- time from which on it equals one never seen, up to a millisecond.  Without
-- one it lasts as long as before; without a state, the state stays.

local function save(key, state, expires)
    if not expires then
        call('SET', key, state, 'KEEPTTL')
        return
    end

    expires = string.format('%d', (expires + 999) / 1000)

    if state then
        call('SET', key, state, 'PXAT', expires)
    else
        call('PEXPIREAT', key, expires)
    end
end
