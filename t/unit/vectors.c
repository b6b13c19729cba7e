
/*
 * Runs the tables of t/vectors/ (their format is told in fixed_window.txt)
 * against the algorithms of the same names.
 */


#include <stdlib.h>
#include <string.h>

#include "core/ratelimit.h"

#include "tap.h"


#define VECTORS_COLUMNS  16
#define VECTORS_LABELS   16

/* of the core, whatever has its place here */
#define vectors_drips(NAME, name)  ratelimit_##name.drips,


typedef struct {
    char                            name[16];
    uint64_t                        stamp;
    uint64_t                        now;
} vectors_label_t;


typedef struct {
    const ratelimit_algorithm_t    *algorithm;
    const char                     *path;
    unsigned                        line;
    unsigned                        rows;
    unsigned                        failed;

    ratelimit_shape_t               shape;
    ratelimit_rule_t                rule;
    ratelimit_state_t              *state;

    char                           *column[VECTORS_COLUMNS];
    unsigned                        columns;
    char                            header[256];

    vectors_label_t                 label[VECTORS_LABELS];
    unsigned                        labels;
} vectors_t;


static void vectors_die(vectors_t *v, const char *what, const char *text);
static uint64_t vectors_number(vectors_t *v, const char *text);
static uint64_t vectors_time(vectors_t *v, const char *text);
static uint64_t vectors_unit(vectors_t *v, const char *text, size_t *len);
static unsigned vectors_split(char *line, char **word);
static void vectors_rule(vectors_t *v, char **word, unsigned n);
static void vectors_parameter(vectors_t *v, const char *name,
    const char *value);
static void vectors_header(vectors_t *v, char **word, unsigned n);
static void vectors_row(vectors_t *v, char **word, unsigned n);
static const char *vectors_cell(vectors_t *v, char **word, const char *name);
static void vectors_act(vectors_t *v, const char *action,
    const ratelimit_clock_t *clock, uint64_t cost,
    ratelimit_verdict_t *verdict);
static vectors_label_t *vectors_label(vectors_t *v, const char *name);
static void vectors_compare(vectors_t *v, char **word,
    const ratelimit_verdict_t *verdict);
static int vectors_same(vectors_t *v, const char *name, const char *cell,
    const ratelimit_verdict_t *verdict, uint64_t *got);
static void vectors_line(vectors_t *v, char *line);
static void vectors_file(const char *dir, ratelimit_algorithm_e i);


static void
vectors_die(vectors_t *v, const char *what, const char *text)
{
    fprintf(stderr, "%s:%u: %s \"%s\"\n", v->path, v->line, what, text);
    exit(2);
}


static uint64_t
vectors_number(vectors_t *v, const char *text)
{
    char      *end;
    uint64_t   number;

    number = strtoull(text, &end, 10);

    if (end == text || *end != '\0') {
        vectors_die(v, "not a number:", text);
    }

    return number;
}


static uint64_t
vectors_unit(vectors_t *v, const char *text, size_t *len)
{
    size_t  i;

    static const struct {
        const char  *name;
        uint64_t     us;
    } units[] = {
        { "us", 1 },
        { "ms", 1000 },
        { "s", RATELIMIT_SECOND },
        { "m", 60 * RATELIMIT_SECOND },
        { "h", 3600 * RATELIMIT_SECOND },
        { "d", 86400 * RATELIMIT_SECOND },
    };

    *len = strspn(text, "abcdefghijklmnopqrstuvwxyz");

    for (i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strlen(units[i].name) == *len
            && strncmp(text, units[i].name, *len) == 0)
        {
            return units[i].us;
        }
    }

    vectors_die(v, "no unit of time:", text);

    return 0;
}


/* "1200s", "20m+1us", "1h-6s-1us", "0" */

static uint64_t
vectors_time(vectors_t *v, const char *text)
{
    char        *end;
    size_t       len;
    uint64_t     sum, n;
    const char  *p;

    if (strcmp(text, "0") == 0) {
        return 0;
    }

    sum = 0;

    for (p = text; *p; p = end + len) {

        if (p != text && *p != '+' && *p != '-') {
            vectors_die(v, "not a time:", text);
        }

        n = strtoull((p == text) ? p : p + 1, &end, 10);
        n *= vectors_unit(v, end, &len);
        sum = (*p == '-') ? sum - n : sum + n;
    }

    return sum;
}


static unsigned
vectors_split(char *line, char **word)
{
    char      *p;
    unsigned   n;

    n = 0;

    for (p = strtok(line, " \t\n"); p; p = strtok(NULL, " \t\n")) {

        if (strcmp(p, "|") == 0) {
            continue;
        }

        if (n < VECTORS_COLUMNS) {
            word[n++] = p;
        }
    }

    return n;
}


