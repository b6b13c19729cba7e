
/*
 * What is reported to Redis: every so often one worker of the machine sends
 * what was charged since, as batches of one counter each, many in a command,
 * and takes the counters of Redis back.
 *
 * A batch is sent until Redis has counted it, by whatever worker: numbers,
 * which Redis remembers, keep it from counting twice.
 */


#include "redis/ngx_http_ratelimit_redis.h"

#include "redis/ratelimit_bytes.h"


/* batches of a command, at most; and those that are under way at a time */
#define NGX_HTTP_RATELIMIT_REDIS_BATCHES  32
#define NGX_HTTP_RATELIMIT_REDIS_WINDOW   128

/* ms; a worker looks so often, at least, and when it exits */
#define NGX_HTTP_RATELIMIT_REDIS_TICK     500
#define NGX_HTTP_RATELIMIT_REDIS_HURRY    20

/* ms after a timeout until a batch is sent again */
#define NGX_HTTP_RATELIMIT_REDIS_AGAIN    100


/* a command that is made, and then one that is under way */

typedef struct {
    ngx_http_ratelimit_sync_t      *sync;
    ngx_pool_t                     *pool;
    ngx_uint_t                      n;
    ngx_uint_t                      max;
    ngx_http_ratelimit_redis_row_t  rows[NGX_HTTP_RATELIMIT_REDIS_BATCHES];
    ratelimit_item_t                items[NGX_HTTP_RATELIMIT_REDIS_BATCHES];
    ratelimit_rule_t                rules[NGX_HTTP_RATELIMIT_REDIS_BATCHES];
    ratelimit_hash_t                hashes[NGX_HTTP_RATELIMIT_REDIS_BATCHES];
    uint64_t                        numbers[NGX_HTTP_RATELIMIT_REDIS_BATCHES];
} ngx_http_ratelimit_redis_batch_t;


static ngx_int_t ngx_http_ratelimit_redis_report_name(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *name);
static ngx_int_t ngx_http_ratelimit_redis_report_init(
    ngx_shm_zone_t *shm_zone, void *data);
static void ngx_http_ratelimit_redis_report_handler(ngx_event_t *ev);
static ngx_uint_t ngx_http_ratelimit_redis_report_last(
    ngx_http_ratelimit_sync_t *sync);
static void ngx_http_ratelimit_redis_report_send(
    ngx_http_ratelimit_sync_t *sync);
static ngx_http_ratelimit_redis_batch_t *ngx_http_ratelimit_redis_report_batch(
    ngx_http_ratelimit_sync_t *sync);
static int ngx_http_ratelimit_redis_report_on_batch(void *data,
    const ratelimit_ledger_copy_t *copy);
static int ngx_http_ratelimit_redis_report_add(
    ngx_http_ratelimit_redis_batch_t *batch,
    const ratelimit_ledger_copy_t *copy);
static void ngx_http_ratelimit_redis_report_reply(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc,
    ngx_str_t *text);
static void ngx_http_ratelimit_redis_report_counted(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text);
static void ngx_http_ratelimit_redis_report_failed(
    ngx_http_ratelimit_redis_batch_t *batch, ngx_int_t rc, ngx_str_t *text);


