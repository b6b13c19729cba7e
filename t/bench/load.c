
/*
 * Clients that keep a server busy: connections that stay open, each with some
 * requests under way, and a key in the field X-K of each.  Costs little itself,
 * and reads what processor time others use meanwhile.
 *
 *     load port=P|socket=PATH path=/a [path=/b]... [pid=N]... [depth=1]
 *          [connections=32] [rounds=1] [requests=1000] [order=random] [from=0]
 *          [keys=1] [pause=0]
 *
 * In each round each path gets so many requests, one path after the other.
 * Keys are the numbers from FROM to FROM + KEYS - 1; order "up" and "down" is
 * one after the other.  If there is a pause, of microseconds, answers are
 * left to come for as long before they are read.  Prints for each path of
 * each round a line of: path, requests a second, answers that are not 200, and
 * for each pid the nanoseconds of processor time that it took for a request.
 */


#define _GNU_SOURCE

#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client.h"
#include "random.h"


#define LOAD_CONNECTIONS  1024
#define LOAD_PIDS         4
#define LOAD_REQUEST      128              /* bytes, at most */
#define LOAD_DEPTH        64
#define LOAD_INPUT        65536
#define LOAD_PATHS        16


typedef enum {
    LOAD_RANDOM = 0,
    LOAD_UP,
    LOAD_DOWN,
    LOAD_ZIPF
} load_order_e;


typedef struct {
    int            fd;
    size_t         used;                   /* bytes of input */
    char           input[LOAD_INPUT];
} load_connection_t;


typedef struct {
    const char         *socket;
    const char         *paths[LOAD_PATHS];
    unsigned            npaths;
    clockid_t           clocks[LOAD_PIDS];
    unsigned            npids;
    load_order_e        order;
    uint64_t            port;
    uint64_t            connections;
    uint64_t            depth;
    uint64_t            rounds;
    uint64_t            requests;
    uint64_t            from;
    uint64_t            keys;
    uint64_t            pause;
} load_job_t;


/* what has become of the requests to a path in a round */

typedef struct {
    const char         *path;
    uint64_t            sent;
    uint64_t            received;
    uint64_t            refused;
} load_slice_t;


static load_order_e load_order(const char *text);
static void load_option(const char *name, const char *value);
static void load_parse(int argc, char **argv);
static uint64_t load_zipf(void);
static uint64_t load_key(void);
static void load_send(load_connection_t *c, unsigned n);
static size_t load_response(const char *text, size_t size);
static void load_receive(load_connection_t *c);
static void load_exchange(int poll);
static void load_measure(int poll, const char *path);


static load_job_t          load_job = {
    .connections = 32,
    .depth = 1,
    .rounds = 1,
    .requests = 1000,
    .keys = 1
};

static load_slice_t        load_slice;
static load_connection_t   load_connections[LOAD_CONNECTIONS];


static const struct {
    const char         *name;
    uint64_t           *value;
    uint64_t            most;
} load_numbers[] = {
    { "port", &load_job.port, 65535 },
    { "connections", &load_job.connections, LOAD_CONNECTIONS },
    { "depth", &load_job.depth, LOAD_DEPTH },
    { "rounds", &load_job.rounds, UINT32_MAX },
    { "requests", &load_job.requests, UINT32_MAX },
    { "from", &load_job.from, UINT32_MAX },
    { "keys", &load_job.keys, UINT32_MAX },
    { "pause", &load_job.pause, 999999 }
};

#define LOAD_NUMBERS  (sizeof(load_numbers) / sizeof(load_numbers[0]))


static load_order_e
load_order(const char *text)
{
    return strcmp(text, "up") == 0 ? LOAD_UP
           : strcmp(text, "down") == 0 ? LOAD_DOWN
           : strcmp(text, "zipf") == 0 ? LOAD_ZIPF : LOAD_RANDOM;
}


static void
load_option(const char *name, const char *value)
{
    size_t  i;

    for (i = 0; i < LOAD_NUMBERS; i++) {
        if (strcmp(name, load_numbers[i].name) == 0) {
            *load_numbers[i].value = client_number(value);
            errno = ERANGE;

            if (*load_numbers[i].value > load_numbers[i].most) {
                client_fail(name);
            }

            return;
        }
    }

    if (strcmp(name, "order") == 0) {
        load_job.order = load_order(value);

    } else if (strcmp(name, "socket") == 0) {
        load_job.socket = value;

    } else if (strcmp(name, "path") == 0 && load_job.npaths < LOAD_PATHS
               && strlen(value) < LOAD_REQUEST / 2)
    {
        load_job.paths[load_job.npaths++] = value;

    } else if (strcmp(name, "pid") == 0 && load_job.npids < LOAD_PIDS) {
        load_job.clocks[load_job.npids++] = client_clock(value);

    } else {
        errno = EINVAL;
        client_fail(name);
    }
}


static void
load_parse(int argc, char **argv)
{
    int    i;
    char  *equals;

    for (i = 1; i < argc; i++) {
        equals = strchr(argv[i], '=');

        if (equals == NULL) {
            errno = EINVAL;
            client_fail(argv[i]);
        }

        *equals = '\0';
        load_option(argv[i], equals + 1);
    }

    if ((load_job.port == 0 && load_job.socket == NULL)
        || load_job.npaths == 0 || load_job.depth == 0 || load_job.keys == 0)
    {
        errno = EINVAL;
        client_fail("port or socket, path, depth, keys");
    }
}


