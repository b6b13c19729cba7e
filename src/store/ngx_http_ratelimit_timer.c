
/*
 * Timers of a worker that belong to no connection.
 */


#include "store/ngx_http_ratelimit_store.h"


typedef struct {
    ngx_event_t                     event;
    ngx_connection_t                dummy;
} ngx_http_ratelimit_timer_t;


ngx_int_t
ngx_http_ratelimit_timer_start(ngx_cycle_t *cycle,
    ngx_event_handler_pt handler, void *data)
{
    ngx_event_t  *ev;

    ev = ngx_http_ratelimit_timer_create(cycle->pool, handler, data);
    if (ev == NULL) {
        return NGX_ERROR;
    }

    handler(ev);

    return NGX_OK;
}


ngx_event_t *
ngx_http_ratelimit_timer_create(ngx_pool_t *pool, ngx_event_handler_pt handler,
    void *data)
{
    ngx_http_ratelimit_timer_t  *timer;

    timer = ngx_pcalloc(pool, sizeof(ngx_http_ratelimit_timer_t));
    if (timer == NULL) {
        return NULL;
    }

    ngx_http_ratelimit_timer_init(&timer->event, &timer->dummy, handler, data);
    timer->event.cancelable = 1;

    return &timer->event;
}


/* nginx logs the descriptor of the connection that a timer's data points to */

void
ngx_http_ratelimit_timer_init(ngx_event_t *ev, ngx_connection_t *dummy,
    ngx_event_handler_pt handler, void *data)
{
    dummy->fd = (ngx_socket_t) -1;
    dummy->data = data;

    ev->data = dummy;
    ev->log = ngx_cycle->log;
    ev->handler = handler;
}
