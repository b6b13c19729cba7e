
/*
 * The tree of a rule file: which limit applies to the entries of a request.
 *
 * All descriptors of all domains are in one hash table, by parent, key and
 * value.  The hash is that of KEY_VALUE, so that a look-up of the key alone is
 * a part of that of both; and the loader finds two descriptors that differ only
 * in where the key ends.
 */


#include <string.h>

#include "domain/ratelimit_domain.h"


#define RATELIMIT_DOMAIN_BUCKETS  64
#define RATELIMIT_DOMAIN_PRIME    0x01000193U    /* FNV-1a */


typedef struct {
    const char                     *name;
    uint64_t                        seconds;
} ratelimit_unit_t;


static int ratelimit_domain_grow(ratelimit_domains_t *domains);
static int ratelimit_domain_set_path(ratelimit_domains_t *domains,
    ratelimit_descriptor_t *descriptor);
static size_t ratelimit_domain_write_label(unsigned char *p,
    const ratelimit_text_t *key, const ratelimit_text_t *value);
static int ratelimit_domain_same_path(const ratelimit_descriptor_t *one,
    const ratelimit_descriptor_t *two);
static const ratelimit_descriptor_t *ratelimit_domain_next(
    const ratelimit_domains_t *domains, const ratelimit_descriptor_t *parent,
    const ratelimit_entry_t *entry);
static const ratelimit_descriptor_t *ratelimit_domain_lookup(
    const ratelimit_domains_t *domains, const ratelimit_descriptor_t *parent,
    const ratelimit_text_t *key, const ratelimit_text_t *value, uint32_t hash);
static int ratelimit_domain_matches(const ratelimit_text_t *pattern,
    const ratelimit_text_t *value);


static const ratelimit_text_t  ratelimit_domain_any;


static const ratelimit_unit_t  ratelimit_units[RATELIMIT_UNITS] = {
    { "UNKNOWN", 0 },
    { "SECOND", 1 },
    { "MINUTE", 60 },
    { "HOUR", 3600 },
    { "DAY", 86400 },
    { "MONTH", 30 * 86400 },
    { "YEAR", 365 * 86400 },
    { "WEEK", 7 * 86400 }
};


static inline int
ratelimit_text_equal(const ratelimit_text_t *one, const ratelimit_text_t *two)
{
    return one->len == two->len
           && (one->len == 0 || memcmp(one->data, two->data, one->len) == 0);
}


static inline uint32_t
ratelimit_domain_hash_byte(uint32_t hash, unsigned char byte)
{
    return (hash ^ byte) * RATELIMIT_DOMAIN_PRIME;
}


static inline uint32_t
ratelimit_domain_hash_text(uint32_t hash, const ratelimit_text_t *text)
{
    size_t  i;

    for (i = 0; i < text->len; i++) {
        hash = ratelimit_domain_hash_byte(hash, text->data[i]);
    }

    return hash;
}


/* of the key below a parent; that of a value goes on from here */

static inline uint32_t
ratelimit_domain_hash_key(const ratelimit_descriptor_t *parent,
    const ratelimit_text_t *key)
{
    return ratelimit_domain_hash_text(parent ? parent->hash * 31 + 7 : 0, key);
}


static inline uint32_t
ratelimit_domain_hash_value(uint32_t hash, const ratelimit_text_t *value)
{
    return ratelimit_domain_hash_text(ratelimit_domain_hash_byte(hash, '_'),
                                      value);
}


/* the low bits of FNV are its worst */

static inline size_t
ratelimit_domain_bucket(const ratelimit_domains_t *domains, uint32_t hash)
{
    return (hash ^ hash >> 15) & (domains->nbuckets - 1);
}


void
ratelimit_domains_init(ratelimit_domains_t *domains,
    ratelimit_domain_alloc_pt alloc, void *pool)
{
    memset(domains, 0, sizeof(ratelimit_domains_t));

    domains->alloc = alloc;
    domains->pool = pool;
    domains->end = &domains->first;
}


