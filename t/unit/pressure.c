
/*
 * What the kernel's files say of processors, as they are written by several
 * kernels, and as they never should be; shares between two of them; and the
 * mark that a share crosses.
 */


#include <stdlib.h>
#include <string.h>

#include "elastic/ratelimit_pressure.h"

#include "tap.h"


#define pressure_text(s)  s, sizeof(s) - 1

#define PRESSURE_NOTHING  77    /* what stays if nothing is read */


typedef struct {
    const char                     *text;
    size_t                          len;
    int                             read;
    uint64_t                        first;
    uint64_t                        second;
} pressure_file_t;


typedef struct {
    const char                     *text;
    size_t                          len;
    const char                     *controller;
    const char                     *path;     /* NULL if there is none */
} pressure_group_t;


typedef int (*pressure_read_pt)(const char *text, size_t len, uint64_t *first,
    uint64_t *second);


static char *pressure_copy(const char *text, size_t len);
static int pressure_stat(const char *text, size_t len, uint64_t *first,
    uint64_t *second);
static int pressure_usage(const char *text, size_t len, uint64_t *first,
    uint64_t *second);
static int pressure_number(const char *text, size_t len, uint64_t *first,
    uint64_t *second);
static void pressure_test_files(const char *name, pressure_read_pt read,
    const pressure_file_t *files, size_t n);
static void pressure_test_truncated(const char *name, pressure_read_pt read,
    const char *text, size_t whole);
static void pressure_test_garbage(const char *name, pressure_read_pt read);
static void pressure_test_groups(void);
static void pressure_test_shares(void);
static void pressure_test_cpu(void);
static void pressure_test_mark(void);
static void pressure_test_flapping(void);


/* used, passed */

static const pressure_file_t  pressure_stats[] = {
    { pressure_text("cpu  10 20 30 400 50 6 7 8 0 0\n"
                    "cpu0 1 1 1 1 1 1 1 1 0 0\n"), 1, 81, 531 },
    { pressure_text("cpu  10 20 30 400 50 6 7 8 9 10\nintr 1\n"), 1, 81, 531 },
    { pressure_text("cpu  10 20 30 400 50 6 7 8 0 0 0 0 0\n"), 1, 81, 531 },
    { pressure_text("cpu  10 20 30 400 50 6 7\n"), 1, 73, 523 },
    { pressure_text("cpu  10 20 30 400\n"), 1, 60, 460 },
    { pressure_text("cpu 10 20 30 400\n"), 1, 60, 460 },
    { pressure_text("cpu  10 20 30 400 \n"), 1, 60, 460 },
    { pressure_text("cpu  0 0 0 0 0 0 0 0 0 0\n"), 1, 0, 0 },
    { pressure_text("cpu  256974 25959 84275 488899 2297 0 1654 1404 0 0\n"),
      1, 370266, 861462 },
    { pressure_text("cpu  18446744073709551615 1 0 0\n"), 1, UINT64_MAX,
      UINT64_MAX },
    { pressure_text("cpu  1 1 1 18446744073709551615 5\n"), 1, 3, UINT64_MAX },

    { pressure_text(""), 0, 0, 0 },
    { pressure_text("\n"), 0, 0, 0 },
    { pressure_text("cpu"), 0, 0, 0 },
    { pressure_text("cpu\n"), 0, 0, 0 },
    { pressure_text("cpu  \n"), 0, 0, 0 },
    { pressure_text("cpu  1 2 3\n"), 0, 0, 0 },
    { pressure_text("cpu  10 20 30 400 50 6 7 8 0 0"), 0, 0, 0 },
    { pressure_text("cpu0 10 20 30 400 50 6 7 8 0 0\n"), 0, 0, 0 },
    { pressure_text("\ncpu  10 20 30 400 50 6 7 8 0 0\n"), 0, 0, 0 },
    { pressure_text(" cpu  10 20 30 400 50 6 7 8 0 0\n"), 0, 0, 0 },
    { pressure_text("CPU  10 20 30 400 50 6 7 8 0 0\n"), 0, 0, 0 },
    { pressure_text("cpu  10 20 30 400x 50 6 7 8 0 0\n"), 0, 0, 0 },
    { pressure_text("cpu  10 20 30 400 50 6 7 8x\n"), 0, 0, 0 },
    { pressure_text("cpu  10 20 -30 400 50 6 7 8 0 0\n"), 0, 0, 0 },
    { pressure_text("cpu  10\t20\t30\t400\n"), 0, 0, 0 },
    { pressure_text("cpu  10 20 30\n400 50\n"), 0, 0, 0 },
    { pressure_text("cpu  18446744073709551616 1 2 3\n"), 0, 0, 0 },
    { pressure_text("cpu  99999999999999999999999 1 2 3\n"), 0, 0, 0 },
    { pressure_text("cpu  10 20\0 30 400\n"), 0, 0, 0 },
};


