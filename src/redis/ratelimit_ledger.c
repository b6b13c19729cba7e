
/*
 * The ledger: what is charged, reported and granted.
 */


#include <string.h>

#include "redis/ratelimit_ledger_account.h"


#define RATELIMIT_LEDGER_MAGIC  0x3172656764656c72ULL

#define RATELIMIT_LEDGER_ALIGN  64

/* deltas of a list where any number of stamps may count */
#define RATELIMIT_LEDGER_FOLDED  8


static uint32_t ratelimit_ledger_ndeltas(const ratelimit_shape_t *shape);
static ratelimit_inline ratelimit_ledger_segment_t *ratelimit_ledger_segment(
    const ratelimit_ledger_t *ledger, const ratelimit_hash_t *hash);
static ratelimit_ledger_segment_t *ratelimit_ledger_lock(
    const ratelimit_ledger_t *ledger, const ratelimit_ledger_id_t *id,
    uint32_t me, ratelimit_ledger_account_t **account);
static int ratelimit_ledger_admits(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_account_t *account, const ratelimit_rule_t *rule,
    uint64_t cost, uint64_t now, ratelimit_ledger_e bound);
static ratelimit_delta_t *ratelimit_ledger_delta(ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account, uint64_t stamp, uint64_t now,
    ratelimit_ledger_e bound);
static ratelimit_delta_t *ratelimit_ledger_fold(ratelimit_ledger_t *ledger,
    ratelimit_delta_t *list, uint32_t n, uint64_t stamp,
    ratelimit_ledger_e bound);
static ratelimit_delta_t *ratelimit_ledger_newest(ratelimit_delta_t *list,
    uint32_t n, uint64_t stamp);
static int ratelimit_ledger_add(ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, ratelimit_ledger_account_t *account,
    uint64_t cost, uint64_t stamp, uint64_t now, ratelimit_ledger_e bound);
static void ratelimit_ledger_cancel(ratelimit_delta_t *delta, uint64_t cost);
static void ratelimit_ledger_mark(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_segment_t *segment);
static int ratelimit_ledger_dirty(const ratelimit_ledger_t *ledger, size_t i);
static void ratelimit_ledger_copy(ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account, ratelimit_ledger_copy_t *copy);
static void ratelimit_ledger_order(ratelimit_delta_t *deltas, unsigned n);
static void ratelimit_ledger_batch_account(ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account);
static unsigned ratelimit_ledger_counted(ratelimit_ledger_account_t *account);
static void ratelimit_ledger_merge_list(const ratelimit_delta_t *deltas,
    unsigned n, const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_clock_t *clock, ratelimit_state_t *state);
static int ratelimit_ledger_batch_segment(ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, uint64_t now, uint64_t again,
    int (*handler)(void *data, const ratelimit_ledger_copy_t *copy),
    void *data);