ratelimit_descriptor_t *
ratelimit_domain_add(ratelimit_domains_t *domains,
    ratelimit_descriptor_t *parent, const ratelimit_entry_t *entry,
    ratelimit_descriptor_t **same)
{
    size_t                   i;
    ratelimit_descriptor_t  *added;

    *same = NULL;

    if (domains->n == domains->nbuckets && !ratelimit_domain_grow(domains)) {
        return NULL;
    }

    added = domains->alloc(domains->pool, sizeof(ratelimit_descriptor_t));
    if (added == NULL) {
        return NULL;
    }

    added->parent = parent;
    added->key = entry->key;
    added->value = entry->value;
    added->last = &added->wildcards;
    added->hash = ratelimit_domain_hash_key(parent, &entry->key);

    if (entry->value.len) {
        added->hash = ratelimit_domain_hash_value(added->hash, &entry->value);
        added->wildcard = memchr(entry->value.data, '*', entry->value.len)
                          != NULL;
    }

    if (!ratelimit_domain_set_path(domains, added)) {
        return NULL;
    }

    i = ratelimit_domain_bucket(domains, added->hash);

    for (*same = domains->buckets[i]; *same; *same = (*same)->chain) {
        if (ratelimit_domain_same_path(*same, added)) {
            return added;
        }
    }

    added->chain = domains->buckets[i];
    domains->buckets[i] = added;
    domains->n++;

    *domains->end = added;
    domains->end = &added->next;

    if (parent && added->wildcard) {
        *parent->last = added;
        parent->last = &added->sibling;
    }

    return added;
}


static int
ratelimit_domain_grow(ratelimit_domains_t *domains)
{
    size_t                   i;
    ratelimit_descriptor_t  *d;

    domains->nbuckets = domains->n ? 2 * domains->n : RATELIMIT_DOMAIN_BUCKETS;

    domains->buckets = domains->alloc(domains->pool,
                                      domains->nbuckets
                                      * sizeof(ratelimit_descriptor_t *));
    if (domains->buckets == NULL) {
        return 0;
    }

    for (d = domains->first; d; d = d->next) {
        i = ratelimit_domain_bucket(domains, d->hash);
        d->chain = domains->buckets[i];
        domains->buckets[i] = d;
    }

    return 1;
}


static int
ratelimit_domain_set_path(ratelimit_domains_t *domains,
    ratelimit_descriptor_t *descriptor)
{
    size_t             len;
    unsigned char     *p;
    ratelimit_text_t  *above;

    len = descriptor->key.len + 1 + descriptor->value.len;

    if (descriptor->parent) {
        len += descriptor->parent->path.len + 1;
    }

    p = domains->alloc(domains->pool, len);
    if (p == NULL) {
        return 0;
    }

    descriptor->path.data = p;

    if (descriptor->parent) {
        above = &descriptor->parent->path;

        memcpy(p, above->data, above->len);
        p += above->len;
        *p++ = '.';
    }

    p += ratelimit_domain_write_label(p, &descriptor->key, &descriptor->value);

    descriptor->path.len = p - descriptor->path.data;

    return 1;
}


static size_t
ratelimit_domain_write_label(unsigned char *p, const ratelimit_text_t *key,
    const ratelimit_text_t *value)
{
    if (key->len) {
        memcpy(p, key->data, key->len);
    }

    if (value->len == 0) {
        return key->len;
    }

    p[key->len] = '_';
    memcpy(p + key->len + 1, value->data, value->len);

    return key->len + 1 + value->len;
}


static int
ratelimit_domain_same_path(const ratelimit_descriptor_t *one,
    const ratelimit_descriptor_t *two)
{
    return one->parent == two->parent && one->hash == two->hash
           && ratelimit_text_equal(&one->path, &two->path);
}


const ratelimit_descriptor_t *
ratelimit_domain_find(const ratelimit_domains_t *domains,
    const ratelimit_text_t *name)
{
    return ratelimit_domain_lookup(domains, NULL, name, &ratelimit_domain_any,
                                   ratelimit_domain_hash_key(NULL, name));
}


const ratelimit_descriptor_t *
ratelimit_domain_match(const ratelimit_domains_t *domains,
    const ratelimit_descriptor_t *domain, ratelimit_entry_t *entries, size_t n)
{
    size_t                         i;
    const ratelimit_descriptor_t  *descriptor;

    descriptor = domain;

    for (i = 0; i < n; i++) {
        descriptor = ratelimit_domain_next(domains, descriptor, &entries[i]);

        if (descriptor == NULL) {
            return NULL;
        }

        if (descriptor->shared) {
            entries[i].value = descriptor->value;
        }
    }

    return descriptor->limited ? descriptor : NULL;
}