/* quota, period */

static const pressure_file_t  pressure_maxima[] = {
    { pressure_text("max 100000\n"), 1, 0, 100000 },
    { pressure_text("50000 100000\n"), 1, 50000, 100000 },
    { pressure_text("50000 100000"), 1, 50000, 100000 },
    { pressure_text("400000 100000\n"), 1, 400000, 100000 },
    { pressure_text("1000 1000000\n"), 1, 1000, 1000000 },
    { pressure_text("18446744073709551615 1\n"), 1, UINT64_MAX, 1 },

    { pressure_text(""), 0, 0, 0 },
    { pressure_text("\n"), 0, 0, 0 },
    { pressure_text("max"), 0, 0, 0 },
    { pressure_text("max\n"), 0, 0, 0 },
    { pressure_text("max 0\n"), 0, 0, 0 },
    { pressure_text("max max\n"), 0, 0, 0 },
    { pressure_text("50000\n"), 0, 0, 0 },
    { pressure_text("50000 \n"), 0, 0, 0 },
    { pressure_text("50000  100000\n"), 0, 0, 0 },
    { pressure_text(" 50000 100000\n"), 0, 0, 0 },
    { pressure_text("50000 0\n"), 0, 0, 0 },
    { pressure_text("0 100000\n"), 0, 0, 0 },
    { pressure_text("-1 100000\n"), 0, 0, 0 },
    { pressure_text("50000 100000 1\n"), 0, 0, 0 },
    { pressure_text("50000 100000x\n"), 0, 0, 0 },
    { pressure_text("50000,100000\n"), 0, 0, 0 },
    { pressure_text("maximum 100000\n"), 0, 0, 0 },
    { pressure_text("18446744073709551616 1\n"), 0, 0, 0 },
};


static const pressure_file_t  pressure_usages[] = {
    { pressure_text("usage_usec 123456\nuser_usec 1\nsystem_usec 2\n"), 1,
      123456, PRESSURE_NOTHING },
    { pressure_text("user_usec 1\nusage_usec 123456\n"), 1, 123456,
      PRESSURE_NOTHING },
    { pressure_text("usage_usec 0\n"), 1, 0, PRESSURE_NOTHING },
    { pressure_text("\n\nusage_usec 18446744073709551615\n"), 1, UINT64_MAX,
      PRESSURE_NOTHING },

    /* version 1 has no usage there */
    { pressure_text("nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"), 0, 0,
      0 },
    { pressure_text(""), 0, 0, 0 },
    { pressure_text("usage_usec"), 0, 0, 0 },
    { pressure_text("usage_usec \n"), 0, 0, 0 },
    { pressure_text("usage_usec 123"), 0, 0, 0 },
    { pressure_text("usage_usec\n123\n"), 0, 0, 0 },
    { pressure_text("usage_usec -1\n"), 0, 0, 0 },
    { pressure_text("usage_usec 12x\n"), 0, 0, 0 },
    { pressure_text("usage_usec  12\n"), 0, 0, 0 },
    { pressure_text(" usage_usec 12\n"), 0, 0, 0 },
    { pressure_text("x_usage_usec 12\n"), 0, 0, 0 },
    { pressure_text("usage_usec 18446744073709551616\n"), 0, 0, 0 },
};


static const pressure_file_t  pressure_numbers[] = {
    { pressure_text("50000\n"), 1, 50000, PRESSURE_NOTHING },
    { pressure_text("50000"), 1, 50000, PRESSURE_NOTHING },
    { pressure_text("1\n"), 1, 1, PRESSURE_NOTHING },
    { pressure_text("18446744073709551615\n"), 1, UINT64_MAX,
      PRESSURE_NOTHING },

    { pressure_text("-1\n"), 0, 0, 0 },
    { pressure_text("0\n"), 0, 0, 0 },
    { pressure_text(""), 0, 0, 0 },
    { pressure_text("\n"), 0, 0, 0 },
    { pressure_text(" 1\n"), 0, 0, 0 },
    { pressure_text("1 \n"), 0, 0, 0 },
    { pressure_text("1x\n"), 0, 0, 0 },
    { pressure_text("+1\n"), 0, 0, 0 },
    { pressure_text("0x10\n"), 0, 0, 0 },
    { pressure_text("18446744073709551616\n"), 0, 0, 0 },
};