ngx_int_t
ngx_http_ratelimit_redis_report_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag)
{
    ngx_shm_zone_t  *shm_zone;

    /* nginx would look for others of the name, which is not complete yet */

    shm_zone = ngx_list_push(&cf->cycle->shared_memory);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(shm_zone, sizeof(ngx_shm_zone_t));

    if (ngx_http_ratelimit_redis_report_name(cf, zone->redis,
                                             &shm_zone->shm.name)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    shm_zone->shm.log = cf->cycle->log;
    shm_zone->shm.size = ngx_max(zone->shm_zone->shm.size / 2,
                                 64 * ngx_pagesize);
    shm_zone->init = ngx_http_ratelimit_redis_report_init;
    shm_zone->data = zone;
    shm_zone->tag = tag;

    zone->ledger = shm_zone;

    return NGX_OK;
}


/* another Redis, another ledger; the layout of the zone is added later */

static ngx_int_t
ngx_http_ratelimit_redis_report_name(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis, ngx_str_t *name)
{
    u_char                               *p;
    size_t                                len;
    ngx_uint_t                            i;
    ngx_http_ratelimit_redis_endpoint_t  *endpoint;

    endpoint = redis->endpoints.elts;

    len = sizeof("ratelimit:sync::: ") - 1 + NGX_INT_T_LEN + redis->prefix.len
          + redis->sentinel.len;

    for (i = 0; i < redis->endpoints.nelts; i++) {
        len += sizeof(":65535 ") - 1 + endpoint[i].host.len
               + endpoint[i].path.len;
    }

    p = ngx_pnalloc(cf->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    name->data = p;

    p = ngx_sprintf(p, "ratelimit:sync:%V:%ui:%V ", &redis->sentinel,
                    redis->login.db, &redis->prefix);

    for (i = 0; i < redis->endpoints.nelts; i++) {
        p = ngx_sprintf(p, "%V%V:%d ", &endpoint[i].host, &endpoint[i].path,
                        (int) endpoint[i].port);
    }

    name->len = p - name->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_redis_report_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ratelimit_hash_t            machine;
    ngx_http_ratelimit_sync_t  *sync;
    ngx_http_ratelimit_zone_t  *zone;

    zone = shm_zone->data;

    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    sync = ngx_pcalloc(zone->pool, sizeof(ngx_http_ratelimit_sync_t));
    if (sync == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_ratelimit_shm_secret(&machine, shm_zone->shm.log) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!ratelimit_ledger_open(&sync->ledger,
                               shm_zone->shm.addr + ngx_pagesize,
                               shm_zone->shm.size - ngx_pagesize,
                               &zone->shape, (uint64_t) zone->sync * 1000,
                               machine.lo, zone->lifelines->data))
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "ledger of ratelimit zone \"%V\" can't be opened",
                      &zone->name);
        return NGX_ERROR;
    }

    sync->zone = zone;
    sync->state = ngx_pcalloc(zone->pool,
             ratelimit_algorithms[zone->shape.algorithm]->size(&zone->shape));
    if (sync->state == NULL) {
        return NGX_ERROR;
    }

    sync->next = zone->redis->syncs;
    zone->redis->syncs = sync;

    zone->exchange = sync;
    zone->offsets = zone->redis->offsets;

    return NGX_OK;
}


ngx_int_t
ngx_http_ratelimit_redis_report_start(ngx_cycle_t *cycle,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_http_ratelimit_sync_t  *sync;

    for (sync = redis->syncs; sync; sync = sync->next) {
        ngx_http_ratelimit_timer_init(&sync->timer, &sync->dummy,
                                      ngx_http_ratelimit_redis_report_handler,
                                      sync);
        ngx_http_ratelimit_redis_report_handler(&sync->timer);
    }

    return NGX_OK;
}


/*
 * Something was charged: the worker does not exit before it was reported.  The
 * request may have outlasted the last report of a worker that exits.
 */

void
ngx_http_ratelimit_redis_report_later(ngx_http_ratelimit_sync_t *sync)
{
    sync->timer.cancelable = 0;

    if (!sync->timer.timer_set) {
        ngx_add_timer(&sync->timer, NGX_HTTP_RATELIMIT_REDIS_HURRY);
    }
}


static void
ngx_http_ratelimit_redis_report_handler(ngx_event_t *ev)
{
    ngx_msec_t                  next;
    ngx_http_ratelimit_sync_t  *sync;

    sync = ngx_http_ratelimit_timer_data(ev);

    ev->cancelable = 1;

    if (ngx_http_ratelimit_self == 0) {
        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_REDIS_TICK);
        return;
    }

    if (ngx_exiting) {

        if (ngx_http_ratelimit_redis_report_last(sync)) {
            sync->exiting = 0;
            return;
        }

        ev->cancelable = 0;
        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_REDIS_HURRY);
        return;
    }

    ratelimit_ledger_stay(&sync->ledger, ngx_http_ratelimit_self);

    /* a round that lasts longer goes on: its last counters would never come */

    if (ratelimit_ledger_due(&sync->ledger, (uint64_t) ngx_current_msec * 1000)
        && !sync->more)
    {
        sync->cursor = 0;
        sync->more = 1;
    }

    ngx_http_ratelimit_redis_report_send(sync);

    next = ratelimit_ledger_wait(&sync->ledger,
                                 (uint64_t) ngx_current_msec * 1000)
           / 1000;

    ev->cancelable = ratelimit_ledger_clean(&sync->ledger);
    ngx_add_timer(ev, ngx_min(ngx_max(next, 1),
                              NGX_HTTP_RATELIMIT_REDIS_TICK));
}


