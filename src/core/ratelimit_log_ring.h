
/*
 * A ring of times, and the two words that stand before it:
 *
 * state[0]  reference time, not before any other
 * state[1]  coarse:1, head:31, n:32; head is where the next time goes
 * then      shape->ring times of 40 bits: the low 32 of each, then the high 8
 *
 * A time is kept as the low 40 bits of a count of ticks, and read as an age:
 * how many ticks it lies before the reference.  A tick is 1 us, for periods
 * that are too long for it 1 ms, rounded up: a time is never kept too early.
 *
 * As a ring may be of any size, it is looked at where it is, also without a
 * lock, while another process writes it.
 */


#ifndef _RATELIMIT_LOG_RING_H_INCLUDED_
#define _RATELIMIT_LOG_RING_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


/* positions are kept in 31 bits */
#define RATELIMIT_LOG_RING_MAX     0x7fffffff

/* of a time */
#define RATELIMIT_LOG_RING_BYTES   5
#define RATELIMIT_LOG_RING_MASK    (((uint64_t) 1 << 40) - 1)

/* the oldest age that is kept, in ticks: half of what 40 bits can express */
#define RATELIMIT_LOG_RING_OLDEST  ((uint64_t) 1 << 39)

#define RATELIMIT_LOG_RING_COARSE  1000


typedef struct {
    ratelimit_uint32_t             *low;
    uint8_t                        *high;
    uint64_t                        tick;
    uint64_t                        base;     /* the reference in ticks, as
                                                 ages are read by it */
    uint64_t                        time;     /* the reference, now if the
                                                 clock was set back */
    uint32_t                        ring;
    uint32_t                        head;
    uint32_t                        n;
    uint32_t                        rebase;
} ratelimit_log_ring_t;


static inline void
ratelimit_log_ring_unpack(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, ratelimit_log_ring_t *log)
{
    uint64_t  length;

    length = __atomic_load_n(&state[1], __ATOMIC_RELAXED);

    log->low = (ratelimit_uint32_t *) &state[2];
    log->high = (uint8_t *) &log->low[shape->ring];
    log->tick = (length >> 63) ? RATELIMIT_LOG_RING_COARSE : 1;
    log->time = __atomic_load_n(&state[0], __ATOMIC_RELAXED);
    log->base = (log->tick == 1) ? log->time : log->time / log->tick;
    log->ring = shape->ring;
    log->head = (uint32_t) (length >> 32) & RATELIMIT_LOG_RING_MAX;
    log->n = (uint32_t) length;
    log->rebase = 0;

    if (log->head >= log->ring || log->n > log->ring) {
        log->head = 0;
        log->n = 0;
    }
}


static inline void
ratelimit_log_ring_pack(const ratelimit_log_ring_t *log,
    ratelimit_state_t *state)
{
    ratelimit_set(&state[1], (uint64_t) (log->tick != 1) << 63
                             | (uint64_t) log->head << 32 | log->n);
}


static inline void
ratelimit_log_ring_write(const ratelimit_log_ring_t *log, uint32_t place,
    uint64_t ticks)
{
    __atomic_store_n(&log->low[place], (uint32_t) ticks, __ATOMIC_RELEASE);
    __atomic_store_n(&log->high[place], (uint8_t) (ticks >> 32),
                     __ATOMIC_RELEASE);
}


#endif /* _RATELIMIT_LOG_RING_H_INCLUDED_ */
