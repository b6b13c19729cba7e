
/*
 * The formats of reports, grants and states.
 */


#include "core/ratelimit.h"
#include "core/ratelimit_counters.h"
#include "core/ratelimit_log_ring.h"
#include "core/ratelimit_math.h"
#include "redis/ratelimit_bytes.h"
#include "redis/ratelimit_exchange.h"


/* the largest number of Lua */
#define RATELIMIT_EXCHANGE_MAX        (((uint64_t) 1 << 53) - 1)

#define RATELIMIT_EXCHANGE_TIME_SIZE  7
#define RATELIMIT_EXCHANGE_COUNT      5
#define RATELIMIT_EXCHANGE_LOG        15


static unsigned char *ratelimit_bytes_put(unsigned char *p, uint64_t number,
    size_t size);
static uint64_t ratelimit_bytes_get(const unsigned char *p, size_t size);
static int ratelimit_exchange_time_count(const ratelimit_grant_t *grant,
    ratelimit_state_t *state);
static int ratelimit_exchange_sub_windows(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_clock_t *clock,
    const ratelimit_grant_t *grant, ratelimit_state_t *state);
static int ratelimit_exchange_log(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_grant_t *grant,
    ratelimit_state_t *state);


unsigned char *
ratelimit_exchange_tail(unsigned char *p, const ratelimit_report_t *report)
{
    p = ratelimit_bytes_write(p, report->machine);
    p = ratelimit_bytes_write(p, report->number);
    p = ratelimit_bytes_write(p, report->interval);
    p = ratelimit_bytes_put(p, report->batch, 2);
    p = ratelimit_bytes_put(p, report->open, 2);
    p = ratelimit_bytes_put(p, report->worker, 4);
    p = ratelimit_bytes_write(p, report->question);

    return ratelimit_bytes_write(p, report->settled);
}


unsigned char *
ratelimit_exchange_delta(unsigned char *p, const ratelimit_delta_t *delta)
{
    p = ratelimit_bytes_write(p, delta->stamp);
    p = ratelimit_bytes_put(p, delta->added, 4);

    return ratelimit_bytes_put(p, delta->refunded, 4);
}


const unsigned char *
ratelimit_exchange_grant(const unsigned char *p, const unsigned char *last,
    ratelimit_grant_t *grant)
{
    uint64_t  flags;

    if (last - p < RATELIMIT_EXCHANGE_GRANT) {
        return NULL;
    }

    grant->lease = ratelimit_bytes_read(p);
    grant->standing = ratelimit_bytes_read(p + 8);
    grant->share = ratelimit_bytes_read(p + 16);
    flags = ratelimit_bytes_read(p + 24);
    grant->counted = flags & 1;
    grant->unknown = (flags & 2) != 0;
    grant->len = (size_t) ratelimit_bytes_get(p + 32, 4);
    grant->state = p + RATELIMIT_EXCHANGE_GRANT;

    if (grant->lease > RATELIMIT_EXCHANGE_MAX
        || grant->standing > grant->lease
        || grant->share > RATELIMIT_EXCHANGE_MAX
        || flags > 3
        || grant->len > (size_t) (last - grant->state))
    {
        return NULL;
    }

    return grant->state + grant->len;
}


int
ratelimit_exchange_state(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_clock_t *clock,
    const ratelimit_grant_t *grant, ratelimit_state_t *state)
{
    switch (ratelimit_algorithms[shape->algorithm]->form) {

    case RATELIMIT_FORM_TIME_COUNT:
        return ratelimit_exchange_time_count(grant, state);

    case RATELIMIT_FORM_SUB_WINDOWS:
        return ratelimit_exchange_sub_windows(shape, rule, clock, grant,
                                              state);

    default:
        return ratelimit_exchange_log(shape, rule, grant, state);
    }
}


/* what else a bucket has are reservations, which end soon */

