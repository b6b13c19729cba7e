
/*
 * Rule files: what they say of a descriptor, for what they are refused, and
 * that a look-up takes as long whatever the number of rules.
 */


#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "domain/ratelimit_domain.h"

#include "tap.h"


#define DOMAIN_TEXT     (1 << 20)
#define DOMAIN_ENTRIES  8
#define DOMAIN_RULES    10000
#define DOMAIN_LEVELS   490


typedef void (*domain_case_pt)(const char *title, char *file, char *answers);


typedef struct domain_block_s  domain_block_t;

struct domain_block_s {
    domain_block_t                 *next;
};


static void domain_cases(const char *path, domain_case_pt run);
static char *domain_read(const char *path);
static char *domain_find_line(char *p, const char *begin);
static void *domain_alloc(void *pool, size_t size);
static void domain_free(void);
static void domain_warn(void *data, const ratelimit_text_t *file,
    const ratelimit_domain_error_t *warning);
static const ratelimit_descriptor_t *domain_load(ratelimit_domains_t *domains,
    const char *text, ratelimit_domain_error_t *error,
    ratelimit_domain_error_t *warning);
static void domain_match_case(const char *title, char *file, char *answers);
static void domain_lookup(const char *title,
    const ratelimit_domains_t *domains, char *line);
static char *domain_describe(const ratelimit_descriptor_t *d, char *out,
    const char *looked_up, const char *key);
static void domain_error_case(const char *title, char *file, char *answers);
static void domain_test_garbage(void);
static void domain_test_bytes(void);
static void domain_test_many(void);
static void domain_test_deep(void);
static int domain_finds(const ratelimit_domains_t *domains,
    const ratelimit_descriptor_t *domain, unsigned n);
static double domain_comparisons(const ratelimit_domains_t *domains);
static void domain_test_memory(void);


static domain_block_t  *domain_blocks;
static size_t           domain_allowed = SIZE_MAX;


/* title, file and answers of each case */

static void
domain_cases(const char *path, domain_case_pt run)
{
    char  *text, *p, *title, *file, *answers, *next;

    text = domain_read(path);
    p = domain_find_line(text, "=== ");

    while (p) {
        title = p + 4;
        file = strchr(p, '\n') + 1;
        file[-1] = '\0';

        answers = domain_find_line(file, "---\n");
        next = domain_find_line(answers, "=== ");

        *answers = '\0';
        answers += 4;

        if (next) {
            next[-1] = '\0';
        }

        run(title, file, answers);
        p = next;
    }

    free(text);
}


static char *
domain_read(const char *path)
{
    char    *text;
    FILE    *file;
    size_t   n;

    text = calloc(1, DOMAIN_TEXT);
    file = fopen(path, "r");

    if (file == NULL || text == NULL) {
        tap_ok(0, "cannot read %s", path);
        exit(1);
    }

    n = fread(text, 1, DOMAIN_TEXT - 1, file);
    fclose(file);

    tap_ok(n > 0 && n < DOMAIN_TEXT - 1, "%s is read", path);

    return text;
}


static char *
domain_find_line(char *p, const char *begin)
{
    while (p && strncmp(p, begin, strlen(begin)) != 0) {
        p = strchr(p, '\n');
        p = (p && p[1]) ? p + 1 : NULL;
    }

    return p;
}


static void *
domain_alloc(void *pool, size_t size)
{
    domain_block_t  *block;

    (void) pool;

    if (domain_allowed == 0) {
        return NULL;
    }

    domain_allowed--;

    block = calloc(1, sizeof(domain_block_t) + size);
    block->next = domain_blocks;
    domain_blocks = block;

    return block + 1;
}


static void
domain_free(void)
{
    domain_block_t  *block;

    while (domain_blocks) {
        block = domain_blocks;
        domain_blocks = block->next;
        free(block);
    }
}


static void
domain_warn(void *data, const ratelimit_text_t *file,
    const ratelimit_domain_error_t *warning)
{
    ratelimit_domain_error_t  *first = data;

    if (first->line == 0) {
        *first = *warning;
    }

    if (file->len != sizeof("file") - 1) {
        first->line = 0;
    }
}


/* of a copy that ends where the text ends */