int
ratelimit_ledger_open(ratelimit_ledger_t *ledger, void *memory, size_t size,
    const ratelimit_shape_t *shape, uint64_t interval, uint64_t machine,
    ratelimit_lifelines_t *lifelines)
{
    size_t                        n, skip, words;
    unsigned char                *p;
    ratelimit_ledger_header_t    *header;
    const ratelimit_algorithm_t  *algorithm;

    skip = -(uintptr_t) memory % RATELIMIT_LEDGER_ALIGN;
    p = (unsigned char *) memory + skip;

    n = size / sizeof(ratelimit_ledger_segment_t);
    words = (n + 511) / 512 * 8;
    skip += (sizeof(ratelimit_ledger_header_t) + RATELIMIT_LEDGER_ALIGN - 1)
            / RATELIMIT_LEDGER_ALIGN * RATELIMIT_LEDGER_ALIGN
            + words * sizeof(uint64_t);

    if (size < skip + sizeof(ratelimit_ledger_segment_t)) {
        return 0;
    }

    header = (ratelimit_ledger_header_t *) p;

    if (header->magic == 0) {
        header->size = size;
        header->shape = *shape;
        header->machine = machine;
        ratelimit_store_barrier();
        header->magic = RATELIMIT_LEDGER_MAGIC;
    }

    if (header->magic != RATELIMIT_LEDGER_MAGIC || header->size != size
        || memcmp(&header->shape, shape, sizeof(ratelimit_shape_t)) != 0)
    {
        return 0;
    }

    algorithm = ratelimit_algorithms[shape->algorithm];

    ledger->header = header;
    ledger->nsegments = (uint32_t) ((size - skip)
                                    / sizeof(ratelimit_ledger_segment_t));
    ledger->segments = (ratelimit_ledger_segment_t *)
                       ((unsigned char *) memory + skip);
    ledger->dirty = (uint64_t *) ledger->segments - words;
    ledger->ndeltas = ratelimit_ledger_ndeltas(shape);
    ledger->stamps = algorithm->stamps ? algorithm->stamps(shape) : 0;
    ledger->drips = algorithm->drips;
    ledger->interval = interval;
    ledger->lifelines = lifelines;

    return 1;
}


/*
 * One more than may count at a time, and RATELIMIT_LATEST; times of buckets are
 * folded, those of logs are kept.
 */

static uint32_t
ratelimit_ledger_ndeltas(const ratelimit_shape_t *shape)
{
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[shape->algorithm];

    if (algorithm->stamps) {
        return algorithm->stamps(shape) + 2;
    }

    return algorithm->drips ? RATELIMIT_LEDGER_FOLDED
                            : RATELIMIT_LEDGER_DELTAS;
}


static ratelimit_inline ratelimit_ledger_segment_t *
ratelimit_ledger_segment(const ratelimit_ledger_t *ledger,
    const ratelimit_hash_t *hash)
{
    return &ledger->segments[((hash->hi >> 32) * ledger->nsegments) >> 32];
}


/* finds the account, NULL if there is none, in its segment, which it locks */

static ratelimit_ledger_segment_t *
ratelimit_ledger_lock(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint32_t me,
    ratelimit_ledger_account_t **account)
{
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_segment(ledger, &id->hash);

    ratelimit_lock(&segment->lock, me, ledger->lifelines);

    *account = ratelimit_ledger_find(segment, id);

    return segment;
}


uint64_t
ratelimit_ledger_machine(const ratelimit_ledger_t *ledger)
{
    return ledger->header->machine;
}


/* while another process has the segment, the charge will find out */

int
ratelimit_ledger_affords(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t cost, uint64_t now, uint32_t me)
{
    int                          rc;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_segment(ledger, &id->hash);

    if (!ratelimit_trylock(&segment->lock, me)) {
        return 1;
    }

    account = ratelimit_ledger_find(segment, id);

    rc = account
         && ratelimit_ledger_admits(ledger, account, id->rule, cost, now,
                                    RATELIMIT_LEDGER_LEASE);

    ratelimit_unlock(&segment->lock);

    return rc;
}


/*
 * A lease is that of one ceiling: a rate that is a variable may have others, a
 * limit may be elastic.
 */

static int
ratelimit_ledger_admits(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_account_t *account, const ratelimit_rule_t *rule,
    uint64_t cost, uint64_t now, ratelimit_ledger_e bound)
{
    uint64_t  age, spent;

    if (bound == RATELIMIT_LEDGER_NOTHING) {
        return 1;
    }

    if (account->rule.ceiling != rule->ceiling
        || account->rule.limit != rule->limit)
    {
        return 0;
    }

    spent = account->spent + cost;

    if (bound == RATELIMIT_LEDGER_SHARE) {
        return spent <= account->share;
    }

    if (spent > account->lease) {
        return 0;
    }

    age = ratelimit_sub(now, account->renewed);

    if (age <= ledger->interval + ledger->interval / 2
               + RATELIMIT_LEDGER_FRESH)
    {
        return 1;
    }

    return spent <= account->standing
           && age <= 3 * ledger->interval + RATELIMIT_LEDGER_STANDS;
}


