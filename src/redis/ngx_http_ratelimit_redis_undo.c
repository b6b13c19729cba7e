
/*
 * What Redis has charged, or will charge, for a request that is gone or was
 * decided without it: once the reply is there, the command becomes a refund.
 */


#include "redis/ngx_http_ratelimit_redis.h"


/* bytes of an argument with its frame */
#define NGX_HTTP_RATELIMIT_REDIS_RECORD                                       \
    (sizeof("$72" CRLF) - 1 + RATELIMIT_SCRIPT_ARGUMENT + sizeof(CRLF) - 1)


static void ngx_http_ratelimit_redis_mark_undo(
    ngx_http_ratelimit_redis_command_t *command, ngx_uint_t i, ngx_uint_t undo);
static u_char *ngx_http_ratelimit_redis_argument(
    ngx_http_ratelimit_redis_command_t *command, ngx_uint_t i);


void
ngx_http_ratelimit_redis_undo_cancelled(
    ngx_http_ratelimit_redis_command_t *command, ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t  i;

    for (i = 0; i < command->n; i++) {
        ngx_http_ratelimit_redis_mark_undo(command, i, q->items[i].cost != 0);
    }
}


void
ngx_http_ratelimit_redis_undo_expired(
    ngx_http_ratelimit_redis_command_t *command, ngx_http_ratelimit_query_t *q)
{
    ngx_uint_t                     i, closed;
    ngx_http_ratelimit_subject_t  *subject;

    closed = 0;
    subject = q->subjects;

    for (i = 0; i < command->n; i++) {
        closed |= (subject[i].use->zone->fail
                   == NGX_HTTP_RATELIMIT_FAIL_CLOSED);
    }

    for (i = 0; i < command->n; i++) {
        ngx_http_ratelimit_redis_mark_undo(command, i,
                                           closed || subject[i].use->reserved);
    }
}


static void
ngx_http_ratelimit_redis_mark_undo(
    ngx_http_ratelimit_redis_command_t *command, ngx_uint_t i, ngx_uint_t undo)
{
    if (undo) {
        command->undo = 1;

    } else {
        ratelimit_script_no_refund(ngx_http_ratelimit_redis_argument(command,
                                                                     i));
    }
}


ngx_int_t
ngx_http_ratelimit_redis_undo(ngx_http_ratelimit_redis_command_t *command,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *reply)
{
    u_char      *op;
    ngx_uint_t   i;

    if (!command->undo || type != NGX_HTTP_RATELIMIT_REDIS_STRING
        || reply->len != command->n * RATELIMIT_SCRIPT_VERDICT)
    {
        return NGX_DECLINED;
    }

    for (i = 0; i < command->n; i++) {

        if (!ratelimit_script_to_refund(
                               ngx_http_ratelimit_redis_argument(command, i),
                               reply->data + i * RATELIMIT_SCRIPT_VERDICT))
        {
            return NGX_DECLINED;
        }
    }

    op = command->last - command->n * NGX_HTTP_RATELIMIT_REDIS_RECORD
         - (sizeof("c" CRLF) - 1);

    *op = RATELIMIT_SCRIPT_REFUND;

    command->op = RATELIMIT_SCRIPT_REFUND;
    command->undo = 0;

    ngx_http_ratelimit_redis_set_evalsha(command);

    return NGX_OK;
}


/* arguments are at the end, behind the letter of the operation */

static u_char *
ngx_http_ratelimit_redis_argument(ngx_http_ratelimit_redis_command_t *command,
    ngx_uint_t i)
{
    return command->last - (command->n - i) * NGX_HTTP_RATELIMIT_REDIS_RECORD
           + sizeof("$72" CRLF) - 1;
}
