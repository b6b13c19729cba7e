
/*
 * The mirror: what Redis charges is charged in shared memory, too, for zones
 * that are counted there while Redis is down.  So a failure of Redis does not
 * reset the limit of a client that this machine has seen.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static void ngx_http_ratelimit_redis_mirror_query(
    ngx_http_ratelimit_query_t *mirror, ratelimit_item_t *item,
    ngx_http_ratelimit_query_t *q, ngx_uint_t i);


/* Redis has decided: the limits in shared memory charge, whatever they say */

void
ngx_http_ratelimit_redis_mirror_charge(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  i;
    ratelimit_item_t            item;
    ngx_http_ratelimit_query_t  mirror;

    for (i = 0; i < q->n; i++) {

        if (!q->subjects[i].use->zone->mirror
            || (!q->allowed && !q->items[i].count_rejected))
        {
            continue;
        }

        ngx_http_ratelimit_redis_mirror_query(&mirror, &item, q, i);
        item.count_rejected = 1;

        if (ngx_http_ratelimit_shm_store.decide(&mirror) == NGX_OK) {
            q->subjects[i].stamp = item.verdict.stamp;
        }
    }
}


void
ngx_http_ratelimit_redis_mirror_settle(ngx_http_ratelimit_query_t *q,
    ngx_http_ratelimit_settle_e how)
{
    ngx_uint_t                  i;
    ratelimit_item_t            item;
    ngx_http_ratelimit_query_t  mirror;

    for (i = 0; i < q->n; i++) {

        if (q->subjects[i].use->zone->mirror) {
            ngx_http_ratelimit_redis_mirror_query(&mirror, &item, q, i);
            item.verdict.stamp = q->subjects[i].stamp;

            ngx_http_ratelimit_shm_store.settle(&mirror, how);
        }
    }
}


/* one limit of a query, with an item of its own */

static void
ngx_http_ratelimit_redis_mirror_query(ngx_http_ratelimit_query_t *mirror,
    ratelimit_item_t *item, ngx_http_ratelimit_query_t *q, ngx_uint_t i)
{
    *item = q->items[i];

    *mirror = *q;
    mirror->items = item;
    mirror->subjects = &q->subjects[i];
    mirror->places = &q->places[i];
    mirror->n = 1;
}