int
ratelimit_ledger_charge(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t cost, uint64_t stamp,
    uint64_t now, ratelimit_ledger_e bound, uint32_t me)
{
    int                          rc;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);

    rc = account
         && ratelimit_ledger_admits(ledger, account, id->rule, cost, now, bound)
         && ratelimit_ledger_add(ledger, segment, account, cost, stamp, now,
                                 bound);

    ratelimit_unlock(&segment->lock);

    return rc;
}


int
ratelimit_ledger_debit(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, const ratelimit_ledger_name_t *name,
    uint64_t cost, uint64_t stamp, uint64_t now, uint32_t me)
{
    int                          rc;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);

    if (account == NULL) {
        account = ratelimit_ledger_insert(ledger, segment, id, name, now);
    }

    rc = account && ratelimit_ledger_add(ledger, segment, account, cost, stamp,
                                         now, RATELIMIT_LEDGER_NOTHING);

    ratelimit_unlock(&segment->lock);

    return rc;
}


/*
 * What a process that is killed in between leaves: a segment that is looked at
 * for nothing, then a lease of which one charge was lost.
 */

static int
ratelimit_ledger_add(ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, ratelimit_ledger_account_t *account,
    uint64_t cost, uint64_t stamp, uint64_t now, ratelimit_ledger_e bound)
{
    ratelimit_delta_t  *delta;

    if (cost == 0) {
        return 1;
    }

    delta = ratelimit_ledger_delta(ledger, account, stamp, now, bound);

    if (delta == NULL) {
        return 0;
    }

    ratelimit_ledger_mark(ledger, segment);

    account->spent += cost;
    ratelimit_store_barrier();
    ratelimit_ledger_cancel(delta, cost);
    delta->added = (uint32_t) ratelimit_min(delta->added + cost, UINT32_MAX);

    return 1;
}


/*
 * Only the difference counts: if the sums have no room for this cost, what is
 * in both of them goes.
 */

static void
ratelimit_ledger_cancel(ratelimit_delta_t *delta, uint64_t cost)
{
    uint32_t  both;

    if (ratelimit_max(delta->added, delta->refunded) + cost <= UINT32_MAX) {
        return;
    }

    both = ratelimit_min(delta->added, delta->refunded);

    delta->refunded -= both;
    ratelimit_store_barrier();
    delta->added -= both;
}


/* of the open list; NULL if there is no room for another stamp */

static ratelimit_delta_t *
ratelimit_ledger_delta(ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account, uint64_t stamp, uint64_t now,
    ratelimit_ledger_e bound)
{
    uint32_t            i, n;
    unsigned            open;
    ratelimit_delta_t  *list, *delta;

    open = ratelimit_ledger_open_list(account);
    list = ratelimit_ledger_list(ledger, account, open);
    n = account->n[open];

    for (i = n; i; i--) {
        if (list[i - 1].stamp == stamp) {
            return &list[i - 1];
        }
    }

    if (n == ledger->ndeltas || (n && ledger->drips)) {
        delta = ratelimit_ledger_fold(ledger, list, n, stamp, bound);

        if (delta || n == ledger->ndeltas) {
            return delta;
        }
    }

    if (n == 0) {
        account->since[open] = now;
    }

    delta = &list[n];
    delta->stamp = stamp;
    delta->added = 0;
    delta->refunded = 0;

    ratelimit_store_barrier();
    account->n[open] = n + 1;

    return delta;
}


/*
 * Of so many windows the oldest one is past.  In a bucket what was taken at
 * about the same time was taken at the later time: that returns too late,
 * rather than too early.  The same is true of a log if Redis can't be asked.
 */