static int
ratelimit_exchange_time_count(const ratelimit_grant_t *grant,
    ratelimit_state_t *state)
{
    if (grant->len
        < RATELIMIT_EXCHANGE_TIME_SIZE + RATELIMIT_EXCHANGE_COUNT)
    {
        return 0;
    }

    state[0] = ratelimit_bytes_get(grant->state, RATELIMIT_EXCHANGE_TIME_SIZE);
    state[1] = ratelimit_bytes_get(grant->state + RATELIMIT_EXCHANGE_TIME_SIZE,
                                   RATELIMIT_EXCHANGE_COUNT);

    return 1;
}


/*
 * Redis has the newest counter first, then a ring of those before it.  Only the
 * low bits of the index are there: it is the one nearest to that of now.
 */

static int
ratelimit_exchange_sub_windows(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_clock_t *clock,
    const ratelimit_grant_t *grant, ratelimit_state_t *state)
{
    size_t                start, size, width;
    uint32_t              i, ring;
    uint64_t              index, low, behind, mask;
    const unsigned char  *p;

    ring = shape->buckets + 1;
    size = (shape->buckets == 1) ? 4 : 5;
    start = (shape->buckets == 1) ? 4 : 10;
    width = (grant->len == start + 4 * ring) ? 4 : 2;

    if (grant->len != start + width * ring) {
        return 0;
    }

    index = clock->now * shape->buckets / rule->period;
    mask = ((uint64_t) 1 << 8 * size) - 1;
    low = ratelimit_bytes_get(grant->state, size);
    behind = (index - low) & mask;

    index = (behind <= mask / 2) ? index - behind : index + mask + 1 - behind;

    p = grant->state + start;

    ratelimit_counters_set(shape, state, (uint32_t) (index % ring),
                           ratelimit_bytes_get(p, width));
    p += width;

    for (i = 1; i <= ratelimit_min(shape->buckets, index); i++) {
        ratelimit_counters_set(shape, state, (uint32_t) ((index - i) % ring),
                      ratelimit_bytes_get(p + (index - i) % shape->buckets
                                              * width, width));
    }

    state[0] = index;

    return 1;
}


/* the newest times that find room, from the first place on */

static int
ratelimit_exchange_log(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_grant_t *grant,
    ratelimit_state_t *state)
{
    size_t                 places, head, n, i;
    const unsigned char   *p;
    ratelimit_log_ring_t   log;

    if (grant->len < RATELIMIT_EXCHANGE_LOG) {
        return 0;
    }

    places = (grant->len - RATELIMIT_EXCHANGE_LOG) / RATELIMIT_LOG_RING_BYTES;
    head = ratelimit_bytes_get(grant->state + 7, 4) & 0x7fffffff;
    n = ratelimit_bytes_get(grant->state + 11, 4);

    if (head >= places || n > places) {
        return 0;
    }

    p = grant->state + RATELIMIT_EXCHANGE_LOG;

    ratelimit_log_ring_unpack(shape, state, &log);

    n = ratelimit_min(n, log.ring);

    for (i = 0; i < n; i++) {
        ratelimit_log_ring_write(&log, i, ratelimit_bytes_get(
                                    p + (head + places - n + i) % places
                                        * RATELIMIT_LOG_RING_BYTES,
                                    RATELIMIT_LOG_RING_BYTES));
    }

    log.tick = (rule->period < RATELIMIT_LOG_RING_OLDEST)
               ? 1 : RATELIMIT_LOG_RING_COARSE;
    log.head = (uint32_t) n % log.ring;
    log.n = (uint32_t) n;

    state[0] = ratelimit_bytes_get(grant->state, RATELIMIT_EXCHANGE_TIME_SIZE);
    ratelimit_log_ring_pack(&log, state);

    return 1;
}


/* a number of fewer than eight bytes */

static unsigned char *
ratelimit_bytes_put(unsigned char *p, uint64_t number, size_t size)
{
    for ( /* void */ ; size; size--) {
        *p++ = (unsigned char) number;
        number >>= 8;
    }

    return p;
}


static uint64_t
ratelimit_bytes_get(const unsigned char *p, size_t size)
{
    uint64_t  number;

    number = 0;

    while (size) {
        number = number << 8 | p[--size];
    }

    return number;
}
