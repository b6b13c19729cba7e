
/*
 * What a table counts of itself: entries, evictions, bytes.  Operators size
 * their zones by these, so they are compared with what is really there, also
 * after a process was killed at each instruction of a decision.
 */


/* no sanitizer */

#include <sys/ptrace.h>

#include "table/ratelimit_table_slot.h"

#include "fleet.h"


#define SIZE   (64 << 10)
#define KEYS   20000

/* makes the name of a process one that no process has had yet */
#define DEAD   0x80000000


static uint64_t entries_there(const fleet_t *f);
static void entries_open(fleet_t *f, ratelimit_algorithm_e algorithm,
    uint32_t buckets, size_t size);
static void entries_insert(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void entries_expire(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void entries_evict(ratelimit_algorithm_e algorithm, uint32_t buckets);
static void entries_migrate(ratelimit_algorithm_e algorithm, uint32_t buckets);
static unsigned entries_miscount(const ratelimit_table_t *table,
    uint64_t evictions);
static void entries_copy(fleet_t *copy, const fleet_t *f);
static void entries_each_instruction(ratelimit_algorithm_e algorithm,
    uint32_t buckets);
static void entries_step(fleet_t *f, int number, void *data);


/* ids that are there, counted one by one */

static uint64_t
entries_there(const fleet_t *f)
{
    uint64_t           line, n;
    unsigned           i;
    ratelimit_slot_t  *slot;

    n = 0;

    for (line = 0;
         line < (uint64_t) f->table.nsegments * f->table.nlines;
         line++)
    {
        slot = (ratelimit_slot_t *) ((unsigned char *) f->table.slots
                                     + line * f->table.line_size);

        for (i = 0; i < RATELIMIT_LINE_SLOTS; i++) {
            n += (slot[i].id != 0);
        }
    }

    return n;
}


static void
entries_open(fleet_t *f, ratelimit_algorithm_e algorithm, uint32_t buckets,
    size_t size)
{
    memset(f, 0, sizeof(fleet_t));
    f->n = 1;
    f->rules[0] = fleet_rule(5, 3600);

    fleet_open(f, size, algorithm, buckets);
}


static void
entries_insert(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t   f;
    uint64_t  key, size, empty, one;

    entries_open(&f, algorithm, buckets, SIZE);

    empty = ratelimit_table_bytes_used(&f.table, &size);
    (void) fleet_hit(&f, 0);
    one = ratelimit_table_bytes_used(&f.table, &size) - empty;

    for (key = 0; key < 100; key++) {
        while (fleet_hit(&f, key)) { /* void */ }
    }

    tap_ok(ratelimit_table_entries(&f.table) == 100
           && entries_there(&f) == 100
           && ratelimit_table_evictions(&f.table) == 0
           && one >= sizeof(ratelimit_slot_t) + f.table.slot_size
           && ratelimit_table_bytes_used(&f.table, &size) == empty + 100 * one,
           "%s buckets=%u: 100 keys are 100 entries of %u bytes",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) one);
}


static void
entries_expire(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t   f;
    uint64_t  key, wrong, most;

    entries_open(&f, algorithm, buckets, SIZE);

    most = 0;
    wrong = 0;

    for (key = 0; key < KEYS; key++) {
        (void) fleet_hit(&f, key);
        f.now += 60 * RATELIMIT_SECOND;

        if (key % 100 == 0) {
            wrong += ratelimit_table_entries(&f.table) != entries_there(&f);
        }

        most = ratelimit_max(most, ratelimit_table_entries(&f.table));
    }

    tap_ok(wrong == 0 && most >= 120 && most < KEYS
           && ratelimit_table_evictions(&f.table) == 0,
           "%s buckets=%u: the slots of keys that expire are used again, "
           "%u entries at most", ratelimit_algorithms[algorithm]->name,
           buckets, (unsigned) most);
}


static void
entries_evict(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t   f;
    uint64_t  key, size, there, used;

    entries_open(&f, algorithm, buckets, SIZE);

    for (key = 0; key < KEYS; key++) {
        (void) fleet_hit(&f, key);
    }

    there = entries_there(&f);
    used = ratelimit_table_bytes_used(&f.table, &size);

    tap_ok(ratelimit_table_entries(&f.table) == there
           && ratelimit_table_evictions(&f.table) == KEYS - there,
           "%s buckets=%u: of %d keys %u are entries, all others were evicted",
           ratelimit_algorithms[algorithm]->name, buckets, KEYS,
           (unsigned) there);
    tap_ok(used <= size && used >= size - size / 8,
           "%s buckets=%u: %u bytes of %u are in use then",
           ratelimit_algorithms[algorithm]->name, buckets, (unsigned) used,
           (unsigned) size);

    tap_ok(ratelimit_table_new_evictions(&f.table, f.now) == KEYS - there
           && ratelimit_table_new_evictions(&f.table, f.now) == 0,
           "%s buckets=%u: they are reported once",
           ratelimit_algorithms[algorithm]->name, buckets);
}


static void
entries_migrate(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    fleet_t   old, new;
    uint64_t  key, entries, evictions, sealed;
    unsigned  wrong;

    entries_open(&old, algorithm, buckets, SIZE);

    for (key = 0; key < KEYS; key++) {
        (void) fleet_hit(&old, key);
    }

    evictions = ratelimit_table_evictions(&old.table);
    entries = ratelimit_table_entries(&old.table);

    ratelimit_table_dismiss_evictions(&old.table);
    (void) fleet_hit(&old, key);
    evictions++;

    new = old;
    fleet_open(&new, 4 * SIZE, algorithm, buckets);
    new.table.older = &old.table;

    wrong = ratelimit_table_entries(&new.table) != entries;
    wrong += entries_miscount(&new.table, evictions);

    ratelimit_table_seal(&new.table, new.now);

    wrong += ratelimit_table_entries(&new.table) != entries;
    wrong += ratelimit_table_evictions(&new.table) != evictions;

    /* a process that seals it is interrupted, or killed, just before that */

    sealed = old.table.header->sealed;
    old.table.header->sealed = 0;

    wrong += entries_miscount(&new.table, evictions);

    old.table.header->sealed = sealed;

    for (key = KEYS - entries / 4; key < KEYS; key++) {
        (void) fleet_hit(&new, key);
    }

    wrong += ratelimit_table_entries(&new.table)
             != entries_there(&new) + entries_there(&old);
    wrong += entries_there(&new) != entries / 4;
    wrong += ratelimit_table_evictions(&new.table) != evictions;

    /* as all processes do, now and then */

    ratelimit_table_seal(&new.table, new.now);
    new.table.older = NULL;

    wrong += ratelimit_table_entries(&new.table) != entries / 4;
    wrong += entries_miscount(&new.table, evictions);

    tap_ok(wrong == 0,
           "%s buckets=%u: entries move, %u evictions stay counted, %u wrong",
           ratelimit_algorithms[algorithm]->name, buckets,
           (unsigned) evictions, wrong);
}


/* the last eviction is not dismissed */

static unsigned
entries_miscount(const ratelimit_table_t *table, uint64_t evictions)
{
    return (ratelimit_table_evictions(table) != evictions)
           + (ratelimit_table_dismissed(table) != evictions - 1);
}


/* a copy of the table as a process would find it if its user were killed now */

static void
entries_copy(fleet_t *copy, const fleet_t *f)
{
    void      *memory;
    size_t     size;
    uint32_t   i;

    memory = ratelimit_table_memory(&f->table, &size);
    memcpy(copy->table.header, memory, size);

    for (i = 0; i < copy->table.nsegments; i++) {
        if ((uint32_t) copy->table.segments[i].lock) {
            copy->table.segments[i].lock |= DEAD;
        }
    }
}


/*
 * A process decides about a new key in a full table, one instruction at a time,
 * and after each of them the table is looked at as if it had died there.
 */

static void
entries_each_instruction(ratelimit_algorithm_e algorithm, uint32_t buckets)
{
    int       status;
    pid_t     pid;
    fleet_t   f, copy;
    uint64_t  key, before, evictions;
    unsigned  steps, held, wrong;

    entries_open(&f, algorithm, buckets, 16 << 10);
    copy = f;
    fleet_open(&copy, 16 << 10, algorithm, buckets);

    for (key = 0; key < KEYS; key++) {
        (void) fleet_hit(&f, key);
    }

    before = ratelimit_table_evictions(&f.table);
    pid = fleet_fork(&f, entries_step, 0, &key);
    steps = 0;
    held = 0;
    wrong = 0;

    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        entries_copy(&copy, &f);
        held += (uint32_t) copy.table.segments[0].lock != 0;

        /* there is one segment: its lock is taken over */

        (void) fleet_hit(&copy, key + 1);
        evictions = ratelimit_table_evictions(&copy.table) - before;

        wrong += ratelimit_table_entries(&copy.table) != entries_there(&copy)
                 || evictions > 2;

        (void) ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
        steps++;
    }

    tap_ok(f.table.nsegments == 1 && wrong == 0 && held > 50,
           "%s buckets=%u: killed at any of %u instructions, %u of them with "
           "the lock, %u times a number is wrong",
           ratelimit_algorithms[algorithm]->name, buckets, steps, held, wrong);
}


static void
entries_step(fleet_t *f, int number, void *data)
{
    uint64_t  *key = data;

    (void) number;

    (void) ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    (void) fleet_hit(f, *key);
}


int
main(void)
{
    unsigned  i;

    (void) alarm(600);   /* a hang is a failure */

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        entries_insert(i, fleet_buckets(i));
        entries_expire(i, fleet_buckets(i));
        entries_evict(i, fleet_buckets(i));
        entries_migrate(i, fleet_buckets(i));
    }

    entries_each_instruction(RATELIMIT_FIXED_WINDOW, 0);
    entries_each_instruction(RATELIMIT_SLIDING_WINDOW, 10);
    entries_each_instruction(RATELIMIT_SLIDING_LOG, 0);

    return tap_done();
}
