
/*
 * What Redis counts is counted in shared memory, too, by zones that go on
 * there when it fails: so a failure gives nobody his limits anew.
 */


#include "redis/ngx_http_ratelimit_redis.h"


/* Redis has decided: what the twin thinks of it does not matter */

void
ngx_http_ratelimit_twin_charge(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  i;
    ratelimit_item_t            item;
    ngx_http_ratelimit_query_t  twin;

    twin = *q;
    twin.items = &item;
    twin.n = 1;

    for (i = 0; i < q->n; i++) {

        if (!q->subjects[i].use->zone->twin
            || (!q->allowed && !q->items[i].insist))
        {
            continue;
        }

        item = q->items[i];
        item.insist = 1;

        twin.places = &q->places[i];

        if (ngx_http_ratelimit_shm_store.check(&twin) == NGX_OK) {
            q->subjects[i].stamp = item.verdict.stamp;
        }
    }
}


void
ngx_http_ratelimit_twin_refund(ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                  i;
    ratelimit_item_t            item;
    ngx_http_ratelimit_query_t  twin;

    twin = *q;
    twin.items = &item;
    twin.n = 1;

    for (i = 0; i < q->n; i++) {

        if (!q->subjects[i].use->zone->twin) {
            continue;
        }

        item = q->items[i];
        item.verdict.stamp = q->subjects[i].stamp;

        twin.places = &q->places[i];

        ngx_http_ratelimit_shm_store.refund(&twin);
    }
}