static const ratelimit_descriptor_t *
ratelimit_domain_next(const ratelimit_domains_t *domains,
    const ratelimit_descriptor_t *parent, const ratelimit_entry_t *entry)
{
    uint32_t                       hash;
    const ratelimit_descriptor_t  *d;

    hash = ratelimit_domain_hash_key(parent, &entry->key);

    if (entry->value.len) {
        d = ratelimit_domain_lookup(domains, parent, &entry->key,
                                    &entry->value,
                                    ratelimit_domain_hash_value(hash,
                                                            &entry->value));
        if (d) {
            return d;
        }
    }

    for (d = parent->wildcards; d; d = d->sibling) {
        if (ratelimit_text_equal(&d->key, &entry->key)
            && ratelimit_domain_matches(&d->value, &entry->value))
        {
            return d;
        }
    }

    return ratelimit_domain_lookup(domains, parent, &entry->key,
                                   &ratelimit_domain_any, hash);
}


static const ratelimit_descriptor_t *
ratelimit_domain_lookup(const ratelimit_domains_t *domains,
    const ratelimit_descriptor_t *parent, const ratelimit_text_t *key,
    const ratelimit_text_t *value, uint32_t hash)
{
    const ratelimit_descriptor_t  *d;

    if (domains->nbuckets == 0) {
        return NULL;
    }

    d = domains->buckets[ratelimit_domain_bucket(domains, hash)];

    for ( /* void */ ; d; d = d->chain) {
        if (d->hash == hash && d->parent == parent
            && ratelimit_text_equal(&d->value, value)
            && ratelimit_text_equal(&d->key, key))
        {
            return d;
        }
    }

    return NULL;
}


/*
 * What is before the first "*" begins the value, what is behind the last one
 * ends it, and the parts between are found one after another.
 */

static int
ratelimit_domain_matches(const ratelimit_text_t *pattern,
    const ratelimit_text_t *value)
{
    size_t                part;
    const unsigned char  *p, *last, *star, *v, *end;

    p = pattern->data;
    last = p + pattern->len;
    v = value->len ? value->data : last;
    end = v + value->len;

    star = memchr(p, '*', last - p);
    part = star - p;

    if ((size_t) (end - v) < part || (part && memcmp(v, p, part) != 0)) {
        return 0;
    }

    v += part;

    for ( ;; ) {
        p = star + 1;
        star = memchr(p, '*', last - p);

        if (star == NULL) {
            part = last - p;

            return (size_t) (end - v) >= part
                   && (part == 0 || memcmp(end - part, p, part) == 0);
        }

        part = star - p;

        while ((size_t) (end - v) >= part
               && part && memcmp(v, p, part) != 0)
        {
            v++;
        }

        if ((size_t) (end - v) < part) {
            return 0;
        }

        v += part;
    }
}


size_t
ratelimit_domain_key_size(const ratelimit_entry_t *entries, size_t n)
{
    size_t  i, size;

    size = 0;

    for (i = 0; i < n; i++) {
        size += 2 * (entries[i].key.len + entries[i].value.len) + 2;
    }

    return size;
}


static inline unsigned char *
ratelimit_domain_escape(unsigned char *p, const ratelimit_text_t *text,
    unsigned char end)
{
    size_t         i;
    unsigned char  ch;

    for (i = 0; i < text->len; i++) {
        ch = text->data[i];

        if (ch == ',' || ch == '\\' || ch == end) {
            *p++ = '\\';
        }

        *p++ = ch;
    }

    return p;
}


unsigned char *
ratelimit_domain_write_key(unsigned char *p, const ratelimit_entry_t *entries,
    size_t n)
{
    size_t  i;

    for (i = 0; i < n; i++) {
        if (i) {
            *p++ = ',';
        }

        p = ratelimit_domain_escape(p, &entries[i].key, ':');
        *p++ = ':';
        p = ratelimit_domain_escape(p, &entries[i].value, ',');
    }

    return p;
}


uint64_t
ratelimit_unit_seconds(ratelimit_unit_e unit)
{
    return unit < RATELIMIT_UNITS ? ratelimit_units[unit].seconds : 0;
}


const char *
ratelimit_unit_name(ratelimit_unit_e unit)
{
    return ratelimit_units[unit < RATELIMIT_UNITS ? unit : 0].name;
}


ratelimit_unit_e
ratelimit_unit_find(const ratelimit_text_t *name)
{
    size_t       i, n;
    const char  *known;

    for (n = RATELIMIT_UNIT_SECOND; n < RATELIMIT_UNITS; n++) {
        known = ratelimit_units[n].name;

        for (i = 0; i < name->len && known[i]; i++) {
            if ((name->data[i] & ~0x20) != known[i]) {
                break;
            }
        }

        if (i == name->len && known[i] == '\0') {
            return (ratelimit_unit_e) n;
        }
    }

    return RATELIMIT_UNIT_UNKNOWN;
}
