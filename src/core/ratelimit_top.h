
/*
 * The keys that are counted most, in a fixed number of scores: a space-saving
 * sketch (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and
 * top-k elements in data streams", 2005).
 *
 * A key that has no score takes that of the least count, and its count: so much
 * may be another key's, which is the score's error.  Of n events in k scores,
 * each key that had more than n / k of them has a score, and
 *
 *     count - error <= events of the key <= count
 *
 * Events weigh less as time goes by, half after RATELIMIT_TOP_HALF: for "n" and
 * "events" read the sums of their weights.  A score of less than half an event
 * is dropped.
 *
 * An event of a key that has a score costs one look into a chain.  Other keys
 * pay for the search of the least count, which goes round from score to score
 * and mostly ends soon: counts are the same where nothing repeats.
 *
 * A sketch of zeros is empty.  If a process was killed while it changed one,
 * the next one has to mend it.
 */


#ifndef _RATELIMIT_TOP_H_INCLUDED_
#define _RATELIMIT_TOP_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>

#include "core/ratelimit.h"
#include "core/ratelimit_math.h"


/* bytes of a key that are kept */
#define RATELIMIT_TOP_TEXT  128

/* counts are in units of which an event is so many, for weights */
#define RATELIMIT_TOP_ONE   ((uint64_t) 1 << 16)

/* as many bits of an id choose its chain */
#define RATELIMIT_TOP_BITS    6
#define RATELIMIT_TOP_CHAINS  (1 << RATELIMIT_TOP_BITS)

/* scores, at most */
#define RATELIMIT_TOP_MAX   256

/* weights change in steps of this time, by this factor of TOP_ONE */
#define RATELIMIT_TOP_STEP  (10 * RATELIMIT_SECOND)
#define RATELIMIT_TOP_KEEP  64039
#define RATELIMIT_TOP_HALF  (300 * RATELIMIT_SECOND)


typedef struct {
    uint64_t                        id;       /* of the key, 0: of none */
    uint64_t                        count;    /* without a key 0, unless a
                                                 change was not finished */
    uint64_t                        error;
    uint32_t                        limit;    /* the caller's */
    uint32_t                        len;      /* of the key */
    uint16_t                        next;     /* in its chain, 0: none */
    unsigned char                   text[RATELIMIT_TOP_TEXT];
} ratelimit_top_score_t;


typedef struct {
    uint64_t                        until;    /* the weights change then */
    uint64_t                        least;    /* no count is less */
    uint64_t                        turn;     /* the score that is looked at
                                                 first for the least count */
    uint16_t                        chains[RATELIMIT_TOP_CHAINS];
                                              /* of scores, by the first bits
                                                 of an id */
    ratelimit_top_score_t           scores[1];
} ratelimit_top_t;


/* bytes of a sketch of so many scores */
size_t ratelimit_top_size(size_t k);

/*
 * An event of a key.  An id that is not 0 stands for the key and the limit; its
 * bits are as random as those of a hash.
 */
void ratelimit_top_add(ratelimit_top_t *top, size_t k, uint64_t now,
    uint64_t id, uint32_t limit, const void *key, size_t len);

/* makes a sketch sound that may have been left in the midst of a change */
void ratelimit_top_mend(ratelimit_top_t *top, size_t k);

/*
 * The sum of some sketches, which keeps the promise that each of them makes.
 * The caller sets scores, with room for those of all sketches, and the index,
 * of more places than twice that, a power of two, which are zeros; the rest is
 * zero at first.
 */

typedef struct {
    ratelimit_top_score_t          *scores;
    size_t                          n;
    uint32_t                       *index;    /* by id: scores, from 1 on */
    size_t                          mask;     /* places - 1 */
    uint64_t                        absent;   /* the count that a key without
                                                 scores may have */
} ratelimit_top_sum_t;


void ratelimit_top_merge(ratelimit_top_sum_t *sum, const ratelimit_top_t *top,
    size_t k, uint64_t now);

/* when all are added: the largest counts come first */
void ratelimit_top_finish(ratelimit_top_sum_t *sum);


/* the scores of a chain: where they are in the sketch, in words */

static ratelimit_inline ratelimit_top_score_t *
ratelimit_top_score(ratelimit_top_t *top, uint16_t at)
{
    return (ratelimit_top_score_t *) ((uint64_t *) top + at);
}


/*
 * As ratelimit_top_add(), for a key that has a score.  Returns 0 and does
 * nothing if it has none, or if weights have to change first.
 */

static ratelimit_inline int
ratelimit_top_repeat(ratelimit_top_t *top, uint64_t now, uint64_t id)
{
    uint16_t                at;
    ratelimit_top_score_t  *score;

    if (now >= top->until) {
        return 0;
    }

    for (at = top->chains[id >> (64 - RATELIMIT_TOP_BITS)];
         at;
         at = score->next)
    {
        score = ratelimit_top_score(top, at);

        if (score->id == id) {
            score->count += RATELIMIT_TOP_ONE;
            return 1;
        }
    }

    return 0;
}


#endif /* _RATELIMIT_TOP_H_INCLUDED_ */
