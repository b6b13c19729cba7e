
/*
 * The vocabulary of the core: a shape says how a state is kept, a rule says
 * how much is allowed, a state is what was used so far, a verdict is what a
 * decision says.  Nothing here knows nginx, performs I/O, reads a clock or
 * allocates.
 *
 * All times are microseconds.
 */


#ifndef _RATELIMIT_H_INCLUDED_
#define _RATELIMIT_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define RATELIMIT_SECOND        1000000ULL
#define RATELIMIT_MAX_LIMIT     0xffffffffULL
#define RATELIMIT_MAX_PERIOD    (366ULL * 86400 * RATELIMIT_SECOND)
#define RATELIMIT_MAX_BUCKETS   60

/*
 * ceiling * period and capacity * period stay below this, so that a product
 * of two quantities of one rule always fits 64 bits
 */
#define RATELIMIT_MAX_PRODUCT   ((uint64_t) 1 << 62)

/*
 * the clocks of two workers may differ by less than this; a state that lies
 * further in the future means that the clock was set back
 */
#define RATELIMIT_SKEW          RATELIMIT_SECOND

/* one that lies so much further was damaged: no clock is set back that far */
#define RATELIMIT_NO_TIME       ((uint64_t) 1 << 48)

#define RATELIMIT_NODELAY       UINT64_MAX

/*
 * A reservation that is settled neither way, because its worker was killed, is
 * forgotten after one to two of these.
 */
#define RATELIMIT_RESERVED_TIME  (300 * RATELIMIT_SECOND)

/* a cost that is refused is charged nevertheless, as a debt */
#define RATELIMIT_IN_FULL       2

/* marks the stamp of a charge that is a reservation */
#define RATELIMIT_RESERVED      ((uint64_t) 1 << 63)

/* the stamp of a refund of what was charged last, whatever it was stamped */
#define RATELIMIT_LATEST        (((uint64_t) 1 << 53) - 1)


/*
 * The registry.  An algorithm has one base name: it is a traits struct,
 * ratelimit_NAME, in this folder, a script in src/redis/lua/, and a table of
 * vectors in t/vectors/.
 */

#define ratelimit_each_algorithm(X)                                           \
    X(FIXED_WINDOW, fixed_window)                                             \
    X(SLIDING_WINDOW, sliding_window)                                         \
    X(SLIDING_LOG, sliding_log)                                               \
    X(TOKEN_BUCKET, token_bucket)                                             \
    X(LEAKY_BUCKET, leaky_bucket)

#define ratelimit_algorithm_number(NAME, name)  RATELIMIT_##NAME,

typedef enum {
    ratelimit_each_algorithm(ratelimit_algorithm_number)
    RATELIMIT_ALGORITHMS
} ratelimit_algorithm_e;


/* parameters of nginx.conf that an algorithm takes, a bit each */

#define RATELIMIT_TAKES_BUCKETS   0x01
#define RATELIMIT_TAKES_CAPACITY  0x02
#define RATELIMIT_TAKES_BURST     0x04    /* also nodelay, and delay=N */
#define RATELIMIT_TAKES_WAIT      0x08    /* delay=TIME */


/* how a state is kept; all states of one zone have the same shape */

typedef struct {
    ratelimit_algorithm_e           algorithm;
    uint32_t                        buckets;  /* sub-windows of a window */
    uint32_t                        width;    /* bytes of a counter, 2 or 4 */
    uint32_t                        ring;     /* times that a log has room for,
                                                 one more than any ceiling */
    uint32_t                        reserves; /* a bucket has room for
                                                 reservations */
} ratelimit_shape_t;


/* how much is allowed */

typedef struct {
    uint64_t                        limit;    /* N, requests per period */
    uint64_t                        period;   /* W */
    uint64_t                        capacity; /* size of a token bucket;
                                                 of a leaky one, burst + 1;
                                                 N for all others */
    uint64_t                        ceiling;  /* admitted instead of N, or
                                                 instead of capacity by the
                                                 buckets; equal when hard */
    uint64_t                        free;     /* leaky_bucket: excess that is
                                                 not delayed, as limit_req's
                                                 delay=, RATELIMIT_NODELAY */
    uint64_t                        wait;     /* token_bucket: the longest wait
                                                 for a token */
} ratelimit_rule_t;


