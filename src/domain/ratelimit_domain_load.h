
/*
 * What the files of the loader share.  For these only.
 */


#ifndef _RATELIMIT_DOMAIN_LOAD_H_INCLUDED_
#define _RATELIMIT_DOMAIN_LOAD_H_INCLUDED_


#include <yaml.h>

#include "domain/ratelimit_domain.h"
#include "domain/ratelimit_yaml_scalar.h"


/* all keys; a key is legal at any level, and ignored where it says nothing */

typedef enum {
    RATELIMIT_LOAD_DOMAIN = 0,
    RATELIMIT_LOAD_DESCRIPTORS,
    RATELIMIT_LOAD_KEY,
    RATELIMIT_LOAD_VALUE,
    RATELIMIT_LOAD_RATE_LIMIT,
    RATELIMIT_LOAD_SHADOW_MODE,
    RATELIMIT_LOAD_QUOTA_MODE,
    RATELIMIT_LOAD_SHARE_THRESHOLD,
    RATELIMIT_LOAD_DETAILED_METRIC,
    RATELIMIT_LOAD_VALUE_TO_METRIC,
    RATELIMIT_LOAD_METADATA,
    RATELIMIT_LOAD_UNIT,
    RATELIMIT_LOAD_REQUESTS_PER_UNIT,
    RATELIMIT_LOAD_UNLIMITED,
    RATELIMIT_LOAD_NAME,
    RATELIMIT_LOAD_REPLACES,
    RATELIMIT_LOAD_KEYS
} ratelimit_load_key_e;

#define ratelimit_load_bit(key)  (1U << (key))


typedef struct {
    yaml_parser_t                   parser;
    yaml_document_t                 document;
    ratelimit_domains_t            *domains;
    const ratelimit_text_t         *file;
    ratelimit_domain_error_t       *error;
    ratelimit_domain_warn_pt        warn;
    void                           *warn_data;
    unsigned                        depth;
    unsigned                        nodes;
} ratelimit_load_t;


extern const char *const  ratelimit_load_keys[RATELIMIT_LOAD_KEYS];


/* ratelimit_domain_check.c: whether all keys and types of the file are legal */
int ratelimit_load_check(ratelimit_load_t *load, yaml_node_t *node);

ratelimit_load_key_e ratelimit_load_find_key(yaml_node_t *node);
int ratelimit_load_is_merge(yaml_node_t *node);
int ratelimit_load_is_null(yaml_node_t *node);

/* of a list; null is an empty one */
size_t ratelimit_load_length(yaml_node_t *node);
yaml_node_t *ratelimit_load_element(ratelimit_load_t *load, yaml_node_t *node,
    size_t i);

/* the text of a scalar for a message */
const char *ratelimit_load_quoted(yaml_node_t *node);

/* returns 0, as what fails does; node is NULL if there is no place */
int ratelimit_load_error(ratelimit_load_t *load, yaml_node_t *node,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ratelimit_load_warn(ratelimit_load_t *load, yaml_node_t *node,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ratelimit_domain_tags.c: what a scalar is, after tags were looked for */
void ratelimit_load_tags(ratelimit_load_t *load);
ratelimit_scalar_t ratelimit_load_scalar(yaml_node_t *node);


#endif /* _RATELIMIT_DOMAIN_LOAD_H_INCLUDED_ */
