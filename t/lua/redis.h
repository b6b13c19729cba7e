
/*
 * A redis-server that is asked for the verdicts of the scripts, many at a
 * time: what is asked is answered in the same order later on.
 */


#ifndef _REDIS_H_INCLUDED_
#define _REDIS_H_INCLUDED_


#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <hiredis/hiredis.h>

#include "core/ratelimit.h"
#include "redis/ratelimit_script.h"
#include "tap.h"


#define REDIS_ARGS   16
#define REDIS_ITEMS  5


/* arguments of one command */

typedef struct {
    int                             n;
    const char                     *data[REDIS_ARGS];
    size_t                          len[REDIS_ARGS];
    unsigned char                   items[REDIS_ITEMS]
                                         [RATELIMIT_SCRIPT_ARGUMENT];
} redis_args_t;


static redisContext  *redis;


static void __attribute__((unused))
redis_die(const char *what)
{
    fprintf(stderr, "redis: %s: %s\n", what,
            redis->err ? redis->errstr : "?");
    exit(2);
}


/* the socket's path is the first argument of a program */

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
redis_ask(redis_args_t *args)
{
    if (redisAppendCommandArgv(redis, args->n, args->data, args->len)
        != REDIS_OK)
    {
        redis_die("append");
    }
}


static redisReply *
redis_answer(void)
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
    redis_ask(args);

    return redis_answer();
}


/* the name of a script by which it can be called */

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
