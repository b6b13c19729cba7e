
/*
 * What most limiters are: one mutex, a red-black tree of nodes by the hash of
 * the key, and a queue of them by the time of their last use.  A re-creation
 * to measure against; nodes are found and made, never freed.
 */


#ifndef _RBTREE_H_INCLUDED_
#define _RBTREE_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define RBTREE_NODE  128       /* bytes that such a node takes of a slab */


typedef struct rbtree_s  rbtree_t;


/* bytes of shared memory for so many keys */
size_t rbtree_size(size_t keys);

/* in memory of zeros; the rate and the burst are of thousandths a second */
rbtree_t *rbtree_create(void *memory, size_t size, uint64_t rate,
    uint64_t burst);

/* one request at this millisecond: 1 if it is admitted */
int rbtree_check(rbtree_t *tree, const void *key, size_t len, uint64_t now);


#endif /* _RBTREE_H_INCLUDED_ */