static void
vectors_parameter(vectors_t *v, const char *name, const char *value)
{
    if (strcmp(name, "limit") == 0) {
        v->rule.limit = vectors_number(v, value);

    } else if (strcmp(name, "period") == 0) {
        v->rule.period = vectors_time(v, value);

    } else if (strcmp(name, "capacity") == 0) {
        v->rule.capacity = vectors_number(v, value);

    } else if (strcmp(name, "ceiling") == 0) {
        v->rule.ceiling = vectors_number(v, value);

    } else if (strcmp(name, "free") == 0) {
        v->rule.free = (strcmp(value, "nodelay") == 0)
                       ? RATELIMIT_NODELAY
                       : vectors_number(v, value);

    } else if (strcmp(name, "wait") == 0) {
        v->rule.wait = vectors_time(v, value);

    } else if (strcmp(name, "buckets") == 0) {
        v->shape.buckets = vectors_number(v, value);

    } else {
        vectors_die(v, "unknown parameter", name);
    }
}


/* a new rule with a state never seen */

static void
vectors_rule(vectors_t *v, char **word, unsigned n)
{
    char      *value;
    unsigned   i;

    memset(&v->rule, 0, sizeof(ratelimit_rule_t));
    v->shape.buckets = 10;

    for (i = 1; i < n; i++) {

        value = strchr(word[i], '=');
        if (value == NULL) {
            vectors_die(v, "no value:", word[i]);
        }

        *value++ = '\0';
        vectors_parameter(v, word[i], value);
    }

    if (v->rule.capacity == 0) {
        v->rule.capacity = v->rule.limit;
    }

    if (v->rule.ceiling == 0) {
        v->rule.ceiling = v->rule.capacity;
    }

    ratelimit_shape_fit(&v->shape, v->rule.ceiling);
    v->shape.reserves = (v->algorithm->reserve != NULL);

    free(v->state);

    v->state = calloc(1, v->algorithm->size(&v->shape));
    if (v->state == NULL) {
        abort();
    }

    v->labels = 0;
}


static void
vectors_header(vectors_t *v, char **word, unsigned n)
{
    char      *p;
    unsigned   i;

    p = v->header;

    for (i = 0; i < n; i++) {
        v->column[i] = p;
        p = stpcpy(p, word[i]) + 1;
    }

    v->columns = n;
}


static const char *
vectors_cell(vectors_t *v, char **word, const char *name)
{
    unsigned  i;

    for (i = 0; i < v->columns; i++) {
        if (strcmp(v->column[i], name) == 0) {
            return word[i];
        }
    }

    return NULL;
}


static vectors_label_t *
vectors_label(vectors_t *v, const char *name)
{
    unsigned  i;

    for (i = 0; i < v->labels; i++) {
        if (strcmp(v->label[i].name, name) == 0) {
            return &v->label[i];
        }
    }

    if (i == VECTORS_LABELS || strlen(name) >= sizeof(v->label[i].name)) {
        vectors_die(v, "no room for the label", name);
    }

    strcpy(v->label[i].name, name);
    v->labels++;

    return &v->label[i];
}


static void
vectors_act(vectors_t *v, const char *action, const ratelimit_clock_t *clock,
    uint64_t cost, ratelimit_verdict_t *verdict)
{
    size_t            len;
    vectors_label_t  *label;
    const unsigned    drips[] = { ratelimit_each_algorithm(vectors_drips) };

    len = strcspn(action, "@");
    label = vectors_label(v, action + len);

    if (strncmp(action, "give", len) == 0) {
        v->algorithm->refund(&v->shape, &v->rule, v->state, clock,
                             action[len] ? label->stamp : RATELIMIT_LATEST,
                             cost);
        cost = 0;
    }

    if (strncmp(action, "commit", len) == 0) {
        v->algorithm->commit(&v->shape, &v->rule, v->state, clock,
                             label->stamp, cost);
        cost = 0;
    }

    if (strncmp(action, "add", len) == 0) {
        v->algorithm->add(&v->shape, &v->rule, v->state, clock,
                          drips[v->shape.algorithm] ? label->now
                                                    : label->stamp,
                          cost);
        cost = 0;
    }

    v->algorithm->look(&v->shape, &v->rule, v->state, clock, cost, verdict);
    v->algorithm->describe(&v->shape, &v->rule, v->state, clock, cost, verdict);

    if (strncmp(action, "force", len) == 0
        || (strncmp(action, "take", len) == 0
            && (verdict->allowed || verdict->rebase)))
    {
        label->stamp = verdict->stamp;
        v->algorithm->charge(&v->shape, &v->rule, v->state, clock,
                             (verdict->allowed || *action == 'f') ? cost : 0,
                             verdict);
    }

    if (strncmp(action, "look", len) == 0) {
        label->stamp = verdict->stamp;
        label->now = clock->now;
    }

    if (strncmp(action, "reserve", len) == 0 && verdict->allowed) {
        label->stamp = v->algorithm->reserve(&v->shape, &v->rule, v->state,
                                             clock, cost);
    }
}


