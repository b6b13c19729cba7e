
/*
 * The deny cache: groups of a few denials each, chosen by the hash of a key.
 */


#include <string.h>

#include "redis/ratelimit_deny_cache.h"


/* a group takes 256 bytes, four of the processor's cache lines */
#define RATELIMIT_DENY_GROUP   5
#define RATELIMIT_DENY_ALIGN  64

/* reads of a group that is being written, before Redis is asked instead */
#define RATELIMIT_DENY_READS  8


struct ratelimit_deny_group_s {
    ratelimit_lock_t                lock;
    uint64_t                        refund;   /* the latest: when, and of
                                                 which key */
    ratelimit_denial_t              denials[RATELIMIT_DENY_GROUP];
};


static ratelimit_deny_group_t *ratelimit_deny_cache_group(
    const ratelimit_deny_cache_t *cache, uint64_t key);
static uint64_t ratelimit_deny_cache_stamp(uint64_t key, uint64_t time);
static int ratelimit_deny_cache_valid(const ratelimit_deny_cache_t *cache,
    const ratelimit_denial_t *denial, uint64_t now);
static int ratelimit_deny_cache_read(const ratelimit_deny_cache_t *cache,
    const ratelimit_deny_group_t *group, uint64_t key, uint64_t limit,
    uint64_t now, ratelimit_denial_t *found);
static void ratelimit_deny_cache_copy(const ratelimit_denial_t *denial,
    ratelimit_denial_t *copy);
static ratelimit_denial_t *ratelimit_deny_cache_place(
    const ratelimit_deny_cache_t *cache, ratelimit_deny_group_t *group,
    const ratelimit_denial_t *denial);
static void ratelimit_deny_cache_write(ratelimit_denial_t *to,
    const ratelimit_denial_t *denial);


int
ratelimit_deny_cache_init(ratelimit_deny_cache_t *cache, void *memory,
    size_t size, ratelimit_lifelines_t *lifelines, uint32_t generation)
{
    size_t  skip;

    skip = -(uintptr_t) memory % RATELIMIT_DENY_ALIGN;

    if (size < skip + sizeof(ratelimit_deny_group_t)) {
        return 0;
    }

    cache->groups = (ratelimit_deny_group_t *) ((char *) memory + skip);
    cache->ngroups = (size - skip) / sizeof(ratelimit_deny_group_t);
    cache->lifelines = lifelines;
    cache->generation = generation;

    return 1;
}


uint64_t
ratelimit_deny_cache_limit(const ratelimit_hash_t *secret,
    const ratelimit_rule_t *rule, uint64_t cost)
{
    uint64_t          words[6];
    ratelimit_hash_t  hash;

    words[0] = rule->limit;
    words[1] = rule->period;
    words[2] = rule->capacity;
    words[3] = rule->ceiling;
    words[4] = rule->wait;
    words[5] = cost;

    ratelimit_hash(secret, words, sizeof(words), &hash);

    return hash.lo;
}


int
ratelimit_deny_cache_find(const ratelimit_deny_cache_t *cache, uint64_t key,
    uint64_t limit, uint64_t now, ratelimit_denial_t *found)
{
    int                            rc;
    unsigned                       i;
    uint64_t                       ticket;
    ratelimit_denial_t             denial;
    const ratelimit_deny_group_t  *group;

    group = ratelimit_deny_cache_group(cache, key);

    for (i = 0; i < RATELIMIT_DENY_READS; i++) {

        if (ratelimit_read_begin(&group->lock, &ticket)) {
            rc = ratelimit_deny_cache_read(cache, group, key, limit, now,
                                           &denial);

            if (ratelimit_read_end(&group->lock, ticket)) {

                if (rc) {
                    *found = denial;
                }

                return rc;
            }
        }

        ratelimit_lock_yield();
    }

    return 0;
}


static ratelimit_deny_group_t *
ratelimit_deny_cache_group(const ratelimit_deny_cache_t *cache, uint64_t key)
{
    return &cache->groups[key % cache->ngroups];
}


/* processes of an older configuration may still add denials of their own */

static int
ratelimit_deny_cache_valid(const ratelimit_deny_cache_t *cache,
    const ratelimit_denial_t *denial, uint64_t now)
{
    return denial->until > now && denial->generation == cache->generation;
}


static int
ratelimit_deny_cache_read(const ratelimit_deny_cache_t *cache,
    const ratelimit_deny_group_t *group, uint64_t key, uint64_t limit,
    uint64_t now, ratelimit_denial_t *found)
{
    unsigned                   i;
    const ratelimit_denial_t  *denial;

    for (i = 0; i < RATELIMIT_DENY_GROUP; i++) {
        denial = &group->denials[i];

        if (__atomic_load_n(&denial->key, __ATOMIC_RELAXED) != key
            || __atomic_load_n(&denial->limit, __ATOMIC_RELAXED) != limit)
        {
            continue;
        }

        ratelimit_deny_cache_copy(denial, found);

        if (ratelimit_deny_cache_valid(cache, found, now)) {
            return 1;
        }
    }

    return 0;
}


/* while another process may write the denial */

