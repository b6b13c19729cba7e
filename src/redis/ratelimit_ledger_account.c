
/*
 * Accounts of a ledger in the cells of a segment.
 */


#include <string.h>

#include "redis/ratelimit_ledger_account.h"


/* which accounts are removed when there is no room */

typedef enum {
    RATELIMIT_LEDGER_EXPIRED = 0,
    RATELIMIT_LEDGER_IDLE
} ratelimit_ledger_sweep_e;


static uint32_t *ratelimit_ledger_chain(ratelimit_ledger_segment_t *segment,
    const ratelimit_hash_t *hash, uint64_t period);
static uint32_t ratelimit_ledger_cells(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_name_t *name);
static uint32_t ratelimit_ledger_room(
    const ratelimit_ledger_segment_t *segment, uint32_t cells);
static void ratelimit_ledger_sweep(const ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, uint64_t now,
    ratelimit_ledger_sweep_e which);
static void ratelimit_ledger_remove(ratelimit_ledger_segment_t *segment,
    ratelimit_ledger_account_t *account, uint32_t cell);


static uint32_t *
ratelimit_ledger_chain(ratelimit_ledger_segment_t *segment,
    const ratelimit_hash_t *hash, uint64_t period)
{
    return &segment->chains[(hash->lo + period / RATELIMIT_SECOND)
                            % RATELIMIT_LEDGER_CHAINS];
}


ratelimit_ledger_account_t *
ratelimit_ledger_find(ratelimit_ledger_segment_t *segment,
    const ratelimit_ledger_id_t *id)
{
    uint32_t                     cell;
    ratelimit_ledger_account_t  *account;

    cell = *ratelimit_ledger_chain(segment, &id->hash, id->rule->period);

    while (cell) {
        account = (ratelimit_ledger_account_t *) segment->cells[cell - 1];

        if (account->hash.lo == id->hash.lo && account->hash.hi == id->hash.hi
            && account->rule.period == id->rule->period)
        {
            return account;
        }

        cell = account->next;
    }

    return NULL;
}


ratelimit_ledger_account_t *
ratelimit_ledger_insert(ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, const ratelimit_ledger_id_t *id,
    const ratelimit_ledger_name_t *name, uint64_t now)
{
    uint32_t                     cell, cells, *chain;
    ratelimit_ledger_account_t  *account;

    cells = ratelimit_ledger_cells(ledger, name);

    if (cells > RATELIMIT_LEDGER_CELLS) {
        return NULL;
    }

    cell = ratelimit_ledger_room(segment, cells);

    if (cell == RATELIMIT_LEDGER_CELLS) {
        ratelimit_ledger_sweep(ledger, segment, now, RATELIMIT_LEDGER_EXPIRED);
        cell = ratelimit_ledger_room(segment, cells);
    }

    if (cell == RATELIMIT_LEDGER_CELLS) {
        ratelimit_ledger_sweep(ledger, segment, now, RATELIMIT_LEDGER_IDLE);
        cell = ratelimit_ledger_room(segment, cells);
    }

    if (cell == RATELIMIT_LEDGER_CELLS) {
        return NULL;
    }

    chain = ratelimit_ledger_chain(segment, &id->hash, id->rule->period);
    account = (ratelimit_ledger_account_t *) segment->cells[cell];

    memset(account, 0, sizeof(ratelimit_ledger_account_t));
    memcpy(ratelimit_ledger_list(ledger, account, 2), name->data, name->len);

    account->hash = id->hash;
    account->rule = *id->rule;
    account->name_len = (uint32_t) name->len;
    account->next = *chain;

    ratelimit_store_barrier();
    segment->runs[cell] = (uint16_t) cells;
    ratelimit_store_barrier();
    *chain = cell + 1;

    return account;
}


/* more than there are if the name is too long */

static uint32_t
ratelimit_ledger_cells(const ratelimit_ledger_t *ledger,
    const ratelimit_ledger_name_t *name)
{
    size_t  size;

    size = offsetof(ratelimit_ledger_account_t, deltas)
           + 2 * ledger->ndeltas * sizeof(ratelimit_delta_t);

    size = ratelimit_max(size, sizeof(ratelimit_ledger_account_t));

    if (name->len > RATELIMIT_LEDGER_CELLS * RATELIMIT_LEDGER_CELL - size) {
        return RATELIMIT_LEDGER_CELLS + 1;
    }

    return (uint32_t) ratelimit_div_ceil(size + name->len,
                                         RATELIMIT_LEDGER_CELL);
}


/* the first of so many free cells, or the number of all if there are none */

static uint32_t
ratelimit_ledger_room(const ratelimit_ledger_segment_t *segment,
    uint32_t cells)
{
    uint32_t  cell, free;

    free = 0;
    cell = 0;

    while (cell < RATELIMIT_LEDGER_CELLS) {

        if (segment->runs[cell]) {
            cell += segment->runs[cell];
            free = 0;
            continue;
        }

        cell++;

        if (++free == cells) {
            return cell - cells;
        }
    }

    return RATELIMIT_LEDGER_CELLS;
}


/*
 * Without its lease a counter that has nothing to report costs a question when
 * it is used again, and no more.
 */

static void
ratelimit_ledger_sweep(const ratelimit_ledger_t *ledger,
    ratelimit_ledger_segment_t *segment, uint64_t now,
    ratelimit_ledger_sweep_e which)
{
    uint32_t                     cell, begin;
    ratelimit_ledger_id_t        id;
    ratelimit_ledger_account_t  *account;

    cell = 0;

    for ( ;; ) {
        account = ratelimit_ledger_walk(segment, &cell);

        if (account == NULL) {
            return;
        }

        begin = (uint32_t) (((unsigned char *) account - segment->cells[0])
                            / RATELIMIT_LEDGER_CELL);
        id.hash = account->hash;
        id.rule = &account->rule;

        if (ratelimit_ledger_find(segment, &id) != account) {
            segment->runs[begin] = 0;
            continue;
        }

        if (ratelimit_ledger_is_reported(account)
            && (which == RATELIMIT_LEDGER_IDLE
                || now >= account->renewed + 3 * ledger->interval
                          + RATELIMIT_LEDGER_STANDS))
        {
            ratelimit_ledger_remove(segment, account, begin);
        }
    }
}


static void
ratelimit_ledger_remove(ratelimit_ledger_segment_t *segment,
    ratelimit_ledger_account_t *account, uint32_t cell)
{
    uint32_t                    *link;
    ratelimit_ledger_account_t  *other;

    link = ratelimit_ledger_chain(segment, &account->hash,
                                  account->rule.period);

    while (*link != cell + 1) {
        other = (ratelimit_ledger_account_t *) segment->cells[*link - 1];
        link = &other->next;
    }

    *link = account->next;
    ratelimit_store_barrier();
    segment->runs[cell] = 0;
}


ratelimit_ledger_account_t *
ratelimit_ledger_walk(ratelimit_ledger_segment_t *segment, uint32_t *cell)
{
    uint32_t  begin;

    for (begin = *cell; begin < RATELIMIT_LEDGER_CELLS; begin++) {

        if (segment->runs[begin]) {
            *cell = begin + segment->runs[begin];
            return (ratelimit_ledger_account_t *) segment->cells[begin];
        }
    }

    return NULL;
}