static const pressure_group_t  pressure_groups[] = {
    { pressure_text("0::/\n"), "", "" },
    { pressure_text("0::/user.slice/a:b c\n"), "", "/user.slice/a:b c" },
    { pressure_text("0::/../x\n"), "", "/../x" },
    { pressure_text("9:name=systemd:/\n1:cpu:/\n0::/a\n"), "", "/a" },
    { pressure_text("9:name=systemd:/\n1:cpu:/b\n0::/a\n"), "cpu", "/b" },
    { pressure_text("4:cpu,cpuacct:/docker/1\n"), "cpu", "/docker/1" },
    { pressure_text("4:cpuacct,cpu:/docker/1\n"), "cpu", "/docker/1" },
    { pressure_text("4:cpuset:/s\n3:cpuacct:/t\n2:cpu:/u\n"), "cpu", "/u" },
    { pressure_text("x\n\n1:cpu:/b\n"), "cpu", "/b" },

    { pressure_text(""), "", NULL },
    { pressure_text("0::/a"), "", NULL },
    { pressure_text("0::\n"), "", NULL },
    { pressure_text("0::a\n"), "", NULL },
    { pressure_text("0:\n"), "", NULL },
    { pressure_text("0\n"), "", NULL },
    { pressure_text("::/a\n"), "", NULL },
    { pressure_text("0::/a\n"), "cpu", NULL },
    { pressure_text("1:cpu:/a\n"), "", NULL },
    { pressure_text("1:cpuset:/a\n2:cpuacct:/b\n3:xcpu:/c\n"), "cpu", NULL },
    { pressure_text("1:name=cpu:/a\n"), "cpu", NULL },
    { pressure_text("1:cpu,:x\n"), "cpu", NULL },
};


/* a copy without anything behind it, so that reading on is noticed */

static char *
pressure_copy(const char *text, size_t len)
{
    char  *copy;

    copy = malloc(len ? len : 1);
    if (copy == NULL) {
        abort();
    }

    memcpy(copy, text, len);

    return copy;
}


static int
pressure_stat(const char *text, size_t len, uint64_t *first, uint64_t *second)
{
    int              rc;
    ratelimit_cpu_t  cpu;

    cpu.used = *first;
    cpu.passed = *second;
    cpu.quota = 1;
    cpu.period = 1;

    rc = ratelimit_procfs_stat(text, len, &cpu);

    *first = cpu.used;
    *second = cpu.passed;

    return rc && cpu.quota == 1 && cpu.period == 1;
}


static int
pressure_usage(const char *text, size_t len, uint64_t *first,
    uint64_t *second)
{
    (void) second;

    return ratelimit_procfs_usage(text, len, first);
}


static int
pressure_number(const char *text, size_t len, uint64_t *first,
    uint64_t *second)
{
    (void) second;

    return ratelimit_procfs_number(text, len, first);
}


static void
pressure_test_files(const char *name, pressure_read_pt read,
    const pressure_file_t *files, size_t n)
{
    int       rc;
    char     *copy;
    size_t    i;
    uint64_t  first, second;

    for (i = 0; i < n; i++) {
        copy = pressure_copy(files[i].text, files[i].len);
        first = PRESSURE_NOTHING;
        second = PRESSURE_NOTHING;

        rc = read(copy, files[i].len, &first, &second);

        if (files[i].read) {
            tap_ok(rc == 1 && first == files[i].first
                   && second == files[i].second,
                   "%s %u is read", name, (unsigned) i);

        } else {
            tap_ok(rc == 0 && first == PRESSURE_NOTHING
                   && second == PRESSURE_NOTHING,
                   "%s %u is refused", name, (unsigned) i);
        }

        free(copy);
    }
}


/* shorter than what must be there, it is nothing */

static void
pressure_test_truncated(const char *name, pressure_read_pt read,
    const char *text, size_t whole)
{
    char      *copy;
    size_t     len;
    uint64_t   first, second;
    unsigned   taken;

    taken = 0;

    for (len = 0; len < whole; len++) {
        copy = pressure_copy(text, len);
        taken += read(copy, len, &first, &second);
        free(copy);
    }

    tap_ok(taken == 0, "a truncated %s is refused", name);
}


/* random bytes, most of them near to what is right */

