-- The only ways by which a state is written: always with its expiry, which is
-- the time from which on it equals one never seen, up to a millisecond.

local function save(key, state, expires)
    call('SET', key, state, 'PXAT',
         string.format('%d', (expires + 999) / 1000))
end

local function extend(key, expires)
    call('PEXPIREAT', key, string.format('%d', (expires + 999) / 1000))
end

-- what lasts no longer than before

local function update(key, state)
    call('SET', key, state, 'KEEPTTL')
end
