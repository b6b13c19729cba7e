
/*
 * Any bytes as a rule file: it is refused with a place and a reason, or each of
 * its descriptors is found by its own keys and values.
 */


#include <string.h>

#include "domain/ratelimit_domain.h"

#include "fuzz.h"


#define FUZZ_LEVELS  64


typedef struct fuzz_block_s  fuzz_block_t;

struct fuzz_block_s {
    fuzz_block_t                   *next;
};


static void *fuzz_alloc(void *pool, size_t size);
static void fuzz_find(const ratelimit_domains_t *domains,
    const ratelimit_descriptor_t *d);


static fuzz_block_t  *fuzz_blocks;


static void *
fuzz_alloc(void *pool, size_t size)
{
    fuzz_block_t  *block;

    (void) pool;

    block = calloc(1, sizeof(fuzz_block_t) + size);
    block->next = fuzz_blocks;
    fuzz_blocks = block;

    return block + 1;
}


/* a wildcard is met by itself, too, and a key without a value by others */

static void
fuzz_find(const ratelimit_domains_t *domains, const ratelimit_descriptor_t *d)
{
    size_t                         n, size, bare;
    unsigned char                 *key;
    ratelimit_entry_t              entries[FUZZ_LEVELS];
    const ratelimit_descriptor_t  *level, *found;

    n = FUZZ_LEVELS;
    bare = 0;

    for (level = d; level->parent; level = level->parent) {
        fuzz_check(n > 0);
        n--;
        entries[n].key = level->key;
        entries[n].value = level->value;
        bare += (level->value.len == 0);
    }

    fuzz_check(ratelimit_domain_find(domains, &level->key) == level);

    found = ratelimit_domain_match(domains, level, entries + n,
                                   FUZZ_LEVELS - n);

    fuzz_check(bare || found == (d->limited ? d : NULL));

    size = ratelimit_domain_key_size(entries + n, FUZZ_LEVELS - n);
    key = malloc(size + 1);
    fuzz_check(ratelimit_domain_write_key(key, entries + n, FUZZ_LEVELS - n)
               <= key + size);
    free(key);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_block_t                  *block;
    ratelimit_text_t               file;
    ratelimit_domains_t            domains;
    ratelimit_domain_error_t       error;
    const ratelimit_descriptor_t  *d;

    file.data = (unsigned char *) "file";
    file.len = 4;

    memset(&error, 0, sizeof(ratelimit_domain_error_t));
    ratelimit_domains_init(&domains, fuzz_alloc, NULL);

    if (ratelimit_domain_load(&domains, &file, data, size, &error, NULL, NULL)
        == NULL)
    {
        fuzz_check(error.line > 0 && error.column > 0);
        fuzz_check(error.reason[0] != '\0');

    } else {
        for (d = domains.first; d; d = d->next) {
            fuzz_find(&domains, d);
        }
    }

    while (fuzz_blocks) {
        block = fuzz_blocks;
        fuzz_blocks = block->next;
        free(block);
    }

    return 0;
}
