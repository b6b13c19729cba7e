
/*
 * What a cluster says: hash slots of keys, maps that are whole, partial,
 * strange or no maps at all, and redirections.
 */


#include <stdlib.h>
#include <string.h>

#include "redis/ratelimit_cluster.h"

#include "tap.h"


typedef struct {
    const char                     *key;      /* between the braces */
    unsigned                        slot;
} cluster_key_t;


/* a reply, as a text: "[" and "]" around arrays, "-" is nil */

typedef struct {
    const char                     *text;
    const char                     *map;      /* first-last=host:port,... */
} cluster_map_t;


typedef struct {
    const char                     *text;
    const char                     *shown;    /* NULL: no redirection */
} cluster_redirect_t;


static int cluster_add(ratelimit_cluster_t *cluster, const char **p,
    unsigned depth, size_t index);
static size_t cluster_elements(const char *p);
static int cluster_read(ratelimit_cluster_t *cluster, const char *text);
static void cluster_show(const ratelimit_cluster_t *cluster, char *shown,
    size_t size);
static void cluster_test_slots(void);
static void cluster_test_maps(void);
static void cluster_test_refused(void);
static void cluster_test_address(void);
static void cluster_test_many(void);
static void cluster_test_redirects(void);


/* as "CLUSTER KEYSLOT" has it */

static const cluster_key_t  cluster_keys[] = {
    { "123456789", 12739 },
    { "", 0 },
    { "a", 15495 },
    { "foo", 12182 },
    { "2:", 13550 },
    { "2:alice", 4621 },
    { "2:192.0.2.7", 15357 },
    { "2:a}b", 15644 },
    { "2:}", 13550 },
    { "2:{x", 10457 },
};


static const cluster_map_t  cluster_maps[] = {
    { "[ [ 0 16383 [ h 7 id ] ] ]", "0-16383=h:7" },
    { "[ [ 0 99 [ h 7 id ] [ r 9 id ] ] [ 100 16383 [ g 8 id ] ] ]",
      "0-99=h:7,100-16383=g:8" },
    { "[ [ 5 5 [ 127.0.0.1 7000 id [ ] ] ] ]", "5-5=127.0.0.1:7000" },
    { "[ [ 5 6 [ ::1 7000 id [ a b ] ] ] ]", "5-6=::1:7000" },
    { "[ ]", "" },

    /* two ranges of one node, one host with two ports */

    { "[ [ 0 1 [ h 7 a ] ] [ 3 4 [ h 7 a ] ] [ 5 6 [ h 8 b ] ] ]",
      "0-1=h:7,3-4=h:7,5-6=h:8" },

    /* what is asked is meant */

    { "[ [ 0 1 [ - 7 id ] ] ]", "0-1=:7" },
    { "[ [ 0 1 [ '' 7 id ] ] ]", "0-1=:7" },

    /* what is not known, or can't be used */

    { "[ [ 0 1 [ ? 7 id ] ] [ 2 3 [ h 7 id ] ] ]", "2-3=h:7" },
    { "[ [ 0 1 [ .h 7 id ] ] [ 2 3 [ h 7 id ] ] ]", "2-3=h:7" },
    { "[ [ 0 1 [ h 0 id ] ] [ 2 3 [ h 7 id ] ] ]", "2-3=h:7" },
    { "[ [ 0 1 [ h 65536 id ] ] [ 2 3 [ h 65535 id ] ] ]", "2-3=h:65535" },
    { "[ [ 9 8 [ h 7 id ] ] ]", "" },

    /* what is further in it */

    { "[ [ 0 1 [ h 7 id [ hostname x ] z ] [ r 9 id ] [ ] - 7 ] ]",
      "0-1=h:7" },
    { "[ [ 0 1 [ h 7 id [ a [ b [ c ] ] ] ] [ [ [ 3 ] ] 4 ] ] ]", "0-1=h:7" },
    { "[ [ 0 1 [ h 7 ] ] ]", "0-1=h:7" },

    /* what comes later counts */

    { "[ [ 0 9 [ h 7 id ] ] [ 3 4 [ g 8 id ] ] ]",
      "0-2=h:7,3-4=g:8,5-9=h:7" },
};


static const char *const  cluster_refused[] = {
    "-",
    "x",
    "7",
    "[ 7 ]",
    "[ x ]",
    "[ - ]",
    "[ [ ] ]",
    "[ [ 0 1 ] ]",
    "[ [ 0 1 x ] ]",
    "[ [ 0 1 - ] ]",
    "[ [ 0 1 [ ] ] ]",
    "[ [ 0 1 [ h ] ] ]",
    "[ [ x 1 [ h 7 ] ] ]",
    "[ [ 0 x [ h 7 ] ] ]",
    "[ [ 0 - [ h 7 ] ] ]",
    "[ [ 0 [ ] [ h 7 ] ] ]",
    "[ [ 0 16384 [ h 7 ] ] ]",
    "[ [ -1 5 [ h 7 ] ] ]",
    "[ [ 0 99999999999 [ h 7 ] ] ]",
    "[ [ 0 1 [ 7 7 ] ] ]",
    "[ [ 0 1 [ [ ] 7 ] ] ]",
    "[ [ 0 1 [ h x ] ] ]",
    "[ [ 0 1 [ h - ] ] ]",
    "[ [ 0 1 [ h 7 id ] ] [ 2 3 ] ]",
};


