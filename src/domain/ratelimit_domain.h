
/*
 * Rule files in the format of Envoy's rate limit service.  A file is a domain:
 * a tree of descriptors, each a key with or without a value, of which some have
 * a limit.  What a request brings along is a list of entries, keys and values;
 * the tree says which limit applies to it.
 *
 * Only ratelimit_domain_load.c needs libyaml.
 */


#ifndef _RATELIMIT_DOMAIN_H_INCLUDED_
#define _RATELIMIT_DOMAIN_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


#define RATELIMIT_DOMAIN_REASON  256    /* bytes */


/* as nginx's strings, not ended by a zero */

typedef struct {
    size_t                          len;
    unsigned char                  *data;
} ratelimit_text_t;


typedef struct {
    ratelimit_text_t                key;
    ratelimit_text_t                value;
} ratelimit_entry_t;


/* as they are numbered in messages, RateLimitResponse.RateLimit.Unit */

typedef enum {
    RATELIMIT_UNIT_UNKNOWN = 0,
    RATELIMIT_UNIT_SECOND,
    RATELIMIT_UNIT_MINUTE,
    RATELIMIT_UNIT_HOUR,
    RATELIMIT_UNIT_DAY,
    RATELIMIT_UNIT_MONTH,                 /* 30 days */
    RATELIMIT_UNIT_YEAR,                  /* 365 days */
    RATELIMIT_UNIT_WEEK,
    RATELIMIT_UNITS
} ratelimit_unit_e;


/* a domain, or a descriptor of its file */

typedef struct ratelimit_descriptor_s  ratelimit_descriptor_t;

struct ratelimit_descriptor_s {
    ratelimit_text_t                key;      /* of a domain: its name */
    ratelimit_text_t                value;    /* empty: any */
    ratelimit_text_t                path;     /* DOMAIN.KEY_VALUE.KEY */
    ratelimit_descriptor_t         *parent;   /* of a domain: NULL */

    unsigned                        wildcard:1;   /* the value has a "*" */
    unsigned                        shared:1;     /* its values count as one */
    unsigned                        limited:1;    /* there is a rate_limit */
    unsigned                        unlimited:1;  /* which says so */
    unsigned                        shadow:1;     /* it never refuses */
    unsigned                        quota:1;      /* it refuses only if all such
                                                     limits of a request do */

    uint32_t                        requests;
    ratelimit_unit_e                unit;
    ratelimit_text_t                name;     /* of the limit, may be empty */
    ratelimit_text_t               *replaces; /* names of limits that do not
                                                 apply beside this one */
    size_t                          nreplaces;

    const ratelimit_text_t         *file;
    size_t                          line;
    void                           *data;     /* the caller's */

    ratelimit_descriptor_t         *next;     /* of all, in their order */

    /* private */
    ratelimit_descriptor_t         *chain;    /* of one bucket */
    ratelimit_descriptor_t         *wildcards;  /* below it, in their order */
    ratelimit_descriptor_t        **last;     /* where the next one goes */
    ratelimit_descriptor_t         *sibling;  /* the wildcard behind it */
    uint32_t                        hash;
};


typedef void *(*ratelimit_domain_alloc_pt)(void *pool, size_t size);


/* all domains; a look-up is by hash, whatever the number of descriptors */

typedef struct {
    ratelimit_descriptor_t         *first;    /* of all, in their order */
    size_t                          n;
    ratelimit_domain_alloc_pt       alloc;    /* returns zeros, or NULL */
    void                           *pool;

    /* private */
    ratelimit_descriptor_t        **end;
    ratelimit_descriptor_t        **buckets;
    size_t                          nbuckets; /* a power of two */
} ratelimit_domains_t;


/* what is wrong with a file, and where; lines and columns begin with 1 */

typedef struct {
    size_t                          line;
    size_t                          column;
    char                            reason[RATELIMIT_DOMAIN_REASON];
} ratelimit_domain_error_t;

typedef void (*ratelimit_domain_warn_pt)(void *data,
    const ratelimit_text_t *file, const ratelimit_domain_error_t *warning);


/* ratelimit_domain_load.c */

/*
 * Adds the domain that the bytes of a file describe.  File is its name, and
 * stays where it is.  Returns NULL and sets the error if the file is refused,
 * after which the domains must not be used any more.
 */
const ratelimit_descriptor_t *ratelimit_domain_load(
    ratelimit_domains_t *domains, const ratelimit_text_t *file,
    const unsigned char *data, size_t len, ratelimit_domain_error_t *error,
    ratelimit_domain_warn_pt warn, void *warn_data);


/* ratelimit_domain.c */

void ratelimit_domains_init(ratelimit_domains_t *domains,
    ratelimit_domain_alloc_pt alloc, void *pool);

const ratelimit_descriptor_t *ratelimit_domain_find(
    const ratelimit_domains_t *domains, const ratelimit_text_t *name);

/*
 * The descriptor that has a limit for these entries, or NULL.  At each level an
 * exact value comes before wildcards, in the order of the file, and these
 * before a key without a value.  The value of an entry becomes the wildcard
 * where all values that match share a counter.
 */
const ratelimit_descriptor_t *ratelimit_domain_match(
    const ratelimit_domains_t *domains, const ratelimit_descriptor_t *domain,
    ratelimit_entry_t *entries, size_t n);

/*
 * The key of the counter of these entries, KEY:VALUE,KEY:VALUE.  A backslash
 * stands before a byte that would end a key or a value, so that no two lists
 * have the same.
 */
size_t ratelimit_domain_key_size(const ratelimit_entry_t *entries, size_t n);
unsigned char *ratelimit_domain_write_key(unsigned char *p,
    const ratelimit_entry_t *entries, size_t n);

/* in seconds, 0 if it is unknown */
uint64_t ratelimit_unit_seconds(ratelimit_unit_e unit);

/* of its name, in letters of any case */
ratelimit_unit_e ratelimit_unit_find(const ratelimit_text_t *name);

/* in capital letters, "UNKNOWN" if it is unknown */
const char *ratelimit_unit_name(ratelimit_unit_e unit);

/*
 * For the loader.  Adds a descriptor, or a domain if the parent is NULL.
 * Returns NULL if there is no memory; the same is set to one that has the same
 * path at the same level, and the new one is not added then.
 */
ratelimit_descriptor_t *ratelimit_domain_add(ratelimit_domains_t *domains,
    ratelimit_descriptor_t *parent, const ratelimit_entry_t *entry,
    ratelimit_descriptor_t **same);


#endif /* _RATELIMIT_DOMAIN_H_INCLUDED_ */
