
/*
 * Commands that are waited for, by deadline, and the timer of the first one.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static void ngx_http_ratelimit_redis_time_out(
    ngx_http_ratelimit_redis_command_t *command);


void
ngx_http_ratelimit_redis_await(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_queue_t                         *q;
    ngx_event_t                         *timer;
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_command_t  *other;

    redis = command->redis;
    timer = redis->timer;

    /* most wait equally long: who comes last runs out of time last */

    for (q = ngx_queue_last(&redis->pending);
         q != ngx_queue_sentinel(&redis->pending);
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
ngx_http_ratelimit_redis_sent(ngx_http_ratelimit_redis_t *redis,
    ngx_msec_t turn)
{
    ngx_msec_t                           late;
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_command_t  *command;

    late = ngx_current_msec - turn;

    /* the newest ones, so that all stay in order */

    for (q = ngx_queue_last(&redis->pending);
         q != ngx_queue_sentinel(&redis->pending);
         q = ngx_queue_prev(q))
    {
        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        if (command->sent != turn) {
            return;
        }

        command->sent += late;
        command->deadline += late;
    }
}


/* the timer is that of the oldest command, or of one that is gone since */

void
ngx_http_ratelimit_redis_timer_handler(ngx_event_t *ev)
{
    ngx_queue_t                         *head;
    ngx_msec_int_t                       left;
    ngx_connection_t                    *dummy;
    ngx_http_ratelimit_redis_t          *redis;
    ngx_http_ratelimit_redis_command_t  *command;

    dummy = ev->data;
    redis = dummy->data;

    /* a worker that was busy may have kept the answer waiting */

    ngx_http_ratelimit_redis_poll(redis);

    while (!ngx_queue_empty(&redis->pending)) {

        head = ngx_queue_head(&redis->pending);
        command = ngx_queue_data(head, ngx_http_ratelimit_redis_command_t,
                                 queue);

        left = (ngx_msec_int_t) (command->deadline - ngx_current_msec);

        if (left > 0) {

            /* who was told to go on may have asked, and set it too late */

            if (redis->timer->timer_set) {
                ngx_del_timer(redis->timer);
            }

            ngx_add_timer(redis->timer, (ngx_msec_t) left);
            return;
        }

        ngx_http_ratelimit_redis_time_out(command);
    }
}


/*
 * Its answer, if it still comes, is thrown away; when the connection is closed
 * here, the command goes with it.
 */

static void
ngx_http_ratelimit_redis_time_out(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_uint_t                   hurried;
    ratelimit_breaker_e          told;
    ngx_http_ratelimit_query_t  *q;
    ngx_http_ratelimit_redis_t  *redis;

    redis = command->redis;
    told = command->told;
    q = ngx_http_ratelimit_redis_leave(command);

    if (q != NULL) {
        ngx_http_ratelimit_redis_disown(command, q);
    }

    /* another Redis took most of the time: this is not to be blamed */

    hurried = (command->deadline - command->sent < redis->timeout / 2);

    ngx_atomic_fetch_add(&redis->shared->timeouts, 1);

    ngx_http_ratelimit_redis_reason(redis, "no answer in time", NULL, 0);
    ngx_http_ratelimit_redis_expire(command);

    if (!hurried) {
        ngx_http_ratelimit_redis_failure(redis, told);
    }

    ngx_http_ratelimit_redis_finish(redis, q, NGX_ERROR, redis->timeout);
}


ngx_http_ratelimit_query_t *
ngx_http_ratelimit_redis_leave(ngx_http_ratelimit_redis_command_t *command)
{
    ngx_http_ratelimit_query_t  *q;
    ngx_http_ratelimit_redis_t  *redis;

    q = command->query;
    redis = command->redis;

    command->query = NULL;
    ngx_queue_remove(&command->queue);

    /* a worker that exits does not wait for a timer without a command */

    redis->timer->cancelable = ngx_queue_empty(&redis->pending);

    return q;
}


void
ngx_http_ratelimit_redis_abandon(ngx_http_ratelimit_redis_t *redis)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_command_t  *command;

    while (!ngx_queue_empty(&redis->pending)) {
        q = ngx_queue_head(&redis->pending);
        command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, queue);

        (void) ngx_http_ratelimit_redis_leave(command);

        command->expired = 1;
    }
}