static const cluster_redirect_t  cluster_redirects[] = {
    { "MOVED 3999 127.0.0.1:6381", "moved 3999 127.0.0.1 6381" },
    { "ASK 3999 127.0.0.1:6381", "ask 3999 127.0.0.1 6381" },
    { "MOVED 0 ::1:1", "moved 0 ::1 1" },
    { "MOVED 16383 redis-1.example.com:65535",
      "moved 16383 redis-1.example.com 65535" },
    { "MOVED 5 :6381", "moved 5  6381" },
    { "MOVED 16384 h:1", NULL },
    { "MOVED -1 h:1", NULL },
    { "MOVED 5 h:0", NULL },
    { "MOVED 5 h:65536", NULL },
    { "MOVED 5 h:", NULL },
    { "MOVED 5 h", NULL },
    { "MOVED 5 h:1x", NULL },
    { "MOVED 5  h:1", NULL },
    { "MOVED 5 h:1 ", NULL },
    { "MOVED 5 h h:1", NULL },
    { "MOVED 5 h\":1", NULL },
    { "MOVED 5", NULL },
    { "MOVED 5 ", NULL },
    { "MOVED ", NULL },
    { "MOVED", NULL },
    { "moved 5 h:1", NULL },
    { "MOVED x h:1", NULL },
    { "MOVED 99999999999999999999 h:1", NULL },
    { "MOVED 5 h:99999999999999999999", NULL },
    { "ASKING 5 h:1", NULL },
    { "ASK", NULL },
    { "", NULL },
    { "TRYAGAIN Multiple keys request during rehashing of slot", NULL },
};


static void
cluster_test_slots(void)
{
    size_t    i, len, cut;
    unsigned  slot;

    for (i = 0; i < sizeof(cluster_keys) / sizeof(cluster_keys[0]); i++) {
        len = strlen(cluster_keys[i].key);
        cut = len < 2 ? len : 2;

        slot = ratelimit_cluster_slot(cluster_keys[i].key, cut,
                                      cluster_keys[i].key + cut, len - cut);

        tap_ok(slot == cluster_keys[i].slot, "\"%s\" is in %u, not %u",
               cluster_keys[i].key, slot, cluster_keys[i].slot);
    }
}


/* one element, and what is in it; words end at a blank */

static int
cluster_add(ratelimit_cluster_t *cluster, const char **p, unsigned depth,
    size_t index)
{
    char                 *end;
    size_t                i;
    const char           *word;
    ratelimit_element_t   element;

    memset(&element, 0, sizeof(ratelimit_element_t));

    element.depth = depth;
    element.index = index;

    word = *p;
    *p += strcspn(word, " ");
    element.len = (size_t) (*p - word);
    *p += strspn(*p, " ");

    if (*word == '[') {
        element.type = RATELIMIT_ELEMENT_ARRAY;
        element.number = (int64_t) cluster_elements(*p);

        if (!ratelimit_cluster_add(cluster, &element)) {
            return 0;
        }

        for (i = 0; **p != ']'; i++) {
            if (!cluster_add(cluster, p, depth + 1, i)) {
                return 0;
            }
        }

        *p += 1 + strspn(*p + 1, " ");

        return 1;
    }

    element.number = strtoll(word, &end, 10);
    element.type = RATELIMIT_ELEMENT_INTEGER;

    if (element.len == 1 && *word == '-') {
        element.type = RATELIMIT_ELEMENT_NIL;

    } else if (end != word + element.len) {
        element.type = RATELIMIT_ELEMENT_STRING;
        element.text = word;

        if (*word == '\'') {
            element.len = 0;
        }
    }

    return ratelimit_cluster_add(cluster, &element);
}


/* of the array whose content begins here */

static size_t
cluster_elements(const char *p)
{
    size_t    n;
    unsigned  depth;

    for (n = 0, depth = 0; *p != ']' || depth; p += strspn(p, " ")) {

        if (*p == ']') {
            depth--;

        } else {
            n += (depth == 0);
            depth += (*p == '[');
        }

        p += strcspn(p, " ");
    }

    return n;
}


static int
cluster_read(ratelimit_cluster_t *cluster, const char *text)
{
    memset(cluster, 0xa5, sizeof(ratelimit_cluster_t));

    ratelimit_cluster_init(cluster);

    if (!cluster_add(cluster, &text, 0, 0)) {
        return 0;
    }

    ratelimit_cluster_finish(cluster);

    return 1;
}


