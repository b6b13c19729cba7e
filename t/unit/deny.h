
/*
 * A deny cache in shared memory, and denials that show whether they are whole.
 */


#ifndef _DENY_H_INCLUDED_
#define _DENY_H_INCLUDED_


#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "redis/ratelimit_deny_cache.h"

#include "random.h"
#include "tap.h"


#define DENY_GROUP_SIZE  256
#define DENY_GROUP       5
#define DENY_NOW        (1000 * RATELIMIT_SECOND)

#define DENY_KEYS       64
#define DENY_LIMITS     3


typedef struct {
    uint64_t                        done;
    uint64_t                        found;
    uint64_t                        wrong;
    uint32_t                        stop;
} deny_tally_t;


static ratelimit_lifelines_t  *deny_lifelines;
static __thread uint32_t       deny_me;


static void *
deny_memory(size_t size)
{
    void  *memory;

    memory = mmap(NULL, size, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS,
                  -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }

    return memory;
}


static void
deny_open(ratelimit_deny_cache_t *cache, size_t groups)
{
    if (!ratelimit_deny_cache_init(cache, deny_memory(groups * DENY_GROUP_SIZE),
                                   groups * DENY_GROUP_SIZE, deny_lifelines, 1)
        || cache->ngroups != groups)
    {
        fprintf(stderr, "the cache does not open\n");
        exit(2);
    }
}


/* everything follows from key, limit and until, so that half a denial shows */

static ratelimit_denial_t
deny_denial(uint64_t key, uint64_t limit, uint64_t until)
{
    ratelimit_denial_t  denial;

    memset(&denial, 0, sizeof(ratelimit_denial_t));

    denial.key = key;
    denial.limit = limit;
    denial.until = until;
    denial.retry = until + 7 * key + limit;
    denial.reset = denial.retry + until % 1009;
    denial.remaining = (uint32_t) (until * 2654435761u + key);

    return denial;
}


static void
deny_add(ratelimit_deny_cache_t *cache, uint64_t key, uint64_t limit,
    uint64_t until)
{
    ratelimit_denial_t  denial;

    denial = deny_denial(key, limit, until);

    ratelimit_deny_cache_add(cache, &denial, deny_me);
}


static int __attribute__((unused))
deny_has(const ratelimit_deny_cache_t *cache, uint64_t key, uint64_t limit,
    uint64_t now)
{
    ratelimit_denial_t  denial;

    return ratelimit_deny_cache_find(cache, key, limit, now, &denial);
}


static int
deny_sound(const ratelimit_denial_t *denial, uint64_t key, uint64_t limit)
{
    ratelimit_denial_t  e;

    e = deny_denial(key, limit, denial->until);

    return denial->key == key && denial->limit == limit
           && denial->retry == e.retry && denial->reset == e.reset
           && denial->remaining == e.remaining;
}


/* random changes, and a look at what is there, until the test ends */

static void
deny_work(ratelimit_deny_cache_t *cache, deny_tally_t *tally)
{
    uint64_t            key, limit;
    ratelimit_denial_t  denial;

    while (!__atomic_load_n(&tally->stop, __ATOMIC_RELAXED)) {
        key = random_below(DENY_KEYS);
        limit = random_below(DENY_LIMITS);

        switch (random_below(8)) {

        case 0:
            ratelimit_deny_cache_forget(cache, key, deny_me);
            break;

        case 1:
        case 2:
        case 3:
            deny_add(cache, key, limit,
                     DENY_NOW + 1 + random_below(1000000));
            break;

        default:
            if (!ratelimit_deny_cache_find(cache, key, limit, DENY_NOW,
                                           &denial))
            {
                break;
            }

            __atomic_fetch_add(&tally->found, 1, __ATOMIC_RELAXED);

            if (!deny_sound(&denial, key, limit)) {
                __atomic_fetch_add(&tally->wrong, 1, __ATOMIC_RELAXED);
            }
        }

        __atomic_fetch_add(&tally->done, 1, __ATOMIC_RELAXED);
    }
}


#endif /* _DENY_H_INCLUDED_ */
