
/*
 * Reads a rule file, by libyaml.  What a file may say, and for what it is
 * refused, is what Envoy's rate limit service says of it.
 */


#include <stdio.h>
#include <string.h>

#include "domain/ratelimit_domain_load.h"


#define RATELIMIT_LOAD_IN_ROOT                                                \
    (ratelimit_load_bit(RATELIMIT_LOAD_DOMAIN)                                \
     | ratelimit_load_bit(RATELIMIT_LOAD_DESCRIPTORS))

#define RATELIMIT_LOAD_IN_DESCRIPTOR                                          \
    (ratelimit_load_bit(RATELIMIT_LOAD_DESCRIPTORS)                           \
     | ratelimit_load_bit(RATELIMIT_LOAD_KEY)                                 \
     | ratelimit_load_bit(RATELIMIT_LOAD_VALUE)                               \
     | ratelimit_load_bit(RATELIMIT_LOAD_RATE_LIMIT)                          \
     | ratelimit_load_bit(RATELIMIT_LOAD_SHADOW_MODE)                         \
     | ratelimit_load_bit(RATELIMIT_LOAD_QUOTA_MODE)                          \
     | ratelimit_load_bit(RATELIMIT_LOAD_SHARE_THRESHOLD)                     \
     | ratelimit_load_bit(RATELIMIT_LOAD_DETAILED_METRIC)                     \
     | ratelimit_load_bit(RATELIMIT_LOAD_VALUE_TO_METRIC)                     \
     | ratelimit_load_bit(RATELIMIT_LOAD_METADATA))

#define RATELIMIT_LOAD_IN_RATE_LIMIT                                          \
    (ratelimit_load_bit(RATELIMIT_LOAD_UNIT)                                  \
     | ratelimit_load_bit(RATELIMIT_LOAD_REQUESTS_PER_UNIT)                   \
     | ratelimit_load_bit(RATELIMIT_LOAD_UNLIMITED)                           \
     | ratelimit_load_bit(RATELIMIT_LOAD_NAME)                                \
     | ratelimit_load_bit(RATELIMIT_LOAD_REPLACES))

#define RATELIMIT_LOAD_IN_REPLACES                                            \
    ratelimit_load_bit(RATELIMIT_LOAD_NAME)


/* a map of the file: what each key has, or NULL */

typedef struct {
    yaml_node_t                    *node;
    yaml_node_t                    *values[RATELIMIT_LOAD_KEYS];
} ratelimit_load_map_t;


static int ratelimit_load_document(ratelimit_load_t *load);
static void ratelimit_load_parser_error(ratelimit_load_t *load);
static void ratelimit_load_find_byte(yaml_parser_t *parser, yaml_mark_t *mark);
static ratelimit_descriptor_t *ratelimit_load_root(ratelimit_load_t *load);
static void ratelimit_load_check_rest(ratelimit_load_t *load);
static int ratelimit_load_map(ratelimit_load_t *load, yaml_node_t *node,
    unsigned known, ratelimit_load_map_t *map);
static int ratelimit_load_collect(ratelimit_load_t *load, yaml_node_t *node,
    unsigned known, ratelimit_load_map_t *map);
static int ratelimit_load_merge(ratelimit_load_t *load, yaml_node_t *node,
    unsigned known, ratelimit_load_map_t *map);
static int ratelimit_load_descriptors(ratelimit_load_t *load,
    yaml_node_t *node, ratelimit_descriptor_t *parent);
static int ratelimit_load_is_list(ratelimit_load_t *load, yaml_node_t *node,
    const char *key);
static int ratelimit_load_descriptor(ratelimit_load_t *load, yaml_node_t *node,
    ratelimit_descriptor_t *parent);
static int ratelimit_load_flags(ratelimit_load_t *load,
    ratelimit_load_map_t *map, ratelimit_descriptor_t *d);
static int ratelimit_load_limit(ratelimit_load_t *load,
    ratelimit_load_map_t *map, ratelimit_descriptor_t *d);
static int ratelimit_load_unit(ratelimit_load_t *load,
    ratelimit_load_map_t *map, ratelimit_descriptor_t *d);
static int ratelimit_load_replaces(ratelimit_load_t *load, yaml_node_t *node,
    ratelimit_descriptor_t *d);
static int ratelimit_load_text(ratelimit_load_t *load,
    ratelimit_load_map_t *map, ratelimit_load_key_e key,
    ratelimit_text_t *text);
