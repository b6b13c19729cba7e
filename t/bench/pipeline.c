
/*
 * What one Redis can do with our scripts when nothing but a socket is before
 * it: a client that has DEPTH decisions under way on one connection.
 *
 *     pipeline PORT ALGORITHM DEPTH DECISIONS KEYS PID
 *
 * Prints decisions a second, and nanoseconds of processor time that PID, which
 * is Redis, took for each.
 */


#define _GNU_SOURCE

#include "core/ratelimit.h"
#include "redis/ratelimit_script.h"

#include "algorithm.h"
#include "client.h"
#include "random.h"


#define PIPELINE_LIMIT    9999999
#define PIPELINE_PERIOD   (10 * RATELIMIT_SECOND)
#define PIPELINE_BUCKETS  10
#define PIPELINE_COMMAND  512              /* bytes, at most */
#define PIPELINE_DEPTH    1024
#define PIPELINE_SHA      40
#define PIPELINE_HEAD     7                /* of a reply: "$58\r\n--" */
#define PIPELINE_REPLY    (PIPELINE_HEAD + RATELIMIT_SCRIPT_VERDICT + 2)


static void pipeline_load(int fd);
static void pipeline_item(const char *name);
static size_t pipeline_command(char *text, uint64_t key);
static void pipeline_send(int fd, unsigned n, uint64_t keys);
static unsigned pipeline_receive(int fd);
static void pipeline_run(int fd, unsigned depth, uint64_t decisions,
    uint64_t keys);


static ratelimit_rule_t    pipeline_rule;
static ratelimit_shape_t   pipeline_shape;
static ratelimit_item_t    pipeline_one;
static unsigned char       pipeline_argument[RATELIMIT_SCRIPT_ARGUMENT];
static char                pipeline_sha[PIPELINE_SHA];


/* tells Redis the script, which tells its name */

static void
pipeline_load(int fd)
{
    int                        n;
    char                       head[64], reply[PIPELINE_SHA + 8];
    const ratelimit_script_t  *script;

    script = &ratelimit_scripts[pipeline_shape.algorithm];

    n = snprintf(head, sizeof(head), "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n"
                 "$%zu\r\n", script->len);

    client_send(fd, head, n);
    client_send(fd, script->text, script->len);
    client_send(fd, "\r\n", 2);

    n = recv(fd, reply, PIPELINE_SHA + 7, MSG_WAITALL);

    if (n != PIPELINE_SHA + 7 || memcmp(reply, "$40\r\n", 5) != 0) {
        client_fail("SCRIPT LOAD");
    }

    memcpy(pipeline_sha, reply + 5, PIPELINE_SHA);
}


/* a limit that admits everything */

static void
pipeline_item(const char *name)
{
    pipeline_shape.algorithm = algorithm_find(name);

    if (pipeline_shape.algorithm == RATELIMIT_ALGORITHMS) {
        errno = EINVAL;
        client_fail(name);
    }

    pipeline_shape.buckets = PIPELINE_BUCKETS;
    ratelimit_shape_fit(&pipeline_shape, PIPELINE_LIMIT);

    pipeline_rule.limit = PIPELINE_LIMIT;
    pipeline_rule.period = PIPELINE_PERIOD;
    pipeline_rule.capacity = PIPELINE_LIMIT;
    pipeline_rule.ceiling = PIPELINE_LIMIT;

    pipeline_one.shape = &pipeline_shape;
    pipeline_one.rule = &pipeline_rule;
    pipeline_one.cost = 1;

    ratelimit_script_argument(&pipeline_one, pipeline_argument);
}


static size_t
pipeline_command(char *text, uint64_t key)
{
    int   n;
    char  name[64];

    n = snprintf(name, sizeof(name), "ratelimit:{2:key-%012llu}:pipeline::10",
                 (unsigned long long) key);

    n = snprintf(text, PIPELINE_COMMAND, "*7\r\n$7\r\nEVALSHA\r\n$40\r\n"
                 "%.40s\r\n$1\r\n1\r\n$%d\r\n%s\r\n$1\r\nc\r\n$%d\r\n",
                 pipeline_sha, n, name, RATELIMIT_SCRIPT_ARGUMENT);

    memcpy(text + n, pipeline_argument, RATELIMIT_SCRIPT_ARGUMENT);
    n += RATELIMIT_SCRIPT_ARGUMENT;
    memcpy(text + n, "\r\n$2\r\n--\r\n", 10);

    return n + 10;
}


static void
pipeline_send(int fd, unsigned n, uint64_t keys)
{
    static char  text[PIPELINE_COMMAND * PIPELINE_DEPTH];

    size_t  size;

    size = 0;

    for ( /* void */ ; n > 0; n--) {
        size += pipeline_command(text + size, random_below(keys));
    }

    if (size > 0) {
        client_send(fd, text, size);
    }
}


/* how many decisions have come */

static unsigned
pipeline_receive(int fd)
{
    static char    input[PIPELINE_REPLY * PIPELINE_DEPTH];
    static size_t  used;

    size_t    at;
    ssize_t   n;
    unsigned  replies;

    n = recv(fd, input + used, sizeof(input) - used, 0);

    if (n <= 0) {
        client_fail("recv");
    }

    used += n;
    replies = 0;

    for (at = 0; at + PIPELINE_REPLY <= used; at += PIPELINE_REPLY) {
        if (memcmp(input + at, "$58\r\n--", PIPELINE_HEAD) != 0
            || !ratelimit_script_verdict(&pipeline_one,
                                         (unsigned char *) input + at
                                         + PIPELINE_HEAD)
            || !pipeline_one.verdict.allowed)
        {
            errno = EBADMSG;
            client_fail("reply");
        }

        replies++;
    }

    used -= at;
    memmove(input, input + at, used);

    return replies;
}


static void
pipeline_run(int fd, unsigned depth, uint64_t decisions, uint64_t keys)
{
    uint64_t  sent, received;
    unsigned  n;

    pipeline_send(fd, depth, keys);

    sent = depth;
    received = 0;

    while (received < sent) {
        n = pipeline_receive(fd);
        received += n;

        if (n > decisions - sent) {
            n = decisions - sent;
        }

        pipeline_send(fd, n, keys);
        sent += n;
    }
}


int
main(int argc, char **argv)
{
    int        fd;
    double     n;
    uint64_t   start, used, depth;
    clockid_t  clock;

    if (argc != 7) {
        fprintf(stderr, "usage: pipeline PORT ALGORITHM DEPTH DECISIONS KEYS "
                "PID\n");
        return 2;
    }

    depth = client_number(argv[3]);
    n = client_number(argv[4]);
    clock = client_clock(argv[6]);
    fd = client_connect(client_number(argv[1]));

    if (depth == 0 || depth > PIPELINE_DEPTH || depth > n) {
        errno = ERANGE;
        client_fail(argv[3]);
    }

    pipeline_item(argv[2]);
    pipeline_load(fd);

    used = client_nanoseconds(clock);
    start = client_nanoseconds(CLOCK_MONOTONIC);

    pipeline_run(fd, depth, n, client_number(argv[5]));

    printf("%.0f\t%.1f\n",
           n * 1e9 / (client_nanoseconds(CLOCK_MONOTONIC) - start),
           (client_nanoseconds(clock) - used) / n);

    return 0;
}
