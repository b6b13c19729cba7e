
/*
 * Who is known to be refused by Redis: an attack is refused from shared memory,
 * and costs Redis next to nothing.
 *
 * What is remembered is a refusal of one limit to one key at one cost.  It is
 * believed until the time that Redis gave.  Where charges may be given back it
 * is believed for a second or two, and then asked for again.  A reload forgets:
 * an operator may have removed the counter.
 *
 * It stands in a table of fixed windows.  The window ends when Redis is to be
 * asked again; its count is what else is to be told: one more than the seconds
 * between the end of the refusal and the time when the limit is whole, the
 * seconds from the end of the window to that of the refusal, and what is left
 * for a smaller cost.
 */


#include "redis/ngx_http_ratelimit_redis.h"


#define NGX_HTTP_RATELIMIT_DENIED_RESET_BITS   26
#define NGX_HTTP_RATELIMIT_DENIED_BEYOND_BITS  25
#define NGX_HTTP_RATELIMIT_DENIED_LEFT_BITS    12

#define NGX_HTTP_RATELIMIT_DENIED_RESET                                       \
    ((1ULL << NGX_HTTP_RATELIMIT_DENIED_RESET_BITS) - 2)
#define NGX_HTTP_RATELIMIT_DENIED_BEYOND                                      \
    ((1ULL << NGX_HTTP_RATELIMIT_DENIED_BEYOND_BITS) - 1)
#define NGX_HTTP_RATELIMIT_DENIED_LEFT                                        \
    ((1ULL << NGX_HTTP_RATELIMIT_DENIED_LEFT_BITS) - 1)

/* no count is larger */
#define NGX_HTTP_RATELIMIT_DENIED_MAX  (((uint64_t) 1 << 63) - 1)


/* whom a refusal is about, to be hashed */

typedef struct {
    uint64_t                        by;       /* of which configuration */
    ratelimit_hash_t                key;
    uint64_t                        limit;
    uint64_t                        period;
    uint64_t                        capacity;
    uint64_t                        ceiling;
    uint64_t                        wait;
    uint64_t                        cost;
} ngx_http_ratelimit_denied_t;


static ngx_int_t ngx_http_ratelimit_denied_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_uint_t ngx_http_ratelimit_denied_item(ratelimit_item_t *item,
    ratelimit_place_t *from, ngx_http_ratelimit_subject_t *subject,
    ratelimit_clock_t *clock);
static uint64_t ngx_http_ratelimit_denied_look(ratelimit_item_t *known,
    ratelimit_rule_t *rule, ratelimit_place_t *place,
    ratelimit_clock_t *clock);
static void ngx_http_ratelimit_denied_tell(ratelimit_item_t *item,
    uint64_t left, uint64_t count);
static void ngx_http_ratelimit_denied_remember_item(ratelimit_item_t *item,
    ratelimit_place_t *from, ngx_http_ratelimit_subject_t *subject,
    ratelimit_clock_t *clock, ngx_msec_t age);
static void ngx_http_ratelimit_denied_prepare(ratelimit_item_t *known,
    ratelimit_rule_t *rule, uint64_t count);
static void ngx_http_ratelimit_denied_place(ratelimit_place_t *place,
    ratelimit_item_t *item, ratelimit_place_t *from,
    ngx_http_ratelimit_subject_t *subject);


ngx_int_t
ngx_http_ratelimit_denied_declare(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, void *tag)
{
    size_t     size;
    ngx_str_t  name;

    /* what one Redis said is not held against who is counted in another */

    name.len = sizeof("ratelimit:denied::") - 1 + zone->redis->name.len
               + zone->name.len;
    name.data = ngx_pnalloc(cf->pool, name.len);
    if (name.data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_sprintf(name.data, "ratelimit:denied:%V:%V",
                       &zone->redis->name, &zone->name);

    size = ngx_max(zone->shm_zone->shm.size / 8, 32 * ngx_pagesize);

    zone->denied_shm_zone = ngx_shared_memory_add(cf, &name, size, tag);
    if (zone->denied_shm_zone == NULL) {
        return NGX_ERROR;
    }

    zone->denied_shm_zone->init = ngx_http_ratelimit_denied_init;
    zone->denied_shm_zone->data = zone;

    return NGX_OK;
}


static ngx_int_t
ngx_http_ratelimit_denied_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ratelimit_item_t            item;
    ratelimit_rule_t            rule;
    ratelimit_hash_t            secret;
    ratelimit_shape_t           shape;
    ngx_http_ratelimit_zone_t  *zone;

    static uint64_t  configuration;

    zone = shm_zone->data;
    zone->denied_by = ++configuration;

    if (data == NULL && !shm_zone->shm.exists) {
        ngx_http_ratelimit_shm_clear(shm_zone);
    }

    zone->denied = ngx_palloc(zone->pool, sizeof(ratelimit_table_t));
    if (zone->denied == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&shape, sizeof(ratelimit_shape_t));
    shape.algorithm = RATELIMIT_FIXED_WINDOW;

    ngx_http_ratelimit_denied_prepare(&item, &rule,
                                      NGX_HTTP_RATELIMIT_DENIED_MAX);
    ratelimit_table_fit(&shape, &rule);

    /* keys come here hashed already, by a secret of the zone */

    ngx_memzero(&secret, sizeof(ratelimit_hash_t));

    if (ratelimit_table_open(zone->denied, shm_zone->shm.addr + ngx_pagesize,
                             shm_zone->shm.size - ngx_pagesize, &shape,
                             &secret, zone->lifelines->data)
        == NULL)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "ratelimit zone \"%V\" has no room for who is refused",
                      &zone->name);
        return NGX_ERROR;
    }

    zone->denied->data = zone;

    return NGX_OK;
}