static ratelimit_delta_t *
ratelimit_ledger_fold(ratelimit_ledger_t *ledger, ratelimit_delta_t *list,
    uint32_t n, uint64_t stamp, ratelimit_ledger_e bound)
{
    uint32_t            i;
    ratelimit_delta_t  *delta;

    delta = &list[n - 1];

    if (ledger->drips) {

        if (n < ledger->ndeltas
            && ratelimit_sub(stamp, delta->stamp) >= ledger->interval)
        {
            return NULL;
        }

        delta->stamp = ratelimit_max(delta->stamp, stamp);

        return delta;
    }

    if (ledger->stamps == 0) {
        return (bound == RATELIMIT_LEDGER_LEASE)
               ? NULL : ratelimit_ledger_newest(list, n, stamp);
    }

    delta = list;

    for (i = 1; i < n; i++) {
        delta = (list[i].stamp < delta->stamp) ? &list[i] : delta;
    }

    if (delta->stamp > stamp) {
        return NULL;
    }

    delta->added = 0;
    delta->refunded = 0;
    ratelimit_store_barrier();
    delta->stamp = stamp;

    return delta;
}


/* the latest time of a full list, which becomes this one; NULL if it is none */

static ratelimit_delta_t *
ratelimit_ledger_newest(ratelimit_delta_t *list, uint32_t n, uint64_t stamp)
{
    uint32_t            i;
    ratelimit_delta_t  *delta;

    if (stamp == RATELIMIT_LATEST) {
        return NULL;
    }

    delta = NULL;

    for (i = 0; i < n; i++) {
        if (list[i].stamp != RATELIMIT_LATEST
            && (delta == NULL || list[i].stamp > delta->stamp))
        {
            delta = &list[i];
        }
    }

    if (delta) {
        delta->stamp = ratelimit_max(delta->stamp, stamp);
    }

    return delta;
}


static void
ratelimit_ledger_mark(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_segment_t *segment)
{
    size_t  i;

    i = segment - ledger->segments;

    if (!ratelimit_ledger_dirty(ledger, i)) {
        (void) __atomic_fetch_or(&ledger->dirty[i / 64],
                                 (uint64_t) 1 << i % 64, __ATOMIC_RELAXED);
    }
}


/* whether the segment may have something to report */

static int
ratelimit_ledger_dirty(const ratelimit_ledger_t *ledger, size_t i)
{
    return (__atomic_load_n(&ledger->dirty[i / 64], __ATOMIC_RELAXED)
            >> i % 64) & 1;
}


int
ratelimit_ledger_refund(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t cost, uint64_t stamp,
    uint64_t now, uint32_t me)
{
    ratelimit_delta_t           *delta;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);
    delta = NULL;

    if (account) {
        delta = ratelimit_ledger_delta(ledger, account, stamp, now,
                                       RATELIMIT_LEDGER_NOTHING);
    }

    if (delta) {
        ratelimit_ledger_mark(ledger, segment);
        ratelimit_ledger_cancel(delta, cost);

        delta->refunded = (uint32_t) ratelimit_min(delta->refunded + cost,
                                                   UINT32_MAX);
        ratelimit_store_barrier();
        account->spent = ratelimit_sub(account->spent, cost);
    }

    ratelimit_unlock(&segment->lock);

    return delta != NULL;
}


int
ratelimit_ledger_ask(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t now,
    ratelimit_ledger_copy_t *copy, uint32_t me)
{
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);

    if (account && !ratelimit_ledger_is_reported(account)
        && !(account->batch & RATELIMIT_LEDGER_SENT))
    {
        ratelimit_ledger_batch_account(ledger, account);
        account->sent = now;
    }

    ratelimit_ledger_copy(ledger, account, copy);

    ratelimit_unlock(&segment->lock);

    return account != NULL;
}


/* one write makes the open list the batch, and the other one the open list */

