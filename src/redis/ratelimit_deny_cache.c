
/*
 * The deny cache: lines of a few entries each, chosen by the hash of a key.
 */


#include <string.h>

#include "redis/ratelimit_deny_cache.h"


/* a line takes 256 bytes, four of the processor's cache lines */
#define RATELIMIT_DENY_LINE   5
#define RATELIMIT_DENY_ALIGN  64

/* reads of a line that is being written, before Redis is asked instead */
#define RATELIMIT_DENY_READS  8


struct ratelimit_deny_line_s {
    ratelimit_lock_t                lock;
    uint64_t                        unused;
    ratelimit_deny_entry_t          entries[RATELIMIT_DENY_LINE];
};


static ratelimit_deny_line_t *ratelimit_deny_cache_line(
    const ratelimit_deny_cache_t *cache, uint64_t key);
static int ratelimit_deny_cache_valid(const ratelimit_deny_cache_t *cache,
    const ratelimit_deny_entry_t *entry, uint64_t now);
static int ratelimit_deny_cache_read(const ratelimit_deny_cache_t *cache,
    const ratelimit_deny_line_t *line, uint64_t key, uint64_t limit,
    uint64_t now, ratelimit_deny_entry_t *found);
static void ratelimit_deny_cache_copy(const ratelimit_deny_entry_t *entry,
    ratelimit_deny_entry_t *copy);
static ratelimit_deny_entry_t *ratelimit_deny_cache_place(
    const ratelimit_deny_cache_t *cache, ratelimit_deny_line_t *line,
    const ratelimit_deny_entry_t *entry, uint64_t now);
static void ratelimit_deny_cache_write(ratelimit_deny_entry_t *to,
    const ratelimit_deny_entry_t *entry);


int
ratelimit_deny_cache_init(ratelimit_deny_cache_t *cache, void *memory,
    size_t size, ratelimit_lifelines_t *lifelines, uint32_t generation)
{
    size_t  skip;

    skip = -(uintptr_t) memory % RATELIMIT_DENY_ALIGN;

    if (size < skip + sizeof(ratelimit_deny_line_t)) {
        return 0;
    }

    cache->lines = (ratelimit_deny_line_t *) ((char *) memory + skip);
    cache->nlines = (size - skip) / sizeof(ratelimit_deny_line_t);
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
    uint64_t limit, uint64_t now, ratelimit_deny_entry_t *found)
{
    int                           rc;
    unsigned                      i;
    uint64_t                      ticket;
    const ratelimit_deny_line_t  *line;

    line = ratelimit_deny_cache_line(cache, key);

    for (i = 0; i < RATELIMIT_DENY_READS; i++) {

        if (ratelimit_read_begin(&line->lock, &ticket)) {
            rc = ratelimit_deny_cache_read(cache, line, key, limit, now,
                                           found);

            if (ratelimit_read_end(&line->lock, ticket)) {
                return rc;
            }
        }

        ratelimit_lock_yield();
    }

    return 0;
}


static ratelimit_deny_line_t *
ratelimit_deny_cache_line(const ratelimit_deny_cache_t *cache, uint64_t key)
{
    return &cache->lines[key % cache->nlines];
}


/* processes of an older configuration may still add entries of their own */

static int
ratelimit_deny_cache_valid(const ratelimit_deny_cache_t *cache,
    const ratelimit_deny_entry_t *entry, uint64_t now)
{
    return entry->until > now && entry->generation == cache->generation;
}


static int
ratelimit_deny_cache_read(const ratelimit_deny_cache_t *cache,
    const ratelimit_deny_line_t *line, uint64_t key, uint64_t limit,
    uint64_t now, ratelimit_deny_entry_t *found)
{
    unsigned                       i;
    const ratelimit_deny_entry_t  *entry;

    for (i = 0; i < RATELIMIT_DENY_LINE; i++) {
        entry = &line->entries[i];

        if (__atomic_load_n(&entry->key, __ATOMIC_RELAXED) != key
            || __atomic_load_n(&entry->limit, __ATOMIC_RELAXED) != limit)
        {
            continue;
        }

        ratelimit_deny_cache_copy(entry, found);

        if (ratelimit_deny_cache_valid(cache, found, now)) {
            return 1;
        }
    }

    return 0;
}


