
/*
 * The table itself: how the memory is cut, and where in it a key belongs.
 */


#include <string.h>

#include "table/ratelimit_slot.h"


#define RATELIMIT_MAGIC          0x3274696d696c7472ULL

/*
 * Small zones have segments of few slots, so that workers do not meet in them;
 * the larger a segment, the more evenly its buckets fill.
 */
#define RATELIMIT_SEGMENT_SLOTS  4096
#define RATELIMIT_SEGMENT_MIN    512
#define RATELIMIT_SEGMENTS       64

/* bytes of a state from which on a block, and none too many, takes less room */
#define RATELIMIT_INNER          32

/* less is not worth the name of a table */
#define RATELIMIT_TABLE_MIN      8192
#define RATELIMIT_BLOCKS_MIN     2

/* slots for 100 blocks, in buckets of 8: up to this load no key is displaced */
#define RATELIMIT_SLOTS_PER_100  150


static int ratelimit_table_small(const ratelimit_shape_t *shape);
static int ratelimit_table_cut(ratelimit_table_t *table, void *memory,
    size_t size);
static size_t ratelimit_table_slots(ratelimit_table_t *table, size_t size);
static size_t ratelimit_table_align(size_t size);
static uint32_t ratelimit_table_epoch_shift(uint32_t nbuckets);
static uint32_t ratelimit_table_segments(size_t slots);
static void ratelimit_table_classify(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule, ratelimit_class_t *class);
static uint32_t ratelimit_table_find_class(const ratelimit_header_t *header,
    const ratelimit_class_t *class, uint32_t i, uint32_t n);


ratelimit_table_t *
ratelimit_table_open(ratelimit_table_t *table, void *memory, size_t size,
    const ratelimit_shape_t *shape, const ratelimit_hash_t *secret,
    ratelimit_lifelines_t *lifelines)
{
    ratelimit_header_t  *header;

    memset(table, 0, sizeof(ratelimit_table_t));

    table->shape = *shape;
    table->algorithm = ratelimit_algorithms[shape->algorithm];
    table->lifelines = lifelines;

    if (ratelimit_table_small(shape)) {
        table->shape.width = sizeof(uint32_t);
    }

    if (!ratelimit_table_cut(table, memory, size)) {
        return NULL;
    }

    table->brief = table->small
                   || table->algorithm->size(&table->shape)
                      == RATELIMIT_KEPT * sizeof(ratelimit_state_t);
    table->quick = ratelimit_quick(table);

    header = table->header;

    if (header->magic == RATELIMIT_MAGIC) {

        if (header->size != size
            || memcmp(&header->shape, &table->shape, sizeof(ratelimit_shape_t))
               != 0)
        {
            return NULL;
        }

        return table;
    }

    header->magic = RATELIMIT_MAGIC;
    header->size = size;
    header->shape = table->shape;
    header->secret = *secret;
    header->nclasses = 1;

    return table;
}


static int
ratelimit_table_small(const ratelimit_shape_t *shape)
{
    return !shape->wide
           && shape->algorithm != RATELIMIT_SLIDING_LOG
           && (shape->algorithm != RATELIMIT_SLIDING_WINDOW
               || shape->buckets == 1);
}


/* cuts the memory into header, segments, buckets and blocks */

static int
ratelimit_table_cut(ratelimit_table_t *table, void *memory, size_t size)
{
    size_t          rest, slots, most;
    unsigned char  *p;

    p = memory;
    rest = ratelimit_table_align(sizeof(ratelimit_header_t));

    if (size < rest + RATELIMIT_TABLE_MIN) {
        return 0;
    }

    table->header = memory;

    p += rest;
    rest = size - rest;
    slots = ratelimit_table_slots(table, rest);

    table->nsegments = ratelimit_table_segments(slots);
    table->segments = (ratelimit_segment_t *) p;

    size = table->nsegments * sizeof(ratelimit_segment_t);
    p += size;
    rest -= size;

    most = rest / table->bucket_size * RATELIMIT_WAYS;
    slots = (slots < most) ? slots : most;

    table->nbuckets = slots / RATELIMIT_WAYS / table->nsegments;
    table->slots = (ratelimit_slot_t *) p;

    if (table->nbuckets == 0) {
        return 0;
    }

    table->epoch_shift = ratelimit_table_epoch_shift(table->nbuckets);

    if (table->block_size == 0) {
        return 1;
    }

    size = (size_t) table->nbuckets * table->nsegments * table->bucket_size;
    p += size;
    rest -= size;

    table->nblocks = rest / (table->block_size + sizeof(uint32_t));
    table->blocks = p;
    table->owners = (uint32_t *) (p + (size_t) table->nblocks
                                      * table->block_size);

    return table->nblocks >= RATELIMIT_BLOCKS_MIN;
}


