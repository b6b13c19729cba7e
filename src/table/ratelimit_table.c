
/*
 * The table itself: how the memory is cut, its rules, and what it counts and
 * reports.
 */


#include <string.h>

#include "table/ratelimit_table_slot.h"


#define RATELIMIT_MAGIC          0x3374696d696c7472ULL

/*
 * Small zones have segments of few slots, so that workers rarely meet in one;
 * the larger a segment, the more evenly its lines fill.
 */
#define RATELIMIT_SEGMENT_SLOTS  4096
#define RATELIMIT_SEGMENT_MIN    512
#define RATELIMIT_SEGMENTS       64

/* less is not worth the name of a table */
#define RATELIMIT_TABLE_MIN      8192
#define RATELIMIT_BLOCKS_MIN     2

/* classes of a small table; a larger one has one more each so many bytes */
#define RATELIMIT_CLASSES_MIN    256
#define RATELIMIT_CLASSES_BYTES  256

/* so many are kept for rules that share one, more than there can be */
#define RATELIMIT_CLASSES_ROUGH  184

/* slots for 100 blocks, in lines of 8: up to this load no key is displaced */
#define RATELIMIT_SLOTS_PER_100  150


static void ratelimit_table_set_kind(ratelimit_table_t *table,
    const ratelimit_shape_t *shape, uint32_t packed);
static int ratelimit_table_cut(ratelimit_table_t *table, void *memory,
    size_t size);
static size_t ratelimit_table_classes(ratelimit_table_t *table, size_t size);
static size_t ratelimit_table_slots(ratelimit_table_t *table, size_t size);
static size_t ratelimit_table_align(size_t size);
static uint32_t ratelimit_table_epoch_shift(uint32_t nlines);
static uint32_t ratelimit_table_segments(size_t slots);
static void ratelimit_table_add_class(ratelimit_table_t *table,
    const ratelimit_rule_t *rule);
static uint32_t ratelimit_table_exact_classes(const ratelimit_table_t *table);
static uint64_t ratelimit_table_rough_period(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule);
static uint64_t ratelimit_table_own_evictions(const ratelimit_table_t *table);


static inline int
ratelimit_pack_possible(const ratelimit_shape_t *shape)
{
    ratelimit_form_e  form;

    form = ratelimit_algorithms[shape->algorithm]->form;

    return (form == RATELIMIT_FORM_TIME_COUNT && !shape->reserves)
           || (form == RATELIMIT_FORM_SUB_WINDOWS && shape->buckets == 1);
}


ratelimit_table_t *
ratelimit_table_open(ratelimit_table_t *table, void *memory, size_t size,
    const ratelimit_shape_t *shape, uint32_t packed,
    const ratelimit_hash_t *secret, ratelimit_lifelines_t *lifelines)
{
    ratelimit_header_t  *header;

    memset(table, 0, sizeof(ratelimit_table_t));

    ratelimit_table_set_kind(table, shape, packed);

    table->lifelines = lifelines;

    if (!ratelimit_table_cut(table, memory, size)) {
        return NULL;
    }

    table->instance = ratelimit_table_instance(&table->kind);

    header = table->header;

    if (header->magic == RATELIMIT_MAGIC) {

        if (header->size != size || header->packed != packed
            || memcmp(&header->shape, &table->kind.shape,
                      sizeof(ratelimit_shape_t))
               != 0)
        {
            return NULL;
        }

        return table;
    }

    header->magic = RATELIMIT_MAGIC;
    header->size = size;
    header->shape = table->kind.shape;
    header->packed = packed;
    header->secret = *secret;
    header->nclasses = 1;

    return table;
}


static void
ratelimit_table_set_kind(ratelimit_table_t *table,
    const ratelimit_shape_t *shape, uint32_t packed)
{
    ratelimit_kind_t             *kind;
    const ratelimit_algorithm_t  *algorithm;

    algorithm = ratelimit_algorithms[shape->algorithm];

    table->algorithm = algorithm;
    table->packed = packed;

    kind = &table->kind;

    kind->shape = *shape;
    kind->form = algorithm->form;
    kind->drips = algorithm->drips;
    kind->look = algorithm->look;
    kind->charge = algorithm->charge;

    if (packed && ratelimit_pack_possible(shape)) {
        kind->where = RATELIMIT_IN_WORD;
        kind->shape.width = sizeof(uint32_t);
        kind->size = algorithm->size(&kind->shape);
        return;
    }

    kind->size = algorithm->size(shape);
    kind->where = (kind->size <= RATELIMIT_MAX_IN_LINE) ? RATELIMIT_IN_LINE
                                                        : RATELIMIT_IN_BLOCK;
}


