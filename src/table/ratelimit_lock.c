
/*
 * The slow half of the lock: which processes are alive, and waiting.
 */


#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "table/ratelimit_lock.h"


/* a name is the number of a lifeline, and how often that was taken */

#define RATELIMIT_LIFELINE_BITS  10
#define RATELIMIT_TAKEN_MASK     ((1u << (32 - RATELIMIT_LIFELINE_BITS)) - 1)

/*
 * A waiting process does not look at the lock all the time: as long as its
 * cache line is the holder's, the holder can use it again and again at no cost.
 */
#define RATELIMIT_PAUSES         48

/* looks at the lock before a waiting process yields the processor */
#define RATELIMIT_SPINS          8

/* yields before it asks whether the holder lives */
#define RATELIMIT_YIELDS         16

/* yields before it sleeps instead: the holder does not run, or not now */
#define RATELIMIT_PATIENCE       256


/* ns */
#define RATELIMIT_STALLED        1000000000


typedef struct {
    pthread_mutex_t                 mutex;
    uint32_t                        taken;    /* times, never 0 in a name */
    uint32_t                        pid;      /* of the process that took it */
} ratelimit_lifeline_t;


struct ratelimit_lifelines_s {
    uint64_t                        clock;
    ratelimit_lifeline_t            line[RATELIMIT_LIFELINES];
};


static uint32_t ratelimit_lifeline_claim(ratelimit_lifeline_t *line);
static uint64_t ratelimit_lock_patience(ratelimit_lock_t *lock,
    ratelimit_lifelines_t *lifelines, uint64_t since);
static int ratelimit_lock_take_over(ratelimit_lock_t *lock, uint32_t me,
    ratelimit_lifelines_t *lifelines);


void (*ratelimit_lock_stalled)(uint32_t pid);


static const struct timespec  ratelimit_lock_nap = { 0, 100000 };


size_t
ratelimit_lifelines_size(void)
{
    return sizeof(ratelimit_lifelines_t);
}


ratelimit_lifelines_t *
ratelimit_lifelines_create(void *memory)
{
    int                     rc;
    size_t                  i;
    pthread_mutexattr_t     attr;
    ratelimit_lifelines_t  *lifelines;

    lifelines = memory;

    if (pthread_mutexattr_init(&attr) != 0) {
        return NULL;
    }

    rc = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    rc |= pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);

    for (i = 0; i < RATELIMIT_LIFELINES; i++) {
        rc |= pthread_mutex_init(&lifelines->line[i].mutex, &attr);
    }

    (void) pthread_mutexattr_destroy(&attr);

    return rc == 0 ? lifelines : NULL;
}


uint64_t *
ratelimit_lifelines_clock(ratelimit_lifelines_t *lifelines)
{
    return &lifelines->clock;
}


uint32_t
ratelimit_lifelines_claim(ratelimit_lifelines_t *lifelines)
{
    uint32_t  i, taken;

    for (i = 0; i < RATELIMIT_LIFELINES; i++) {
        taken = ratelimit_lifeline_claim(&lifelines->line[i]);

        if (taken) {
            __atomic_store_n(&lifelines->line[i].pid, (uint32_t) getpid(),
                             __ATOMIC_RELAXED);

            return (taken << RATELIMIT_LIFELINE_BITS) | i;
        }
    }

    return 0;
}


/* returns 0 if a living process holds the line */

static uint32_t
ratelimit_lifeline_claim(ratelimit_lifeline_t *line)
{
    int       rc;
    uint32_t  taken;

    rc = pthread_mutex_trylock(&line->mutex);

    if (rc == EOWNERDEAD) {
        rc = pthread_mutex_consistent(&line->mutex);
    }

    if (rc != 0) {
        return 0;
    }

    taken = __atomic_load_n(&line->taken, __ATOMIC_RELAXED) + 1;
    taken &= RATELIMIT_TAKEN_MASK;

    if (taken == 0) {
        taken = 1;
    }

    /* from here on the former owner's name is that of a dead process */

    __atomic_store_n(&line->taken, taken, __ATOMIC_RELEASE);

    return taken;
}


