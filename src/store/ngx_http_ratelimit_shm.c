
/*
 * The store in shared memory: it decides queries, and sets the memory up.
 */


#include "store/ngx_http_ratelimit_kept.h"
#include "store/ngx_http_ratelimit_shm.h"
#include "store/ngx_http_ratelimit_statistics.h"
#include "store/ngx_http_ratelimit_top.h"

#include "table/ratelimit_clock.h"


/* a clock that may go back would open and close limits at random */

#if (nginx_version < 1013010) || !(NGX_HAVE_CLOCK_MONOTONIC)
#error ngx_http_ratelimit_module needs nginx 1.13.10 and a monotonic clock
#endif


/* a worker without a number asks for one so often, in ms */
#define NGX_HTTP_RATELIMIT_JOIN_TIME  1000


typedef void (*ngx_http_ratelimit_table_pt)(ratelimit_item_t *items,
    ratelimit_place_t *places, size_t n, const ratelimit_clock_t *clock,
    uint32_t me);


static ngx_int_t ngx_http_ratelimit_shm_query(ngx_http_ratelimit_query_t *q);
static void ngx_http_ratelimit_shm_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how);
static ngx_int_t ngx_http_ratelimit_shm_peek(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_shm_reset(ngx_http_ratelimit_query_t *q);
static ngx_int_t ngx_http_ratelimit_shm_each(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_table_pt apply);

static ngx_int_t ngx_http_ratelimit_shm_open(ngx_http_ratelimit_zone_t *zone,
    void *data);
static void ngx_http_ratelimit_shm_init_uses(ngx_http_ratelimit_zone_t *zone);
static void ngx_http_ratelimit_shm_init_rules(ngx_http_ratelimit_zone_t *zone);
static ngx_int_t ngx_http_ratelimit_shm_join(ngx_cycle_t *cycle,
    ngx_array_t *zones);
static void ngx_http_ratelimit_shm_log_stalled(uint32_t pid);
static void ngx_http_ratelimit_shm_join_later(ngx_event_t *ev);


const ngx_http_ratelimit_store_t  ngx_http_ratelimit_shm_store = {
    NULL,                                  /* recall */
    ngx_http_ratelimit_shm_query,
    NULL,                                  /* cancel */
    ngx_http_ratelimit_shm_settle,
    NULL,                                  /* refused */
    ngx_http_ratelimit_shm_peek,
    ngx_http_ratelimit_shm_reset,
    NULL,                                  /* use */
    NULL,                                  /* part */
    NULL,                                  /* attempt */
    NULL,                                  /* local */
    NULL                                   /* up */
};


uint32_t  ngx_http_ratelimit_self;
uint64_t  ngx_http_ratelimit_wall;
time_t    ngx_http_ratelimit_second;

/* the same for all workers, see ratelimit_clock.h */
static uint64_t  *ngx_http_ratelimit_clock;


/* of limits that have one clock */

static ngx_int_t
ngx_http_ratelimit_shm_query(ngx_http_ratelimit_query_t *q)
{
    if (ngx_http_ratelimit_self == 0) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_shm_clock_of(q->subjects[0].use->zone,
                                    q->subjects[0].part, &q->places[0].clock);

    return ngx_http_ratelimit_shm_decide_at(q, q->n);
}


void
ngx_http_ratelimit_shm_set_wall(ngx_time_t *tp)
{
    uint64_t  wall;

    wall = ratelimit_clock_wall(ngx_http_ratelimit_clock, ngx_current_msec,
                                (uint64_t) tp->sec * 1000 + tp->msec);

    ngx_http_ratelimit_wall = (wall - ngx_current_msec) * 1000;
    ngx_http_ratelimit_second = tp->sec;
}


static void
ngx_http_ratelimit_shm_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how)
{
    ngx_uint_t                  i;
    ngx_http_ratelimit_debit_t  debit;

    if (how == NGX_HTTP_RATELIMIT_DEBIT) {

        for (i = 0; i < q->n; i++) {
            (void) ngx_http_ratelimit_shm_debit_item(q, i, &debit);
        }

        return;
    }

    (void) ngx_http_ratelimit_shm_each(q, how == NGX_HTTP_RATELIMIT_REFUND
                                          ? ratelimit_table_refund
                                          : ratelimit_table_commit);
}


/* the key may have been evicted meanwhile: this is a decision of its own */

