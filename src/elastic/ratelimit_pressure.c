
/*
 * How much of the processors is in use.
 */


#include <string.h>

#include "core/ratelimit_math.h"
#include "elastic/ratelimit_pressure.h"


#define RATELIMIT_PRESSURE_FIELDS  8

/* of /proc/stat: time in which a processor had nothing to do */
#define RATELIMIT_PRESSURE_IDLE    3
#define RATELIMIT_PRESSURE_IOWAIT  4


/* what has not been read yet */

typedef struct {
    const char                     *pos;
    const char                     *last;
} ratelimit_pressure_text_t;


static int ratelimit_pressure_line(ratelimit_pressure_text_t *text,
    ratelimit_pressure_text_t *line);
static int ratelimit_pressure_word(ratelimit_pressure_text_t *text,
    const char *word);
static int ratelimit_pressure_digits(ratelimit_pressure_text_t *text,
    uint64_t *number);
static int ratelimit_pressure_end(const ratelimit_pressure_text_t *text);
static int ratelimit_pressure_lists(ratelimit_pressure_text_t *text,
    const char *controller);


int
ratelimit_pressure_stat(const char *text, size_t len, ratelimit_cpu_t *cpu)
{
    uint64_t                   field[RATELIMIT_PRESSURE_FIELDS], busy, idle;
    unsigned                   n;
    ratelimit_pressure_text_t  all, line;

    all.pos = text;
    all.last = text + len;

    if (!ratelimit_pressure_line(&all, &line)
        || !ratelimit_pressure_word(&line, "cpu "))
    {
        return 0;
    }

    memset(field, 0, sizeof(field));

    /* what follows are parts of the first fields; old kernels have but four */

    for (n = 0; n < RATELIMIT_PRESSURE_FIELDS; n++) {

        while (ratelimit_pressure_word(&line, " ")) {
            /* void */
        }

        if (!ratelimit_pressure_digits(&line, &field[n])) {
            break;
        }
    }

    if (n <= RATELIMIT_PRESSURE_IDLE
        || (line.pos < line.last && *line.pos != ' '))
    {
        return 0;
    }

    idle = ratelimit_add(field[RATELIMIT_PRESSURE_IDLE],
                         field[RATELIMIT_PRESSURE_IOWAIT]);
    busy = 0;

    for (n = 0; n < RATELIMIT_PRESSURE_FIELDS; n++) {
        if (n != RATELIMIT_PRESSURE_IDLE && n != RATELIMIT_PRESSURE_IOWAIT) {
            busy = ratelimit_add(busy, field[n]);
        }
    }

    cpu->used = busy;
    cpu->passed = ratelimit_add(busy, idle);
    cpu->quota = 1;
    cpu->period = 1;

    return 1;
}


int
ratelimit_pressure_cpu_max(const char *text, size_t len, uint64_t *quota,
    uint64_t *period)
{
    int                        unlimited;
    uint64_t                   number, per;
    ratelimit_pressure_text_t  line;

    line.pos = text;
    line.last = text + len;
    number = 0;

    unlimited = ratelimit_pressure_word(&line, "max");

    if (!unlimited
        && (!ratelimit_pressure_digits(&line, &number) || number == 0))
    {
        return 0;
    }

    if (!ratelimit_pressure_word(&line, " ")
        || !ratelimit_pressure_digits(&line, &per)
        || !ratelimit_pressure_end(&line)
        || per == 0)
    {
        return 0;
    }

    *quota = number;
    *period = per;

    return 1;
}


int
ratelimit_pressure_usage(const char *text, size_t len, uint64_t *usage)
{
    uint64_t                   number;
    ratelimit_pressure_text_t  all, line;

    all.pos = text;
    all.last = text + len;

    while (ratelimit_pressure_line(&all, &line)) {

        if (!ratelimit_pressure_word(&line, "usage_usec ")) {
            continue;
        }

        if (!ratelimit_pressure_digits(&line, &number)
            || !ratelimit_pressure_end(&line))
        {
            return 0;
        }

        *usage = number;

        return 1;
    }

    return 0;
}


int
ratelimit_pressure_number(const char *text, size_t len, uint64_t *number)
{
    uint64_t                   n;
    ratelimit_pressure_text_t  line;

    line.pos = text;
    line.last = text + len;

    if (!ratelimit_pressure_digits(&line, &n)
        || !ratelimit_pressure_end(&line)
        || n == 0)
    {
        return 0;
    }

    *number = n;

    return 1;
}


