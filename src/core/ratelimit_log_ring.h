
/*
 * A ring of times, of five bytes each, and the two words that stand before it:
 *
 * state[0]  reference time, not before any other
 * state[1]  coarse:1, head:31, n:32; head is where the next time goes
 * then      shape->ring times of 5 bytes, little endian
 *
 * A time is kept as the low 40 bits of a count of ticks, and read as an age:
 * how many ticks it lies before the reference.  A tick is 1 us, for periods
 * that are too long for it 1 ms, rounded up: a time is never kept too early.
 */


#ifndef _RATELIMIT_LOG_RING_H_INCLUDED_
#define _RATELIMIT_LOG_RING_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


/* positions are kept in 31 bits */
#define RATELIMIT_LOG_RING_MAX     0x7fffffff

#define RATELIMIT_LOG_RING_BYTES   5
#define RATELIMIT_LOG_RING_MASK    (((uint64_t) 1 << 40) - 1)

/* the oldest age that is kept, in ticks: half of what 40 bits can express */
#define RATELIMIT_LOG_RING_OLDEST  ((uint64_t) 1 << 39)

#define RATELIMIT_LOG_RING_COARSE  1000


typedef struct {
    uint8_t                        *times;
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


/* up to a whole tick */

static inline uint64_t
ratelimit_log_ring_round(uint64_t time, uint64_t tick)
{
    if (tick == 1) {
        return time;
    }

    return ratelimit_div_ceil(time, tick) * tick;
}


static inline void
ratelimit_log_ring_unpack(const ratelimit_shape_t *shape,
    const ratelimit_state_t *state, ratelimit_log_ring_t *log)
{
    uint64_t  length;

    /* read once: it may be looked at while another process writes it */

    length = __atomic_load_n(&state[1], __ATOMIC_RELAXED);

    log->times = (uint8_t *) &state[2];
    log->tick = (length >> 63) ? RATELIMIT_LOG_RING_COARSE : 1;
    log->time = __atomic_load_n(&state[0], __ATOMIC_RELAXED);
    log->base = (log->tick == 1) ? log->time : log->time / log->tick;
    log->ring = shape->ring;
    log->head = (uint32_t) (length >> 32) & 0x7fffffff;
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
    state[1] = (uint64_t) (log->tick != 1) << 63 | (uint64_t) log->head << 32
               | log->n;
}


/* the place of the i'th last time, i is 1 to ring */

static inline uint32_t
ratelimit_log_ring_last(const ratelimit_log_ring_t *log, uint32_t i)
{
    return (log->head >= i) ? log->head - i : log->head + log->ring - i;
}


static inline uint64_t
ratelimit_log_ring_age(const ratelimit_log_ring_t *log, uint32_t i)
{
    size_t          place;
    uint64_t        ticks;
    const uint8_t  *p;

    place = ratelimit_log_ring_last(log, i);
    p = log->times + place * RATELIMIT_LOG_RING_BYTES;

    ticks = (uint64_t) p[0] | (uint64_t) p[1] << 8 | (uint64_t) p[2] << 16
            | (uint64_t) p[3] << 24 | (uint64_t) p[4] << 32;

    return (log->base - ticks) & RATELIMIT_LOG_RING_MASK;
}


static inline void
ratelimit_log_ring_write(const ratelimit_log_ring_t *log, size_t place,
    uint64_t ticks)
{
    uint8_t  *p;

    p = log->times + place * RATELIMIT_LOG_RING_BYTES;

    p[0] = (uint8_t) ticks;
    p[1] = (uint8_t) (ticks >> 8);
    p[2] = (uint8_t) (ticks >> 16);
    p[3] = (uint8_t) (ticks >> 24);
    p[4] = (uint8_t) (ticks >> 32);
}


/* how many times are younger than that; ages grow from the last one on */

static inline uint32_t
ratelimit_log_ring_younger(const ratelimit_log_ring_t *log, uint64_t age)
{
    uint32_t  low, high, middle;

    /* in a full ring the first place may be half written */

    high = (log->n == log->ring) ? log->n - 1 : log->n;

    if (high == 0 || ratelimit_log_ring_age(log, high) < age) {

        if (high < log->n && ratelimit_log_ring_age(log, log->n) < age) {
            return log->n;
        }

        return high;
    }

    low = 0;

    while (high - low > 1) {
        middle = low + (high - low) / 2;

        if (ratelimit_log_ring_age(log, middle) < age) {
            low = middle;

        } else {
            high = middle;
        }
    }

    return low;
}


#endif /* _RATELIMIT_LOG_RING_H_INCLUDED_ */