/* cuts the memory into header, segments, lines and blocks */

static int
ratelimit_table_cut(ratelimit_table_t *table, void *memory, size_t size)
{
    size_t          head, rest, slots, most;
    unsigned char  *p;

    p = memory;
    head = ratelimit_table_align(sizeof(ratelimit_header_t));
    rest = head + ratelimit_table_classes(table, size);

    if (size < rest + RATELIMIT_TABLE_MIN) {
        return 0;
    }

    table->header = memory;
    table->classes = (uint64_t *) (p + head);

    p += rest;
    rest = size - rest;
    slots = ratelimit_table_slots(table, rest);

    table->nsegments = ratelimit_table_segments(slots);
    table->spread = table->nsegments;
    table->segments = (ratelimit_segment_t *) p;

    size = table->nsegments * sizeof(ratelimit_segment_t);
    p += size;
    rest -= size;

    most = rest / table->line_size * RATELIMIT_LINE_SLOTS;
    slots = (slots < most) ? slots : most;

    table->nlines = slots / RATELIMIT_LINE_SLOTS / table->nsegments;
    table->slots = (ratelimit_slot_t *) p;

    if (table->nlines == 0) {
        return 0;
    }

    table->epoch_shift = ratelimit_table_epoch_shift(table->nlines);

    if (table->block_size == 0) {
        return 1;
    }

    size = (size_t) table->nlines * table->nsegments * table->line_size;
    p += size;
    rest -= size;

    table->nblocks = rest / (table->block_size + sizeof(uint32_t));
    table->blocks = p;
    table->owners = (uint32_t *) (p + (size_t) table->nblocks
                                      * table->block_size);

    return table->nblocks >= RATELIMIT_BLOCKS_MIN;
}


/*
 * How many bytes the classes of a table of this size take.  Where a state tells
 * the time, a few are enough, as rules can share them.
 */

static size_t
ratelimit_table_classes(ratelimit_table_t *table, size_t size)
{
    size_t  n;

    n = RATELIMIT_CLASSES_MIN;

    if (table->algorithm->past) {
        n = ratelimit_max(n, size / RATELIMIT_CLASSES_BYTES);
        n = ratelimit_min(n, RATELIMIT_CLASSES);
    }

    table->nclasses = (uint32_t) n;

    return ratelimit_table_align(n * (table->kind.drips ? 2 : 1)
                                 * sizeof(uint64_t));
}


/* how many slots fit so many bytes; sets the sizes of their parts */

static size_t
ratelimit_table_slots(ratelimit_table_t *table, size_t size)
{
    size_t  slot;

    table->slot_size = sizeof(uint64_t);
    table->nblocks = 0;
    table->block_size = 0;
    table->blocks = NULL;
    table->owners = NULL;

    if (table->kind.where == RATELIMIT_IN_LINE) {
        table->slot_size = table->kind.size;

    } else if (table->kind.where == RATELIMIT_IN_BLOCK) {
        table->block_size = table->kind.size;
    }

    slot = sizeof(ratelimit_slot_t) + table->slot_size;
    table->line_size = RATELIMIT_LINE_SLOTS * slot;

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
    return (size + RATELIMIT_CACHE_LINE - 1) / RATELIMIT_CACHE_LINE
           * RATELIMIT_CACHE_LINE;
}


/* an epoch is a sixteenth of a segment's slots, or down to half of that */