ngx_uint_t
ngx_http_ratelimit_denied(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                   i, denied;
    ratelimit_clock_t            clock;
    ngx_http_ratelimit_redis_t  *redis;

    if (ngx_http_ratelimit_self == 0) {
        return 0;
    }

    denied = 0;

    ngx_http_ratelimit_shm_clock(&clock);

    for (i = 0; i < q->n; i++) {

        /* a refused request is to be counted */

        if (q->items[i].insist) {
            return 0;
        }
    }

    for (i = 0; i < q->n; i++) {
        denied += ngx_http_ratelimit_denied_item(&q->items[i], &q->places[i],
                                                 &q->subjects[i], &clock);
    }

    if (denied) {
        redis = q->subjects[0].use->zone->redis;
        ngx_atomic_fetch_add(&redis->shared->denied, 1);
    }

    return denied;
}


/* looks, and counts nothing */

static ngx_uint_t
ngx_http_ratelimit_denied_item(ratelimit_item_t *item, ratelimit_place_t *from,
    ngx_http_ratelimit_subject_t *subject, ratelimit_clock_t *clock)
{
    uint64_t              count;
    ratelimit_item_t      known;
    ratelimit_rule_t      rule;
    ratelimit_place_t     place;
    ratelimit_verdict_t  *verdict;

    verdict = &item->verdict;

    ngx_memzero(verdict, sizeof(ratelimit_verdict_t));

    verdict->limit = item->rule->capacity;
    verdict->remaining = NGX_HTTP_RATELIMIT_UNASKED;
    verdict->allowed = 1;

    if (item->cost == 0) {
        return 0;
    }

    ngx_http_ratelimit_denied_place(&place, item, from, subject);

    count = ngx_http_ratelimit_denied_look(&known, &rule, &place, clock);

    if (count == 0) {
        return 0;
    }

    ngx_http_ratelimit_denied_tell(item, known.verdict.reset_after, count);

    return 1;
}


static uint64_t
ngx_http_ratelimit_denied_look(ratelimit_item_t *known, ratelimit_rule_t *rule,
    ratelimit_place_t *place, ratelimit_clock_t *clock)
{
    ngx_http_ratelimit_denied_prepare(known, rule,
                                      NGX_HTTP_RATELIMIT_DENIED_MAX);
    known->cost = 0;

    (void) ratelimit_table_check(known, place, 1, clock,
                                 ngx_http_ratelimit_self);

    return NGX_HTTP_RATELIMIT_DENIED_MAX - known->verdict.remaining;
}


static void
ngx_http_ratelimit_denied_tell(ratelimit_item_t *item, uint64_t left,
    uint64_t count)
{
    uint64_t              reset, beyond;
    ratelimit_verdict_t  *verdict;

    verdict = &item->verdict;

    reset = (count & (NGX_HTTP_RATELIMIT_DENIED_RESET + 1)) - 1;
    count >>= NGX_HTTP_RATELIMIT_DENIED_RESET_BITS;

    beyond = count & NGX_HTTP_RATELIMIT_DENIED_BEYOND;
    count >>= NGX_HTTP_RATELIMIT_DENIED_BEYOND_BITS;

    verdict->allowed = 0;
    verdict->remaining = count;
    verdict->retry_after = left + beyond * RATELIMIT_SECOND;
    verdict->reset_after = verdict->retry_after + reset * RATELIMIT_SECOND;
    verdict->excess = (item->cost - verdict->remaining) * 1000;
}


void
ngx_http_ratelimit_denied_remember(ngx_http_ratelimit_query_t *q,
    ngx_msec_t age)
{
    ngx_uint_t         i;
    ratelimit_clock_t  clock;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    ngx_http_ratelimit_shm_clock(&clock);

    for (i = 0; i < q->n; i++) {

        if (!q->items[i].verdict.allowed && !q->items[i].insist) {
            ngx_http_ratelimit_denied_remember_item(&q->items[i],
                                                    &q->places[i],
                                                    &q->subjects[i], &clock,
                                                    age);
        }
    }
}