/* how many so many bytes give, and of which kind */

static size_t
ratelimit_table_slots(ratelimit_table_t *table, size_t size)
{
    size_t  state, slot;

    state = table->algorithm->size(&table->shape);

    table->small = ratelimit_table_small(&table->shape);
    table->size = sizeof(uint64_t);
    table->nblocks = 0;
    table->block_size = 0;
    table->blocks = NULL;
    table->owners = NULL;

    if (!table->small && state <= RATELIMIT_INNER) {
        table->size = state;

    } else if (!table->small) {
        table->block_size = state;
    }

    slot = sizeof(ratelimit_slot_t) + table->size;
    table->bucket_size = RATELIMIT_WAYS * slot;

    if (table->block_size == 0) {
        return size / slot;
    }

    return size * RATELIMIT_SLOTS_PER_100
           / ((table->block_size + sizeof(uint32_t)) * 100
              + slot * RATELIMIT_SLOTS_PER_100);
}


static size_t
ratelimit_table_align(size_t size)
{
    return (size + RATELIMIT_LINE - 1) / RATELIMIT_LINE * RATELIMIT_LINE;
}


/* an epoch is about a sixteenth of a segment's slots */

static uint32_t
ratelimit_table_epoch_shift(uint32_t nbuckets)
{
    uint32_t  shift;

    for (shift = 0; nbuckets * RATELIMIT_WAYS >> (shift + 5); shift++) {
        /* void */
    }

    return shift;
}


static uint32_t
ratelimit_table_segments(size_t slots)
{
    size_t  n;

    n = slots / RATELIMIT_SEGMENT_SLOTS;

    if (n < RATELIMIT_SEGMENTS) {
        n = slots / RATELIMIT_SEGMENT_MIN;
        n = (n < RATELIMIT_SEGMENTS) ? n : RATELIMIT_SEGMENTS;
    }

    return n ? n : 1;
}


/* a small state has fewer bits for counts: a wide one is kept in a block */

void
ratelimit_table_fit(ratelimit_shape_t *shape, const ratelimit_rule_t *rule)
{
    ratelimit_shape_fit(shape, rule->ceiling);

    shape->wide |= rule->ceiling > ratelimit_slot_small(shape, rule);
}


int
ratelimit_table_holds(const ratelimit_shape_t *shape, size_t size,
    size_t items)
{
    ratelimit_table_t  table;

    table.shape = *shape;
    table.algorithm = ratelimit_algorithms[shape->algorithm];

    if (!ratelimit_table_cut(&table, NULL, size)) {
        return 0;
    }

    /* a decision must find blocks that are not its own */

    return table.nblocks == 0 || table.nblocks >= 2 * items;
}


void *
ratelimit_table_memory(const ratelimit_table_t *table, size_t *size)
{
    *size = table->header->size;

    return table->header;
}


const ratelimit_hash_t *
ratelimit_table_secret(const ratelimit_table_t *table)
{
    return &table->header->secret;
}