static const ratelimit_descriptor_t *
domain_load(ratelimit_domains_t *domains, const char *text,
    ratelimit_domain_error_t *error, ratelimit_domain_error_t *warning)
{
    size_t                         len;
    unsigned char                 *copy;
    const ratelimit_descriptor_t  *domain;

    static ratelimit_text_t        file = { 4, (unsigned char *) "file" };

    memset(error, 0, sizeof(ratelimit_domain_error_t));
    memset(warning, 0, sizeof(ratelimit_domain_error_t));

    len = strlen(text);
    copy = malloc(len ? len : 1);
    memcpy(copy, text, len);

    domain = ratelimit_domain_load(domains, &file, copy, len, error,
                                   domain_warn, warning);
    free(copy);

    return domain;
}


static void
domain_match_case(const char *title, char *file, char *answers)
{
    char                           *line;
    ratelimit_domains_t             domains;
    ratelimit_domain_error_t        error, warning;
    const ratelimit_descriptor_t   *domain;

    ratelimit_domains_init(&domains, domain_alloc, NULL);

    domain = domain_load(&domains, file, &error, &warning);

    if (!tap_ok(domain != NULL && warning.line == 0, "%s: loads", title)) {
        tap_note("%zu:%zu %s%s", error.line, error.column, error.reason,
                 warning.reason);
    }

    for (line = strtok(answers, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line != '#') {
            domain_lookup(title, &domains, line);
        }
    }

    domain_free();
}


static void
domain_lookup(const char *title, const ratelimit_domains_t *domains,
    char *line)
{
    char                          *word, *save, *expected, *value;
    char                           said[512], looked_up[512], name[512];
    size_t                         n, len;
    unsigned char                  key[512], *end;
    ratelimit_text_t               text;
    ratelimit_entry_t              entries[DOMAIN_ENTRIES];
    const ratelimit_descriptor_t  *domain, *found;

    expected = strstr(line, " ->") + 4;
    expected[-4] = '\0';
    strcpy(name, line);

    word = strtok_r(line, " ", &save);
    text.data = (unsigned char *) word;
    text.len = strlen(word);
    domain = ratelimit_domain_find(domains, &text);
    n = 0;
    looked_up[0] = '\0';

    for (word = strtok_r(NULL, " ", &save);
         word;
         word = strtok_r(NULL, " ", &save))
    {
        value = strchr(word, '=');
        *value++ = '\0';

        sprintf(looked_up + strlen(looked_up), "%s%s:%s", n ? "," : "", word,
                value);

        entries[n].key.data = (unsigned char *) word;
        entries[n].key.len = strlen(word);
        entries[n].value.data = (unsigned char *) value;
        entries[n].value.len = strlen(value);
        n++;
    }

    found = domain ? ratelimit_domain_match(domains, domain, entries, n)
                   : NULL;

    len = ratelimit_domain_key_size(entries, n);
    end = ratelimit_domain_write_key(key, entries, n);
    *end = '\0';

    domain_describe(found, said, looked_up, (char *) key);

    tap_ok(strcmp(said, expected) == 0 && (size_t) (end - key) <= len,
           "%s: %s -> %s", title, name, said);
}


static char *
domain_describe(const ratelimit_descriptor_t *d, char *out,
    const char *looked_up, const char *key)
{
    char    *p;
    size_t   i;

    if (d == NULL) {
        return strcpy(out, "none");
    }

    p = out + sprintf(out, "%.*s ", (int) d->path.len, d->path.data);

    if (d->unlimited) {
        p += sprintf(p, "free");

    } else {
        p += sprintf(p, "%" PRIu32 "/%s", d->requests,
                     ratelimit_unit_name(d->unit));
    }

    p += sprintf(p, "%s%s", d->shadow ? " shadow" : "",
                 d->quota ? " quota" : "");

    if (d->name.len) {
        p += sprintf(p, " name=%.*s", (int) d->name.len, d->name.data);
    }

    for (i = 0; i < d->nreplaces; i++) {
        p += sprintf(p, " replaces=%.*s", (int) d->replaces[i].len,
                     d->replaces[i].data);
    }

    if (strcmp(looked_up, key) != 0) {
        sprintf(p, " counter=%s", key);
    }

    return out;
}


