
/*
 * What a cluster says of itself: the hash slot of a key, the map of hash slots
 * to nodes that CLUSTER SLOTS replies, and redirections.  Nothing of it is to
 * be trusted.
 */


#ifndef _RATELIMIT_CLUSTER_H_INCLUDED_
#define _RATELIMIT_CLUSTER_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define RATELIMIT_CLUSTER_SLOTS     16384

/* nodes that have hash slots; further ones are not known */
#define RATELIMIT_CLUSTER_NODES     512

/* bytes of a name or an address, at most */
#define RATELIMIT_CLUSTER_HOST      253
#define RATELIMIT_CLUSTER_ADDRESS   45


/* an element of a reply, as it is read */

typedef enum {
    RATELIMIT_ELEMENT_ARRAY = 0,
    RATELIMIT_ELEMENT_STRING,
    RATELIMIT_ELEMENT_INTEGER,
    RATELIMIT_ELEMENT_NIL
} ratelimit_element_e;


typedef struct {
    ratelimit_element_e             type;
    unsigned                        depth;    /* 0: the reply itself */
    size_t                          index;    /* in the array around it */
    int64_t                         number;   /* or elements of the array */
    const char                     *text;     /* of a string */
    size_t                          len;
} ratelimit_element_t;


typedef struct {
    char                            host[RATELIMIT_CLUSTER_HOST + 1];
                                              /* empty: as that of the node
                                                 that was asked */
    char                            address[RATELIMIT_CLUSTER_ADDRESS + 1];
                                              /* of the host, or empty */
    unsigned                        port;
} ratelimit_cluster_node_t;


typedef struct {
    uint16_t                        map[RATELIMIT_CLUSTER_SLOTS];
                                              /* number of a node, from 1 on;
                                                 0: none */
    unsigned                        n;
    ratelimit_cluster_node_t        nodes[RATELIMIT_CLUSTER_NODES];

    /* the range that is being read */
    unsigned                        complete; /* a bit for each part */
    unsigned                        first;
    unsigned                        last;
    size_t                          part;     /* index of its current part */
    size_t                          field;    /* and of the field in it */
    unsigned                        is_address;
    ratelimit_cluster_node_t        node;
} ratelimit_cluster_t;


typedef struct {
    unsigned                        ask;      /* this command alone */
    unsigned                        slot;
    const char                     *host;     /* not terminated */
    size_t                          len;      /* 0: as that of the node that
                                                 replied */
    unsigned                        port;
} ratelimit_redirect_t;


/*
 * The hash slot of the key that has a tag in braces, which consists of the two
 * texts.  As Redis does it, the tag ends at the first closing brace.
 */
unsigned ratelimit_cluster_slot(const void *one, size_t one_len,
    const void *two, size_t two_len);

/*
 * The reply to CLUSTER SLOTS, element by element.  "Add" returns 0 if that is
 * not such a reply; the map is to be used when "finish" has been called.
 */
void ratelimit_cluster_init(ratelimit_cluster_t *cluster);
int ratelimit_cluster_add(ratelimit_cluster_t *cluster,
    const ratelimit_element_t *element);
void ratelimit_cluster_finish(ratelimit_cluster_t *cluster);

/* returns 0 if the error is no redirection */
int ratelimit_cluster_redirect(const char *text, size_t len,
    ratelimit_redirect_t *redirect);

/* whether a text may be a name or an address */
int ratelimit_cluster_is_host(const char *text, size_t len);


#endif /* _RATELIMIT_CLUSTER_H_INCLUDED_ */