static void
ratelimit_deny_cache_copy(const ratelimit_denial_t *denial,
    ratelimit_denial_t *copy)
{
    copy->key = __atomic_load_n(&denial->key, __ATOMIC_RELAXED);
    copy->limit = __atomic_load_n(&denial->limit, __ATOMIC_RELAXED);
    copy->until = __atomic_load_n(&denial->until, __ATOMIC_RELAXED);
    copy->retry = __atomic_load_n(&denial->retry, __ATOMIC_RELAXED);
    copy->reset = __atomic_load_n(&denial->reset, __ATOMIC_RELAXED);
    copy->remaining = __atomic_load_n(&denial->remaining, __ATOMIC_RELAXED);
    copy->generation = __atomic_load_n(&denial->generation, __ATOMIC_RELAXED);
}


void
ratelimit_deny_cache_add(ratelimit_deny_cache_t *cache,
    const ratelimit_denial_t *denial, uint32_t me)
{
    ratelimit_denial_t       new;
    ratelimit_deny_group_t  *group;

    new = *denial;
    new.generation = cache->generation;

    group = ratelimit_deny_cache_group(cache, denial->key);

    (void) ratelimit_lock(&group->lock, me, cache->lifelines);

    ratelimit_deny_cache_write(ratelimit_deny_cache_place(cache, group, &new),
                               &new);

    ratelimit_unlock(&group->lock);
}


static ratelimit_denial_t *
ratelimit_deny_cache_place(const ratelimit_deny_cache_t *cache,
    ratelimit_deny_group_t *group, const ratelimit_denial_t *denial)
{
    unsigned             i;
    uint64_t             until, first;
    ratelimit_denial_t  *e, *to;

    to = NULL;
    first = UINT64_MAX;

    for (i = 0; i < RATELIMIT_DENY_GROUP; i++) {
        e = &group->denials[i];

        if (e->key == denial->key && e->limit == denial->limit) {
            return e;
        }

        /* those of older configurations are of no use any more */

        until = (e->generation < cache->generation) ? 0 : e->until;

        if (to == NULL || until < first) {
            first = until;
            to = e;
        }
    }

    return to;
}


static void
ratelimit_deny_cache_write(ratelimit_denial_t *to,
    const ratelimit_denial_t *denial)
{
    __atomic_store_n(&to->until, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);

    __atomic_store_n(&to->key, denial->key, __ATOMIC_RELAXED);
    __atomic_store_n(&to->limit, denial->limit, __ATOMIC_RELAXED);
    __atomic_store_n(&to->retry, denial->retry, __ATOMIC_RELAXED);
    __atomic_store_n(&to->reset, denial->reset, __ATOMIC_RELAXED);
    __atomic_store_n(&to->remaining, denial->remaining, __ATOMIC_RELAXED);
    __atomic_store_n(&to->generation, denial->generation, __ATOMIC_RELAXED);

    __atomic_store_n(&to->until, denial->until, __ATOMIC_RELEASE);
}


/* most keys have none, which is seen without the lock */

void
ratelimit_deny_cache_forget(ratelimit_deny_cache_t *cache, uint64_t key,
    uint32_t me)
{
    unsigned                 i;
    ratelimit_deny_group_t  *group;

    group = ratelimit_deny_cache_group(cache, key);

    for (i = 0; i < RATELIMIT_DENY_GROUP; i++) {
        if (__atomic_load_n(&group->denials[i].key, __ATOMIC_RELAXED) == key) {
            break;
        }
    }

    if (i == RATELIMIT_DENY_GROUP) {
        return;
    }

    (void) ratelimit_lock(&group->lock, me, cache->lifelines);

    for (i = 0; i < RATELIMIT_DENY_GROUP; i++) {

        if (group->denials[i].key == key) {
            __atomic_store_n(&group->denials[i].until, 0, __ATOMIC_RELAXED);
        }
    }

    ratelimit_unlock(&group->lock);
}


/* either this finds the denial, or the process that adds it the refund */

void
ratelimit_deny_cache_refunded(ratelimit_deny_cache_t *cache, uint64_t key,
    uint64_t now, uint32_t me)
{
    ratelimit_deny_group_t  *group;

    group = ratelimit_deny_cache_group(cache, key);

    __atomic_store_n(&group->refund, ratelimit_deny_cache_stamp(key, now),
                     __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);

    ratelimit_deny_cache_forget(cache, key, me);
}


int
ratelimit_deny_cache_is_refunded(const ratelimit_deny_cache_t *cache,
    uint64_t key, uint64_t since)
{
    uint64_t                       refund, first;
    const ratelimit_deny_group_t  *group;

    group = ratelimit_deny_cache_group(cache, key);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    refund = __atomic_load_n(&group->refund, __ATOMIC_RELAXED);

    first = ratelimit_deny_cache_stamp(key, since);

    return (refund & 0xffff) == (first & 0xffff)
           && (int64_t) (refund - first) >= 0;
}


/* a part of the time, which wraps around, and one of the key */

static uint64_t
ratelimit_deny_cache_stamp(uint64_t key, uint64_t time)
{
    return time << 16 | (key & 0xffff);
}
