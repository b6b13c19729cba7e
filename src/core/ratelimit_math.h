
/*
 * The arithmetic that the algorithms share: unsigned, saturating, and with
 * the direction of rounding in the name.
 */


#ifndef _RATELIMIT_MATH_H_INCLUDED_
#define _RATELIMIT_MATH_H_INCLUDED_


#include "core/ratelimit.h"


/*
 * A process may be killed between any two instructions: what is written above
 * must be in memory before what is written below.  This is for the
 * compiler alone: a processor retires its own stores in order.
 */
#define ratelimit_store_barrier()  __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* what is decided often is compiled once for each usual shape of a state */
#define ratelimit_inline    inline __attribute__((always_inline))

/* what mostly holds: the code for it comes first */
#define ratelimit_likely(x)    __builtin_expect(!!(x), 1)
#define ratelimit_unlikely(x)  __builtin_expect(!!(x), 0)

/* keeps what is rarely needed out of the code that every request runs */
#define ratelimit_noinline  __attribute__((noinline))


/* parts of a word of a state */

typedef uint16_t __attribute__((may_alias))  ratelimit_uint16_t;
typedef uint32_t __attribute__((may_alias))  ratelimit_uint32_t;


/*
 * Writes a word of a state.  A process may be killed between any two
 * instructions, and others read states without a lock: each word is written at
 * once, and not before those that were written earlier.
 */

static ratelimit_inline void
ratelimit_set(ratelimit_state_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}


static inline uint64_t
ratelimit_min(uint64_t a, uint64_t b)
{
    return (a < b) ? a : b;
}


static inline uint64_t
ratelimit_max(uint64_t a, uint64_t b)
{
    return (a > b) ? a : b;
}


/* a + b, at most UINT64_MAX */

static inline uint64_t
ratelimit_add(uint64_t a, uint64_t b)
{
    return (b > UINT64_MAX - a) ? UINT64_MAX : a + b;
}


/* a - b, at least 0 */

static inline uint64_t
ratelimit_sub(uint64_t a, uint64_t b)
{
    return (a > b) ? a - b : 0;
}


/* requests to thousandths of a request, at most UINT64_MAX */

static inline uint64_t
ratelimit_thousandths(uint64_t a)
{
    return (a > UINT64_MAX / 1000) ? UINT64_MAX : a * 1000;
}


/*
 * The divisor is never 0.  Operands are mostly small, and a division of 32
 * bits takes a fraction of the time of one of 64; by a number that the compiler
 * knows there is none at all.
 */

static inline uint64_t
ratelimit_div(uint64_t a, uint64_t b)
{
    if (((a | b) >> 32) == 0) {
        return (uint32_t) a / (uint32_t) b;
    }

    return a / b;
}


static inline uint64_t
ratelimit_mod(uint64_t a, uint64_t b)
{
    if (!__builtin_constant_p(b) && ((a | b) >> 32) == 0) {
        return (uint32_t) a % (uint32_t) b;
    }

    return a % b;
}


static inline uint64_t
ratelimit_div_ceil(uint64_t a, uint64_t b)
{
    uint64_t  q;

    q = ratelimit_div(a, b);

    return q + (q * b != a);
}


/* a * b / d; the product must be below 2^64 to mean something */

static inline uint64_t
ratelimit_muldiv(uint64_t a, uint64_t b, uint64_t d)
{
    return ratelimit_div(a * b, d);
}


static inline uint64_t
ratelimit_muldiv_ceil(uint64_t a, uint64_t b, uint64_t d)
{
    return ratelimit_div_ceil(a * b, d);
}


/*
 * What all windows share: used requests are counted against the limit, and
 * admitted up to the ceiling.
 */

static ratelimit_inline void
ratelimit_admit(const ratelimit_rule_t *rule, uint64_t used, uint64_t cost,
    ratelimit_verdict_t *verdict)
{
    uint64_t  sum;

    sum = ratelimit_add(used, cost);

    verdict->delay = 0;
    verdict->allowed = (sum <= rule->ceiling || cost == 0);
    verdict->soft = (sum > rule->limit && verdict->allowed);
}


/* the figures of a verdict except the times */

static inline void
ratelimit_describe_used(const ratelimit_rule_t *rule, uint64_t used,
    uint64_t cost, ratelimit_verdict_t *verdict)
{
    uint64_t  sum;

    sum = ratelimit_add(used, cost);

    verdict->limit = rule->limit;
    verdict->remaining = ratelimit_sub(rule->limit,
                                       verdict->allowed ? sum : used);
    verdict->excess = ratelimit_thousandths(ratelimit_sub(sum, rule->limit));
    verdict->retry_after = 0;
}


#endif /* _RATELIMIT_MATH_H_INCLUDED_ */
