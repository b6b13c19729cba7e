
/* The files of the kernel that say how much of the processors was used. */


#include <string.h>

#include "core/ratelimit_math.h"
#include "elastic/ratelimit_pressure.h"


#define RATELIMIT_PROCFS_FIELDS  8

/* fields of /proc/stat: time in which a processor was idle */
#define RATELIMIT_PROCFS_IDLE    3
#define RATELIMIT_PROCFS_IOWAIT  4


/* the part of a text that has not been read yet */

typedef struct {
    const char                     *pos;
    const char                     *last;
} ratelimit_procfs_text_t;


static int ratelimit_procfs_line(ratelimit_procfs_text_t *text,
    ratelimit_procfs_text_t *line);
static int ratelimit_procfs_word(ratelimit_procfs_text_t *text,
    const char *word);
static int ratelimit_procfs_digits(ratelimit_procfs_text_t *text,
    uint64_t *number);
static int ratelimit_procfs_end(const ratelimit_procfs_text_t *text);
static int ratelimit_procfs_lists(ratelimit_procfs_text_t *text,
    const char *controller);


int
ratelimit_procfs_stat(const char *text, size_t len, ratelimit_cpu_t *cpu)
{
    uint64_t                 field[RATELIMIT_PROCFS_FIELDS], busy, idle;
    unsigned                 n;
    ratelimit_procfs_text_t  all, line;

    all.pos = text;
    all.last = text + len;

    if (!ratelimit_procfs_line(&all, &line)
        || !ratelimit_procfs_word(&line, "cpu "))
    {
        return 0;
    }

    memset(field, 0, sizeof(field));

    /* further fields are parts of these; old kernels write only four */

    for (n = 0; n < RATELIMIT_PROCFS_FIELDS; n++) {

        while (ratelimit_procfs_word(&line, " ")) {
            /* void */
        }

        if (!ratelimit_procfs_digits(&line, &field[n])) {
            break;
        }
    }

    if (n <= RATELIMIT_PROCFS_IDLE
        || (line.pos < line.last && *line.pos != ' '))
    {
        return 0;
    }

    idle = ratelimit_add(field[RATELIMIT_PROCFS_IDLE],
                         field[RATELIMIT_PROCFS_IOWAIT]);
    busy = 0;

    for (n = 0; n < RATELIMIT_PROCFS_FIELDS; n++) {
        if (n != RATELIMIT_PROCFS_IDLE && n != RATELIMIT_PROCFS_IOWAIT) {
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
ratelimit_procfs_cpu_max(const char *text, size_t len, uint64_t *quota,
    uint64_t *period)
{
    int                      unlimited;
    uint64_t                 number, per;
    ratelimit_procfs_text_t  line;

    line.pos = text;
    line.last = text + len;
    number = 0;

    unlimited = ratelimit_procfs_word(&line, "max");

    if (!unlimited
        && (!ratelimit_procfs_digits(&line, &number) || number == 0))
    {
        return 0;
    }

    if (!ratelimit_procfs_word(&line, " ")
        || !ratelimit_procfs_digits(&line, &per)
        || !ratelimit_procfs_end(&line)
        || per == 0)
    {
        return 0;
    }

    *quota = number;
    *period = per;

    return 1;
}


int
ratelimit_procfs_usage(const char *text, size_t len, uint64_t *usage)
{
    uint64_t                 number;
    ratelimit_procfs_text_t  all, line;

    all.pos = text;
    all.last = text + len;

    while (ratelimit_procfs_line(&all, &line)) {

        if (!ratelimit_procfs_word(&line, "usage_usec ")) {
            continue;
        }

        if (!ratelimit_procfs_digits(&line, &number)
            || !ratelimit_procfs_end(&line))
        {
            return 0;
        }

        *usage = number;

        return 1;
    }

    return 0;
}


int
ratelimit_procfs_number(const char *text, size_t len, uint64_t *number)
{
    uint64_t                 n;
    ratelimit_procfs_text_t  line;

    line.pos = text;
    line.last = text + len;

    if (!ratelimit_procfs_digits(&line, &n)
        || !ratelimit_procfs_end(&line)
        || n == 0)
    {
        return 0;
    }

    *number = n;

    return 1;
}


int
ratelimit_procfs_cgroup(const char *text, size_t len,
    const char *controller, const char **path, size_t *path_len)
{
    uint64_t                 number;
    ratelimit_procfs_text_t  all, line;

    all.pos = text;
    all.last = text + len;

    while (ratelimit_procfs_line(&all, &line)) {

        if (!ratelimit_procfs_digits(&line, &number)
            || !ratelimit_procfs_word(&line, ":")
            || !ratelimit_procfs_lists(&line, controller)
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


/* the next complete line, without its end */

static int
ratelimit_procfs_line(ratelimit_procfs_text_t *text,
    ratelimit_procfs_text_t *line)
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
ratelimit_procfs_word(ratelimit_procfs_text_t *text, const char *word)
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
ratelimit_procfs_digits(ratelimit_procfs_text_t *text, uint64_t *number)
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
ratelimit_procfs_end(const ratelimit_procfs_text_t *text)
{
    return text->pos == text->last || *text->pos == '\n';
}


/* whether "cpu,cpuacct:" lists the controller; the text is left after it */

static int
ratelimit_procfs_lists(ratelimit_procfs_text_t *text,
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
