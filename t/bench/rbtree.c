
/*
 * A mutex, a red-black tree and a queue: see rbtree.h.
 */


#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rbtree.h"


#define RBTREE_SPINS  2000


typedef struct rbtree_node_s  rbtree_node_t;

struct rbtree_node_s {
    rbtree_node_t      *child[2];
    rbtree_node_t      *parent;
    rbtree_node_t      *newer;
    rbtree_node_t      *older;
    uint64_t            last;          /* ms */
    uint64_t            excess;        /* thousandths of a request */
    uint32_t            hash;
    uint16_t            len;
    uint8_t             red;
    uint8_t             key[];
};


struct rbtree_s {
    pthread_mutex_t     mutex;
    uint64_t            rate;
    uint64_t            burst;
    rbtree_node_t      *root;
    rbtree_node_t      *newest;
    rbtree_node_t      *oldest;
    unsigned char      *free;
    unsigned char      *end;
    uint32_t            crc[256];
};


static void rbtree_lock(rbtree_t *tree);
static uint32_t rbtree_hash(const rbtree_t *tree, const uint8_t *key,
    size_t len);
static int rbtree_order(const rbtree_node_t *node, uint32_t hash,
    const void *key, size_t len);
static rbtree_node_t *rbtree_insert(rbtree_t *tree, rbtree_node_t *parent,
    int side, uint32_t hash, const void *key, size_t len);
static void rbtree_balance(rbtree_t *tree, rbtree_node_t *node);
static void rbtree_rotate(rbtree_t *tree, rbtree_node_t *node, int side);
static void rbtree_renew(rbtree_t *tree, rbtree_node_t *node);
static int rbtree_charge(const rbtree_t *tree, rbtree_node_t *node,
    uint64_t now);


size_t
rbtree_size(size_t keys)
{
    return (sizeof(rbtree_t) + RBTREE_NODE - 1) / RBTREE_NODE * RBTREE_NODE
           + keys * RBTREE_NODE;
}


rbtree_t *
rbtree_create(void *memory, size_t size, uint64_t rate, uint64_t burst)
{
    rbtree_t             *tree;
    uint32_t              i, bit, crc;
    pthread_mutexattr_t   attr;

    tree = memory;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&tree->mutex, &attr);

    tree->rate = rate;
    tree->burst = burst;
    tree->free = (unsigned char *) memory + rbtree_size(0);
    tree->end = (unsigned char *) memory + size;

    for (i = 0; i < 256; i++) {
        crc = i;

        for (bit = 0; bit < 8; bit++) {
            crc = (crc & 1) ? (crc >> 1) ^ 0xedb88320 : crc >> 1;
        }

        tree->crc[i] = crc;
    }

    return tree;
}


int
rbtree_check(rbtree_t *tree, const void *key, size_t len, uint64_t now)
{
    int             side, allowed;
    uint32_t        hash;
    rbtree_node_t  *node, *parent;

    hash = rbtree_hash(tree, key, len);

    rbtree_lock(tree);

    side = 0;
    parent = NULL;
    node = tree->root;

    while (node != NULL) {
        side = rbtree_order(node, hash, key, len);

        if (side == 0) {
            break;
        }

        side = side > 0;
        parent = node;
        node = node->child[side];
    }

    if (node == NULL) {
        node = rbtree_insert(tree, parent, side, hash, key, len);
        node->last = now;
        allowed = 1;

    } else {
        allowed = rbtree_charge(tree, node, now);
    }

    rbtree_renew(tree, node);

    pthread_mutex_unlock(&tree->mutex);

    return allowed;
}


/* waits a little before it sleeps, as it is held for a short time only */

static void
rbtree_lock(rbtree_t *tree)
{
    unsigned  i;

    for (i = 0; i < RBTREE_SPINS; i++) {
        if (pthread_mutex_trylock(&tree->mutex) == 0) {
            return;
        }

        __builtin_ia32_pause();
    }

    pthread_mutex_lock(&tree->mutex);
}