static int ratelimit_load_flag(ratelimit_load_t *load,
    ratelimit_load_map_t *map, ratelimit_load_key_e key, uint32_t *flag);
static int ratelimit_load_value(ratelimit_load_t *load,
    ratelimit_load_map_t *map, ratelimit_load_key_e key,
    ratelimit_scalar_e type, const char *expected, uint32_t *value);


const ratelimit_descriptor_t *
ratelimit_domain_load(ratelimit_domains_t *domains,
    const ratelimit_text_t *file, const unsigned char *data, size_t len,
    ratelimit_domain_error_t *error, ratelimit_domain_warn_pt warn,
    void *warn_data)
{
    ratelimit_load_t         load;
    ratelimit_descriptor_t  *domain;

    memset(&load, 0, sizeof(ratelimit_load_t));

    load.domains = domains;
    load.file = file;
    load.error = error;
    load.warn = warn;
    load.warn_data = warn_data;

    if (!yaml_parser_initialize(&load.parser)) {
        ratelimit_load_error(&load, NULL, "there is no memory");
        return NULL;
    }

    yaml_parser_set_input_string(&load.parser, data, len);

    domain = NULL;

    if (ratelimit_load_document(&load)) {
        ratelimit_load_tags(&load);

        domain = ratelimit_load_root(&load);
        yaml_document_delete(&load.document);

        if (domain) {
            ratelimit_load_check_rest(&load);
        }
    }

    yaml_parser_delete(&load.parser);

    return domain;
}


static int
ratelimit_load_document(ratelimit_load_t *load)
{
    if (yaml_parser_load(&load->parser, &load->document)) {
        return 1;
    }

    ratelimit_load_parser_error(load);

    return 0;
}


static void
ratelimit_load_parser_error(ratelimit_load_t *load)
{
    yaml_mark_t     *mark;
    yaml_parser_t   *parser;

    parser = &load->parser;
    mark = &parser->problem_mark;

    if (parser->error == YAML_READER_ERROR) {
        ratelimit_load_find_byte(parser, mark);
    }

    load->error->line = mark->line + 1;
    load->error->column = mark->column + 1;

    (void) snprintf(load->error->reason, RATELIMIT_DOMAIN_REASON,
                    "error loading config file: %s%s%s",
                    parser->problem ? parser->problem : "there is no memory",
                    parser->context ? " " : "",
                    parser->context ? parser->context : "");
}


/* the reader, which is ahead of the rest, knows bytes, but not lines */

static void
ratelimit_load_find_byte(yaml_parser_t *parser, yaml_mark_t *mark)
{
    const unsigned char  *p, *last;

    p = parser->input.string.start;
    last = parser->input.string.end;

    if (parser->problem_offset < (size_t) (last - p)) {
        last = p + parser->problem_offset;
    }

    mark->line = 0;
    mark->column = 0;

    for ( /* void */ ; p < last; p++) {

        if (*p == '\n') {
            mark->line++;
            mark->column = 0;

        } else if ((*p & 0xc0) != 0x80) {
            mark->column++;
        }
    }
}


static ratelimit_descriptor_t *
ratelimit_load_root(ratelimit_load_t *load)
{
    yaml_node_t             *node;
    ratelimit_entry_t        entry;
    ratelimit_load_map_t     map;
    ratelimit_descriptor_t  *domain, *same;

    node = yaml_document_get_root_node(&load->document);
    memset(&entry, 0, sizeof(ratelimit_entry_t));

    if (ratelimit_load_is_null(node)) {
        ratelimit_load_error(load, node,
                             "config file cannot have empty domain");
        return NULL;
    }

    if (node->type != YAML_MAPPING_NODE) {
        ratelimit_load_error(load, node,
                             "error loading config file: must be a map");
        return NULL;
    }

    if (!ratelimit_load_check(load, node)
        || !ratelimit_load_map(load, node, RATELIMIT_LOAD_IN_ROOT, &map)
        || !ratelimit_load_text(load, &map, RATELIMIT_LOAD_DOMAIN, &entry.key))
    {
        return NULL;
    }

    if (entry.key.len == 0) {
        ratelimit_load_error(load, node,
                             "config file cannot have empty domain");
        return NULL;
    }

    domain = ratelimit_domain_add(load->domains, NULL, &entry, &same);

    if (domain == NULL) {
        ratelimit_load_error(load, NULL, "there is no memory");
        return NULL;
    }

    if (same) {
        ratelimit_load_error(load, map.values[RATELIMIT_LOAD_DOMAIN],
                             "duplicate domain '%.*s' in config file",
                             (int) entry.key.len, entry.key.data);
        return NULL;
    }

    domain->file = load->file;
    domain->line = node->start_mark.line + 1;

    return ratelimit_load_descriptors(load,
                                      map.values[RATELIMIT_LOAD_DESCRIPTORS],
                                      domain)
           ? domain : NULL;
}


