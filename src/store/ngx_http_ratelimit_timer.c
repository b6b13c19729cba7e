
/*
 * A timer of a worker that belongs to no connection.
 */


#include "store/ngx_http_ratelimit_store.h"


/* nginx logs the descriptor of the connection that a timer's data points to */

ngx_int_t
ngx_http_ratelimit_timer_start(ngx_cycle_t *cycle,
    ngx_event_handler_pt handler, void *data)
{
    ngx_event_t       *ev;
    ngx_connection_t  *c;

    ev = ngx_pcalloc(cycle->pool, sizeof(ngx_event_t));
    if (ev == NULL) {
        return NGX_ERROR;
    }

    c = ngx_pcalloc(cycle->pool, sizeof(ngx_connection_t));
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->fd = (ngx_socket_t) -1;
    c->data = data;

    ev->data = c;
    ev->log = cycle->log;
    ev->handler = handler;
    ev->cancelable = 1;

    handler(ev);

    return NGX_OK;
}
