
/*
 * A connection to a redis-server that runs the scripts.  Many commands may be
 * sent before the first reply is received.
 */


#ifndef _REDIS_H_INCLUDED_
#define _REDIS_H_INCLUDED_


#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <hiredis/hiredis.h>

#include "core/ratelimit.h"
#include "redis/ratelimit_exchange.h"
#include "redis/ratelimit_script.h"
#include "tap.h"


/* a call may have a limit of each algorithm */
#define REDIS_ITEMS  RATELIMIT_ALGORITHMS
#define REDIS_ARGS   (3 * REDIS_ITEMS + 7)

/* bytes of an argument and of what write-back reports behind it */
#define REDIS_REPORT (RATELIMIT_SCRIPT_ARGUMENT + RATELIMIT_EXCHANGE_TAIL     \
                      + RATELIMIT_EXCHANGE_DELTA)


/* arguments of one command */

typedef struct {
    int                             n;
    char                            op, keys[32];
    const char                     *data[REDIS_ARGS];
    size_t                          len[REDIS_ARGS];
    unsigned char                   items[REDIS_ITEMS][REDIS_REPORT];
} redis_args_t;


static redisContext  *redis;

/* all calls have the same echo: replies are in their order */
static const char     redis_echo[RATELIMIT_SCRIPT_ECHO] = "\r\377";


static void __attribute__((unused))
redis_die(const char *what)
{
    fprintf(stderr, "redis: %s: %s\n", what,
            redis->err ? redis->errstr : "?");
    exit(2);
}


/* a path of a UNIX-domain socket */

static void __attribute__((unused))
redis_open(const char *path)
{
    redis = redisConnectUnix(path);

    if (redis == NULL || redis->err) {
        fprintf(stderr, "redis: no connection to \"%s\"\n", path);
        exit(2);
    }
}


static void __attribute__((unused))
redis_add(redis_args_t *args, const void *data, size_t len)
{
    if (args->n == REDIS_ARGS) {
        abort();
    }

    args->data[args->n] = data;
    args->len[args->n] = len;
    args->n++;
}


static void __attribute__((unused))
redis_send(redis_args_t *args)
{
    if (redisAppendCommandArgv(redis, args->n, args->data, args->len)
        != REDIS_OK)
    {
        redis_die("append");
    }
}


static redisReply *
redis_receive(void)
{
    void  *reply;

    if (redisGetReply(redis, &reply) != REDIS_OK) {
        redis_die("reply");
    }

    return reply;
}


static __attribute__((unused)) redisReply *
redis_call(redis_args_t *args)
{
    redis_send(args);

    return redis_receive();
}


/* EVALSHA sha n key... op argument... echo */

static void __attribute__((unused))
redis_evalsha(redis_args_t *args, const char *sha, char op,
    const char *const *keys, const ratelimit_item_t *items, size_t n)
{
    size_t  i;

    args->n = 0;
    args->op = op;
    snprintf(args->keys, sizeof(args->keys), "%zu", n);

    redis_add(args, "EVALSHA", 7);
    redis_add(args, sha, 40);
    redis_add(args, args->keys, strlen(args->keys));

    for (i = 0; i < n; i++) {
        redis_add(args, keys[i], strlen(keys[i]));
    }

    redis_add(args, &args->op, 1);

    for (i = 0; i < n; i++) {
        ratelimit_script_argument(&items[i], args->items[i]);
        redis_add(args, args->items[i], RATELIMIT_SCRIPT_ARGUMENT);
    }

    redis_add(args, redis_echo, RATELIMIT_SCRIPT_ECHO);
}


/* what a script returns behind the echo; NULL if it is not so long */

static const unsigned char *
redis_result(const redisReply *reply, size_t len)
{
    if (reply->type != REDIS_REPLY_STRING
        || (size_t) reply->len < RATELIMIT_SCRIPT_ECHO + len
        || memcmp(reply->str, redis_echo, RATELIMIT_SCRIPT_ECHO) != 0)
    {
        return NULL;
    }

    return (const unsigned char *) reply->str + RATELIMIT_SCRIPT_ECHO;
}


/* NULL if there are not so many, or there is more */

static __attribute__((unused)) const unsigned char *
redis_verdicts(const redisReply *reply, size_t n)
{
    size_t  len;

    len = n * RATELIMIT_SCRIPT_VERDICT;

    return (size_t) reply->len == RATELIMIT_SCRIPT_ECHO + len
           ? redis_result(reply, len) : NULL;
}


/*
 * EVALSHA sha 2n key... record... x argument... echo: a batch, of a number that
 * none had before, of one charge for each limit, at the time of its verdict's
 * stamp
 */

static void __attribute__((unused))
redis_exchange(redis_args_t *args, const char *sha, const char *const *keys,
    const char *const *records, const ratelimit_item_t *items, size_t n)
{
    size_t              i;
    unsigned char      *p;
    ratelimit_delta_t   delta;
    ratelimit_report_t  report = { .machine = 4711,
                                   .interval = RATELIMIT_SECOND, .batch = 1 };

    static uint64_t  number;

    redis_evalsha(args, sha, RATELIMIT_SCRIPT_EXCHANGE, keys, items, n);
    snprintf(args->keys, sizeof(args->keys), "%zu", 2 * n);

    args->len[2] = strlen(args->keys);
    args->n = 3 + n;

    for (i = 0; i < n; i++) {
        redis_add(args, records[i], strlen(records[i]));
    }

    redis_add(args, &args->op, 1);

    report.number = ++number;

    for (i = 0; i < n; i++) {
        delta.stamp = items[i].verdict.stamp;
        delta.added = (uint32_t) items[i].cost;
        delta.refunded = 0;

        p = args->items[i] + RATELIMIT_SCRIPT_ARGUMENT;
        p = ratelimit_exchange_tail(p, &report);
        (void) ratelimit_exchange_delta(p, &delta);

        redis_add(args, args->items[i], REDIS_REPORT);
    }

    redis_add(args, redis_echo, RATELIMIT_SCRIPT_ECHO);
}


/* SCRIPT LOAD: writes the SHA1 by which the script can be called */

static void __attribute__((unused))
redis_load(const char *text, char *sha)
{
    redisReply    *reply;
    redis_args_t   args;

    args.n = 0;
    redis_add(&args, "SCRIPT", 6);
    redis_add(&args, "LOAD", 4);
    redis_add(&args, text, strlen(text));

    reply = redis_call(&args);

    if (reply->type != REDIS_REPLY_STRING || reply->len != 40) {
        fprintf(stderr, "redis: the script does not load: %s\n", reply->str);
        exit(2);
    }

    memcpy(sha, reply->str, 41);
    freeReplyObject(reply);
}


#endif /* _REDIS_H_INCLUDED_ */