/* of a stream the first document counts */

static void
ratelimit_load_check_rest(ratelimit_load_t *load)
{
    yaml_node_t  *node;

    if (!yaml_parser_load(&load->parser, &load->document)) {
        return;
    }

    node = yaml_document_get_root_node(&load->document);

    if (node && (node->type != YAML_SCALAR_NODE
                 || node->data.scalar.length != 0))
    {
        ratelimit_load_warn(load, node, "only the first document of a file "
                                        "counts, this one is ignored");
    }

    yaml_document_delete(&load->document);
}


/* the values of a map that has been checked, by those keys that are known */

static int
ratelimit_load_map(ratelimit_load_t *load, yaml_node_t *node, unsigned known,
    ratelimit_load_map_t *map)
{
    memset(map, 0, sizeof(ratelimit_load_map_t));

    map->node = node;

    return ratelimit_load_collect(load, node, known, map);
}


static int
ratelimit_load_collect(ratelimit_load_t *load, yaml_node_t *node,
    unsigned known, ratelimit_load_map_t *map)
{
    unsigned               seen;
    yaml_node_t           *key, *merge;
    yaml_node_pair_t      *pair;
    ratelimit_load_key_e   name;

    seen = 0;
    merge = NULL;

    for (pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top;
         pair++)
    {
        key = yaml_document_get_node(&load->document, pair->key);

        if (ratelimit_load_is_merge(key)) {
            merge = yaml_document_get_node(&load->document, pair->value);
            continue;
        }

        name = ratelimit_load_find_key(key);

        if (seen & ratelimit_load_bit(name)) {
            return ratelimit_load_error(load, key,
                                        "error loading config file: "
                                        "duplicate key '%.64s'",
                                        ratelimit_load_quoted(key));
        }

        seen |= ratelimit_load_bit(name);

        if (!(known & ratelimit_load_bit(name))) {
            ratelimit_load_warn(load, key, "key '%.64s' says nothing here, and "
                                "is ignored", ratelimit_load_quoted(key));

        } else if (map->values[name] == NULL) {
            map->values[name] = yaml_document_get_node(&load->document,
                                                       pair->value);
        }
    }

    return merge ? ratelimit_load_merge(load, merge, known, map) : 1;
}


/* "<<: *map" or "<<: [*map, *map]": what is in front counts */

static int
ratelimit_load_merge(ratelimit_load_t *load, yaml_node_t *node, unsigned known,
    ratelimit_load_map_t *map)
{
    size_t  i;

    if (node->type == YAML_MAPPING_NODE) {
        return ratelimit_load_collect(load, node, known, map);
    }

    if (node->type != YAML_SEQUENCE_NODE) {
        return ratelimit_load_error(load, node, "error loading config file: "
                                    "map merge requires map or list of maps");
    }

    for (i = 0; i < ratelimit_load_length(node); i++) {
        if (!ratelimit_load_collect(load,
                                    ratelimit_load_element(load, node, i),
                                    known, map))
        {
            return 0;
        }
    }

    return 1;
}


static int
ratelimit_load_descriptors(ratelimit_load_t *load, yaml_node_t *node,
    ratelimit_descriptor_t *parent)
{
    size_t  i;

    if (!ratelimit_load_is_list(load, node, "descriptors")) {
        return 0;
    }

    for (i = 0; i < ratelimit_load_length(node); i++) {
        if (!ratelimit_load_descriptor(load,
                                       ratelimit_load_element(load, node, i),
                                       parent))
        {
            return 0;
        }
    }

    return 1;
}


/* null is an empty one */

static int
ratelimit_load_is_list(ratelimit_load_t *load, yaml_node_t *node,
    const char *key)
{
    if (ratelimit_load_is_null(node) || node->type == YAML_SEQUENCE_NODE) {
        return 1;
    }

    return ratelimit_load_error(load, node, "error loading config file: "
                                "'%s' must be a list", key);
}