/* the worker exits: returns 1 if nothing is left to be done, or can be */

static ngx_uint_t
ngx_http_ratelimit_redis_report_last(ngx_http_ratelimit_sync_t *sync)
{
    ratelimit_ledger_figures_t  figures;

    if (sync->exiting == 0) {
        sync->exiting = ngx_current_msec;
    }

    if (ratelimit_ledger_leave(&sync->ledger, ngx_http_ratelimit_self)) {
        return 1;
    }

    if (sync->waiting == 0) {
        sync->cursor = 0;
        sync->more = 1;
    }

    ngx_http_ratelimit_redis_report_send(sync);

    if (ratelimit_ledger_clean(&sync->ledger)) {
        return 1;
    }

    if (ngx_current_msec - sync->exiting < NGX_HTTP_RATELIMIT_REDIS_EXIT) {
        return 0;
    }

    ratelimit_ledger_figures(&sync->ledger, &figures, ngx_http_ratelimit_self);

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "ratelimit zone \"%V\" could not report %uL charges to "
                  "redis \"%V\" before its end",
                  &sync->zone->name, figures.pending, &sync->zone->redis->name);

    return 1;
}


static void
ngx_http_ratelimit_redis_report_send(ngx_http_ratelimit_sync_t *sync)
{
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_batch_t    *batch;
    ngx_http_ratelimit_redis_command_t  *command;

    redis = sync->zone->redis;

    while (sync->more && sync->waiting < NGX_HTTP_RATELIMIT_REDIS_WINDOW) {

        batch = ngx_http_ratelimit_redis_report_batch(sync);
        if (batch == NULL) {
            return;
        }

        command = ngx_http_ratelimit_redis_create_rows(redis,
                                                     RATELIMIT_SCRIPT_EXCHANGE,
                                                     batch->rows, batch->n);
        if (command == NULL) {
            ngx_destroy_pool(batch->pool);
            return;
        }

        command->on_reply = ngx_http_ratelimit_redis_report_reply;
        command->context = batch;

        /* what fails is sent again later; other nodes may be up */

        if (ngx_http_ratelimit_redis_send_rows(command) != NGX_OK) {
            ngx_destroy_pool(batch->pool);
            sync->more &= redis->cluster;
            continue;
        }

        sync->waiting += batch->n;
    }
}


/* NULL if there is nothing to be sent */