typedef struct {
    uint64_t                        now;      /* monotonic */
    uint64_t                        wall;     /* since 1970; fixed_window only,
                                                 to align */
    uint64_t                        steady;   /* of a table: now, if counters
                                                 have no clock of their own */
} ratelimit_clock_t;


/*
 * A state is an array of 64-bit words.  All zeros mean "never seen".  Any bits
 * at all are safe to look at; they only make the verdict meaningless.  Words
 * are written by ratelimit_set(), as others read them meanwhile.
 */

typedef uint64_t  ratelimit_state_t;


typedef struct {

    /* the decision, set by look; charge and refund go by it */

    uint64_t                        delay;        /* an allowed request waits */
    uint64_t                        stamp;        /* where the charge goes, to
                                                     be handed to refund */

    /* no uint8_t: a write to one could alias anything */

    uint16_t                        allowed;
    uint16_t                        soft;         /* only above the limit */
    uint16_t                        rebase;       /* the clock was set back:
                                                     charge, if only with 0 */

    /* the figures for people, set by describe */

    uint64_t                        limit;        /* N, or capacity */
    uint64_t                        remaining;
    uint64_t                        reset_after;  /* until the limit is whole */
    uint64_t                        retry_after;  /* 0 if allowed */
    uint64_t                        excess;       /* thousandths of a request
                                                     above the limit */
    uint64_t                        next_after;   /* allowed, but a further one
                                                     has to wait so long; 0:
                                                     it has not, or only Redis
                                                     knows */
} ratelimit_verdict_t;


/* one limit of a decision */

typedef struct {
    const ratelimit_shape_t        *shape;
    const ratelimit_rule_t         *rule;
    ratelimit_state_t              *state;
    uint64_t                        cost;
    ratelimit_verdict_t             verdict;
    uint8_t                         count_rejected;  /* count a refusal, too:
                                                 punish, or
                                                 RATELIMIT_IN_FULL */
    uint8_t                         reserve;  /* it may turn out not to count */
} ratelimit_item_t;


/* what the words of a state mean, for readers that ask no algorithm */

typedef enum {
    RATELIMIT_FORM_OTHER = 0,       /* only the algorithm knows */
    RATELIMIT_FORM_TIME_COUNT,      /* two: a time and a count */
    RATELIMIT_FORM_SUB_WINDOWS      /* the index of the newest sub-window, then
                                       the counters, ratelimit_counters.h */
} ratelimit_form_e;


typedef void (*ratelimit_look_pt)(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, const ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);

typedef void (*ratelimit_charge_pt)(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t cost,
    const ratelimit_verdict_t *verdict);

typedef void (*ratelimit_settle_pt)(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, ratelimit_state_t *state,
    const ratelimit_clock_t *clock, uint64_t stamp, uint64_t cost);


/*
 * look      decides about a request of this cost: sets the first group of the
 *           verdict and changes nothing.  Cost 0 is always allowed.  A state
 *           that is sized may change while it is looked at or described: it is
 *           read by atomic operations.
 * charge    counts the cost, allowed or not, where the verdict of a look at the
 *           same state and time says; cost 0 only rebases.  Words and counters
 *           are written in an order that leaves a sound state at every
 *           instruction.
 * punish    counts a cost that was refused: a client that goes on asking stays
 *           refused, one that stops is admitted as soon as any other client
 *           that has used up the limit.  Arguments as charge has.
 * describe  sets the figures of a verdict that look has set: those of the time
 *           after the charge if it allows the cost.  The cost is 0 if the state
 *           contains the charge already.
 * reserve   holds the cost of a request of which it is not known yet whether it
 *           counts: it takes room like a charge, but nothing of it returns.
 *           Gives the stamp that commit or refund need; NULL if a charge is as
 *           good.
 * commit    counts a reservation that was stamped so, from now on.
 * refund    takes back a charge, or a reservation, that was stamped so.  A
 *           state of which nothing is left has expired at once.  Where nothing
 *           drips, RATELIMIT_LATEST takes the last charges back, one after
 *           another, until there is room for so much more.
 * add       counts a charge that was made elsewhere, in the window, in the
 *           sub-window or at the time that its stamp says: one that is past
 *           counts nowhere.  Where what was taken drips, the stamp is the time
 *           of the charge, otherwise that of its verdict.
 * stamps    how many stamps may count at a time; NULL if they are times.
 * expires   the time from which on the state equals one never seen.
 * past      states whose first word is below this have expired; the period is
 *           0 if it is not known.  NULL if only expires knows.
 * size      bytes of a state, a multiple of 8.
 * fit       makes the shape large enough for a rule with this ceiling (or
 *           capacity); NULL if all shapes are.
 * most      the highest ceiling that a state of this shape can count; NULL if
 *           it can count any.
 * copy      a state of another shape of the same algorithm and buckets; what
 *           the new shape has no room for is the oldest.
 */