static uint32_t
ratelimit_table_epoch_shift(uint32_t nlines)
{
    uint32_t  shift;

    for (shift = 0; nlines * RATELIMIT_LINE_SLOTS >> (shift + 5); shift++) {
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


/* a bucket counts also what drips back, for at most three periods */

uint64_t
ratelimit_pack_most(const ratelimit_shape_t *shape,
    const ratelimit_rule_t *rule)
{
    uint64_t  drip;

    if (ratelimit_algorithms[shape->algorithm]->form
        == RATELIMIT_FORM_SUB_WINDOWS)
    {
        return RATELIMIT_PACK_WINDOW;
    }

    drip = rule->limit * (3 + rule->wait / rule->period);

    return ratelimit_sub(RATELIMIT_PACK_COUNT, drip);
}


uint32_t
ratelimit_table_fit(ratelimit_shape_t *shape, const ratelimit_rule_t *rule)
{
    ratelimit_shape_fit(shape, rule->ceiling);

    return rule->ceiling <= ratelimit_pack_most(shape, rule);
}


int
ratelimit_table_holds(const ratelimit_shape_t *shape, uint32_t packed,
    size_t size, size_t items)
{
    ratelimit_table_t  table;

    ratelimit_table_set_kind(&table, shape, packed);

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


void
ratelimit_table_add_rule(ratelimit_table_t *table,
    const ratelimit_rule_t *rule, uint32_t me)
{
    uint64_t             horizon;
    ratelimit_header_t  *header;
    ratelimit_table_t   *active;

    active = ratelimit_migrate_active(table);

    if (active != table) {
        ratelimit_table_add_rule(active, rule, me);
    }

    header = table->header;

    /* after so long the last of the rule's counters has expired */

    horizon = 2 * rule->period;

    if (table->kind.drips) {
        horizon = (rule->ceiling / rule->limit + 2) * rule->period
                  + rule->wait;
    }

    if (table->kind.shape.reserves) {
        horizon = ratelimit_max(horizon, 2 * RATELIMIT_RESERVED_TIME);
    }

    if (__atomic_load_n(&header->horizon, __ATOMIC_RELAXED) >= horizon
        && ratelimit_table_class(table, rule))
    {
        return;
    }

    /* a lock without a name would be taken over by the next process */

    if (me == 0) {
        return;
    }

    ratelimit_table_outlive(table, horizon, me);

    (void) ratelimit_lock(&header->lock, me, table->lifelines);

    if (header->nclasses < table->nclasses
        && ratelimit_table_class(table, rule) == 0)
    {
        ratelimit_table_add_class(table, rule);
    }

    ratelimit_unlock(&header->lock);
}


void
ratelimit_table_outlive(ratelimit_table_t *table, uint64_t horizon,
    uint32_t me)
{
    ratelimit_header_t  *header;

    header = table->header;

    if (__atomic_load_n(&header->horizon, __ATOMIC_RELAXED) >= horizon) {
        return;
    }

    (void) ratelimit_lock(&header->lock, me, table->lifelines);

    if (header->horizon < horizon) {
        __atomic_store_n(&header->horizon, horizon, __ATOMIC_RELAXED);
    }

    ratelimit_unlock(&header->lock);
}


static void
ratelimit_table_add_class(ratelimit_table_t *table,
    const ratelimit_rule_t *rule)
{
    uint32_t           n;
    ratelimit_class_t  class;

    n = table->header->nclasses;
    class.limit = rule->limit;
    class.period = rule->period;

    if (n >= ratelimit_table_exact_classes(table)) {
        class.limit = 1;
        class.period = ratelimit_table_rough_period(table, rule);
    }

    if (table->kind.drips) {
        table->classes[2 * n] = class.period;
        table->classes[2 * n + 1] = class.limit;

    } else {
        table->classes[n] = class.period;
    }

    __atomic_store_n(&table->header->nclasses, n + 1, __ATOMIC_RELEASE);
}


/* the state of a window tells no time but by its very period */

static uint32_t
ratelimit_table_exact_classes(const ratelimit_table_t *table)
{
    return table->algorithm->past ? table->nclasses
                                  : table->nclasses - RATELIMIT_CLASSES_ROUGH;
}


int
ratelimit_table_get_rule(const ratelimit_table_t *table, size_t n,
    ratelimit_rule_t *rule)
{
    size_t             known;
    ratelimit_class_t  class;

    known = __atomic_load_n(&table->header->nclasses, __ATOMIC_ACQUIRE);
    known = ratelimit_min(known, ratelimit_table_exact_classes(table));

    /* the first class is that of rules that found no other */

    if (n + 1 >= known) {
        return 0;
    }

    class = ratelimit_table_get_class(table, n + 1);

    rule->limit = class.limit;
    rule->period = class.period;

    return 1;
}


uint32_t
ratelimit_table_rough_class(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule)
{
    return ratelimit_table_find_class(table, 1,
                                    ratelimit_table_rough_period(table, rule));
}


/*
 * The period, or the time in which one request drips back, rounded up by less
 * than a quarter: a slot of this class expires that much too late, never too
 * early.
 */

static uint64_t
ratelimit_table_rough_period(const ratelimit_table_t *table,
    const ratelimit_rule_t *rule)
{
    uint64_t  time, unit;

    time = ratelimit_div_ceil(rule->period,
                              table->kind.drips ? rule->limit : 1);

    for (unit = 1; time / unit >= 8; unit *= 2) { /* void */ }

    return ratelimit_div_ceil(time, unit) * unit;
}


uint64_t
ratelimit_table_entries(const ratelimit_table_t *table)
{
    uint64_t  n;

    n = 0;

    for ( /* void */ ; table; table = table->older) {
        n += ratelimit_table_own_entries(table);
    }

    return n;
}


uint64_t
ratelimit_table_own_entries(const ratelimit_table_t *table)
{
    uint32_t              i;
    uint64_t              n, removals, inserts;
    ratelimit_segment_t  *segment;

    n = 0;

    for (i = 0; i < table->nsegments; i++) {
        segment = &table->segments[i];

        /* both of one moment, however long this process waits in between */

        do {
            removals = __atomic_load_n(&segment->removals, __ATOMIC_ACQUIRE);
            inserts = __atomic_load_n(&segment->inserts, __ATOMIC_ACQUIRE);

        } while (__atomic_load_n(&segment->removals, __ATOMIC_RELAXED)
                 != removals);

        n += inserts - removals;
    }

    return n;
}


uint64_t
ratelimit_table_bytes_used(ratelimit_table_t *table, uint64_t *size)
{
    uint64_t  fixed, places;

    table = ratelimit_migrate_active(table);

    *size = table->header->size;

    fixed = (unsigned char *) table->slots - (unsigned char *) table->header;
    places = ratelimit_table_own_places(table);

    return fixed
           + ratelimit_table_own_entries(table) * ((*size - fixed) / places);
}


uint64_t
ratelimit_table_own_places(const ratelimit_table_t *table)
{
    return table->nblocks ? table->nblocks
                          : (uint64_t) table->nsegments * table->nlines
                            * RATELIMIT_LINE_SLOTS;
}


/*
 * What a table has counted is inherited by the one that follows it, just before
 * it is sealed.  Another process may be about that: the larger number has all,
 * as the heir's is read last.
 */

uint64_t
ratelimit_table_evictions(const ratelimit_table_t *table)
{
    uint64_t  n, inherited;

    n = 0;

    if (table->older && !ratelimit_table_sealed(table->older)) {
        n = ratelimit_table_evictions(table->older);
    }

    inherited = __atomic_load_n(&table->header->inherited, __ATOMIC_RELAXED);

    return ratelimit_max(n, inherited) + ratelimit_table_own_evictions(table);
}


void
ratelimit_table_dismiss_evictions(ratelimit_table_t *table)
{
    __atomic_store_n(&table->header->dismissed,
                     ratelimit_table_evictions(table), __ATOMIC_RELAXED);
}


/* the latest is the largest */

uint64_t
ratelimit_table_dismissed(const ratelimit_table_t *table)
{
    uint64_t  n, dismissed;

    n = 0;

    if (table->older && !ratelimit_table_sealed(table->older)) {
        n = ratelimit_table_dismissed(table->older);
    }

    dismissed = __atomic_load_n(&table->header->dismissed, __ATOMIC_RELAXED);

    return ratelimit_max(n, dismissed);
}


void
ratelimit_table_inherit_evictions(ratelimit_table_t *table, uint64_t n,
    uint64_t dismissed)
{
    ratelimit_table_t  *active;

    /* the table inherits these with those of an older one that is in use */

    active = ratelimit_migrate_active(table);

    (void) __atomic_fetch_add(&active->header->inherited, n,
                              __ATOMIC_RELAXED);
    __atomic_store_n(&table->header->dismissed,
                     ratelimit_table_dismissed(table) + dismissed,
                     __ATOMIC_RELAXED);
}


uint64_t
ratelimit_table_leave_evictions(ratelimit_table_t *table)
{
    uint64_t  left, n;

    left = __atomic_load_n(&table->header->left, __ATOMIC_RELAXED);
    n = ratelimit_table_evictions(table) + 1;

    /* another process may be about the same */

    while (n > left) {
        if (__atomic_compare_exchange_n(&table->header->left, &left, n, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        {
            return left ? n - left : n - 1;
        }
    }

    return 0;
}


int
ratelimit_table_is_gone(const ratelimit_table_t *table)
{
    return __atomic_load_n(&table->header->left, __ATOMIC_RELAXED) != 0;
}


static uint64_t
ratelimit_table_own_evictions(const ratelimit_table_t *table)
{
    uint32_t  i;
    uint64_t  n;

    n = 0;

    for (i = 0; i < table->nsegments; i++) {
        n += __atomic_load_n(&table->segments[i].evictions, __ATOMIC_RELAXED);
    }

    return n;
}


uint64_t
ratelimit_table_new_evictions(ratelimit_table_t *table, uint64_t now)
{
    uint64_t             last, n;
    ratelimit_header_t  *header;

    header = table->header;

    last = __atomic_load_n(&header->reported_at, __ATOMIC_RELAXED);

    if (now < last + RATELIMIT_SECOND
        || !__atomic_compare_exchange_n(&header->reported_at, &last, now, 0,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    {
        return 0;
    }

    last = __atomic_load_n(&header->reported, __ATOMIC_RELAXED);
    n = ratelimit_table_own_evictions(table);

    if (n <= last
        || !__atomic_compare_exchange_n(&header->reported, &last, n, 0,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    {
        return 0;
    }

    return n - last;
}


uint64_t
ratelimit_table_count_event(ratelimit_table_t *table, uint64_t now)
{
    uint64_t  last, next, second, *events;

    second = (now / RATELIMIT_SECOND) & UINT32_MAX;
    events = &table->header->events;
    last = __atomic_load_n(events, __ATOMIC_RELAXED);

    do {
        next = (last >> 32 == second) ? last + 1 : second << 32 | 1;

    } while (!__atomic_compare_exchange_n(events, &last, next, 0,
                                          __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));

    return next & UINT32_MAX;
}


void
ratelimit_table_count_unlogged(ratelimit_table_t *table)
{
    (void) __atomic_fetch_add(&table->header->unlogged, 1, __ATOMIC_RELAXED);
}


uint64_t
ratelimit_table_unlogged(ratelimit_table_t *table)
{
    return __atomic_exchange_n(&table->header->unlogged, 0, __ATOMIC_RELAXED);
}


int
ratelimit_table_once_a_second(ratelimit_table_t *table, uint32_t event,
    uint64_t now)
{
    uint32_t   ms;
    uint64_t   last, *place;

    ms = (uint32_t) (now / 1000);
    place = &table->header->reports[event % RATELIMIT_REPORTS];

    last = __atomic_load_n(place, __ATOMIC_RELAXED);

    if (last >> 32 == event && ms - (uint32_t) last < 1000) {
        return 0;
    }

    return __atomic_compare_exchange_n(place, &last,
                                       ((uint64_t) event << 32) | ms, 0,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}


void
ratelimit_table_count_eviction(ratelimit_table_t *table,
    ratelimit_segment_t *segment, const ratelimit_lockset_t *set)
{
    ratelimit_segment_count(&segment->evictions);

    if (set->clock->now
        >= __atomic_load_n(&table->header->reported_at, __ATOMIC_RELAXED)
           + RATELIMIT_SECOND)
    {
        set->places[0].evicted = 1;
    }
}


void
ratelimit_table_recount(ratelimit_table_t *table, ratelimit_segment_t *segment)
{
    uint32_t           line, i;
    uint64_t           n;
    ratelimit_slot_t  *slot;

    n = 0;
    slot = ratelimit_slot_line(table, segment - table->segments, 0);

    for (line = 0; line < table->nlines; line++) {
        for (i = 0; i < RATELIMIT_LINE_SLOTS; i++) {
            n += (slot[i].id != 0);
        }

        slot = (ratelimit_slot_t *) ((unsigned char *) slot
                                     + table->line_size);
    }

    __atomic_store_n(&segment->removals, segment->inserts - n,
                     __ATOMIC_RELEASE);
}


ratelimit_segment_t *
ratelimit_table_segment(const ratelimit_table_t *table,
    const ratelimit_slot_t *slot)
{
    return &table->segments[((unsigned char *) slot
                             - (unsigned char *) table->slots)
                            / ((size_t) table->nlines
                               * table->line_size)];
}
