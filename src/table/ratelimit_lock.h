
/*
 * A lock of one word that survives the death of its holder.
 *
 * Each process takes a lifeline when it starts: a robust mutex that it holds as
 * long as it lives, so that the kernel tells the others when it is dead.  A
 * lock names its holder; a process that has waited for long checks whether the
 * holder lives, and takes the lock over from a dead one.
 *
 * The other half of the word counts releases: a process that reads without the
 * lock sees by it whether another one has written meanwhile.
 */


#ifndef _RATELIMIT_LOCK_H_INCLUDED_
#define _RATELIMIT_LOCK_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define RATELIMIT_LIFELINES  1024


typedef struct ratelimit_lifelines_s  ratelimit_lifelines_t;

typedef uint64_t  ratelimit_lock_t;    /* releases:32, holder:32 */


/* bytes of shared memory that the lifelines take */
size_t ratelimit_lifelines_size(void);

/*
 * Makes the lifelines in memory of zeros; to be done once, before any fork.
 * Returns NULL if the system has no robust mutexes.
 */
ratelimit_lifelines_t *ratelimit_lifelines_create(void *memory);

/* a word of the same memory, for ratelimit_clock.h; 0 at first */
uint64_t *ratelimit_lifelines_clock(ratelimit_lifelines_t *lifelines);

/* returns the name of the calling process, 0 if there are too many */
uint32_t ratelimit_lifelines_claim(ratelimit_lifelines_t *lifelines);

/*
 * Is called once for each wait that lasts longer than a second, with the id of
 * the process that holds the lock: it lives, but does not run.  NULL at first.
 */
extern void (*ratelimit_lock_stalled)(uint32_t pid);

int ratelimit_lifelines_alive(ratelimit_lifelines_t *lifelines, uint32_t name);


/* pauses for a microsecond or so, to let the holder of a lock go on */
void ratelimit_lock_yield(void);

/* waits until a lock is released, or its holder is dead; returns as lock */
int ratelimit_lock_wait(ratelimit_lock_t *lock, uint32_t me,
    ratelimit_lifelines_t *lifelines);


static inline int
ratelimit_trylock(ratelimit_lock_t *lock, uint32_t me)
{
    uint64_t  word;

    word = __atomic_load_n(lock, __ATOMIC_RELAXED);

    if ((uint32_t) word != 0
        || !__atomic_compare_exchange_n(lock, &word, word | me, 0,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    {
        return 0;
    }

    /* readers without the lock must see it taken before any write */
    __atomic_thread_fence(__ATOMIC_RELEASE);

    return 1;
}


/* returns 1 if it was taken over from a dead process */

static inline int
ratelimit_lock(ratelimit_lock_t *lock, uint32_t me,
    ratelimit_lifelines_t *lifelines)
{
    return ratelimit_trylock(lock, me)
           ? 0 : ratelimit_lock_wait(lock, me, lifelines);
}


static inline void
ratelimit_unlock(ratelimit_lock_t *lock)
{
    uint64_t  word;

    word = __atomic_load_n(lock, __ATOMIC_RELAXED);

    __atomic_store_n(lock, ((word >> 32) + 1) << 32, __ATOMIC_RELEASE);
}


/* begins to read without the lock: returns 0 if it is held */

static inline int
ratelimit_read_begin(const ratelimit_lock_t *lock, uint64_t *ticket)
{
    *ticket = __atomic_load_n(lock, __ATOMIC_ACQUIRE);

    return (uint32_t) *ticket == 0;
}


/* takes the lock if it was not held since the ticket was given */

static inline int
ratelimit_lock_unchanged(ratelimit_lock_t *lock, uint64_t ticket, uint32_t me)
{
    if (!__atomic_compare_exchange_n(lock, &ticket, ticket | me, 0,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    {
        ratelimit_lock_yield();
        return 0;
    }

    __atomic_thread_fence(__ATOMIC_RELEASE);

    return 1;
}


/* whether the lock was not held since the ticket was given */

static inline int
ratelimit_read_end(const ratelimit_lock_t *lock, uint64_t ticket)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE);

    return __atomic_load_n(lock, __ATOMIC_RELAXED) == ticket;
}


#endif /* _RATELIMIT_LOCK_H_INCLUDED_ */