static void
pressure_test_garbage(const char *name, pressure_read_pt read)
{
    char      text[48], *copy;
    size_t    len, j;
    uint64_t  first, second;
    unsigned  i, odd;

    static const char  near[] = "cpu  usage_usec 0123456789012345 max\n\n\n\0-";

    odd = 0;

    for (i = 0; i < 50000; i++) {
        len = rand() % sizeof(text);

        for (j = 0; j < len; j++) {
            text[j] = (i % 4) ? near[rand() % (sizeof(near) - 1)] : rand();
        }

        if (i % 3 == 0) {
            memcpy(text, "cpu  1 2 ", len < 9 ? len : 9);

        } else if (i % 3 == 1) {
            memcpy(text, "usage_usec ", len < 11 ? len : 11);
        }

        copy = pressure_copy(text, len);
        first = PRESSURE_NOTHING;
        second = PRESSURE_NOTHING;

        if (!read(copy, len, &first, &second)) {
            odd += (first != PRESSURE_NOTHING || second != PRESSURE_NOTHING);
        }

        free(copy);
    }

    tap_ok(odd == 0, "garbage for %s changes nothing", name);
}


static void
pressure_test_groups(void)
{
    int          rc;
    char        *copy;
    size_t       i, len;
    const char  *path;

    const pressure_group_t  *group;

    for (i = 0; i < sizeof(pressure_groups) / sizeof(pressure_groups[0]); i++) {
        group = &pressure_groups[i];
        copy = pressure_copy(group->text, group->len);

        rc = ratelimit_procfs_cgroup(copy, group->len, group->controller,
                                       &path, &len);

        if (group->path == NULL) {
            tap_ok(rc == 0, "cgroup %u has no path", (unsigned) i);

        } else {
            tap_ok(rc == 1 && len == strlen(group->path)
                   && memcmp(path, group->path, len) == 0,
                   "cgroup %u has the path \"%s\"", (unsigned) i, group->path);
        }

        free(copy);
    }
}


static void
pressure_test_shares(void)
{
    size_t    i;
    uint32_t  share;

    static const struct {
        uint64_t  used;
        uint64_t  whole;
        uint32_t  share;
    } tests[] = {
        { 0, 0, RATELIMIT_PRESSURE_UNKNOWN },
        { 1, 0, RATELIMIT_PRESSURE_UNKNOWN },
        { 0, 1, 0 },
        { 1, 1, 1000 },
        { 2, 1, 1000 },
        { 1, 3, 333 },
        { 2, 3, 666 },
        { 999, 1000, 999 },
        { 9999, 10000, 999 },
        { 1, 1001, 0 },
        { UINT64_MAX, 1, 1000 },
        { UINT64_MAX, UINT64_MAX, 1000 },
        { UINT64_MAX - 1, UINT64_MAX, 1000 },
        { UINT64_MAX / 2, UINT64_MAX, 500 },
        { UINT64_MAX / 1000, UINT64_MAX, 0 },
        { UINT64_MAX / 1000 + 1, UINT64_MAX, 1 },
        { 0, UINT64_MAX, 0 },
    };

    for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        share = ratelimit_pressure_usage(tests[i].used, tests[i].whole);

        tap_ok(share == tests[i].share, "share %u is %u", (unsigned) i, share);
    }
}


static void
pressure_test_cpu(void)
{
    size_t    i;
    uint32_t  share;

    static const struct {
        const char       *name;
        ratelimit_cpu_t   before;
        ratelimit_cpu_t   now;
        uint32_t          share;
    } tests[] = {
        { "idle", { 50, 100, 1, 1 }, { 50, 300, 1, 1 }, 0 },
        { "half", { 50, 100, 1, 1 }, { 150, 300, 1, 1 }, 500 },
        { "busy", { 50, 100, 1, 1 }, { 250, 300, 1, 1 }, 1000 },
        { "no time", { 50, 100, 1, 1 }, { 50, 100, 1, 1 },
          RATELIMIT_PRESSURE_UNKNOWN },
        { "no time, and used", { 50, 100, 1, 1 }, { 60, 100, 1, 1 },
          RATELIMIT_PRESSURE_UNKNOWN },
        { "use goes back", { 50, 100, 1, 1 }, { 40, 200, 1, 1 }, 0 },
        { "time goes back", { 50, 100, 1, 1 }, { 60, 90, 1, 1 },
          RATELIMIT_PRESSURE_UNKNOWN },

        /* a second, in microseconds */

        { "half a processor, all of it", { 0, 0, 50000, 100000 },
          { 500000, 1000000, 50000, 100000 }, 1000 },
        { "half a processor, half of it", { 0, 0, 50000, 100000 },
          { 250000, 1000000, 50000, 100000 }, 500 },
        { "half a processor, more than that", { 0, 0, 50000, 100000 },
          { 600000, 1000000, 50000, 100000 }, 1000 },
        { "four processors, one used", { 7, 5, 400000, 100000 },
          { 1000007, 1000005, 400000, 100000 }, 250 },
        { "the quota of now counts", { 0, 0, 400000, 100000 },
          { 500000, 1000000, 100000, 100000 }, 500 },
        { "nanoseconds", { 0, 0, 20000, 100000 },
          { 100000000, 1000000000, 20000, 100000 }, 500 },

        /* far out */

        { "no period", { 0, 0, 1, 0 }, { 1, 1, 1, 0 },
          RATELIMIT_PRESSURE_UNKNOWN },
        { "no quota", { 0, 0, 0, 1 }, { 1, 1, 0, 1 },
          RATELIMIT_PRESSURE_UNKNOWN },
        { "large", { 0, 0, 1, 1 }, { UINT64_MAX / 2, UINT64_MAX, 1, 1 }, 500 },
        { "large quota", { 0, 0, UINT64_MAX, 1 },
          { 1000, UINT64_MAX, UINT64_MAX, 1 }, 0 },
        { "large quota and period", { 0, 0, UINT64_MAX, UINT64_MAX },
          { UINT64_MAX, 1000, UINT64_MAX, UINT64_MAX }, 1000 },
    };

    for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        share = ratelimit_pressure_cpu_usage(&tests[i].before, &tests[i].now);

        tap_ok(share == tests[i].share, "%s: %u", tests[i].name, share);
    }
}