static uint32_t
rbtree_hash(const rbtree_t *tree, const uint8_t *key, size_t len)
{
    size_t    i;
    uint32_t  crc;

    crc = 0xffffffff;

    for (i = 0; i < len; i++) {
        crc = tree->crc[(crc ^ key[i]) & 0xff] ^ (crc >> 8);
    }

    return crc ^ 0xffffffff;
}


static int
rbtree_order(const rbtree_node_t *node, uint32_t hash, const void *key,
    size_t len)
{
    if (hash != node->hash) {
        return hash < node->hash ? -1 : 1;
    }

    if (len != node->len) {
        return len < node->len ? -1 : 1;
    }

    return memcmp(key, node->key, len);
}


static rbtree_node_t *
rbtree_insert(rbtree_t *tree, rbtree_node_t *parent, int side, uint32_t hash,
    const void *key, size_t len)
{
    rbtree_node_t  *node;

    if (tree->free + RBTREE_NODE > tree->end
        || offsetof(rbtree_node_t, key) + len > RBTREE_NODE)
    {
        abort();
    }

    node = (rbtree_node_t *) tree->free;
    tree->free += RBTREE_NODE;

    node->parent = parent;
    node->hash = hash;
    node->len = (uint16_t) len;
    node->red = 1;

    memcpy(node->key, key, len);

    if (parent == NULL) {
        tree->root = node;

    } else {
        parent->child[side] = node;
    }

    rbtree_balance(tree, node);

    return node;
}


/* a red node has no red parent */

static void
rbtree_balance(rbtree_t *tree, rbtree_node_t *node)
{
    int             side;
    rbtree_node_t  *parent, *grand, *uncle;

    while (node->parent != NULL && node->parent->red) {
        parent = node->parent;
        grand = parent->parent;
        side = (grand->child[1] == parent);
        uncle = grand->child[!side];

        if (uncle != NULL && uncle->red) {
            parent->red = 0;
            uncle->red = 0;
            grand->red = 1;
            node = grand;
            continue;
        }

        if (parent->child[!side] == node) {
            rbtree_rotate(tree, parent, side);
            parent = node;
        }

        parent->red = 0;
        grand->red = 1;
        rbtree_rotate(tree, grand, !side);
        break;
    }

    tree->root->red = 0;
}


/* the node goes down to this side, its other child takes its place */

static void
rbtree_rotate(rbtree_t *tree, rbtree_node_t *node, int side)
{
    rbtree_node_t  *child, *parent;

    parent = node->parent;
    child = node->child[!side];

    node->child[!side] = child->child[side];

    if (child->child[side] != NULL) {
        child->child[side]->parent = node;
    }

    child->child[side] = node;
    child->parent = parent;
    node->parent = child;

    if (parent == NULL) {
        tree->root = child;

    } else {
        parent->child[parent->child[1] == node] = child;
    }
}


/* to the head of the queue */

static void
rbtree_renew(rbtree_t *tree, rbtree_node_t *node)
{
    if (tree->newest == node) {
        return;
    }

    if (node->newer != NULL) {
        node->newer->older = node->older;

        if (node->older != NULL) {
            node->older->newer = node->newer;

        } else {
            tree->oldest = node->newer;
        }
    }

    node->newer = NULL;
    node->older = tree->newest;

    if (tree->newest != NULL) {
        tree->newest->newer = node;

    } else {
        tree->oldest = node;
    }

    tree->newest = node;
}


static int
rbtree_charge(const rbtree_t *tree, rbtree_node_t *node, uint64_t now)
{
    uint64_t  drained, excess;

    drained = tree->rate * (now - node->last) / 1000;
    excess = node->excess + 1000;
    excess = (excess > drained) ? excess - drained : 0;

    if (excess > tree->burst) {
        return 0;
    }

    node->excess = excess;
    node->last = now;

    return 1;
}