uint32_t
ratelimit_table_class(ratelimit_table_t *table, const ratelimit_rule_t *rule,
    uint32_t me)
{
    uint32_t             i, n;
    ratelimit_class_t    class;
    ratelimit_header_t  *header;

    header = table->header;

    ratelimit_table_classify(table, rule, &class);

    /* classes are only ever added, so they can be read without the lock */

    n = __atomic_load_n(&header->nclasses, __ATOMIC_ACQUIRE);
    i = ratelimit_table_find_class(header, &class, 1, n);

    if (i < n
        && __atomic_load_n(&header->horizon, __ATOMIC_RELAXED)
           >= class.horizon)
    {
        return i;
    }

    ratelimit_lock(&header->lock, me, table->lifelines);

    if (header->horizon < class.horizon) {
        __atomic_store_n(&header->horizon, class.horizon, __ATOMIC_RELAXED);
    }

    i = ratelimit_table_find_class(header, &class, 1, header->nclasses);

    if (i == RATELIMIT_CLASSES) {
        i = 0;

    } else if (i == header->nclasses) {
        header->classes[i] = class;
        __atomic_store_n(&header->nclasses, i + 1, __ATOMIC_RELEASE);
    }

    ratelimit_unlock(&header->lock);

    return i;
}


/* what tells when a state runs out, and after how long the last of them has */

static void
ratelimit_table_classify(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule, ratelimit_class_t *class)
{
    class->period = rule->period;
    class->limit = 1;
    class->horizon = 2 * rule->period;

    if (table->shape.algorithm == RATELIMIT_TOKEN_BUCKET
        || table->shape.algorithm == RATELIMIT_LEAKY_BUCKET)
    {
        class->limit = rule->limit;
        class->horizon = (rule->ceiling / rule->limit + 2) * rule->period
                         + rule->wait;
    }
}


static uint32_t
ratelimit_table_find_class(const ratelimit_header_t *header,
    const ratelimit_class_t *class, uint32_t i, uint32_t n)
{
    while (i < n
           && (header->classes[i].period != class->period
               || header->classes[i].limit != class->limit))
    {
        i++;
    }

    return i;
}


uint64_t
ratelimit_table_evicted(const ratelimit_table_t *table)
{
    return __atomic_load_n(&table->header->evicted, __ATOMIC_RELAXED);
}


uint64_t
ratelimit_table_evictions(ratelimit_table_t *table, uint64_t now)
{
    uint64_t             last, evicted;
    ratelimit_header_t  *header;

    header = table->header;

    evicted = __atomic_load_n(&header->evicted, __ATOMIC_RELAXED);

    if (evicted == __atomic_load_n(&header->told, __ATOMIC_RELAXED)) {
        return 0;
    }

    last = __atomic_load_n(&header->told_at, __ATOMIC_RELAXED);

    if (now < last + RATELIMIT_SECOND
        || !__atomic_compare_exchange_n(&header->told_at, &last, now, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    {
        return 0;
    }

    return evicted
           - __atomic_exchange_n(&header->told, evicted, __ATOMIC_ACQ_REL);
}


int
ratelimit_table_tell(ratelimit_table_t *table, uint32_t thing, uint64_t now)
{
    uint32_t   ms;
    uint64_t   last, *place;

    ms = (uint32_t) (now / 1000);
    place = &table->header->things[thing % RATELIMIT_TOLD];

    last = __atomic_load_n(place, __ATOMIC_RELAXED);

    if (last >> 32 == thing && ms - (uint32_t) last < 1000) {
        return 0;
    }

    return __atomic_compare_exchange_n(place, &last,
                                       ((uint64_t) thing << 32) | ms, 0,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}


void
ratelimit_table_note_eviction(ratelimit_table_t *table,
    const ratelimit_party_t *party)
{
    (void) __atomic_fetch_add(&table->header->evicted, 1, __ATOMIC_RELAXED);

    if (party->clock.now
        >= __atomic_load_n(&table->header->told_at, __ATOMIC_RELAXED)
           + RATELIMIT_SECOND)
    {
        party->places[0].evicted = 1;
    }
}


ratelimit_segment_t *
ratelimit_table_segment(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot)
{
    return &table->segments[((unsigned char *) slot
                             - (unsigned char *) table->slots)
                            / ((size_t) table->nbuckets
                               * table->bucket_size)];
}