/*
 * The window is made to end at the right time by the clock that it is aligned
 * to.  It ends before the refusal does: in its last second Redis is asked, or
 * what was asked for so long ago is taken off.  Nobody is told to come back too
 * early: of a refusal of less than a second it is said that it takes one.
 */

static void
ngx_http_ratelimit_denied_remember_item(ratelimit_item_t *item,
    ratelimit_place_t *from, ngx_http_ratelimit_subject_t *subject,
    ratelimit_clock_t *clock, ngx_msec_t age)
{
    uint64_t           count, retry, window, beyond;
    ratelimit_item_t   known;
    ratelimit_rule_t   rule;
    ratelimit_clock_t  aligned;
    ratelimit_place_t  place;

    retry = item->verdict.retry_after / 1000;

    if (retry < 1000) {
        window = (retry > age) ? retry - age : 0;
        beyond = 0;

    } else {
        retry++;
        window = retry - 1000;

        if (window >= 2000 && !subject->use->lasting) {
            window = retry % 1000 + 1000;
        }

        beyond = (retry - window) / 1000;
    }

    if (window == 0 || age >= 999 || beyond > NGX_HTTP_RATELIMIT_DENIED_BEYOND
        || item->verdict.remaining > NGX_HTTP_RATELIMIT_DENIED_LEFT)
    {
        return;
    }

    /* a cost that is never allowed may find the limit whole before */

    count = 0;

    if (item->verdict.reset_after > item->verdict.retry_after) {
        count = item->verdict.reset_after - item->verdict.retry_after;
    }

    count = (count + RATELIMIT_SECOND - 1) / RATELIMIT_SECOND;
    count = ngx_min(count, NGX_HTTP_RATELIMIT_DENIED_RESET) + 1;

    count |= (item->verdict.remaining << NGX_HTTP_RATELIMIT_DENIED_BEYOND_BITS
              | beyond)
             << NGX_HTTP_RATELIMIT_DENIED_RESET_BITS;

    /* it is counted only if nobody else has remembered it meanwhile */

    ngx_http_ratelimit_denied_prepare(&known, &rule, count);
    ngx_http_ratelimit_denied_place(&place, item, from, subject);

    aligned.now = clock->now;
    aligned.wall = rule.period - window * 1000;

    (void) ratelimit_table_check(&known, &place, 1, &aligned,
                                 ngx_http_ratelimit_self);
}


/* what was charged is given back from here: who was refused for it may come */

void
ngx_http_ratelimit_denied_forget(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t         i;
    ratelimit_item_t   known;
    ratelimit_rule_t   rule;
    ratelimit_clock_t  clock;
    ratelimit_place_t  place;

    if (ngx_http_ratelimit_self == 0) {
        return;
    }

    ngx_http_ratelimit_shm_clock(&clock);

    for (i = 0; i < q->n; i++) {
        ngx_http_ratelimit_denied_place(&place, &q->items[i], &q->places[i],
                                        &q->subjects[i]);

        known.cost = ngx_http_ratelimit_denied_look(&known, &rule, &place,
                                                    &clock);

        if (known.cost) {
            ratelimit_table_refund(&known, &place, 1, &clock,
                                   ngx_http_ratelimit_self);
        }
    }
}


static void
ngx_http_ratelimit_denied_prepare(ratelimit_item_t *known,
    ratelimit_rule_t *rule, uint64_t count)
{
    ngx_memzero(rule, sizeof(ratelimit_rule_t));

    rule->limit = count;
    rule->capacity = count;
    rule->ceiling = count;
    rule->period = 2 * RATELIMIT_MAX_PERIOD;

    ngx_memzero(known, sizeof(ratelimit_item_t));

    known->rule = rule;
    known->cost = count;
}


static void
ngx_http_ratelimit_denied_place(ratelimit_place_t *place,
    ratelimit_item_t *item, ratelimit_place_t *from,
    ngx_http_ratelimit_subject_t *subject)
{
    ngx_http_ratelimit_denied_t  whom;

    ngx_memzero(&whom, sizeof(ngx_http_ratelimit_denied_t));

    whom.by = subject->use->zone->denied_by;
    whom.key = from->hash;
    whom.limit = item->rule->limit;
    whom.period = item->rule->period;
    whom.capacity = item->rule->capacity;
    whom.ceiling = item->rule->ceiling;
    whom.wait = item->rule->wait;
    whom.cost = item->cost;

    place->table = subject->use->zone->denied;

    ratelimit_hash(&subject->use->hasher.secret, &whom,
                   sizeof(ngx_http_ratelimit_denied_t), &place->hash);
}