ngx_int_t
ngx_http_ratelimit_shm_debit_item(ngx_http_ratelimit_query_t *q, ngx_uint_t i,
    ngx_http_ratelimit_debit_t *debit)
{
    if (q->items[i].cost == 0) {
        return NGX_DECLINED;
    }

    debit->item = q->items[i];
    debit->item.count_rejected = RATELIMIT_IN_FULL;
    debit->item.reserve = 0;

    debit->subject = q->subjects[i];
    debit->place = q->places[i];

    debit->query = *q;
    debit->query.items = &debit->item;
    debit->query.subjects = &debit->subject;
    debit->query.places = &debit->place;
    debit->query.n = 1;

    return ngx_http_ratelimit_shm_query(&debit->query);
}


static ngx_int_t
ngx_http_ratelimit_shm_peek(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_shm_each(q, ratelimit_table_peek);
}


static ngx_int_t
ngx_http_ratelimit_shm_reset(ngx_http_ratelimit_query_t *q)
{
    return ngx_http_ratelimit_shm_each(q, ratelimit_table_reset);
}


static ngx_int_t
ngx_http_ratelimit_shm_each(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_table_pt apply)
{
    ratelimit_clock_t  clock;

    if (ngx_http_ratelimit_self == 0) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_shm_clock_of(q->subjects[0].use->zone,
                                    q->subjects[0].part, &clock);

    apply(q->items, q->places, q->n, &clock, ngx_http_ratelimit_self);

    return NGX_OK;
}


/* once a second and zone, by the worker that comes first */

void
ngx_http_ratelimit_shm_log_evictions(ngx_http_ratelimit_query_t *q)
{
    uint64_t            n;
    ngx_uint_t          i;
    ratelimit_place_t  *place;

    for (i = 0; i < q->n; i++) {
        place = &q->places[i];

        n = ratelimit_table_new_evictions(place->active,
                                          (uint64_t) ngx_current_msec * 1000);

        ngx_http_ratelimit_shm_log_dropped(place->table->data, n,
                                           q->pool->log);
    }
}


void
ngx_http_ratelimit_shm_log_dropped(ngx_http_ratelimit_zone_t *zone, uint64_t n,
    ngx_log_t *log)
{
    if (n) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "ratelimit zone \"%V\" is full: %uL counters "
                      "were dropped before their time",
                      &zone->name, n);
    }
}


ngx_int_t
ngx_http_ratelimit_shm_init_lifelines(ngx_shm_zone_t *shm_zone, void *data)
{
    void             *memory;
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data || shm_zone->shm.exists) {
        shm_zone->data = shpool->data;
        return NGX_OK;
    }

    memory = ngx_slab_calloc(shpool, ratelimit_lifelines_size());
    if (memory == NULL) {
        return NGX_ERROR;
    }

    shpool->data = ratelimit_lifelines_create(memory);

    if (shpool->data == NULL) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "ratelimit needs robust mutexes that processes share");
        return NGX_ERROR;
    }

    shm_zone->data = shpool->data;

    return NGX_OK;
}


/*
 * The table takes all the memory but the first page, where nginx has its slab
 * allocator, which is left without free pages.
 */

ngx_int_t
ngx_http_ratelimit_shm_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_ratelimit_zone_t  *zone;

    zone = shm_zone->data;

    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    if (ngx_http_ratelimit_shm_open(zone, data) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_ratelimit_shm_init_uses(zone);

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_shm_open(ngx_http_ratelimit_zone_t *zone, void *data)
{
    ngx_log_t                  *log;
    ratelimit_hash_t            secret;
    ratelimit_table_t          *older;
    ngx_http_ratelimit_zone_t  *former;

    log = zone->shm_zone->shm.log;
    former = data ? data : zone->former;
    older = NULL;

    if (former) {
        older = data ? former->table->older : former->table;
        secret = *ratelimit_table_secret(former->table);

    } else if (ngx_http_ratelimit_shm_secret(&secret, log) != NGX_OK) {
        return NGX_ERROR;
    }

    zone->table = ngx_palloc(zone->pool, sizeof(ratelimit_table_t));
    if (zone->table == NULL) {
        return NGX_ERROR;
    }

    if (ratelimit_table_open(zone->table,
                             zone->shm_zone->shm.addr + ngx_pagesize,
                             zone->shm_zone->shm.size - ngx_pagesize,
                             &zone->shape, zone->packed, &secret,
                             zone->lifelines->data)
        == NULL)
    {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "ratelimit zone \"%V\" holds another table",
                      &zone->name);
        return NGX_ERROR;
    }

    zone->table->data = zone;

    return ngx_http_ratelimit_reload_follow(zone, older);
}


