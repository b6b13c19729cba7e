-- A state is always written with its expiry, in milliseconds rounded up: the
-- time from which on it equals a state never seen.

call('SET', key, state, 'PXAT', format('%d', (expires + 999) / 1000))