/*
 * The k'th key is about as popular as 1 / k: numbers of so many bits are as
 * popular together as those of any other number of bits.
 */

static uint64_t
load_zipf(void)
{
    uint64_t  i, bits;

    bits = 64 - __builtin_clzll(load_job.keys);

    do {
        i = (uint64_t) 1 << random_below(bits);
        i += random_below(i);
    } while (i > load_job.keys);

    return i - 1;
}


static uint64_t
load_key(void)
{
    uint64_t  i;

    i = load_slice.sent % load_job.keys;

    switch (load_job.order) {

    case LOAD_UP:
        return load_job.from + i;

    case LOAD_DOWN:
        return load_job.from + load_job.keys - 1 - i;

    case LOAD_ZIPF:
        return load_job.from + load_zipf();

    default:
        return load_job.from + random_below(load_job.keys);
    }
}


/* n requests at once, or as many as are left */

static void
load_send(load_connection_t *c, unsigned n)
{
    char    text[LOAD_REQUEST * LOAD_DEPTH];
    size_t  size;

    size = 0;

    for ( /* void */ ; n > 0 && load_slice.sent < load_job.requests; n--) {
        size += snprintf(text + size, LOAD_REQUEST, "GET %s HTTP/1.1\r\n"
                         "Host: a\r\nX-K: key-%012llu\r\n\r\n", load_slice.path,
                         (unsigned long long) load_key());
        load_slice.sent++;
    }

    if (size > 0) {
        client_send(c->fd, text, size);
    }
}


/* the bytes of the first response, 0 if it is not there as a whole */

static size_t
load_response(const char *text, size_t size)
{
    size_t       length;
    const char  *end, *line;

    end = memmem(text, size, "\r\n\r\n", 4);

    if (end == NULL) {
        return 0;
    }

    length = end + 4 - text;
    line = text;

    while (line < end) {
        line = (const char *) memchr(line, '\n', end + 4 - line) + 1;

        if (strncasecmp(line, "Content-Length:", 15) == 0) {
            length += strtoul(line + 15, NULL, 10);
            break;
        }
    }

    return length <= size ? length : 0;
}


static void
load_receive(load_connection_t *c)
{
    size_t    at, length;
    ssize_t   n;
    unsigned  answers;

    n = recv(c->fd, c->input + c->used, LOAD_INPUT - c->used, MSG_DONTWAIT);

    if (n == -1 && errno == EAGAIN) {
        return;
    }

    if (n <= 0) {
        client_fail("a connection was closed");
    }

    c->used += n;
    at = 0;
    answers = 0;
    length = load_response(c->input, c->used);

    while (length > 0) {
        load_slice.refused += memcmp(c->input + at + 9, "200", 3) != 0;
        answers++;
        at += length;
        length = load_response(c->input + at, c->used - at);
    }

    c->used -= at;
    memmove(c->input, c->input + at, c->used);

    load_slice.received += answers;
    load_send(c, answers);
}


static void
load_exchange(int poll)
{
    int                 i, n;
    uint64_t            j;
    struct epoll_event  events[LOAD_CONNECTIONS];

    for (j = 0; j < load_job.connections; j++) {
        load_send(&load_connections[j], load_job.depth);
    }

    while (load_slice.received < load_job.requests) {

        if (load_job.pause) {
            (void) usleep(load_job.pause);
        }

        n = epoll_wait(poll, events, LOAD_CONNECTIONS, -1);

        for (i = 0; i < n; i++) {
            load_receive(events[i].data.ptr);
        }
    }
}


static void
load_measure(int poll, const char *path)
{
    double    n;
    uint64_t  start, used[LOAD_PIDS];
    unsigned  i;

    memset(&load_slice, 0, sizeof(load_slice_t));

    load_slice.path = path;
    n = load_job.requests;

    for (i = 0; i < load_job.npids; i++) {
        used[i] = client_nanoseconds(load_job.clocks[i]);
    }

    start = client_nanoseconds(CLOCK_MONOTONIC);

    load_exchange(poll);

    start = client_nanoseconds(CLOCK_MONOTONIC) - start;

    printf("%s\t%.0f\t%llu", path, n * 1e9 / start,
           (unsigned long long) load_slice.refused);

    for (i = 0; i < load_job.npids; i++) {
        used[i] = client_nanoseconds(load_job.clocks[i]) - used[i];
        printf("\t%.1f", used[i] / n);
    }

    printf("\n");
}


int
main(int argc, char **argv)
{
    int                 poll;
    uint64_t            i;
    unsigned            j;
    struct epoll_event  event;

    load_parse(argc, argv);

    poll = epoll_create1(0);
    event.events = EPOLLIN;
    random_state = client_nanoseconds(CLOCK_MONOTONIC);

    for (i = 0; i < load_job.connections; i++) {
        load_connections[i].fd = (load_job.socket != NULL)
                                 ? client_connect_local(load_job.socket)
                                 : client_connect(load_job.port);
        event.data.ptr = &load_connections[i];
        epoll_ctl(poll, EPOLL_CTL_ADD, load_connections[i].fd, &event);
    }

    for (i = 0; i < load_job.rounds; i++) {
        for (j = 0; j < load_job.npaths; j++) {
            load_measure(poll, load_job.paths[j]);
        }
    }

    return 0;
}
