
/*
 * The breaker: closed while there are no pauses, otherwise open until a time.
 */


#include "redis/ratelimit_breaker.h"


#define RATELIMIT_BREAKER_TIME_MASK    (((uint64_t) 1 << 48) - 1)

/* further ones are no longer */
#define RATELIMIT_BREAKER_PAUSES       16

/* a quarter more than the last pause */
#define RATELIMIT_BREAKER_LONGEST                                            \
    (RATELIMIT_BREAKER_LAST_PAUSE + RATELIMIT_BREAKER_LAST_PAUSE / 4)


typedef struct {
    uint64_t                        until;
    unsigned                        pauses;   /* 0: closed */
    unsigned                        failures; /* in a row, while closed */
} ratelimit_breaker_state_t;


static void ratelimit_breaker_read(uint64_t word,
    ratelimit_breaker_state_t *state);
static int ratelimit_breaker_write(ratelimit_breaker_t *breaker,
    uint64_t *word, const ratelimit_breaker_state_t *state);
static int ratelimit_breaker_due(const ratelimit_breaker_state_t *state,
    uint64_t now, uint64_t timeout);
static void ratelimit_breaker_pause(ratelimit_breaker_state_t *state,
    uint64_t now, uint32_t random);


static void
ratelimit_breaker_read(uint64_t word, ratelimit_breaker_state_t *state)
{
    state->until = word >> 16;
    state->pauses = (word >> 8) & 0xff;
    state->failures = word & 0xff;
}


/* returns 0, and the current word, if another process was faster */

static int
ratelimit_breaker_write(ratelimit_breaker_t *breaker, uint64_t *word,
    const ratelimit_breaker_state_t *state)
{
    uint64_t  next;

    next = (state->until & RATELIMIT_BREAKER_TIME_MASK) << 16
           | state->pauses << 8
           | state->failures;

    return __atomic_compare_exchange_n(&breaker->word, word, next, 0,
                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}


ratelimit_breaker_e
ratelimit_breaker_ask(ratelimit_breaker_t *breaker, uint64_t now,
    uint64_t timeout)
{
    uint64_t                   word;
    ratelimit_breaker_state_t  state;

    word = __atomic_load_n(&breaker->word, __ATOMIC_RELAXED);

    do {
        ratelimit_breaker_read(word, &state);

        if (state.pauses == 0) {
            return RATELIMIT_BREAKER_GO;
        }

        if (!ratelimit_breaker_due(&state, now, timeout)) {
            return RATELIMIT_BREAKER_STOP;
        }

        state.until = now + timeout;

    } while (!ratelimit_breaker_write(breaker, &word, &state));

    return RATELIMIT_BREAKER_PROBE;
}


int
ratelimit_breaker_stops(const ratelimit_breaker_t *breaker, uint64_t now,
    uint64_t timeout)
{
    ratelimit_breaker_state_t  state;

    ratelimit_breaker_read(__atomic_load_n(&breaker->word, __ATOMIC_RELAXED),
                           &state);

    return state.pauses != 0 && !ratelimit_breaker_due(&state, now, timeout);
}


/*
 * A time that no pause and no timeout could have set means that the clock was
 * set; a process whose clock is a little behind those of others is no reason.
 */

static int
ratelimit_breaker_due(const ratelimit_breaker_state_t *state, uint64_t now,
    uint64_t timeout)
{
    uint64_t  left;

    left = (state->until - now) & RATELIMIT_BREAKER_TIME_MASK;

    return left == 0 || left > RATELIMIT_BREAKER_LONGEST + timeout;
}


int
ratelimit_breaker_success(ratelimit_breaker_t *breaker)
{
    uint64_t                   word;
    ratelimit_breaker_state_t  state, closed;

    word = __atomic_load_n(&breaker->word, __ATOMIC_RELAXED);

    closed.until = 0;
    closed.pauses = 0;
    closed.failures = 0;

    do {
        if (word == 0) {
            return 0;
        }

        ratelimit_breaker_read(word, &state);

    } while (!ratelimit_breaker_write(breaker, &word, &closed));

    return state.pauses != 0;
}


int
ratelimit_breaker_failure(ratelimit_breaker_t *breaker,
    ratelimit_breaker_e permit, uint64_t now, uint32_t random)
{
    int                        opened;
    uint64_t                   word;
    ratelimit_breaker_state_t  state;

    word = __atomic_load_n(&breaker->word, __ATOMIC_RELAXED);

    do {
        ratelimit_breaker_read(word, &state);

        if (state.pauses != 0 && permit != RATELIMIT_BREAKER_PROBE) {
            return 0;
        }

        opened = 0;

        if (state.pauses != 0) {
            ratelimit_breaker_pause(&state, now, random);

        } else {
            state.failures++;

            if (state.failures >= RATELIMIT_BREAKER_FAILURES) {
                opened = 1;
                ratelimit_breaker_pause(&state, now, random);
            }
        }

    } while (!ratelimit_breaker_write(breaker, &word, &state));

    return opened;
}


/* twice as long as the pause before, at random times on each machine */

static void
ratelimit_breaker_pause(ratelimit_breaker_state_t *state, uint64_t now,
    uint32_t random)
{
    uint64_t  pause;

    pause = (uint64_t) RATELIMIT_BREAKER_FIRST_PAUSE << state->pauses;

    if (pause > RATELIMIT_BREAKER_LAST_PAUSE) {
        pause = RATELIMIT_BREAKER_LAST_PAUSE;
    }

    if (state->pauses < RATELIMIT_BREAKER_PAUSES) {
        state->pauses++;
    }

    state->failures = 0;
    state->until = now + pause * 3 / 4 + random % (pause / 2 + 1);
}


int
ratelimit_breaker_is_open(const ratelimit_breaker_t *breaker)
{
    return (__atomic_load_n(&breaker->word, __ATOMIC_RELAXED) & 0xff00) != 0;
}


int
ratelimit_breaker_has_failed(const ratelimit_breaker_t *breaker)
{
    return __atomic_load_n(&breaker->word, __ATOMIC_RELAXED) != 0;
}
