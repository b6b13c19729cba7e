
/*
 * What Redis has charged, or will charge, for a request that has ended or was
 * decided without it: once the reply is there, the command becomes a refund.
 */


#include "redis/ngx_http_ratelimit_redis.h"


static void ngx_http_ratelimit_redis_mark_undo(
    ngx_http_ratelimit_redis_command_t *command, ngx_uint_t i, ngx_uint_t undo);
static void ngx_http_ratelimit_redis_set_op(
    ngx_http_ratelimit_redis_command_t *command, ratelimit_script_e op);
static u_char *ngx_http_ratelimit_redis_argument(
    ngx_http_ratelimit_redis_command_t *command, ngx_uint_t i);


/* of this worker, the oldest first */
static ngx_queue_t  ngx_http_ratelimit_redis_questions;

/* the number of the last one */
static uint64_t     ngx_http_ratelimit_redis_last_question;


uint64_t
ngx_http_ratelimit_redis_questions_settled(void)
{
    ngx_queue_t                         *q;
    ngx_http_ratelimit_redis_command_t  *command;

    if (ngx_http_ratelimit_redis_questions.next == NULL) {
        ngx_queue_init(&ngx_http_ratelimit_redis_questions);
    }

    if (ngx_queue_empty(&ngx_http_ratelimit_redis_questions)) {
        return ngx_http_ratelimit_redis_last_question + 1;
    }

    q = ngx_queue_head(&ngx_http_ratelimit_redis_questions);
    command = ngx_queue_data(q, ngx_http_ratelimit_redis_command_t, open);

    return command->question;
}


/* a time: that of a worker that has the name of a former one is higher */

uint64_t
ngx_http_ratelimit_redis_next_question(void)
{
    uint64_t  now;

    now = (uint64_t) ngx_current_msec * 1000;

    ngx_http_ratelimit_redis_last_question = ngx_max(
                            now, ngx_http_ratelimit_redis_last_question + 1);

    return ngx_http_ratelimit_redis_last_question;
}


void
ngx_http_ratelimit_redis_open_question(
    ngx_http_ratelimit_redis_command_t *command, uint64_t number)
{
    command->question = number;
    ngx_queue_insert_tail(&ngx_http_ratelimit_redis_questions, &command->open);
}


/* what is void may be void once more */

ngx_int_t
ngx_http_ratelimit_redis_void(ngx_http_ratelimit_redis_command_t *command)
{
    if (!command->lost || command->question == 0
        || (command->op == RATELIMIT_SCRIPT_ASK && !command->undo))
    {
        return NGX_DECLINED;
    }

    ngx_http_ratelimit_redis_set_op(command, RATELIMIT_SCRIPT_VOID);

    return NGX_OK;
}


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
    u_char      *verdicts;
    ngx_uint_t   i;

    if (!command->undo || type != NGX_HTTP_RATELIMIT_REDIS_STRING) {
        return NGX_DECLINED;
    }

    verdicts = ngx_http_ratelimit_redis_verdicts(command, reply);

    if (verdicts == NULL) {
        return NGX_DECLINED;
    }

    for (i = 0; i < command->n; i++) {

        if (!ratelimit_script_to_refund(
                               ngx_http_ratelimit_redis_argument(command, i),
                               verdicts + i * RATELIMIT_SCRIPT_VERDICT))
        {
            return NGX_DECLINED;
        }
    }

    ngx_http_ratelimit_redis_set_op(command,
                                    command->question ? RATELIMIT_SCRIPT_VOID
                                                   : RATELIMIT_SCRIPT_REFUND);
    return NGX_OK;
}


static void
ngx_http_ratelimit_redis_set_op(ngx_http_ratelimit_redis_command_t *command,
    ratelimit_script_e op)
{
    *(command->arguments - (sizeof("c" CRLF) - 1)) = (u_char) op;

    command->op = op;
    command->undo = 0;

    ngx_http_ratelimit_redis_set_evalsha(command);
}


/* each is behind the number of its bytes, "$72" */

static u_char *
ngx_http_ratelimit_redis_argument(ngx_http_ratelimit_redis_command_t *command,
    ngx_uint_t i)
{
    u_char      *p;
    size_t       len;
    ngx_uint_t   k;

    p = command->arguments;

    for (k = 0; /* void */ ; k++) {
        len = 0;

        for (p++; *p != CR; p++) {
            len = len * 10 + (*p - '0');
        }

        p += sizeof(CRLF) - 1;

        if (k == i) {
            return p;
        }

        p += len + sizeof(CRLF) - 1;
    }
}
