
/*
 * Fills Redis with states of one algorithm, each of which was charged by the
 * scripts until its limit was used up, and prints how many were refused.
 *
 *   fill SOCKET KEYS ALGORITHM BUCKETS LIMIT REQUESTS
 */


#include "algorithm.h"
#include "redis.h"


#define FILL_BATCH  500


static void fill_send(ratelimit_item_t *item, const char *sha, unsigned i);
static int fill_receive(ratelimit_item_t *item, unsigned n);


static void
fill_send(ratelimit_item_t *item, const char *sha, unsigned i)
{
    char          key[64];
    const char   *keys[1];
    redis_args_t  args;

    /* a key of 16 bytes in its full name */

    snprintf(key, sizeof(key), "ratelimit:{2:%016x}:user::60%c10", i,
             ratelimit_algorithms[item->shape->algorithm]->letter);

    keys[0] = key;

    redis_evalsha(&args, sha, RATELIMIT_SCRIPT_DECIDE, keys, item, 1);
    redis_send(&args);
}


/* returns how many were not admitted */

static int
fill_receive(ratelimit_item_t *item, unsigned n)
{
    int                   bad;
    unsigned              i;
    redisReply           *reply;
    const unsigned char  *result;

    bad = 0;

    for (i = 0; i < n; i++) {
        reply = redis_receive();

        result = redis_verdicts(reply, 1);

        if (result == NULL || !ratelimit_script_verdict(item, result)
            || !item->verdict.allowed)
        {
            bad++;
        }

        freeReplyObject(reply);
    }

    return bad;
}


int
main(int argc, char **argv)
{
    int                bad;
    char               sha[41];
    unsigned           i, j, keys, requests;
    ratelimit_rule_t   rule;
    ratelimit_item_t   item;
    ratelimit_shape_t  shape;

    if (argc != 7) {
        fprintf(stderr, "usage: fill SOCKET KEYS ALGORITHM BUCKETS LIMIT "
                "REQUESTS\n");
        return 2;
    }

    memset(&rule, 0, sizeof(ratelimit_rule_t));
    memset(&item, 0, sizeof(ratelimit_item_t));
    memset(&shape, 0, sizeof(ratelimit_shape_t));

    keys = strtoul(argv[2], NULL, 10);
    shape.algorithm = algorithm_find(argv[3]);
    shape.buckets = strtoul(argv[4], NULL, 10);
    requests = strtoul(argv[6], NULL, 10);

    rule.limit = strtoul(argv[5], NULL, 10);
    rule.capacity = rule.limit;
    rule.ceiling = rule.limit;
    rule.period = 86400 * RATELIMIT_SECOND;
    rule.free = RATELIMIT_NODELAY;

    ratelimit_shape_fit(&shape, rule.ceiling);

    item.shape = &shape;
    item.rule = &rule;
    item.cost = rule.limit / requests;

    redis_open(argv[1]);

    redis_load(ratelimit_scripts[shape.algorithm].text, sha);

    bad = 0;

    for (i = 0; i < keys; i += FILL_BATCH) {
        for (j = 0; j < FILL_BATCH * requests; j++) {
            fill_send(&item, sha, i + j % FILL_BATCH);
        }

        bad += fill_receive(&item, FILL_BATCH * requests);
    }

    printf("%d\n", bad);

    redisFree(redis);

    return 0;
}
