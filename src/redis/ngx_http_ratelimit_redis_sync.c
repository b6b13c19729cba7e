
/*
 * Write-back.  A zone with sync= decides in shared memory, where its counters
 * are those of Redis as they were last heard of, and what was charged since.
 * Redis leases a part of what is left of a limit to each machine; within its
 * lease a machine decides at once, and reports what it has charged later.
 * Otherwise it asks Redis, which knows no more than what was reported; the
 * answer brings a lease.
 */


#include "redis/ngx_http_ratelimit_redis.h"

#include "redis/ratelimit_bytes.h"


/* a question that was sent */

typedef struct {
    ngx_http_ratelimit_done_pt      done;     /* of the query */
    void                           *data;
    ngx_http_ratelimit_redis_row_t *rows;
    uint64_t                        number;
    uint64_t                        settled;  /* all below that are */
    uint64_t                       *spent;    /* of each limit, when asked */
    uint64_t                       *numbers;  /* of the batches under way */
} ngx_http_ratelimit_redis_ask_t;


static ngx_int_t ngx_http_ratelimit_sync_attempt(
    ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_sync_within(ngx_http_ratelimit_query_t *q,
    ratelimit_ledger_e bound);
static ngx_int_t ngx_http_ratelimit_sync_charge(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, ratelimit_ledger_e bound);
static void ngx_http_ratelimit_sync_id(ngx_http_ratelimit_query_t *q,
    ngx_uint_t i, ratelimit_ledger_id_t *id);
static ngx_int_t ngx_http_ratelimit_sync_decide(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_sync_ask(ngx_http_ratelimit_query_t *q);
static ngx_http_ratelimit_redis_ask_t *ngx_http_ratelimit_sync_create_ask(
    ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_sync_create_row(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ngx_http_ratelimit_redis_ask_t *ask);
static ngx_int_t ngx_http_ratelimit_sync_set_name(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i, ngx_str_t *name);
static void ngx_http_ratelimit_sync_on_reply(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc,
    ngx_str_t *text);
static void ngx_http_ratelimit_sync_answer(
    ngx_http_ratelimit_redis_command_t *command, ngx_uint_t i,
    ratelimit_grant_t *grant);
static void ngx_http_ratelimit_sync_done(ngx_http_ratelimit_query_t *q,
    ngx_int_t rc);
static void ngx_http_ratelimit_sync_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how);
static void ngx_http_ratelimit_sync_refund(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_sync_refund_item(
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);
static void ngx_http_ratelimit_sync_debit(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_sync_reset(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_sync_use(ngx_conf_t *cf,
    ngx_http_ratelimit_use_t *use);
static void ngx_http_ratelimit_sync_local(ngx_http_ratelimit_query_t *q);


const ngx_http_ratelimit_store_t  ngx_http_ratelimit_sync_store = {
    ngx_http_ratelimit_redis_deny_cache_find,
    ngx_http_ratelimit_sync_decide,
    ngx_http_ratelimit_redis_cancel,
    ngx_http_ratelimit_sync_settle,
    ngx_http_ratelimit_redis_refused,
    ngx_http_ratelimit_redis_peek,
    ngx_http_ratelimit_sync_reset,
    ngx_http_ratelimit_sync_use,
    ngx_http_ratelimit_redis_part,
    ngx_http_ratelimit_sync_attempt,
    ngx_http_ratelimit_sync_local,
    ngx_http_ratelimit_redis_is_up
};


static ngx_int_t
ngx_http_ratelimit_sync_attempt(ngx_http_ratelimit_query_t *q)
{
    uint64_t               now;
    ngx_uint_t             i;
    ratelimit_ledger_id_t  id;

    if (ngx_http_ratelimit_self == 0) {
        return NGX_DECLINED;
    }

    now = (uint64_t) ngx_current_msec * 1000;

    for (i = 0; i < q->n; i++) {
        ngx_http_ratelimit_sync_id(q, i, &id);

        if (!ratelimit_ledger_affords(
                                  &q->subjects[i].use->zone->exchange->ledger,
                                  &id, q->items[i].cost, now,
                                  ngx_http_ratelimit_self))
        {
            return NGX_DECLINED;
        }
    }

    return ngx_http_ratelimit_sync_within(q, RATELIMIT_LEDGER_LEASE);
}


/*
 * A decision in shared memory that the ledger permits, too.  What shared memory
 * refuses, Redis is asked about: others may have been refunded.
 */

static ngx_int_t
ngx_http_ratelimit_sync_within(ngx_http_ratelimit_query_t *q,
    ratelimit_ledger_e bound)
{
    ngx_uint_t  i;

    for (i = 0; i < q->n; i++) {
        q->items[i].reserve = 0;
    }

    if (ngx_http_ratelimit_shm_store.decide(q) != NGX_OK || !q->allowed) {
        return NGX_DECLINED;
    }

    for (i = 0; i < q->n; i++) {
        if (ngx_http_ratelimit_sync_charge(q, i, bound) != NGX_OK) {
            break;
        }
    }

    if (i == q->n) {
        ngx_http_ratelimit_redis_deny_cache_forget(q);
        return NGX_OK;
    }

    /* another worker was faster */

    ngx_http_ratelimit_shm_store.settle(q, NGX_HTTP_RATELIMIT_REFUND);

    while (i) {
        (void) ngx_http_ratelimit_sync_refund_item(q, --i);
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_ratelimit_sync_charge(ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ratelimit_ledger_e bound)
{
    uint64_t                    stamp;
    ratelimit_ledger_id_t       id;
    ngx_http_ratelimit_sync_t  *sync;

    sync = q->subjects[i].use->zone->exchange;

    ngx_http_ratelimit_sync_id(q, i, &id);

    stamp = sync->ledger.drips ? q->places[0].clock.now
                               : q->items[i].verdict.stamp;

    if (!ratelimit_ledger_charge(&sync->ledger, &id, q->items[i].cost, stamp,
                                 (uint64_t) ngx_current_msec * 1000, bound,
                                 ngx_http_ratelimit_self))
    {
        return NGX_DECLINED;
    }

    q->subjects[i].stamp = q->items[i].verdict.stamp;
    ngx_http_ratelimit_redis_report_later(sync);

    return NGX_OK;
}


static void
ngx_http_ratelimit_sync_id(ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ratelimit_ledger_id_t *id)
{
    id->hash = q->places[i].hash;
    id->rule = q->items[i].rule;
}


static ngx_int_t
ngx_http_ratelimit_sync_decide(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_t  *redis;

    if (ngx_http_ratelimit_sync_attempt(q) == NGX_OK) {
        return NGX_OK;
    }

    redis = q->subjects[0].use->zone->redis;

    if (ngx_http_ratelimit_self && ngx_http_ratelimit_sync_ask(q) == NGX_OK) {
        return NGX_AGAIN;
    }

    if (ngx_http_ratelimit_self
        && ngx_http_ratelimit_sync_within(q, RATELIMIT_LEDGER_SHARE) == NGX_OK)
    {
        return NGX_OK;
    }

    ngx_http_ratelimit_redis_count(redis->shared, fallbacks, 1);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_ratelimit_sync_ask(ngx_http_ratelimit_query_t *q)
{
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_ask_t      *ask;
    ngx_http_ratelimit_redis_command_t  *command;

    redis = q->subjects[0].use->zone->redis;

    ask = ngx_http_ratelimit_sync_create_ask(q);
    if (ask == NULL) {
        return NGX_ERROR;
    }

    command = ngx_http_ratelimit_redis_create_rows(redis, RATELIMIT_SCRIPT_ASK,
                                                   ask->rows, q->n);
    if (command == NULL) {
        return NGX_ERROR;
    }

    command->on_reply = ngx_http_ratelimit_sync_on_reply;
    command->context = ask;

    ngx_http_ratelimit_redis_open_question(command, ask->number);

    q->reset_count = ngx_http_ratelimit_redis_resets_count(redis);

    if (ngx_http_ratelimit_redis_send_rows(command) != NGX_OK) {
        return NGX_ERROR;
    }

    ask->done = q->done;
    ask->data = q->data;

    q->done = ngx_http_ratelimit_sync_done;
    q->data = ask;
    q->pending = command;

    command->query = q;

    return NGX_OK;
}


static ngx_http_ratelimit_redis_ask_t *
ngx_http_ratelimit_sync_create_ask(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                       i;
    ngx_http_ratelimit_redis_ask_t  *ask;

    ask = ngx_palloc(q->pool, sizeof(ngx_http_ratelimit_redis_ask_t));
    if (ask == NULL) {
        return NULL;
    }

    ask->rows = ngx_palloc(q->pool,
                           q->n * (sizeof(ngx_http_ratelimit_redis_row_t)
                                   + 2 * sizeof(uint64_t)));
    if (ask->rows == NULL) {
        return NULL;
    }

    ask->settled = ngx_http_ratelimit_redis_questions_settled();
    ask->number = ngx_http_ratelimit_redis_next_question();
    ask->spent = (uint64_t *) (ask->rows + q->n);
    ask->numbers = ask->spent + q->n;

    for (i = 0; i < q->n; i++) {
        if (ngx_http_ratelimit_sync_create_row(q, i, ask) != NGX_OK) {
            return NULL;
        }
    }

    return ask;
}


/* with all that this machine has not reported yet */

static ngx_int_t
ngx_http_ratelimit_sync_create_row(ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ngx_http_ratelimit_redis_ask_t *ask)
{
    u_char                          *p;
    unsigned                         k;
    ratelimit_report_t               report;
    ratelimit_ledger_id_t            id;
    ratelimit_ledger_copy_t          copy;
    ngx_http_ratelimit_sync_t       *sync;
    ngx_http_ratelimit_redis_row_t  *row;

    row = &ask->rows[i];
    sync = q->subjects[i].use->zone->exchange;

    ngx_http_ratelimit_sync_id(q, i, &id);
    (void) ratelimit_ledger_ask(&sync->ledger, &id,
                                (uint64_t) ngx_current_msec * 1000, &copy,
                                ngx_http_ratelimit_self);

    row->tail_len = RATELIMIT_EXCHANGE_TAIL
                    + (copy.nbatch + copy.nopen) * RATELIMIT_EXCHANGE_DELTA;
    row->tail = ngx_pnalloc(q->pool, row->tail_len);

    if (row->tail == NULL
        || ngx_http_ratelimit_sync_set_name(q, i, &row->name) != NGX_OK)
    {
        return NGX_ERROR;
    }

    report.machine = ratelimit_ledger_machine(&sync->ledger);
    report.number = copy.number;
    report.interval = (uint64_t) sync->zone->sync * 1000;
    report.question = ask->number;
    report.settled = ask->settled;
    report.worker = ngx_http_ratelimit_self;
    report.batch = copy.nbatch;
    report.open = copy.nopen;

    p = ratelimit_exchange_tail(row->tail, &report);

    for (k = 0; k < copy.nbatch; k++) {
        p = ratelimit_exchange_delta(p, &copy.batch[k]);
    }

    for (k = 0; k < copy.nopen; k++) {
        p = ratelimit_exchange_delta(p, &copy.open[k]);
    }

    q->items[i].reserve = 0;
    q->items[i].state = NULL;

    row->item = &q->items[i];
    ask->spent[i] = copy.spent;
    ask->numbers[i] = copy.number;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_sync_set_name(ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ngx_str_t *name)
{
    ngx_http_ratelimit_redis_t  *redis;

    redis = q->subjects[i].use->zone->redis;

    name->data = ngx_pnalloc(q->pool,
                             ngx_http_ratelimit_redis_name_len(redis,
                                                          &q->subjects[i]));
    if (name->data == NULL) {
        return NGX_ERROR;
    }

    name->len = ngx_http_ratelimit_redis_write_name(name->data, redis,
                                                    &q->subjects[i],
                                                    &q->items[i])
                - name->data;

    return NGX_OK;
}


/* verdicts are set already */

static void
ngx_http_ratelimit_sync_on_reply(ngx_http_ratelimit_redis_command_t *command,
    ngx_int_t rc, ngx_str_t *text)
{
    u_char                      *last;
    ngx_uint_t                   i;
    const u_char                *p;
    ratelimit_grant_t            grant;
    ngx_http_ratelimit_query_t  *q;

    q = command->query;

    if (q == NULL || rc != NGX_OK || ngx_http_ratelimit_self == 0) {
        return;
    }

    last = text->data + text->len;
    p = text->data + RATELIMIT_EXCHANGE_TIME + q->n * RATELIMIT_SCRIPT_VERDICT;

    ngx_http_ratelimit_redis_learn_clock(q->subjects[0].use->zone->redis,
                                         command->slot,
                                         ratelimit_bytes_read(text->data),
                                         command->sent);

    for (i = 0; i < q->n; i++) {
        p = ratelimit_exchange_grant(p, last, &grant);

        if (p == NULL) {
            return;
        }

        ngx_http_ratelimit_sync_answer(command, i, &grant);
    }
}


static void
ngx_http_ratelimit_sync_answer(ngx_http_ratelimit_redis_command_t *command,
    ngx_uint_t i, ratelimit_grant_t *grant)
{
    ratelimit_answer_t               answer;
    ratelimit_ledger_id_t            id;
    ratelimit_ledger_copy_t          copy;
    ratelimit_ledger_name_t          name;
    ngx_http_ratelimit_sync_t       *sync;
    ngx_http_ratelimit_query_t      *q;
    ngx_http_ratelimit_redis_ask_t  *ask;

    q = command->query;
    ask = command->context;
    sync = q->subjects[i].use->zone->exchange;

    ngx_http_ratelimit_sync_id(q, i, &id);

    name.data = ask->rows[i].name.data;
    name.len = ask->rows[i].name.len;

    answer.number = ask->numbers[i];
    answer.question = 1;
    answer.spent = ask->spent[i];
    answer.asked = (uint64_t) command->sent * 1000;
    answer.grant = grant;

    ratelimit_ledger_answer(&sync->ledger, &id, &name, &answer, &copy,
                            ngx_http_ratelimit_self);

    ngx_http_ratelimit_redis_apply_grant(sync, command->slot, &id, grant,
                                         &copy);

    q->subjects[i].stamp = q->items[i].verdict.stamp;
}


static void
ngx_http_ratelimit_sync_done(ngx_http_ratelimit_query_t *q, ngx_int_t rc)
{
    ngx_http_ratelimit_redis_ask_t  *ask;

    ask = q->data;

    q->done = ask->done;
    q->data = ask->data;

    if (rc != NGX_OK && ngx_http_ratelimit_self
        && ngx_http_ratelimit_sync_within(q, RATELIMIT_LEDGER_SHARE) == NGX_OK)
    {
        rc = NGX_OK;
    }

    q->done(q, rc);
}


/* nothing is reserved: there is nothing to commit */

static void
ngx_http_ratelimit_sync_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how)
{
    if (how == NGX_HTTP_RATELIMIT_REFUND) {
        ngx_http_ratelimit_sync_refund(q);

    } else if (how == NGX_HTTP_RATELIMIT_DEBIT) {
        ngx_http_ratelimit_sync_debit(q);
    }
}


/* what has no account in the ledger is refunded by Redis */

static void
ngx_http_ratelimit_sync_refund(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    ngx_http_ratelimit_redis_mirror_settle(q, NGX_HTTP_RATELIMIT_REFUND);
    ngx_http_ratelimit_redis_deny_cache_forget(q);

    for (i = 0; i < q->n; i++) {
        if (q->items[i].cost
            && ngx_http_ratelimit_sync_refund_item(q, i) == NGX_OK)
        {
            q->items[i].cost = 0;
        }
    }

    if (q->subjects[0].backend != NGX_HTTP_RATELIMIT_LOCAL) {
        ngx_http_ratelimit_redis_send_refund(q);
    }
}


static ngx_int_t
ngx_http_ratelimit_sync_refund_item(ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    ratelimit_ledger_id_t       id;
    ngx_http_ratelimit_sync_t  *sync;

    sync = q->subjects[i].use->zone->exchange;

    ngx_http_ratelimit_sync_id(q, i, &id);

    if (ngx_http_ratelimit_self == 0
        || !ratelimit_ledger_refund(&sync->ledger, &id, q->items[i].cost,
                                    q->items[i].verdict.stamp,
                                    (uint64_t) ngx_current_msec * 1000,
                                    ngx_http_ratelimit_self))
    {
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_redis_report_later(sync);

    return NGX_OK;
}


/* the next report has it, whatever was leased */

static void
ngx_http_ratelimit_sync_debit(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_debit_t  debit;

    ngx_http_ratelimit_redis_deny_cache_forget(q);

    for (i = 0; i < q->n; i++) {
        if (ngx_http_ratelimit_shm_debit_item(q, i, &debit) == NGX_OK) {
            ngx_http_ratelimit_sync_local(&debit.query);
        }
    }
}


static ngx_int_t
ngx_http_ratelimit_sync_reset(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t             i;
    ratelimit_ledger_id_t  id;

    if (ngx_http_ratelimit_self == 0) {
        return NGX_ERROR;
    }

    for (i = 0; i < q->n; i++) {
        ngx_http_ratelimit_sync_id(q, i, &id);

        ratelimit_ledger_forget(&q->subjects[i].use->zone->exchange->ledger,
                                &id, ngx_http_ratelimit_self);
    }

    return ngx_http_ratelimit_redis_store.reset(q);
}


/* all times of a log have to fit into a reply of Redis */

static ngx_int_t
ngx_http_ratelimit_sync_use(ngx_conf_t *cf, ngx_http_ratelimit_use_t *use)
{
    uint64_t                      most;
    ngx_uint_t                    i;
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[use->zone->shape.algorithm];
    most = use->bound ? use->bound->ceiling : 0;

    for (i = 0; i < use->nrules; i++) {
        most = ngx_max(most, use->rules[i].ceiling);
    }

    if (algorithm->sized && most >= RATELIMIT_EXCHANGE_RING) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" with \"sync\" and algorithm \"%s\" "
                           "can't have a limit of %uL requests, at most %d "
                           "are allowed", &use->zone->name, algorithm->name,
                           most, RATELIMIT_EXCHANGE_RING - 1);
        return NGX_ERROR;
    }

    return ngx_http_ratelimit_redis_key_suffix(cf, use);
}


/* Redis could not be asked: what was admitted is reported later */

static void
ngx_http_ratelimit_sync_local(ngx_http_ratelimit_query_t *q)
{
    uint64_t                     now, stamp;
    ngx_str_t                    name;
    ngx_uint_t                   i;
    ratelimit_ledger_id_t        id;
    ratelimit_ledger_name_t      counter;
    ngx_http_ratelimit_sync_t   *sync;
    ngx_http_ratelimit_redis_t  *redis;

    now = (uint64_t) ngx_current_msec * 1000;

    for (i = 0; i < q->n; i++) {
        sync = q->subjects[i].use->zone->exchange;

        ngx_http_ratelimit_sync_id(q, i, &id);

        q->subjects[i].stamp = q->items[i].verdict.stamp;

        stamp = sync->ledger.drips ? q->places[0].clock.now
                                   : q->items[i].verdict.stamp;

        if (ngx_http_ratelimit_sync_set_name(q, i, &name) != NGX_OK) {
            return;
        }

        counter.data = name.data;
        counter.len = name.len;

        if (!ratelimit_ledger_debit(&sync->ledger, &id, &counter,
                                   q->items[i].cost, stamp, now,
                                   ngx_http_ratelimit_self))
        {
            redis = sync->zone->redis;
            ngx_http_ratelimit_redis_count(redis->shared, sync_dropped, 1);
        }

        ngx_http_ratelimit_redis_report_later(sync);
    }
}
