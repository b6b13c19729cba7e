-- A state is always written with its expiry, which is the time from which on it
-- equals one never seen, up to a millisecond.

call('SET', key, state, 'PXAT', string.format('%d', (expires + 999) / 1000))