static int
ratelimit_load_descriptor(ratelimit_load_t *load, yaml_node_t *node,
    ratelimit_descriptor_t *parent)
{
    ratelimit_entry_t        entry;
    ratelimit_load_map_t     map;
    ratelimit_descriptor_t  *d, *same;

    if (!ratelimit_load_map(load, node, RATELIMIT_LOAD_IN_DESCRIPTOR, &map)
        || !ratelimit_load_text(load, &map, RATELIMIT_LOAD_KEY, &entry.key)
        || !ratelimit_load_text(load, &map, RATELIMIT_LOAD_VALUE,
                                &entry.value))
    {
        return 0;
    }

    if (entry.key.len == 0) {
        return ratelimit_load_error(load, node, "descriptor has empty key");
    }

    d = ratelimit_domain_add(load->domains, parent, &entry, &same);

    if (d == NULL) {
        return ratelimit_load_error(load, NULL, "there is no memory");
    }

    if (same) {
        return ratelimit_load_error(load, node,
                                    "duplicate descriptor composite key "
                                    "'%.*s', as in line %zu",
                                    (int) d->path.len, d->path.data,
                                    same->line);
    }

    d->file = load->file;
    d->line = node->start_mark.line + 1;

    return ratelimit_load_flags(load, &map, d)
           && ratelimit_load_limit(load, &map, d)
           && ratelimit_load_descriptors(load,
                                      map.values[RATELIMIT_LOAD_DESCRIPTORS],
                                      d);
}


static int
ratelimit_load_flags(ratelimit_load_t *load, ratelimit_load_map_t *map,
    ratelimit_descriptor_t *d)
{
    unsigned  shadow, quota, shared, metric;

    if (!ratelimit_load_flag(load, map, RATELIMIT_LOAD_SHADOW_MODE, &shadow)
        || !ratelimit_load_flag(load, map, RATELIMIT_LOAD_QUOTA_MODE, &quota)
        || !ratelimit_load_flag(load, map, RATELIMIT_LOAD_SHARE_THRESHOLD,
                                &shared)
        || !ratelimit_load_flag(load, map, RATELIMIT_LOAD_DETAILED_METRIC,
                                &metric)
        || !ratelimit_load_flag(load, map, RATELIMIT_LOAD_VALUE_TO_METRIC,
                                &metric))
    {
        return 0;
    }

    d->shadow = shadow;
    d->quota = quota;
    d->shared = shared;

    if (shared && !d->wildcard) {
        return ratelimit_load_error(load,
                            map->values[RATELIMIT_LOAD_SHARE_THRESHOLD],
                            "share_threshold can only be used with wildcard "
                            "values (containing '*'), but found key '%.*s'",
                            (int) d->path.len, d->path.data);
    }

    return 1;
}


static int
ratelimit_load_limit(ratelimit_load_t *load, ratelimit_load_map_t *map,
    ratelimit_descriptor_t *d)
{
    unsigned               unlimited;
    yaml_node_t           *node;
    ratelimit_load_map_t   limit;

    node = map->values[RATELIMIT_LOAD_RATE_LIMIT];

    if (ratelimit_load_is_null(node)) {
        return 1;
    }

    if (node->type != YAML_MAPPING_NODE) {
        return ratelimit_load_error(load, node, "error loading config file: "
                                    "'rate_limit' must be a map");
    }

    if (!ratelimit_load_map(load, node, RATELIMIT_LOAD_IN_RATE_LIMIT, &limit)
        || !ratelimit_load_flag(load, &limit, RATELIMIT_LOAD_UNLIMITED,
                                &unlimited)
        || !ratelimit_load_text(load, &limit, RATELIMIT_LOAD_NAME, &d->name)
        || !ratelimit_load_value(load, &limit,
                                 RATELIMIT_LOAD_REQUESTS_PER_UNIT,
                                 RATELIMIT_SCALAR_INTEGER,
                                 "a number from 0 to 4294967295",
                                 &d->requests))
    {
        return 0;
    }

    d->limited = 1;
    d->unlimited = unlimited;

    return ratelimit_load_unit(load, &limit, d)
           && ratelimit_load_replaces(load,
                                      limit.values[RATELIMIT_LOAD_REPLACES],
                                      d);
}