/* at each mark, the shares where pressure begins and ends */

static void
pressure_test_mark(void)
{
    size_t    i;
    uint32_t  mark, begin, end;

    static const uint32_t  tests[][2] = {
        { 10, 5 }, { 20, 10 }, { 50, 25 }, { 90, 45 }, { 100, 50 },
        { 110, 60 }, { 500, 450 }, { 800, 750 }, { 1000, 950 },
    };

    for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        mark = tests[i][0];

        for (begin = 0; !ratelimit_pressure_at(begin, mark, 0); begin++) {
            /* void */
        }

        for (end = 1000; ratelimit_pressure_at(end, mark, 1); end--) {
            /* void */
        }

        tap_ok(begin == mark && end == tests[i][1] - 1,
               "mark %u: from %u on, until %u", mark, begin, end);
    }

    tap_ok(ratelimit_pressure_at(RATELIMIT_PRESSURE_UNKNOWN, 1000, 0)
           && ratelimit_pressure_at(RATELIMIT_PRESSURE_UNKNOWN, 1000, 1),
           "what is unknown is pressure");
}


/* a share that trembles around the mark changes the state once */

static void
pressure_test_flapping(void)
{
    int       state, next;
    unsigned  i, changes;

    state = 0;
    changes = 0;

    for (i = 0; i < 10000; i++) {
        next = ratelimit_pressure_at(775 + rand() % 50, 800, state);
        changes += (next != state);
        state = next;
    }

    tap_ok(state == 1 && changes == 1, "no flapping, %u changes", changes);
    tap_ok(ratelimit_pressure_at(749, 800, state) == 0, "it ends at last");
}


int
main(void)
{
    static const struct {
        const char             *name;
        pressure_read_pt        read;
        const pressure_file_t  *files;
        size_t                  n;
        const char             *text;
        size_t                  whole;    /* bytes that must be there */
    } kinds[] = {
        { "stat", pressure_stat, pressure_stats,
          sizeof(pressure_stats) / sizeof(pressure_stats[0]),
          pressure_text("cpu  10 20 30 400 50 6 7 8 0 0\n") },
        { "cpu.max", ratelimit_procfs_cpu_max, pressure_maxima,
          sizeof(pressure_maxima) / sizeof(pressure_maxima[0]),
          pressure_text("50000 ") },
        { "cpu.stat", pressure_usage, pressure_usages,
          sizeof(pressure_usages) / sizeof(pressure_usages[0]),
          pressure_text("user_usec 5\nusage_usec 77\n") },
        { "number", pressure_number, pressure_numbers,
          sizeof(pressure_numbers) / sizeof(pressure_numbers[0]),
          "0", 1 },
    };

    size_t  i;

    srand(1);

    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        pressure_test_files(kinds[i].name, kinds[i].read, kinds[i].files,
                            kinds[i].n);
        pressure_test_truncated(kinds[i].name, kinds[i].read, kinds[i].text,
                                kinds[i].whole);
        pressure_test_garbage(kinds[i].name, kinds[i].read);
    }

    pressure_test_groups();
    pressure_test_shares();
    pressure_test_cpu();
    pressure_test_mark();
    pressure_test_flapping();

    return tap_done();
}