static void
domain_error_case(const char *title, char *file, char *answers)
{
    char                           said[RATELIMIT_DOMAIN_REASON + 64];
    size_t                         len;
    ratelimit_domains_t            domains;
    ratelimit_domain_error_t       error, warning, *shown;
    const ratelimit_descriptor_t  *domain;

    ratelimit_domains_init(&domains, domain_alloc, NULL);

    (void) domain_load(&domains, "domain: before", &error, &warning);
    domain = domain_load(&domains, file, &error, &warning);

    shown = warning.line ? &warning : &error;

    sprintf(said, "%zu:%zu %s%s", shown->line, shown->column,
            warning.line ? "warning " : "", shown->reason);

    len = strlen(answers);

    while (len && answers[len - 1] == '\n') {
        len--;
    }

    if (!tap_ok((domain != NULL) == (warning.line != 0)
                && len && strncmp(said, answers, len) == 0,
                "%s: %s", title, said))
    {
        tap_note("expected %.*s", (int) len, answers);
    }

    domain_free();
}


/* a file that is cut anywhere is a file, or refused with a reason */

static void
domain_test_garbage(void)
{
    char                      *text;
    size_t                     i, bad;
    ratelimit_domains_t        domains;
    ratelimit_domain_error_t   error, warning;

    static const char  whole[] =
        "domain: a\n"
        "descriptors:\n"
        "  - key: \"k\"\n"
        "    value: v*\n"
        "    share_threshold: true\n"
        "    rate_limit: &r { unit: day, requests_per_unit: 5, name: 'n',\n"
        "                     replaces: [{ name: m }] }\n"
        "    descriptors: [{ key: l, rate_limit: *r }]\n";

    bad = 0;

    for (i = 0; i < 3 * sizeof(whole); i++) {
        text = strdup(whole);

        if (i < sizeof(whole)) {
            text[i] = '\0';

        } else if (i < 2 * sizeof(whole)) {
            text[i - sizeof(whole)] = '\x01';

        } else {
            text[i - 2 * sizeof(whole)] = '\xff';
        }

        text[sizeof(whole) - 1] = '\0';
        ratelimit_domains_init(&domains, domain_alloc, NULL);

        if (domain_load(&domains, text, &error, &warning) == NULL) {
            bad += (error.line == 0 || error.column == 0
                    || error.reason[0] == '\0');
        }

        free(text);
        domain_free();
    }

    tap_ok(bad == 0, "each file that is refused has a place and a reason");
}


static void
domain_test_bytes(void)
{
    ratelimit_domains_t        domains;
    ratelimit_domain_error_t   error, warning;

    ratelimit_domains_init(&domains, domain_alloc, NULL);

    tap_ok(domain_load(&domains, "domain: a\n# \xc3\xa4 \xff\n", &error,
                       &warning)
           == NULL
           && error.line == 2 && error.column == 5,
           "a byte that is no text: %zu:%zu %s", error.line, error.column,
           error.reason);

    domain_free();
}


/* of 10,000 rules each is found, by as many comparisons as of ten */

static void
domain_test_many(void)
{
    char                           *text, *p;
    double                          start, few, many;
    unsigned                        i;
    ratelimit_domains_t             domains, small;
    ratelimit_domain_error_t        error, warning;
    const ratelimit_descriptor_t   *domain, *ten;

    ten = NULL;
    text = malloc(DOMAIN_RULES * 128);
    p = text + sprintf(text, "domain: many\ndescriptors:\n");

    ratelimit_domains_init(&domains, domain_alloc, NULL);
    ratelimit_domains_init(&small, domain_alloc, NULL);

    for (i = 0; i < DOMAIN_RULES; i++) {
        if (i == 10) {
            ten = domain_load(&small, text, &error, &warning);
        }

        p += sprintf(p, "  - key: user\n    value: u%u\n    rate_limit:\n"
                        "      unit: day\n      requests_per_unit: %u\n",
                     i, i);
    }

    start = (double) clock();
    domain = domain_load(&domains, text, &error, &warning);

    tap_ok(domain != NULL && domains.n == DOMAIN_RULES + 1,
           "%u rules are loaded", DOMAIN_RULES);
    tap_note("in %.2f s of the processor, with sanitizers",
             ((double) clock() - start) / CLOCKS_PER_SEC);

    tap_ok(domain_finds(&small, ten, 10)
           && domain_finds(&domains, domain, DOMAIN_RULES),
           "each of them is found");

    few = domain_comparisons(&small);
    many = domain_comparisons(&domains);

    tap_ok(few < 2 && many < 2,
           "a look-up among %u compares %.2f rules, among 10 %.2f",
           DOMAIN_RULES, many, few);

    free(text);
    domain_free();
}