static void
ratelimit_ledger_batch_account(ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account)
{
    uint64_t  number, open;

    number = __atomic_add_fetch(&ledger->header->number, 1, __ATOMIC_RELAXED);
    open = !ratelimit_ledger_open_list(account);

    account->cut = account->spent;
    ratelimit_store_barrier();
    account->batch = number << 2 | RATELIMIT_LEDGER_SENT | open;
}


/* the account may be NULL */

static void
ratelimit_ledger_copy(ratelimit_ledger_t *ledger,
    ratelimit_ledger_account_t *account, ratelimit_ledger_copy_t *copy)
{
    unsigned  open;

    copy->spent = 0;
    copy->number = 0;
    copy->repeated = 0;
    copy->counted = 0;
    copy->nbatch = 0;
    copy->nopen = 0;

    if (account == NULL) {
        return;
    }

    open = ratelimit_ledger_open_list(account);

    copy->hash = account->hash;
    copy->rule = account->rule;
    copy->name.data = (unsigned char *) ratelimit_ledger_list(ledger, account,
                                                              2);
    copy->name.len = account->name_len;
    copy->spent = account->spent;
    copy->nopen = (unsigned) ratelimit_min(account->n[open], ledger->ndeltas);

    memcpy(copy->open, ratelimit_ledger_list(ledger, account, open),
           copy->nopen * sizeof(ratelimit_delta_t));

    if (account->batch & RATELIMIT_LEDGER_SENT) {
        copy->number = account->batch >> 2;
        copy->nbatch = (unsigned) ratelimit_min(account->n[!open],
                                                ledger->ndeltas);

        memcpy(copy->batch, ratelimit_ledger_list(ledger, account, !open),
               copy->nbatch * sizeof(ratelimit_delta_t));
    }

    if (ledger->drips) {
        ratelimit_ledger_order(copy->open, copy->nopen);
        ratelimit_ledger_order(copy->batch, copy->nbatch);
    }
}


/*
 * Charges before refunds: as their times are folded, a refund may stand before
 * its charge, and a bucket gets back no more than was taken from it so far.
 */

static void
ratelimit_ledger_order(ratelimit_delta_t *deltas, unsigned n)
{
    unsigned           i, k;
    ratelimit_delta_t  delta;

    for (i = 1; i < n; i++) {
        delta = deltas[i];

        if (delta.added <= delta.refunded) {
            continue;
        }

        for (k = i; k && deltas[k - 1].added <= deltas[k - 1].refunded; k--) {
            deltas[k] = deltas[k - 1];
        }

        deltas[k] = delta;
    }
}


void
ratelimit_ledger_answer(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, const ratelimit_ledger_name_t *name,
    const ratelimit_answer_t *answer, ratelimit_ledger_copy_t *copy,
    uint32_t me)
{
    uint64_t                     from;
    unsigned                     counted, current;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);
    counted = 0;

    if (account == NULL && answer->question && answer->grant->lease) {
        account = ratelimit_ledger_insert(ledger, segment, id, name,
                                          answer->asked);
    }

    current = account && account->batch >> 2 == answer->number;

    if (current && answer->number && answer->grant->counted) {
        counted = ratelimit_ledger_counted(account);
    }

    /* of a former batch it is not known any more when it was cut */

    if (account && (answer->question || current)) {
        from = answer->question ? answer->spent : account->cut;

        account->rule = *id->rule;
        account->lease = from + answer->grant->lease;
        account->standing = from + answer->grant->standing;
        account->share = from + answer->grant->share;
        account->renewed = answer->asked;
    }

    ratelimit_ledger_copy(ledger, account, copy);
    copy->counted = counted;

    ratelimit_unlock(&segment->lock);
}


/*
 * Half done, it is a batch of nothing that was counted before.  Returns how
 * many deltas it had.
 */