static int
ratelimit_load_unit(ratelimit_load_t *load, ratelimit_load_map_t *map,
    ratelimit_descriptor_t *d)
{
    yaml_node_t       *node;
    ratelimit_text_t   unit;

    node = map->values[RATELIMIT_LOAD_UNIT];

    if (!ratelimit_load_text(load, map, RATELIMIT_LOAD_UNIT, &unit)) {
        return 0;
    }

    d->unit = ratelimit_unit_find(&unit);

    if (d->unlimited && d->unit != RATELIMIT_UNIT_UNKNOWN) {
        return ratelimit_load_error(load, node,
                                    "should not specify rate limit unit when "
                                    "unlimited");
    }

    if (d->unlimited && unit.len) {
        ratelimit_load_warn(load, node, "unit '%.64s' says nothing here, and "
                            "is ignored", ratelimit_load_quoted(node));
    }

    if (d->unlimited || d->unit != RATELIMIT_UNIT_UNKNOWN) {
        return 1;
    }

    return ratelimit_load_error(load, node ? node : map->node,
                                "invalid rate limit unit '%.64s', must be "
                                "second, minute, hour, day, week, month or "
                                "year", node ? ratelimit_load_quoted(node)
                                             : "");
}


static int
ratelimit_load_replaces(ratelimit_load_t *load, yaml_node_t *node,
    ratelimit_descriptor_t *d)
{
    size_t                 i;
    yaml_node_t           *element;
    ratelimit_text_t      *name;
    ratelimit_load_map_t   map;

    if (!ratelimit_load_is_list(load, node, "replaces")) {
        return 0;
    }

    d->nreplaces = ratelimit_load_length(node);

    d->replaces = load->domains->alloc(load->domains->pool,
                                       (d->nreplaces + 1)
                                       * sizeof(ratelimit_text_t));
    if (d->replaces == NULL) {
        return ratelimit_load_error(load, NULL, "there is no memory");
    }

    for (i = 0; i < d->nreplaces; i++) {
        name = &d->replaces[i];
        element = ratelimit_load_element(load, node, i);

        if (!ratelimit_load_map(load, element, RATELIMIT_LOAD_IN_REPLACES,
                                &map)
            || !ratelimit_load_text(load, &map, RATELIMIT_LOAD_NAME, name))
        {
            return 0;
        }

        if (name->len == 0) {
            return ratelimit_load_error(load, element, "should not have an "
                                        "empty replaces entry");
        }

        if (name->len == d->name.len
            && memcmp(name->data, d->name.data, name->len) == 0)
        {
            return ratelimit_load_error(load, element, "replaces should not "
                                        "contain name of same descriptor");
        }
    }

    return 1;
}


/* a number or a boolean is taken as it is written; null is an empty text */

static int
ratelimit_load_text(ratelimit_load_t *load, ratelimit_load_map_t *map,
    ratelimit_load_key_e key, ratelimit_text_t *text)
{
    yaml_node_t  *node;

    node = map->values[key];
    memset(text, 0, sizeof(ratelimit_text_t));

    if (ratelimit_load_is_null(node)) {
        return 1;
    }

    if (node->type != YAML_SCALAR_NODE) {
        return ratelimit_load_error(load, node, "error loading config file: "
                                    "'%s' must be a string",
                                    ratelimit_load_keys[key]);
    }

    if (node->data.scalar.length == 0) {
        return 1;
    }

    text->len = node->data.scalar.length;
    text->data = load->domains->alloc(load->domains->pool, text->len);

    if (text->data == NULL) {
        return ratelimit_load_error(load, NULL, "there is no memory");
    }

    memcpy(text->data, node->data.scalar.value, text->len);

    return 1;
}


static int
ratelimit_load_flag(ratelimit_load_t *load, ratelimit_load_map_t *map,
    ratelimit_load_key_e key, uint32_t *flag)
{
    return ratelimit_load_value(load, map, key, RATELIMIT_SCALAR_BOOLEAN,
                                "true or false", flag);
}


/* 0 if there is none */

static int
ratelimit_load_value(ratelimit_load_t *load, ratelimit_load_map_t *map,
    ratelimit_load_key_e key, ratelimit_scalar_e type, const char *expected,
    uint32_t *value)
{
    yaml_node_t         *node;
    ratelimit_scalar_t   scalar;

    node = map->values[key];
    *value = 0;

    if (ratelimit_load_is_null(node)) {
        return 1;
    }

    if (node->type == YAML_SCALAR_NODE) {
        scalar = ratelimit_load_scalar(node);

        if (scalar.type == type
            && scalar.number >= 0 && scalar.number <= UINT32_MAX)
        {
            *value = (uint32_t) scalar.number;
            return 1;
        }
    }

    return ratelimit_load_error(load, node, "error loading config file: "
                                "'%s' must be %s", ratelimit_load_keys[key],
                                expected);
}