static int
domain_finds(const ratelimit_domains_t *domains,
    const ratelimit_descriptor_t *domain, unsigned n)
{
    char                           value[32];
    unsigned                       i;
    ratelimit_entry_t              entry;
    const ratelimit_descriptor_t  *found;

    for (i = 0; i < n; i++) {
        entry.key.len = 4;
        entry.key.data = (unsigned char *) "user";
        entry.value.len = sprintf(value, "u%u", i);
        entry.value.data = (unsigned char *) value;

        found = ratelimit_domain_match(domains, domain, &entry, 1);

        if (found == NULL || found->requests != i) {
            return 0;
        }
    }

    return 1;
}


/* on the average, until a rule is found: it is in one of the chains */

static double
domain_comparisons(const ratelimit_domains_t *domains)
{
    size_t                         i, place, sum;
    const ratelimit_descriptor_t  *d;

    sum = 0;

    for (i = 0; i < domains->nbuckets; i++) {
        place = 0;

        for (d = domains->buckets[i]; d; d = d->chain) {
            sum += ++place;
        }
    }

    return (double) sum / domains->n;
}


/* levels of descriptors: a level is a list and a map */

static void
domain_test_deep(void)
{
    char                          *text, *p;
    unsigned                       i;
    ratelimit_entry_t              entries[DOMAIN_LEVELS];
    ratelimit_domains_t            domains;
    ratelimit_domain_error_t       error, warning;
    const ratelimit_descriptor_t  *domain, *found;

    text = malloc(64 + DOMAIN_LEVELS * 40);
    p = text + sprintf(text, "{ domain: a");

    for (i = 0; i < DOMAIN_LEVELS; i++) {
        p += sprintf(p, ", descriptors: [{ key: k");

        entries[i].key.len = 1;
        entries[i].key.data = (unsigned char *) "k";
        entries[i].value = entries[i].key;
    }

    p += sprintf(p, ", rate_limit: { unit: day, requests_per_unit: 7 } ");

    for (i = 0; i < DOMAIN_LEVELS; i++) {
        p += sprintf(p, "}]");
    }

    (void) sprintf(p, "}");

    ratelimit_domains_init(&domains, domain_alloc, NULL);

    domain = domain_load(&domains, text, &error, &warning);
    found = domain ? ratelimit_domain_match(&domains, domain, entries,
                                            DOMAIN_LEVELS)
                   : NULL;

    tap_ok(found != NULL && found->requests == 7, "%u levels", DOMAIN_LEVELS);

    free(text);
    domain_free();
}


/* whatever allocation fails, nothing is lost */

static void
domain_test_memory(void)
{
    size_t                     i, bad;
    ratelimit_domains_t        domains;
    ratelimit_domain_error_t   error, warning;

    static const char  text[] =
        "{ domain: a, descriptors: [{ key: k, value: v, rate_limit: "
        "{ unit: day, name: n, replaces: [{ name: m }] } }] }";

    bad = 0;

    for (i = 0; i < 100; i++) {
        domain_allowed = i;
        ratelimit_domains_init(&domains, domain_alloc, NULL);

        if (domain_load(&domains, text, &error, &warning) != NULL) {
            break;
        }

        bad += (strcmp(error.reason, "there is no memory") != 0);
        domain_free();
    }

    tap_ok(bad == 0 && i > 5 && i < 100, "a file needs %zu allocations", i);

    domain_allowed = SIZE_MAX;
    domain_free();
}


int
main(void)
{
    domain_cases("t/rules/match.txt", domain_match_case);
    domain_cases("t/rules/errors.txt", domain_error_case);
    domain_test_garbage();
    domain_test_bytes();
    domain_test_many();
    domain_test_deep();
    domain_test_memory();

    return tap_done();
}