void
ngx_http_ratelimit_shm_clear(ngx_shm_zone_t *shm_zone)
{
    u_char           *p;
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;
    p = shm_zone->shm.addr + ngx_pagesize;

#if (NGX_DEBUG_MALLOC)

    /* then the slab allocator fills it with junk */

    ngx_memzero(p, shm_zone->shm.size - ngx_pagesize);

#else

    if (shpool->start > p) {
        ngx_memzero(p, shpool->start - p);
    }

#endif

    shpool->free.next = &shpool->free;
    shpool->pfree = 0;
}


ngx_int_t
ngx_http_ratelimit_shm_secret(ratelimit_hash_t *secret, ngx_log_t *log)
{
    ssize_t   n;
    ngx_fd_t  fd;

    fd = ngx_open_file("/dev/urandom", NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      ngx_open_file_n " \"/dev/urandom\" failed");
        return NGX_ERROR;
    }

    n = ngx_read_fd(fd, secret, sizeof(ratelimit_hash_t));

    if (n != (ssize_t) sizeof(ratelimit_hash_t)) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      ngx_read_fd_n " \"/dev/urandom\" failed");
    }

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno,
                      ngx_close_file_n " \"/dev/urandom\" failed");
    }

    return n == (ssize_t) sizeof(ratelimit_hash_t) ? NGX_OK : NGX_ERROR;
}


/* each name hashes in its own way, so that names never share a counter */

static void
ngx_http_ratelimit_shm_init_uses(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                  i;
    ratelimit_hash_t            secret;
    ngx_http_ratelimit_use_t  **use;

    use = zone->uses.elts;

    for (i = 0; i < zone->uses.nelts; i++) {
        ratelimit_hash(ratelimit_table_secret(zone->table),
                       use[i]->name.data, use[i]->name.len, &secret);

        ratelimit_hasher_init(&use[i]->hasher, &secret);
    }
}


/* by workers only: the master takes no lock */

static void
ngx_http_ratelimit_shm_init_rules(ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t                  i, k;
    ngx_http_ratelimit_use_t  **use;

    use = zone->uses.elts;

    for (i = 0; i < zone->uses.nelts; i++) {
        for (k = 0; k < use[i]->nrules; k++) {
            ngx_http_ratelimit_store_rule(use[i], &use[i]->rules[k]);
        }
    }
}


void
ngx_http_ratelimit_store_rule(ngx_http_ratelimit_use_t *use,
    ratelimit_rule_t *rule)
{
    ratelimit_table_add_rule(use->zone->table, rule, ngx_http_ratelimit_self);
}


ngx_int_t
ngx_http_ratelimit_store_get_rule(ngx_http_ratelimit_zone_t *zone,
    ngx_uint_t n, ratelimit_rule_t *rule)
{
    ngx_uint_t        met;
    ratelimit_rule_t  last;

    static const uint32_t  usual[] = {
        1, 10, 30, 60, 300, 600, 900, 1800, 3600, 6 * 3600, 12 * 3600,
        86400, 7 * 86400, 30 * 86400, 365 * 86400
    };

    if (ratelimit_table_get_rule(zone->table, n, rule)) {
        return NGX_OK;
    }

    if (zone->redis == NULL) {
        return NGX_DONE;
    }

    for (met = 0; ratelimit_table_get_rule(zone->table, met, &last); met++) {
        /* void */
    }

    if (n - met >= sizeof(usual) / sizeof(uint32_t)) {
        return NGX_DONE;
    }

    rule->limit = 0;
    rule->period = usual[n - met] * RATELIMIT_SECOND;

    return NGX_OK;
}


void
ngx_http_ratelimit_store_memory(ngx_http_ratelimit_zone_t *zone,
    ngx_http_ratelimit_memory_t *memory)
{
    ngx_http_ratelimit_restore_evictions(zone);

    memory->entries = ratelimit_table_entries(zone->table);

    /* in this order it is never more than those that follow */

    memory->dismissed = ratelimit_table_dismissed(zone->table);
    memory->evictions = ratelimit_table_evictions(zone->table);

    memory->bytes_used = ratelimit_table_bytes_used(zone->table,
                                                    &memory->size);

    /* the first page is nginx's */

    memory->size += ngx_pagesize;
    memory->bytes_used += ngx_pagesize;
}