int
ratelimit_pressure_cgroup(const char *text, size_t len,
    const char *controller, const char **path, size_t *path_len)
{
    uint64_t                   number;
    ratelimit_pressure_text_t  all, line;

    all.pos = text;
    all.last = text + len;

    while (ratelimit_pressure_line(&all, &line)) {

        if (!ratelimit_pressure_digits(&line, &number)
            || !ratelimit_pressure_word(&line, ":")
            || !ratelimit_pressure_lists(&line, controller)
            || line.pos == line.last
            || *line.pos != '/')
        {
            continue;
        }

        *path = line.pos;
        *path_len = line.last - line.pos;

        if (*path_len == 1) {
            *path_len = 0;
        }

        return 1;
    }

    return 0;
}


/* the next line that is whole, without its end */

static int
ratelimit_pressure_line(ratelimit_pressure_text_t *text,
    ratelimit_pressure_text_t *line)
{
    const char  *end;

    if (text->pos == text->last) {
        return 0;
    }

    end = memchr(text->pos, '\n', text->last - text->pos);
    if (end == NULL) {
        return 0;
    }

    line->pos = text->pos;
    line->last = end;
    text->pos = end + 1;

    return 1;
}


static int
ratelimit_pressure_word(ratelimit_pressure_text_t *text, const char *word)
{
    size_t  len;

    len = strlen(word);

    if ((size_t) (text->last - text->pos) < len
        || memcmp(text->pos, word, len) != 0)
    {
        return 0;
    }

    text->pos += len;

    return 1;
}


static int
ratelimit_pressure_digits(ratelimit_pressure_text_t *text, uint64_t *number)
{
    unsigned     digit;
    uint64_t     n;
    const char  *p;

    n = 0;

    for (p = text->pos; p < text->last && *p >= '0' && *p <= '9'; p++) {
        digit = *p - '0';

        if (n > (UINT64_MAX - digit) / 10) {
            return 0;
        }

        n = n * 10 + digit;
    }

    if (p == text->pos) {
        return 0;
    }

    text->pos = p;
    *number = n;

    return 1;
}


static int
ratelimit_pressure_end(const ratelimit_pressure_text_t *text)
{
    return text->pos == text->last || *text->pos == '\n';
}


/* whether "cpu,cpuacct:" names the controller; the text is behind the colon */

static int
ratelimit_pressure_lists(ratelimit_pressure_text_t *text,
    const char *controller)
{
    size_t       len;
    const char  *p, *end, *colon;

    colon = (text->pos == text->last)
            ? NULL : memchr(text->pos, ':', text->last - text->pos);
    if (colon == NULL) {
        return 0;
    }

    len = strlen(controller);
    p = text->pos;
    text->pos = colon + 1;

    for ( ;; ) {
        for (end = p; end < colon && *end != ','; end++) {
            /* void */
        }

        if ((size_t) (end - p) == len && memcmp(p, controller, len) == 0) {
            return 1;
        }

        if (end == colon) {
            return 0;
        }

        p = end + 1;
    }
}


uint32_t
ratelimit_pressure_share(uint64_t used, uint64_t whole)
{
    if (whole == 0) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    if (used >= whole) {
        return RATELIMIT_PRESSURE_WHOLE;
    }

    if (used > UINT64_MAX / RATELIMIT_PRESSURE_WHOLE) {
        return (uint32_t) ratelimit_min(used
                                        / (whole / RATELIMIT_PRESSURE_WHOLE),
                                        RATELIMIT_PRESSURE_WHOLE);
    }

    return (uint32_t) (used * RATELIMIT_PRESSURE_WHOLE / whole);
}


/* the counters of some kernels go back now and then */

uint32_t
ratelimit_pressure_cpu(const ratelimit_cpu_t *before,
    const ratelimit_cpu_t *now)
{
    uint64_t  used, passed, whole;

    used = ratelimit_sub(now->used, before->used);
    passed = ratelimit_sub(now->passed, before->passed);

    if (now->period == 0) {
        return RATELIMIT_PRESSURE_UNKNOWN;
    }

    if (now->quota && passed > UINT64_MAX / now->quota) {
        whole = ratelimit_max(passed / now->period, 1);
        whole = (whole > UINT64_MAX / now->quota) ? UINT64_MAX
                                                  : whole * now->quota;

    } else {
        whole = passed * now->quota / now->period;
    }

    return ratelimit_pressure_share(used, whole);
}


int
ratelimit_pressure(uint32_t share, uint32_t mark, int pressed)
{
    uint32_t  low;

    if (!pressed) {
        return share >= mark;
    }

    low = (mark >= 2 * RATELIMIT_PRESSURE_GAP) ? mark - RATELIMIT_PRESSURE_GAP
                                               : mark / 2;

    return share >= low;
}