static unsigned
ratelimit_ledger_counted(ratelimit_ledger_account_t *account)
{
    unsigned  n, which;

    if (!(account->batch & RATELIMIT_LEDGER_SENT)) {
        return 0;
    }

    which = !ratelimit_ledger_open_list(account);
    n = account->n[which];

    account->n[which] = 0;
    ratelimit_store_barrier();
    account->batch &= ~(uint64_t) RATELIMIT_LEDGER_SENT;

    return n;
}


void
ratelimit_ledger_merge(const ratelimit_ledger_copy_t *copy,
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_clock_t *clock, ratelimit_state_t *state)
{
    ratelimit_ledger_merge_list(copy->batch, copy->nbatch, shape, rule, clock,
                                state);
    ratelimit_ledger_merge_list(copy->open, copy->nopen, shape, rule, clock,
                                state);
}


/*
 * The difference alone: a log that is full would forget older times for both.
 * Refunds of whatever was charged last come after all charges.
 */

static void
ratelimit_ledger_merge_list(const ratelimit_delta_t *deltas, unsigned n,
    const ratelimit_shape_t *shape, const ratelimit_rule_t *rule,
    const ratelimit_clock_t *clock, ratelimit_state_t *state)
{
    unsigned                      i;
    uint64_t                      last;
    const ratelimit_delta_t      *delta;
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[shape->algorithm];
    last = 0;

    for (i = 0; i < n; i++) {
        delta = &deltas[i];

        if (delta->stamp == RATELIMIT_LATEST) {
            last = delta->refunded;

        } else if (delta->added > delta->refunded) {
            algorithm->add(shape, rule, state, clock, delta->stamp,
                           delta->added - delta->refunded);

        } else if (delta->added < delta->refunded) {
            algorithm->refund(shape, rule, state, clock, delta->stamp,
                              delta->refunded - delta->added);
        }
    }

    if (last) {
        algorithm->refund(shape, rule, state, clock, RATELIMIT_LATEST, last);
    }
}


int
ratelimit_ledger_batch(ratelimit_ledger_t *ledger, uint32_t *cursor,
    uint64_t now, uint64_t again, int (*handler)(void *data,
    const ratelimit_ledger_copy_t *copy), void *data, uint32_t me)
{
    int                          more;
    ratelimit_ledger_segment_t  *segment;

    for ( /* void */ ; *cursor < ledger->nsegments; (*cursor)++) {

        if (!ratelimit_ledger_dirty(ledger, *cursor)) {
            continue;
        }

        segment = &ledger->segments[*cursor];

        ratelimit_lock(&segment->lock, me, ledger->lifelines);

        more = ratelimit_ledger_batch_segment(ledger, segment, now, again,
                                              handler, data);

        ratelimit_unlock(&segment->lock);

        if (!more) {
            return 1;
        }
    }

    return 0;
}


/* a segment is clean when all of its accounts are, and not before */

static int
ratelimit_ledger_batch_segment(ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, uint64_t now, uint64_t again,
    int (*handler)(void *data, const ratelimit_ledger_copy_t *copy),
    void *data)
{
    size_t                       i;
    uint32_t                     cell;
    unsigned                     dirty, repeated;
    ratelimit_ledger_copy_t      copy;
    ratelimit_ledger_account_t  *account;

    dirty = 0;
    cell = 0;

    for ( ;; ) {
        account = ratelimit_ledger_walk(segment, &cell);

        if (account == NULL) {
            break;
        }

        if (ratelimit_ledger_is_reported(account)) {
            continue;
        }

        dirty = 1;
        repeated = 0;

        if (!(account->batch & RATELIMIT_LEDGER_SENT)) {
            ratelimit_ledger_batch_account(ledger, account);

        } else if (account->sent >= again) {
            continue;

        } else {
            repeated = 1;
        }

        account->sent = now;
        ratelimit_ledger_copy(ledger, account, &copy);
        copy.repeated = repeated;

        if (!handler(data, &copy)) {
            return 0;
        }
    }

    if (!dirty) {
        i = segment - ledger->segments;
        (void) __atomic_fetch_and(&ledger->dirty[i / 64],
                                  ~((uint64_t) 1 << i % 64),
                                  __ATOMIC_RELAXED);
    }

    return 1;
}