ngx_uint_t
ngx_http_ratelimit_store_may_log(ngx_http_ratelimit_zone_t *zone,
    uint64_t limit)
{
    if (ratelimit_table_count_event(zone->table,
                                    (uint64_t) ngx_current_msec * 1000)
        <= limit)
    {
        return 1;
    }

    ratelimit_table_count_unlogged(zone->table);

    return 0;
}


uint64_t
ngx_http_ratelimit_store_not_logged(ngx_http_ratelimit_zone_t *zone)
{
    return ratelimit_table_unlogged(zone->table);
}


ngx_uint_t
ngx_http_ratelimit_store_log_once(ngx_http_ratelimit_zone_t *zone,
    uint32_t message)
{
    return ratelimit_table_once_a_second(zone->table, message,
                                         (uint64_t) ngx_current_msec * 1000);
}


void
ngx_http_ratelimit_store_init_module(ngx_cycle_t *cycle)
{
    ngx_array_t  *zones;

    zones = ngx_http_ratelimit_zones(cycle, cycle->pool);

    ngx_http_ratelimit_kept_activate(cycle);

    /* an error here would end nginx */

    if (zones != NULL) {
        ngx_http_ratelimit_statistics_activate(cycle, zones);
        ngx_http_ratelimit_keep_gone(cycle, zones);
    }

    ngx_http_ratelimit_reload_activate();
}


ngx_int_t
ngx_http_ratelimit_store_init_process(ngx_cycle_t *cycle)
{
    ngx_int_t     rc;
    ngx_array_t  *zones;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    zones = ngx_http_ratelimit_zones(cycle, cycle->pool);
    if (zones == NULL) {
        return NGX_ERROR;
    }

    if (zones->nelts == 0) {
        return NGX_OK;
    }

    ngx_http_ratelimit_statistics_init_process(cycle, zones);
    ngx_http_ratelimit_top_init_process(zones);

    rc = ngx_http_ratelimit_shm_join(cycle, zones);

    if (rc != NGX_DECLINED) {
        return rc;
    }

    ngx_log_error(NGX_LOG_ALERT, cycle->log, 0,
                  "ratelimit can be used by at most %d processes",
                  RATELIMIT_LIFELINES);

    return ngx_http_ratelimit_timer_start(cycle,
                                          ngx_http_ratelimit_shm_join_later,
                                          zones);
}


void
ngx_http_ratelimit_store_exit_process(ngx_cycle_t *cycle)
{
    ngx_array_t  *zones;

    if (ngx_process != NGX_PROCESS_WORKER) {
        return;
    }

    zones = ngx_http_ratelimit_zones(cycle, cycle->pool);

    if (zones != NULL) {
        ngx_http_ratelimit_keep_late(zones);
    }
}


/* NGX_DECLINED if too many processes have a number already */

static ngx_int_t
ngx_http_ratelimit_shm_join(ngx_cycle_t *cycle, ngx_array_t *zones)
{
    uint32_t                     self;
    ngx_uint_t                   i;
    ratelimit_lifelines_t       *lifelines;
    ngx_http_ratelimit_zone_t  **zone;

    zone = zones->elts;
    lifelines = zone[0]->lifelines->data;

    self = ratelimit_lifelines_claim(lifelines);

    if (self == 0) {
        return NGX_DECLINED;
    }

    ratelimit_lock_stalled = ngx_http_ratelimit_shm_log_stalled;

    ngx_http_ratelimit_clock = ratelimit_lifelines_clock(lifelines);
    ngx_http_ratelimit_self = self;

    for (i = 0; i < zones->nelts; i++) {
        ngx_http_ratelimit_shm_init_rules(zone[i]);
    }

    return ngx_http_ratelimit_reload_watch(cycle, zones);
}


static void
ngx_http_ratelimit_shm_log_stalled(uint32_t pid)
{
    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "ratelimit waits for process %uD, which holds a lock", pid);
}


static void
ngx_http_ratelimit_shm_join_later(ngx_event_t *ev)
{
    ngx_int_t  rc;

    rc = ngx_http_ratelimit_shm_join((ngx_cycle_t *) ngx_cycle,
                                     ngx_http_ratelimit_timer_data(ev));

    if (rc == NGX_DECLINED) {
        ngx_add_timer(ev, NGX_HTTP_RATELIMIT_JOIN_TIME);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ev->log, 0,
                  "ratelimit can be used by this process now");
}
