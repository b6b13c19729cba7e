
/*
 * Any bytes as what a cluster says: as an error that may be a redirection, and
 * as the elements of a map, in any order and at any depth.  What is accepted is
 * within its bounds.
 *
 * An element is a byte for its type and depth, one for its index, and a number
 * of two bytes, or a text of so many bytes as the next one says.
 */


#include <string.h>

#include "redis/ratelimit_cluster.h"

#include "fuzz.h"


static void fuzz_redirect(const char *text, size_t len);
static size_t fuzz_element(const uint8_t *data, size_t size,
    ratelimit_element_t *element);
static void fuzz_map(const ratelimit_cluster_t *cluster);


static void
fuzz_redirect(const char *text, size_t len)
{
    ratelimit_redirect_t  redirect;

    if (!ratelimit_cluster_redirect(text, len, &redirect)) {
        return;
    }

    fuzz_check(redirect.slot < RATELIMIT_CLUSTER_SLOTS);
    fuzz_check(redirect.port >= 1 && redirect.port <= 65535);
    fuzz_check(redirect.host >= text);
    fuzz_check(redirect.host + redirect.len <= text + len);
    fuzz_check(redirect.len == 0
               || ratelimit_cluster_is_host(redirect.host, redirect.len));
}


/* returns how many bytes it has */

static size_t
fuzz_element(const uint8_t *data, size_t size, ratelimit_element_t *element)
{
    size_t  n;

    if (size < 4) {
        return 0;
    }

    memset(element, 0, sizeof(ratelimit_element_t));

    element->type = (ratelimit_element_e) (data[0] & 3);
    element->depth = data[0] >> 2 & 7;
    element->index = data[1];
    element->number = (int16_t) (data[2] | data[3] << 8);

    if (element->type != RATELIMIT_ELEMENT_STRING) {
        return 4;
    }

    n = (data[2] < size - 3) ? data[2] : size - 3;

    element->text = (const char *) data + 3;
    element->len = n;

    return 3 + n;
}


static void
fuzz_map(const ratelimit_cluster_t *cluster)
{
    unsigned                         i;
    const ratelimit_cluster_node_t  *node;

    fuzz_check(cluster->n <= RATELIMIT_CLUSTER_NODES);

    for (i = 0; i < RATELIMIT_CLUSTER_SLOTS; i++) {
        fuzz_check(cluster->map[i] <= cluster->n);
    }

    for (i = 0; i < cluster->n; i++) {
        node = &cluster->nodes[i];

        fuzz_check(node->port >= 1 && node->port <= 65535);
        fuzz_check(memchr(node->host, '\0', sizeof(node->host)) != NULL);
        fuzz_check(memchr(node->address, '\0', sizeof(node->address)) != NULL);
        fuzz_check(node->host[0] == '\0'
                   || ratelimit_cluster_is_host(node->host,
                                                strlen(node->host)));
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t               n;
    ratelimit_element_t  element;

    static ratelimit_cluster_t  cluster;

    fuzz_redirect((const char *) data, size);

    fuzz_check(ratelimit_cluster_slot(data, size / 2, data + size / 2,
                                      size - size / 2)
               < RATELIMIT_CLUSTER_SLOTS);

    ratelimit_cluster_init(&cluster);

    for (n = fuzz_element(data, size, &element); n;
         n = fuzz_element(data, size, &element))
    {
        if (!ratelimit_cluster_add(&cluster, &element)) {
            break;
        }

        data += n;
        size -= n;
    }

    ratelimit_cluster_finish(&cluster);
    fuzz_map(&cluster);

    return 0;
}