/* while another process may write the entry */

static void
ratelimit_deny_cache_copy(const ratelimit_deny_entry_t *entry,
    ratelimit_deny_entry_t *copy)
{
    copy->key = __atomic_load_n(&entry->key, __ATOMIC_RELAXED);
    copy->limit = __atomic_load_n(&entry->limit, __ATOMIC_RELAXED);
    copy->until = __atomic_load_n(&entry->until, __ATOMIC_RELAXED);
    copy->retry = __atomic_load_n(&entry->retry, __ATOMIC_RELAXED);
    copy->reset = __atomic_load_n(&entry->reset, __ATOMIC_RELAXED);
    copy->remaining = __atomic_load_n(&entry->remaining, __ATOMIC_RELAXED);
    copy->generation = __atomic_load_n(&entry->generation, __ATOMIC_RELAXED);
}


void
ratelimit_deny_cache_add(ratelimit_deny_cache_t *cache,
    const ratelimit_deny_entry_t *entry, uint64_t now, uint32_t me)
{
    ratelimit_deny_line_t   *line;
    ratelimit_deny_entry_t  *to, new;

    new = *entry;
    new.generation = cache->generation;

    line = ratelimit_deny_cache_line(cache, entry->key);

    (void) ratelimit_lock(&line->lock, me, cache->lifelines);

    to = ratelimit_deny_cache_place(cache, line, &new, now);

    if (to != NULL) {
        ratelimit_deny_cache_write(to, &new);
    }

    ratelimit_unlock(&line->lock);
}


/* NULL if there is an entry already */

static ratelimit_deny_entry_t *
ratelimit_deny_cache_place(const ratelimit_deny_cache_t *cache,
    ratelimit_deny_line_t *line, const ratelimit_deny_entry_t *entry,
    uint64_t now)
{
    unsigned                 i;
    uint64_t                 until, first;
    ratelimit_deny_entry_t  *e, *to;

    to = NULL;
    first = UINT64_MAX;

    for (i = 0; i < RATELIMIT_DENY_LINE; i++) {
        e = &line->entries[i];

        if (e->key == entry->key && e->limit == entry->limit
            && ratelimit_deny_cache_valid(cache, e, now))
        {
            return NULL;
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
ratelimit_deny_cache_write(ratelimit_deny_entry_t *to,
    const ratelimit_deny_entry_t *entry)
{
    __atomic_store_n(&to->until, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);

    __atomic_store_n(&to->key, entry->key, __ATOMIC_RELAXED);
    __atomic_store_n(&to->limit, entry->limit, __ATOMIC_RELAXED);
    __atomic_store_n(&to->retry, entry->retry, __ATOMIC_RELAXED);
    __atomic_store_n(&to->reset, entry->reset, __ATOMIC_RELAXED);
    __atomic_store_n(&to->remaining, entry->remaining, __ATOMIC_RELAXED);
    __atomic_store_n(&to->generation, entry->generation, __ATOMIC_RELAXED);

    __atomic_store_n(&to->until, entry->until, __ATOMIC_RELEASE);
}


void
ratelimit_deny_cache_forget(ratelimit_deny_cache_t *cache, uint64_t key,
    uint32_t me)
{
    unsigned                i;
    ratelimit_deny_line_t  *line;

    line = ratelimit_deny_cache_line(cache, key);

    (void) ratelimit_lock(&line->lock, me, cache->lifelines);

    for (i = 0; i < RATELIMIT_DENY_LINE; i++) {

        if (line->entries[i].key == key) {
            __atomic_store_n(&line->entries[i].until, 0, __ATOMIC_RELAXED);
        }
    }

    ratelimit_unlock(&line->lock);
}