/* returns 1 if the cell holds what was got */

static int
vectors_same(vectors_t *v, const char *name, const char *cell,
    const ratelimit_verdict_t *verdict, uint64_t *got)
{
    *got = 0;

    if (strcmp(name, "allowed") == 0) {
        *got = verdict->allowed;

    } else if (strcmp(name, "soft") == 0) {
        *got = verdict->soft;

    } else if (strcmp(name, "rebase") == 0) {
        *got = verdict->rebase;

    } else if (strcmp(name, "remaining") == 0) {
        *got = verdict->remaining;
        return (*got == vectors_number(v, cell));

    } else if (strcmp(name, "excess") == 0) {
        *got = verdict->excess;
        return (*got == vectors_number(v, cell));

    } else if (strcmp(name, "retry") == 0) {
        *got = verdict->retry_after;

        if (strcmp(cell, "never") == 0) {
            return (*got >= v->rule.period);
        }

        return (*got == vectors_time(v, cell));

    } else if (strcmp(name, "reset") == 0) {
        *got = verdict->reset_after;
        return (*got == vectors_time(v, cell));

    } else if (strcmp(name, "delay") == 0) {
        *got = verdict->delay;
        return (*got == vectors_time(v, cell));

    } else {
        return 1;
    }

    return (strcmp(cell, *got ? "yes" : "no") == 0);
}


static void
vectors_compare(vectors_t *v, char **word, const ratelimit_verdict_t *verdict)
{
    unsigned  i, bad;
    uint64_t  got;

    bad = 0;

    for (i = 0; i < v->columns; i++) {

        if (strcmp(word[i], "-") == 0
            || vectors_same(v, v->column[i], word[i], verdict, &got))
        {
            continue;
        }

        tap_note("%s:%u: %s is %llu, not %s", v->path, v->line, v->column[i],
                 (unsigned long long) got, word[i]);
        bad = 1;
    }

    v->failed += bad;
}


static void
vectors_row(vectors_t *v, char **word, unsigned n)
{
    uint64_t              cost;
    const char           *wall;
    ratelimit_clock_t     clock;
    ratelimit_verdict_t   verdict;

    if (n != v->columns || v->state == NULL) {
        vectors_die(v, "not a row of the table:", word[0]);
    }

    wall = vectors_cell(v, word, "wall");

    clock.now = vectors_time(v, vectors_cell(v, word, "now"));
    clock.wall = (wall == NULL) ? clock.now : vectors_time(v, wall);
    cost = vectors_number(v, vectors_cell(v, word, "cost"));

    memset(&verdict, 0, sizeof(ratelimit_verdict_t));

    vectors_act(v, vectors_cell(v, word, "do"), &clock, cost, &verdict);
    vectors_compare(v, word, &verdict);

    v->rows++;
}


static void
vectors_line(vectors_t *v, char *line)
{
    char      *word[VECTORS_COLUMNS];
    unsigned   n;

    line[strcspn(line, "#")] = '\0';

    n = vectors_split(line, word);

    if (n == 0) {
        return;
    }

    if (strcmp(word[0], "rule") == 0) {
        vectors_rule(v, word, n);

    } else if (strcmp(word[0], "now") == 0) {
        vectors_header(v, word, n);

    } else {
        vectors_row(v, word, n);
    }
}


static void
vectors_file(const char *dir, ratelimit_algorithm_e i)
{
    char        path[256], line[512];
    FILE       *fp;
    vectors_t   v;

    memset(&v, 0, sizeof(vectors_t));

    v.algorithm = ratelimit_algorithms[i];
    v.shape.algorithm = i;
    v.path = path;

    snprintf(path, sizeof(path), "%s/%s.txt", dir, v.algorithm->name);

    fp = fopen(path, "r");
    if (fp == NULL) {
        tap_ok(0, "%s can be read", path);
        return;
    }

    while (fgets(line, sizeof(line), fp)) {
        v.line++;
        vectors_line(&v, line);
    }

    fclose(fp);
    free(v.state);

    tap_ok(v.failed == 0, "%s: %u rows", v.algorithm->name, v.rows);
    tap_ok(v.rows >= 40, "%s has not lost its rows", v.algorithm->name);
}


int
main(int argc, char **argv)
{
    int  i;

    for (i = 0; i < RATELIMIT_ALGORITHMS; i++) {
        vectors_file(argc > 1 ? argv[1] : "t/vectors", i);
    }

    return tap_done();
}
