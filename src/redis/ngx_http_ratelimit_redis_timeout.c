
/*
 * Deadlines of commands, and the breaker: whether a server may be used at all.
 * The log has one line when a server is marked down and one when it is up
 * again.
 */


#include "redis/ngx_http_ratelimit_redis.h"


/* milliseconds after a failure: a later one is not of the same outage */
#define NGX_HTTP_RATELIMIT_REDIS_SAME_OUTAGE  1000


static void ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev);
static void ngx_http_ratelimit_redis_on_write(void *data, ngx_msec_t turn);


void
ngx_http_ratelimit_redis_timeout_init(
    ngx_http_ratelimit_redis_server_t *server,
    ngx_http_ratelimit_redis_timeout_pt on_timeout,
    ngx_event_handler_pt on_retry)
{
    ngx_queue_init(&server->commands);

    ngx_queue_init(&server->postponed);

    ngx_http_ratelimit_timer_init(&server->timer, &server->dummy,
                                  ngx_http_ratelimit_redis_timer_handler,
                                  server);
    ngx_http_ratelimit_timer_init(&server->retry, &server->dummy, on_retry,
                                  server);

    server->timer.cancelable = 1;

    server->on_timeout = on_timeout;
    server->owner.on_write = ngx_http_ratelimit_redis_on_write;
}


void
ngx_http_ratelimit_redis_timeout_add(
    ngx_http_ratelimit_redis_command_t *command)
{
    ngx_queue_t                         *q;
    ngx_event_t                         *timer;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *other;

    server = command->server;
    timer = &server->timer;

    /* most have the same timeout: the newest command has the last deadline */

    for (q = ngx_queue_last(&server->commands);
         q != ngx_queue_sentinel(&server->commands);
         q = ngx_queue_prev(q))
    {
        other = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        if ((ngx_msec_int_t) (command->deadline - other->deadline) >= 0) {
            break;
        }
    }

    ngx_queue_insert_after(q, &command->queue);

    timer->cancelable = 0;

    if (timer->timer_set
        && (ngx_msec_int_t) (timer->timer.key - command->deadline) > 0)
    {
        ngx_del_timer(timer);
    }

    if (!timer->timer_set) {
        ngx_add_timer(timer, command->deadline - ngx_current_msec);
    }
}


void
ngx_http_ratelimit_redis_timeout_remove(
    ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_redis_server_t  *server;

    server = command->server;

    ngx_queue_remove(&command->queue);

    /* a worker that exits does not wait for a timer without a command */

    server->timer.cancelable = ngx_queue_empty(&server->commands);
}


void
ngx_http_ratelimit_redis_timeout_remove_all(
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_command_t  *command;

    while (!ngx_queue_empty(&server->commands)) {
        q = ngx_queue_head(&server->commands);
        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        ngx_http_ratelimit_redis_timeout_remove(command);

        command->query = NULL;
        command->message.expired = 1;
    }
}


/* the timer is that of the oldest command, or of one that was removed since */

static void
ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev)
{
    ngx_queue_t                         *head;
    ngx_msec_int_t                       left;
    ngx_http_ratelimit_redis_server_t   *server;
    ngx_http_ratelimit_redis_command_t  *command;

    server = ngx_http_ratelimit_timer_data(ev);

    /* a worker that was busy may not have seen the reply yet */

    ngx_http_ratelimit_redis_server_read(server);

    while (!ngx_queue_empty(&server->commands)) {

        head = ngx_queue_head(&server->commands);
        command = ngx_queue_data(head, ngx_http_ratelimit_redis_command_t,
                                 queue);

        left = (ngx_msec_int_t) (command->deadline - ngx_current_msec);

        if (left > 0) {

            /* a request that went on may have set it for a later command */

            if (ev->timer_set) {
                ngx_del_timer(ev);
            }

            ngx_add_timer(ev, (ngx_msec_t) left);
            return;
        }

        ngx_http_ratelimit_redis_timeout_remove(command);
        server->on_timeout(command);
    }
}


/* the deadlines of the commands of a turn count from when they were written */

static void
ngx_http_ratelimit_redis_on_write(void *data, ngx_msec_t turn)
{
    ngx_http_ratelimit_redis_server_t  *server = data;

    ngx_msec_t                           late;
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_command_t  *command;

    late = ngx_current_msec - turn;

    /* the newest ones, so that all stay in order */

    for (q = ngx_queue_last(&server->commands);
         q != ngx_queue_sentinel(&server->commands);
         q = ngx_queue_prev(q))
    {
        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        if (command->written != turn) {
            return;
        }

        command->written += late;
        command->deadline += late;
    }
}


ratelimit_breaker_e
ngx_http_ratelimit_redis_permit(ngx_http_ratelimit_redis_server_t *server)
{
    return ratelimit_breaker_ask(&server->owner.shared->breaker,
                                 ngx_current_msec,
                                 2 * server->redis->timeout);
}


ngx_uint_t
ngx_http_ratelimit_redis_stops(ngx_http_ratelimit_redis_server_t *server)
{
    return ratelimit_breaker_stops(&server->owner.shared->breaker,
                                   ngx_current_msec,
                                   2 * server->redis->timeout);
}


/*
 * While the server is marked down, only a probe shows that it works: a probe
 * writes, which is more than other commands may have done.
 */

void
ngx_http_ratelimit_redis_success(ngx_http_ratelimit_redis_server_t *server,
    ratelimit_breaker_e permit)
{
    ngx_http_ratelimit_redis_shared_t  *shared;

    shared = server->owner.shared;

    if ((permit != RATELIMIT_BREAKER_PROBE
         && ratelimit_breaker_is_open(&shared->breaker))
        || !ratelimit_breaker_success(&shared->breaker))
    {
        return;
    }

    ngx_http_ratelimit_redis_count(shared, changes, 1);

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is up again", &server->owner.label);
}


/*
 * A server that is marked down gets new connections when it is tried again, by
 * all workers.
 */

void
ngx_http_ratelimit_redis_failure(ngx_http_ratelimit_redis_server_t *server,
    ratelimit_breaker_e permit, ngx_msec_t sent)
{
    ngx_http_ratelimit_redis_shared_t  *shared;

    shared = server->owner.shared;

    if (shared->failing == 0
        || !ratelimit_breaker_has_failed(&shared->breaker)
        || (ngx_msec_int_t) (sent - shared->failed)
           > NGX_HTTP_RATELIMIT_REDIS_SAME_OUTAGE)
    {
        shared->failing = sent;
    }

    shared->failed = ngx_current_msec;

    if (ratelimit_breaker_failure(&shared->breaker, permit, ngx_current_msec,
                                  (uint32_t) ngx_random()))
    {
        ngx_http_ratelimit_redis_count(shared, changes, 1);

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" is marked down: %*s",
                      &server->owner.label, server->reason_len,
                      server->reason);

        ngx_atomic_fetch_add(&shared->generation, 1);

    } else if (permit != RATELIMIT_BREAKER_PROBE) {
        ngx_http_ratelimit_redis_server_trouble(server);
        return;
    }

    ngx_http_ratelimit_redis_server_trouble(server);
    ngx_http_ratelimit_redis_server_retire(server);
}