static void
cluster_show(const ratelimit_cluster_t *cluster, char *shown, size_t size)
{
    size_t                           len;
    unsigned                         i, first, number;
    const ratelimit_cluster_node_t  *node;

    shown[0] = '\0';

    for (i = 0; i < RATELIMIT_CLUSTER_SLOTS; i++) {
        number = cluster->map[i];
        first = i;

        while (i + 1 < RATELIMIT_CLUSTER_SLOTS
               && cluster->map[i + 1] == number)
        {
            i++;
        }

        if (number) {
            node = &cluster->nodes[number - 1];
            len = strlen(shown);

            snprintf(shown + len, size - len, "%s%u-%u=%s:%u",
                     len ? "," : "", first, i, node->host, node->port);
        }
    }
}


static void
cluster_test_maps(void)
{
    char                  shown[256];
    size_t                i;
    const cluster_map_t  *map;

    static ratelimit_cluster_t  cluster;

    for (i = 0; i < sizeof(cluster_maps) / sizeof(cluster_maps[0]); i++) {
        map = &cluster_maps[i];

        if (!tap_ok(cluster_read(&cluster, map->text), "%s", map->text)) {
            continue;
        }

        cluster_show(&cluster, shown, sizeof(shown));

        tap_ok(strcmp(shown, map->map) == 0, "is \"%s\", not \"%s\"", shown,
               map->map);
    }
}


static void
cluster_test_refused(void)
{
    size_t  i;

    static ratelimit_cluster_t  cluster;

    for (i = 0; i < sizeof(cluster_refused) / sizeof(cluster_refused[0]); i++)
    {
        tap_ok(!cluster_read(&cluster, cluster_refused[i]), "not %s",
               cluster_refused[i]);
    }
}


static void
cluster_test_address(void)
{
    static ratelimit_cluster_t  cluster;

    tap_ok(cluster_read(&cluster, "[ [ 0 1 [ node.a 7 id [ ip 127.0.0.1 ] ] "
                                  "[ r 8 id [ ip 127.0.0.9 ] ] ] "
                                  "[ 2 3 [ g 7 id [ hostname 127.0.0.2 ] ] ] "
                                  "[ 4 5 [ f 7 id [ x ip ip 127.0.0.3 ] ] ] "
                                  "[ 6 7 [ e 7 id [ ip \" ] ] ] ]")
           && strcmp(cluster.nodes[0].address, "127.0.0.1") == 0,
           "the address of a name");
    tap_ok(cluster.nodes[1].address[0] == '\0', "something else");
    tap_ok(strcmp(cluster.nodes[2].address, "127.0.0.3") == 0,
           "the value of another name");
    tap_ok(cluster.nodes[3].address[0] == '\0', "not an address");
}


/* of more nodes than there is room for, some are not known */

static void
cluster_test_many(void)
{
    char      *text, *p;
    unsigned   i, known;

    static ratelimit_cluster_t  cluster;

    text = malloc(100 * 600);

    if (text == NULL) {
        tap_ok(0, "memory");
        return;
    }

    p = text + sprintf(text, "[ ");

    for (i = 0; i < 600; i++) {
        p += sprintf(p, "[ %u %u [ h%u 7 id ] ] ", i, i, i);
    }

    sprintf(p, "]");

    tap_ok(cluster_read(&cluster, text), "600 nodes");
    tap_ok(cluster.n == RATELIMIT_CLUSTER_NODES, "not all of them");

    for (i = 0, known = 0; i < RATELIMIT_CLUSTER_SLOTS; i++) {
        known += cluster.map[i] != 0;
    }

    tap_ok(known == RATELIMIT_CLUSTER_NODES && cluster.map[511] == 512
           && cluster.map[512] == 0, "the first ones");

    /* a host that is as long as it may be, and one that is longer */

    for (i = 253; i <= 254; i++) {
        p = text + sprintf(text, "[ [ 0 1 [ ");
        memset(p, 'h', i);
        sprintf(p + i, " 7 id ] ] ]");

        tap_ok(cluster_read(&cluster, text) && cluster.n == (i == 253),
               "a host of %u bytes", i);
    }

    free(text);
}


static void
cluster_test_redirects(void)
{
    char                       shown[300], *text;
    size_t                     i, len;
    ratelimit_redirect_t       redirect;
    const cluster_redirect_t  *r;

    for (i = 0; i < sizeof(cluster_redirects) / sizeof(cluster_redirects[0]);
         i++)
    {
        r = &cluster_redirects[i];

        /* in memory of its own, so that a byte too many is seen */

        len = strlen(r->text);
        text = malloc(len ? len : 1);

        if (text == NULL) {
            tap_ok(0, "memory");
            return;
        }

        memcpy(text, r->text, len);
        strcpy(shown, "none");

        if (ratelimit_cluster_redirect(text, len, &redirect)) {
            snprintf(shown, sizeof(shown), "%s %u %.*s %u",
                     redirect.ask ? "ask" : "moved", redirect.slot,
                     (int) redirect.len, redirect.host, redirect.port);
        }

        free(text);

        tap_ok(strcmp(shown, r->shown ? r->shown : "none") == 0,
               "\"%s\" is \"%s\"", r->text, shown);
    }
}


int
main(void)
{
    cluster_test_slots();
    cluster_test_maps();
    cluster_test_refused();
    cluster_test_address();
    cluster_test_many();
    cluster_test_redirects();

    return tap_done();
}
