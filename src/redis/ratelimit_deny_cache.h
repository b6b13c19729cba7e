
/*
 * The deny cache: refusals that Redis has pronounced, in shared memory, so
 * that an attack on a key costs Redis next to nothing.
 *
 * A denial is found by the hash of a key, and applies to one limit at one cost.
 * Denials of one key are all in one group, so that they can be forgotten
 * together.  A full group loses the denial that ends first.
 *
 * A group has a lock of its own.  A denial is valid only while "until" is not
 * 0, which is cleared before and set after everything else: a process that is
 * killed at any instruction leaves no denial half written, and its lock is
 * taken over.  Times are microseconds of a clock that all processes share.
 */


#ifndef _RATELIMIT_DENY_CACHE_H_INCLUDED_
#define _RATELIMIT_DENY_CACHE_H_INCLUDED_


#include "core/ratelimit.h"
#include "core/ratelimit_hash.h"
#include "table/ratelimit_lock.h"


typedef struct ratelimit_deny_cache_s  ratelimit_deny_cache_t;
typedef struct ratelimit_deny_group_s  ratelimit_deny_group_t;


typedef struct {
    uint64_t                        key;      /* hash of name and key */
    uint64_t                        limit;    /* hash of rule and cost */
    uint64_t                        until;    /* Redis is asked again then;
                                                 0: there is no denial */
    uint64_t                        retry;    /* the refusal ends */
    uint64_t                        reset;    /* the limit is whole */
    uint32_t                        remaining;
    uint32_t                        generation;  /* of the configuration */
} ratelimit_denial_t;


struct ratelimit_deny_cache_s {
    ratelimit_deny_group_t         *groups;
    size_t                          ngroups;
    ratelimit_lifelines_t          *lifelines;
    uint32_t                        generation;
};


/*
 * The cache is in memory of zeros, or in that of an older generation, whose
 * denials are ignored.  Returns 0 if the memory is too small.
 */
int ratelimit_deny_cache_init(ratelimit_deny_cache_t *cache, void *memory,
    size_t size, ratelimit_lifelines_t *lifelines, uint32_t generation);

/* the name of a limit in denials: another rule or cost has another one */
uint64_t ratelimit_deny_cache_limit(const ratelimit_hash_t *secret,
    const ratelimit_rule_t *rule, uint64_t cost);

/* returns 1 and sets the denial, if there is one that is valid now */
int ratelimit_deny_cache_find(const ratelimit_deny_cache_t *cache,
    uint64_t key, uint64_t limit, uint64_t now, ratelimit_denial_t *found);

/* in the place of one of the same key and limit, if there is one */
void ratelimit_deny_cache_add(ratelimit_deny_cache_t *cache,
    const ratelimit_denial_t *denial, uint32_t me);

/* drops all denials of a key, whatever their limit and cost */
void ratelimit_deny_cache_forget(ratelimit_deny_cache_t *cache, uint64_t key,
    uint32_t me);

/*
 * The same, as something is refunded now; what is added after it may be the
 * answer to an older question, which the second function tells, unless another
 * key of the group was refunded since.
 */
void ratelimit_deny_cache_refunded(ratelimit_deny_cache_t *cache, uint64_t key,
    uint64_t now, uint32_t me);
int ratelimit_deny_cache_is_refunded(const ratelimit_deny_cache_t *cache,
    uint64_t key, uint64_t since);


#endif /* _RATELIMIT_DENY_CACHE_H_INCLUDED_ */
