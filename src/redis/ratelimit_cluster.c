
/*
 * CRC16, CLUSTER SLOTS, MOVED and ASK.
 *
 * CLUSTER SLOTS is a list of ranges, [first, last, node, replica...], where a
 * node is [host, port, id, [name, value...]].  Whatever follows is ignored.
 */


#include <string.h>

#include "redis/ratelimit_cluster.h"


/* depths in the reply */
#define RATELIMIT_CLUSTER_REPLY     0
#define RATELIMIT_CLUSTER_RANGE     1
#define RATELIMIT_CLUSTER_PART      2
#define RATELIMIT_CLUSTER_FIELD     3
#define RATELIMIT_CLUSTER_MORE      4

/* indexes in a range */
#define RATELIMIT_CLUSTER_FIRST     0
#define RATELIMIT_CLUSTER_PRIMARY   2

/* indexes in a node */
#define RATELIMIT_CLUSTER_ENDPOINT  0
#define RATELIMIT_CLUSTER_PORT      1
#define RATELIMIT_CLUSTER_PAIRS     3

/* bits of what a range must have */
#define RATELIMIT_CLUSTER_HAS_FIRST  1
#define RATELIMIT_CLUSTER_HAS_LAST   2
#define RATELIMIT_CLUSTER_HAS_HOST   4
#define RATELIMIT_CLUSTER_HAS_PORT   8
#define RATELIMIT_CLUSTER_HAS_ALL    15

#define RATELIMIT_CLUSTER_MAX_PORT   65535


static uint16_t ratelimit_cluster_crc(uint16_t crc, const unsigned char *p,
    size_t len);
static int ratelimit_cluster_begin_range(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element);
static int ratelimit_cluster_add_part(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element);
static int ratelimit_cluster_add_field(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element);
static void ratelimit_cluster_add_pair(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element);
static void ratelimit_cluster_end_range(ratelimit_cluster_t *cluster);
static unsigned ratelimit_cluster_number(ratelimit_cluster_t *cluster);
static const char *ratelimit_cluster_read_number(const char *p,
    const char *last, unsigned max, unsigned *number);


unsigned
ratelimit_cluster_slot(const void *one, size_t one_len, const void *two,
    size_t two_len)
{
    uint16_t     crc;
    const void  *brace;

    crc = ratelimit_cluster_crc(0, one, one_len);
    brace = two_len ? memchr(two, '}', two_len) : NULL;

    if (brace != NULL) {
        two_len = (size_t) ((const char *) brace - (const char *) two);
    }

    return ratelimit_cluster_crc(crc, two, two_len)
           % RATELIMIT_CLUSTER_SLOTS;
}


/* of the polynomial 0x1021, four bits at a time */

static uint16_t
ratelimit_cluster_crc(uint16_t crc, const unsigned char *p, size_t len)
{
    const unsigned char  *last;

    static const uint16_t  remainders[16] = {
        0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
        0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef
    };

    for (last = p + len; p < last; p++) {
        crc = (uint16_t) (crc << 4) ^ remainders[crc >> 12 ^ *p >> 4];
        crc = (uint16_t) (crc << 4) ^ remainders[crc >> 12 ^ (*p & 15)];
    }

    return crc;
}


void
ratelimit_cluster_init(ratelimit_cluster_t *cluster)
{
    memset(cluster->map, 0, sizeof(cluster->map));

    cluster->n = 0;
    cluster->complete = 0;
    cluster->part = 0;
    cluster->field = 0;
    cluster->is_address = 0;
}


int
ratelimit_cluster_add(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element)
{
    switch (element->depth) {

    case RATELIMIT_CLUSTER_REPLY:
        return element->type == RATELIMIT_ELEMENT_ARRAY;

    case RATELIMIT_CLUSTER_RANGE:
        return ratelimit_cluster_begin_range(cluster, element);

    case RATELIMIT_CLUSTER_PART:
        cluster->part = element->index;
        return ratelimit_cluster_add_part(cluster, element);

    default:
        break;
    }

    /* of replicas, nothing is of interest */

    if (cluster->part != RATELIMIT_CLUSTER_PRIMARY) {
        return 1;
    }

    if (element->depth == RATELIMIT_CLUSTER_FIELD) {
        cluster->field = element->index;
        return ratelimit_cluster_add_field(cluster, element);
    }

    if (element->depth == RATELIMIT_CLUSTER_MORE
        && cluster->field == RATELIMIT_CLUSTER_PAIRS)
    {
        ratelimit_cluster_add_pair(cluster, element);
    }

    return 1;
}


static int
ratelimit_cluster_begin_range(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element)
{
    ratelimit_cluster_end_range(cluster);

    cluster->part = 0;
    cluster->field = 0;
    cluster->is_address = 0;

    cluster->node.host[0] = '\0';
    cluster->node.address[0] = '\0';

    return element->type == RATELIMIT_ELEMENT_ARRAY
           && element->number > RATELIMIT_CLUSTER_PRIMARY;
}


static int
ratelimit_cluster_add_part(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element)
{
    if (element->index == RATELIMIT_CLUSTER_PRIMARY) {
        return element->type == RATELIMIT_ELEMENT_ARRAY
               && element->number > RATELIMIT_CLUSTER_PORT;
    }

    if (element->index > RATELIMIT_CLUSTER_PRIMARY) {
        return 1;
    }

    if (element->type != RATELIMIT_ELEMENT_INTEGER || element->number < 0
        || element->number >= RATELIMIT_CLUSTER_SLOTS)
    {
        return 0;
    }

    if (element->index == RATELIMIT_CLUSTER_FIRST) {
        cluster->first = (unsigned) element->number;
        cluster->complete |= RATELIMIT_CLUSTER_HAS_FIRST;
        return 1;
    }

    cluster->last = (unsigned) element->number;
    cluster->complete |= RATELIMIT_CLUSTER_HAS_LAST;

    return 1;
}