unsigned
ratelimit_ledger_drop(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint64_t number, uint32_t me)
{
    unsigned                     n;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);
    n = 0;

    if (account && account->batch >> 2 == number) {
        n = ratelimit_ledger_counted(account);
    }

    ratelimit_unlock(&segment->lock);

    return n;
}


void
ratelimit_ledger_forget(ratelimit_ledger_t *ledger,
    const ratelimit_ledger_id_t *id, uint32_t me)
{
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    segment = ratelimit_ledger_lock(ledger, id, me, &account);

    if (account) {
        account->n[0] = 0;
        account->n[1] = 0;
        account->lease = 0;
        account->standing = 0;
        account->share = 0;
    }

    ratelimit_unlock(&segment->lock);
}


int
ratelimit_ledger_due(ratelimit_ledger_t *ledger, uint64_t now)
{
    uint64_t  due;

    due = __atomic_load_n(&ledger->header->due, __ATOMIC_RELAXED);

    /* what is due later than that was set with another interval */

    return (now >= due || due - now > ledger->interval)
           && __atomic_compare_exchange_n(&ledger->header->due, &due,
                                          now + ledger->interval, 0,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}


uint64_t
ratelimit_ledger_wait(const ratelimit_ledger_t *ledger, uint64_t now)
{
    return ratelimit_sub(__atomic_load_n(&ledger->header->due,
                                         __ATOMIC_RELAXED), now);
}


int
ratelimit_ledger_clean(const ratelimit_ledger_t *ledger)
{
    uint32_t  i;

    for (i = 0; i < (ledger->nsegments + 63) / 64; i++) {
        if (__atomic_load_n(&ledger->dirty[i], __ATOMIC_RELAXED)) {
            return 0;
        }
    }

    return 1;
}


void
ratelimit_ledger_stay(ratelimit_ledger_t *ledger, uint32_t me)
{
    uint32_t  other;

    other = __atomic_load_n(&ledger->header->stays, __ATOMIC_RELAXED);

    if (other != me
        && (other == 0 || !ratelimit_lifelines_alive(ledger->lifelines, other)))
    {
        (void) __atomic_compare_exchange_n(&ledger->header->stays, &other, me,
                                           0, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED);
    }
}


int
ratelimit_ledger_leave(ratelimit_ledger_t *ledger, uint32_t me)
{
    uint32_t  other;

    other = me;

    (void) __atomic_compare_exchange_n(&ledger->header->stays, &other, 0, 0,
                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED);

    return other != me && other
           && ratelimit_lifelines_alive(ledger->lifelines, other);
}


void
ratelimit_ledger_figures(ratelimit_ledger_t *ledger,
    ratelimit_ledger_figures_t *figures, uint32_t me)
{
    uint32_t                     i, cell;
    unsigned                     k;
    ratelimit_ledger_account_t  *account;
    ratelimit_ledger_segment_t  *segment;

    figures->pending = 0;
    figures->oldest = 0;

    for (i = 0; i < ledger->nsegments; i++) {

        if (!ratelimit_ledger_dirty(ledger, i)) {
            continue;
        }

        segment = &ledger->segments[i];
        cell = 0;

        ratelimit_lock(&segment->lock, me, ledger->lifelines);

        for ( ;; ) {
            account = ratelimit_ledger_walk(segment, &cell);

            if (account == NULL) {
                break;
            }

            for (k = 0; k < 2; k++) {
                figures->pending += account->n[k];

                if (account->n[k] && (figures->oldest == 0
                                      || account->since[k] < figures->oldest))
                {
                    figures->oldest = account->since[k];
                }
            }
        }

        ratelimit_unlock(&segment->lock);
    }
}