typedef struct {
    const char                     *name;
    char                            letter;   /* in names of Redis' counters */
    unsigned                        takes;
    ratelimit_form_e                form;
    unsigned                        drips:1;  /* what was taken returns bit by
                                                 bit, N in a period */
    unsigned                        sized:1;  /* a state has room for as many
                                                 requests as its rules allow */
    unsigned                        aligned:1;  /* windows begin with those of
                                                 the wall clock */
    unsigned                        head;     /* words that are zero in a state
                                                 never seen; 0: all are */

    ratelimit_look_pt               look;
    ratelimit_charge_pt             charge;
    ratelimit_charge_pt             punish;
    ratelimit_look_pt               describe;

    uint64_t  (*reserve)(const ratelimit_shape_t *shape,
        const ratelimit_rule_t *rule, ratelimit_state_t *state,
        const ratelimit_clock_t *clock, uint64_t cost);
    ratelimit_settle_pt             commit;
    ratelimit_settle_pt             refund;
    ratelimit_settle_pt             add;
    uint32_t  (*stamps)(const ratelimit_shape_t *shape);
    uint64_t  (*expires)(const ratelimit_shape_t *shape,
        const ratelimit_rule_t *rule, const ratelimit_state_t *state);
    uint64_t  (*past)(const ratelimit_shape_t *shape, uint64_t period,
        uint64_t now);
    size_t    (*size)(const ratelimit_shape_t *shape);
    void      (*fit)(ratelimit_shape_t *shape, uint64_t ceiling);
    uint64_t  (*most)(const ratelimit_shape_t *shape);
    void      (*copy)(const ratelimit_shape_t *shape,
        ratelimit_state_t *state, const ratelimit_shape_t *from_shape,
        const ratelimit_state_t *from);
} ratelimit_algorithm_t;


#define ratelimit_algorithm_traits(NAME, name)                                \
    extern const ratelimit_algorithm_t  ratelimit_##name;

ratelimit_each_algorithm(ratelimit_algorithm_traits)

/* by ratelimit_algorithm_e */
extern const ratelimit_algorithm_t *const
    ratelimit_algorithms[RATELIMIT_ALGORITHMS];


/* ratelimit_algorithm.c */

/*
 * Makes the shape the narrowest one that holds a rule with this ceiling (or
 * capacity); a shape only grows, so that it fits one rule after another.
 */
void ratelimit_shape_fit(ratelimit_shape_t *shape, uint64_t ceiling);

/* the highest ceiling that a state of this shape can count */
uint64_t ratelimit_shape_most(const ratelimit_shape_t *shape);

/*
 * The stamp to refund what a charge has above a part of it: as if that part had
 * been charged first.
 */
uint64_t ratelimit_stamp_above(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule, uint64_t stamp, uint64_t part);

/*
 * The stamp to refund what any requests have charged; the other one is that of
 * a charge that would be made now.
 */
uint64_t ratelimit_stamp_latest(const ratelimit_shape_t *shape,
    uint64_t stamp);

/*
 * The figures of a verdict after so much is refunded.  Returns how much that
 * is: no more than the verdict says was used.
 */
uint64_t ratelimit_verdict_refund(const ratelimit_shape_t *shape,
    ratelimit_verdict_t *verdict, uint64_t cost);


/* ratelimit_decide.c; ratelimit_decide.h has the rest of a decision */

/*
 * The limit that speaks for the decision: of the violated ones that with the
 * longest wait, otherwise that which admits the fewest further requests.
 */
size_t ratelimit_tightest(const ratelimit_item_t *items, size_t n);


#endif /* _RATELIMIT_H_INCLUDED_ */