int
ratelimit_lifelines_alive(ratelimit_lifelines_t *lifelines, uint32_t name)
{
    uint32_t               taken;
    ratelimit_lifeline_t  *line;

    line = &lifelines->line[name & (RATELIMIT_LIFELINES - 1)];
    taken = name >> RATELIMIT_LIFELINE_BITS;

    if (__atomic_load_n(&line->taken, __ATOMIC_ACQUIRE) != taken) {
        return 0;
    }

    if (ratelimit_lifeline_claim(line) == 0) {

        /* held, by this name or by one that took the line just now */

        return __atomic_load_n(&line->taken, __ATOMIC_ACQUIRE) == taken;
    }

    (void) pthread_mutex_unlock(&line->mutex);

    return 0;
}


void
ratelimit_lock_yield(void)
{
    unsigned  i;

    for (i = 0; i < RATELIMIT_PAUSES; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile ("isb" ::: "memory");
#else
        __asm__ volatile ("" ::: "memory");
#endif
    }
}


int
ratelimit_lock_wait(ratelimit_lock_t *lock, uint32_t me,
    ratelimit_lifelines_t *lifelines)
{
    unsigned  spins, yields;
    uint64_t  since;

    since = 0;

    for (yields = 1; /* void */ ; yields++) {

        for (spins = 0; spins < RATELIMIT_SPINS; spins++) {
            ratelimit_lock_yield();

            if (ratelimit_trylock(lock, me)) {
                return 0;
            }
        }

        if (yields < RATELIMIT_PATIENCE) {
            (void) sched_yield();

        } else {
            (void) nanosleep(&ratelimit_lock_nap, NULL);
            since = ratelimit_lock_patience(lock, lifelines, since);
        }

        if (yields % RATELIMIT_YIELDS == 0
            && ratelimit_lock_take_over(lock, me, lifelines))
        {
            return 1;
        }
    }
}


/*
 * Reports once that a wait lasts too long.  Takes the time at which it began, 0
 * at first, and returns it, or the end of all times if that was reported.
 */

static uint64_t
ratelimit_lock_patience(ratelimit_lock_t *lock,
    ratelimit_lifelines_t *lifelines, uint64_t since)
{
    uint32_t         holder;
    uint64_t         now;
    struct timespec  ts;

    if (since == UINT64_MAX || clock_gettime(CLOCK_MONOTONIC, &ts) != 0) {
        return since;
    }

    now = (uint64_t) ts.tv_sec * 1000000000 + (uint64_t) ts.tv_nsec;

    if (since == 0) {
        return now;
    }

    if (now - since < RATELIMIT_STALLED) {
        return since;
    }

    holder = (uint32_t) __atomic_load_n(lock, __ATOMIC_RELAXED);

    if (holder && ratelimit_lock_stalled) {
        holder &= RATELIMIT_LIFELINES - 1;
        ratelimit_lock_stalled(__atomic_load_n(&lifelines->line[holder].pid,
                                               __ATOMIC_RELAXED));
    }

    return UINT64_MAX;
}


static int
ratelimit_lock_take_over(ratelimit_lock_t *lock, uint32_t me,
    ratelimit_lifelines_t *lifelines)
{
    uint64_t  word, mine;

    word = __atomic_load_n(lock, __ATOMIC_RELAXED);

    if ((uint32_t) word == 0
        || ratelimit_lifelines_alive(lifelines, (uint32_t) word))
    {
        return 0;
    }

    /* the dead may have written: counts as a release */

    mine = (((word >> 32) + 1) << 32) | me;

    if (!__atomic_compare_exchange_n(lock, &word, mine, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
    {
        return 0;
    }

    __atomic_thread_fence(__ATOMIC_RELEASE);

    return 1;
}