static ngx_http_ratelimit_redis_batch_t *
ngx_http_ratelimit_redis_report_batch(ngx_http_ratelimit_sync_t *sync)
{
    uint64_t                           now, again;
    ngx_pool_t                        *pool;
    ngx_http_ratelimit_redis_batch_t  *batch;

    pool = ngx_create_pool(4096, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    batch = ngx_palloc(pool, sizeof(ngx_http_ratelimit_redis_batch_t));
    if (batch == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    batch->sync = sync;
    batch->pool = pool;
    batch->n = 0;
    batch->max = NGX_HTTP_RATELIMIT_REDIS_BATCHES;

    if (sync->alone) {
        sync->alone--;
        batch->max = 1;
    }

    /* keys of one command must be in one slot */

    if (sync->zone->redis->cluster) {
        batch->max = 1;
    }

    now = (uint64_t) ngx_current_msec * 1000;
    again = (uint64_t) (sync->zone->redis->timeout
                        + NGX_HTTP_RATELIMIT_REDIS_AGAIN) * 1000;
    again = (now > again) ? now - again : 0;

    sync->more = ratelimit_ledger_batch(&sync->ledger, &sync->cursor, now,
                                        again,
                                     ngx_http_ratelimit_redis_report_on_batch,
                                        batch, ngx_http_ratelimit_self);

    if (batch->n) {
        return batch;
    }

    ngx_destroy_pool(pool);

    return NULL;
}


/* a batch for a node that is marked down is passed over, and sent later */

static int
ngx_http_ratelimit_redis_report_on_batch(void *data,
    const ratelimit_ledger_copy_t *copy)
{
    ngx_http_ratelimit_redis_batch_t  *batch = data;

    ngx_http_ratelimit_redis_t  *redis;

    redis = batch->sync->zone->redis;

    if (redis->cluster
        && ngx_http_ratelimit_redis_row_stops(redis,
                                              (u_char *) copy->name.data,
                                              copy->name.len))
    {
        return 1;
    }

    return ngx_http_ratelimit_redis_report_add(batch, copy);
}


/* what finds no memory is sent again later */

static int
ngx_http_ratelimit_redis_report_add(ngx_http_ratelimit_redis_batch_t *batch,
    const ratelimit_ledger_copy_t *copy)
{
    u_char                          *p;
    ngx_uint_t                       i;
    ratelimit_item_t                *item;
    ratelimit_report_t               report;
    ngx_http_ratelimit_zone_t       *zone;
    ngx_http_ratelimit_redis_row_t  *row;

    zone = batch->sync->zone;
    row = &batch->rows[batch->n];
    item = &batch->items[batch->n];

    row->tail_len = RATELIMIT_EXCHANGE_TAIL
                    + copy->nbatch * RATELIMIT_EXCHANGE_DELTA;
    row->name.len = copy->name.len;

    p = ngx_pnalloc(batch->pool, row->name.len + row->tail_len);
    if (p == NULL) {
        return 0;
    }

    row->name.data = p;
    row->tail = ngx_cpymem(p, copy->name.data, copy->name.len);

    report.machine = ratelimit_ledger_machine(&batch->sync->ledger);
    report.number = copy->number;
    report.interval = (uint64_t) zone->sync * 1000;
    report.question = 0;
    report.settled = ngx_http_ratelimit_redis_questions_settled();
    report.worker = ngx_http_ratelimit_self;
    report.batch = copy->nbatch;
    report.open = 0;

    p = ratelimit_exchange_tail(row->tail, &report);

    for (i = 0; i < copy->nbatch; i++) {
        p = ratelimit_exchange_delta(p, &copy->batch[i]);
    }

    batch->rules[batch->n] = copy->rule;
    batch->hashes[batch->n] = copy->hash;
    batch->numbers[batch->n] = copy->number;

    ngx_memzero(item, sizeof(ratelimit_item_t));

    item->shape = &zone->shape;
    item->rule = &batch->rules[batch->n];

    row->item = item;

    if (copy->repeated) {
        ngx_http_ratelimit_redis_count(zone->redis->shared, sync_repeated, 1);
    }

    return ++batch->n < batch->max;
}


static void
ngx_http_ratelimit_redis_report_reply(
    ngx_http_ratelimit_redis_command_t *command, ngx_int_t rc,
    ngx_str_t *text)
{
    ngx_http_ratelimit_sync_t         *sync;
    ngx_http_ratelimit_redis_batch_t  *batch;

    batch = command->context;
    sync = batch->sync;

    sync->waiting -= batch->n;

    if (rc == NGX_OK && text && ngx_http_ratelimit_self) {
        ngx_http_ratelimit_redis_report_counted(command, text);

    } else {
        ngx_http_ratelimit_redis_report_failed(batch, rc, text);
    }

    ngx_destroy_pool(batch->pool);

    ngx_http_ratelimit_redis_report_send(sync);
}


static void
ngx_http_ratelimit_redis_report_counted(
    ngx_http_ratelimit_redis_command_t *command, ngx_str_t *text)
{
    u_char                            *last;
    ngx_uint_t                         i;
    const u_char                      *p;
    ratelimit_grant_t                  grant;
    ratelimit_answer_t                 answer;
    ratelimit_ledger_id_t              id;
    ratelimit_ledger_copy_t            copy;
    ngx_http_ratelimit_sync_t         *sync;
    ngx_http_ratelimit_redis_batch_t  *batch;

    batch = command->context;
    sync = batch->sync;
    last = text->data + text->len;

    if (text->len < RATELIMIT_EXCHANGE_TIME) {
        return;
    }

    ngx_http_ratelimit_redis_learn_clock(sync->zone->redis, command->slot,
                                         ratelimit_bytes_read(text->data),
                                         command->sent);

    p = text->data + RATELIMIT_EXCHANGE_TIME;

    for (i = 0; i < batch->n; i++) {
        p = ratelimit_exchange_grant(p, last, &grant);

        if (p == NULL) {
            return;
        }

        id.hash = batch->hashes[i];
        id.rule = &batch->rules[i];

        answer.number = batch->numbers[i];
        answer.question = 0;
        answer.spent = 0;
        answer.asked = (uint64_t) command->sent * 1000;
        answer.grant = &grant;

        ratelimit_ledger_answer(&sync->ledger, &id, NULL, &answer, &copy,
                                ngx_http_ratelimit_self);

        ngx_http_ratelimit_redis_apply_grant(sync, command->slot, &id, &grant,
                                             &copy);
    }
}


/*
 * An error about one counter keeps all others of its command from being
 * counted: then each is sent by itself, and what can't be is dropped.  What a
 * cluster has no node for just now is sent again.
 */

static void
ngx_http_ratelimit_redis_report_failed(ngx_http_ratelimit_redis_batch_t *batch,
    ngx_int_t rc, ngx_str_t *text)
{
    unsigned                     n;
    ratelimit_ledger_id_t        id;
    ngx_http_ratelimit_redis_t  *redis;

    if (rc != NGX_DECLINED || ngx_http_ratelimit_self == 0
        || ngx_http_ratelimit_redis_speaks_of_slot(text))
    {
        return;
    }

    if (batch->n > 1) {
        batch->sync->alone = 2 * NGX_HTTP_RATELIMIT_REDIS_BATCHES;
        return;
    }

    id.hash = batch->hashes[0];
    id.rule = &batch->rules[0];

    n = ratelimit_ledger_drop(&batch->sync->ledger, &id, batch->numbers[0],
                              ngx_http_ratelimit_self);

    redis = batch->sync->zone->redis;

    ngx_http_ratelimit_redis_count(redis->shared, sync_dropped, n);
}


void
ngx_http_ratelimit_redis_report_figures(ngx_http_ratelimit_redis_t *redis,
    ngx_http_ratelimit_redis_figures_t *figures)
{
    uint64_t                     now;
    ngx_http_ratelimit_sync_t   *sync;
    ratelimit_ledger_figures_t   ledger;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    now = (uint64_t) ngx_current_msec * 1000;

    for (sync = redis->syncs; sync; sync = sync->next) {
        ratelimit_ledger_figures(&sync->ledger, &ledger,
                                 ngx_http_ratelimit_self);

        figures->sync_pending += ledger.pending;

        if (ledger.pending && now > ledger.oldest) {
            figures->sync_age = ngx_max(figures->sync_age,
                                        now - ledger.oldest);
        }
    }
}


/*
 * Redis read its clock between these times of ours.  As long as what is known
 * fits in between, it stays.
 */

void
ngx_http_ratelimit_redis_learn_clock(ngx_http_ratelimit_redis_t *redis,
    ngx_uint_t slot, uint64_t time, ngx_msec_t sent)
{
    ngx_atomic_t       *offset;
    ngx_atomic_uint_t   known, low, high;

    time /= 1000;

    if (time <= ngx_current_msec) {
        return;
    }

    low = time - ngx_current_msec;
    high = time - sent;
    offset = &redis->offsets[slot];
    known = *offset;

    if (known && known + 1 >= low && known <= high + 1) {
        return;
    }

    (void) ngx_atomic_cmp_set(offset, known, low + (high - low) / 2);
}


void
ngx_http_ratelimit_redis_apply_grant(ngx_http_ratelimit_sync_t *sync,
    ngx_uint_t slot, ratelimit_ledger_id_t *id, ratelimit_grant_t *grant,
    ratelimit_ledger_copy_t *copy)
{
    ratelimit_item_t            item;
    ratelimit_clock_t           clock;
    ratelimit_place_t           place;
    ratelimit_shape_t          *shape;
    ngx_http_ratelimit_zone_t  *zone;

    zone = sync->zone;
    shape = &zone->shape;

    if (copy->counted) {
        ngx_http_ratelimit_redis_count(zone->redis->shared, sync_batches, 1);
        ngx_http_ratelimit_redis_count(zone->redis->shared, sync_deltas,
                                       copy->counted);
    }

    if (grant->unknown) {
        return;
    }

    ngx_http_ratelimit_shm_clock_of(zone, (uint32_t) slot, &clock);

    ngx_memzero(sync->state,
                ratelimit_algorithms[shape->algorithm]->size(shape));

    (void) ratelimit_exchange_state(shape, id->rule, &clock, grant,
                                    sync->state);
    ratelimit_ledger_merge(copy, shape, id->rule, &clock, sync->state);

    item.rule = id->rule;
    item.state = sync->state;
    place.table = zone->table;
    place.hash = id->hash;

    ratelimit_table_replace(&item, &place, &clock, ngx_http_ratelimit_self);
}