/*
 * A node whose host is not known, or that can't be reached by the protocol in
 * use, leaves its range without a node.
 */

static int
ratelimit_cluster_add_field(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element)
{
    switch (element->index) {

    case RATELIMIT_CLUSTER_ENDPOINT:

        if (element->type == RATELIMIT_ELEMENT_STRING && element->len) {

            if (!ratelimit_cluster_is_host(element->text, element->len)) {
                return 1;
            }

            memcpy(cluster->node.host, element->text, element->len);
            cluster->node.host[element->len] = '\0';

        } else if (element->type != RATELIMIT_ELEMENT_STRING
                   && element->type != RATELIMIT_ELEMENT_NIL)
        {
            return 0;
        }

        cluster->complete |= RATELIMIT_CLUSTER_HAS_HOST;
        return 1;

    case RATELIMIT_CLUSTER_PORT:

        if (element->type != RATELIMIT_ELEMENT_INTEGER) {
            return 0;
        }

        if (element->number > 0
            && element->number <= RATELIMIT_CLUSTER_MAX_PORT)
        {
            cluster->node.port = (unsigned) element->number;
            cluster->complete |= RATELIMIT_CLUSTER_HAS_PORT;
        }

        return 1;

    default:
        return 1;
    }
}


/* "ip" and the address of a node whose host is a name */

static void
ratelimit_cluster_add_pair(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element)
{
    if (element->index % 2 == 0) {
        cluster->is_address = element->type == RATELIMIT_ELEMENT_STRING
                              && element->len == 2
                              && memcmp(element->text, "ip", 2) == 0;
        return;
    }

    if (cluster->is_address && element->type == RATELIMIT_ELEMENT_STRING
        && element->len <= RATELIMIT_CLUSTER_ADDRESS
        && ratelimit_cluster_is_host(element->text, element->len))
    {
        memcpy(cluster->node.address, element->text, element->len);
        cluster->node.address[element->len] = '\0';
    }
}


static void
ratelimit_cluster_end_range(ratelimit_cluster_t *cluster)
{
    unsigned  i, number;

    if (cluster->complete == RATELIMIT_CLUSTER_HAS_ALL) {
        number = ratelimit_cluster_number(cluster);

        for (i = cluster->first; i <= cluster->last; i++) {
            cluster->map[i] = (uint16_t) number;
        }
    }

    cluster->complete = 0;
}


/* the number of the node that was read; ranges of a node often are adjacent */

static unsigned
ratelimit_cluster_number(ratelimit_cluster_t *cluster)
{
    unsigned                   i;
    ratelimit_cluster_node_t  *node;

    for (i = cluster->n; i > 0; i--) {
        node = &cluster->nodes[i - 1];

        if (node->port == cluster->node.port
            && strcmp(node->host, cluster->node.host) == 0)
        {
            return i;
        }
    }

    if (cluster->n == RATELIMIT_CLUSTER_NODES) {
        return 0;
    }

    cluster->nodes[cluster->n++] = cluster->node;

    return cluster->n;
}


void
ratelimit_cluster_finish(ratelimit_cluster_t *cluster)
{
    ratelimit_cluster_end_range(cluster);
}


/* MOVED slot host:port, or ASK; an IPv6 address has no brackets */

int
ratelimit_cluster_redirect(const char *text, size_t len,
    ratelimit_redirect_t *redirect)
{
    const char  *p, *last, *port;

    last = text + len;

    if (len > 6 && memcmp(text, "MOVED ", 6) == 0) {
        redirect->ask = 0;
        p = text + 6;

    } else if (len > 4 && memcmp(text, "ASK ", 4) == 0) {
        redirect->ask = 1;
        p = text + 4;

    } else {
        return 0;
    }

    p = ratelimit_cluster_read_number(p, last, RATELIMIT_CLUSTER_SLOTS - 1,
                                      &redirect->slot);
    if (p == NULL || p == last || *p != ' ') {
        return 0;
    }

    p++;

    for (port = last; port > p && port[-1] != ':'; port--) {
        /* void */
    }

    if (port == p
        || ratelimit_cluster_read_number(port, last,
                                         RATELIMIT_CLUSTER_MAX_PORT,
                                         &redirect->port)
           != last
        || redirect->port == 0)
    {
        return 0;
    }

    redirect->host = p;
    redirect->len = (size_t) (port - 1 - p);

    return redirect->len == 0
           || ratelimit_cluster_is_host(p, redirect->len);
}


/* returns where it ends, or NULL */

static const char *
ratelimit_cluster_read_number(const char *p, const char *last, unsigned max,
    unsigned *number)
{
    const char  *start;

    *number = 0;

    for (start = p; p < last && *p >= '0' && *p <= '9'; p++) {
        *number = *number * 10 + (unsigned) (*p - '0');

        if (*number > max) {
            return NULL;
        }
    }

    return (p == start) ? NULL : p;
}


int
ratelimit_cluster_is_host(const char *text, size_t len)
{
    char    c;
    size_t  i;

    /* a name that begins with a dot would match others in certificates */

    if (len == 0 || len > RATELIMIT_CLUSTER_HOST || text[0] == '.') {
        return 0;
    }

    for (i = 0; i < len; i++) {
        c = text[i];

        if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z')
            && (c < '0' || c > '9') && c != '.' && c != ':' && c != '-'
            && c != '_')
        {
            return 0;
        }
    }

    return 1;
}
