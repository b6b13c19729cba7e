
/*
 * All keys of a rule file are checked first, whatever they belong to: a key is
 * legal at any level.
 */


#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "domain/ratelimit_domain_load.h"


/* an alias may stand for the list that it is in */
#define RATELIMIT_LOAD_DEPTH  1000
#define RATELIMIT_LOAD_NODES  2000000


static int ratelimit_load_enter(ratelimit_load_t *load, yaml_node_t *node);
static int ratelimit_load_check_node(ratelimit_load_t *load,
    yaml_node_t *node);
static int ratelimit_load_check_list(ratelimit_load_t *load,
    yaml_node_t *node);
static int ratelimit_load_check_map(ratelimit_load_t *load, yaml_node_t *node);
static int ratelimit_load_check_metadata(ratelimit_load_t *load,
    yaml_node_t *node, unsigned depth);
static void ratelimit_load_set_reason(ratelimit_domain_error_t *error,
    yaml_mark_t *mark, const char *fmt, va_list args);


const char *const  ratelimit_load_keys[RATELIMIT_LOAD_KEYS] = {
    "domain", "descriptors", "key", "value", "rate_limit", "shadow_mode",
    "quota_mode", "share_threshold", "detailed_metric", "value_to_metric",
    "metadata", "unit", "requests_per_unit", "unlimited", "name", "replaces"
};


int
ratelimit_load_check(ratelimit_load_t *load, yaml_node_t *node)
{
    int  ok;

    ok = ratelimit_load_enter(load, node)
         && ratelimit_load_check_node(load, node);

    load->depth--;

    return ok;
}


static int
ratelimit_load_enter(ratelimit_load_t *load, yaml_node_t *node)
{
    if (++load->depth > RATELIMIT_LOAD_DEPTH) {
        return ratelimit_load_error(load, node,
                                    "error loading config file: "
                                    "levels are nested too deeply");
    }

    if (++load->nodes > RATELIMIT_LOAD_NODES) {
        return ratelimit_load_error(load, node,
                                    "error loading config file: "
                                    "aliases make it too large");
    }

    return 1;
}


static int
ratelimit_load_check_node(ratelimit_load_t *load, yaml_node_t *node)
{
    ratelimit_scalar_e  type;

    if (node->type == YAML_MAPPING_NODE) {
        return ratelimit_load_check_map(load, node);
    }

    if (node->type == YAML_SEQUENCE_NODE) {
        return ratelimit_load_check_list(load, node);
    }

    type = ratelimit_load_scalar(node).type;

    if (type < RATELIMIT_SCALAR_LONG) {
        return 1;
    }

    if (type == RATELIMIT_SCALAR_MISFIT) {
        return ratelimit_load_error(load, node,
                                    "error loading config file: '%.64s' is not "
                                    "what its tag says",
                                    ratelimit_load_quoted(node));
    }

    return ratelimit_load_error(load, node,
                                "error checking config: %s %.64s needs "
                                "quotes%s",
                                type == RATELIMIT_SCALAR_TIME ? "the date"
                                                            : "the number",
                                ratelimit_load_quoted(node),
                                type == RATELIMIT_SCALAR_FLOAT
                                ? ", or must be an integer" : "");
}


static int
ratelimit_load_check_list(ratelimit_load_t *load, yaml_node_t *node)
{
    size_t        i;
    yaml_node_t  *element;

    for (i = 0; i < ratelimit_load_length(node); i++) {
        element = ratelimit_load_element(load, node, i);

        if (element->type != YAML_MAPPING_NODE) {
            return ratelimit_load_error(load, element,
                                        "config error, yaml file contains "
                                        "list of type other than map: %.64s",
                                        ratelimit_load_quoted(element));
        }

        if (!ratelimit_load_check(load, element)) {
            return 0;
        }
    }

    return 1;
}


static int
ratelimit_load_check_map(ratelimit_load_t *load, yaml_node_t *node)
{
    yaml_node_t           *key, *value;
    yaml_node_pair_t      *pair;
    ratelimit_load_key_e   known;

    for (pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top;
         pair++)
    {
        key = yaml_document_get_node(&load->document, pair->key);
        value = yaml_document_get_node(&load->document, pair->value);

        if (ratelimit_load_is_merge(key)) {
            if (!ratelimit_load_check(load, value)) {
                return 0;
            }

            continue;
        }

        if (key->type != YAML_SCALAR_NODE
            || ratelimit_load_scalar(key).type != RATELIMIT_SCALAR_STRING)
        {
            return ratelimit_load_error(load, key,
                                        "config error, key is not of type "
                                        "string: %.64s",
                                        ratelimit_load_quoted(key));
        }

        known = ratelimit_load_find_key(key);

        if (known == RATELIMIT_LOAD_KEYS) {
            return ratelimit_load_error(load, key,
                                        "config error, unknown key '%.64s'",
                                        ratelimit_load_quoted(key));
        }

        if (known == RATELIMIT_LOAD_METADATA) {
            if (!ratelimit_load_check_metadata(load, value, 0)) {
                return 0;
            }

        } else if (!ratelimit_load_check(load, value)) {
            return 0;
        }
    }

    return 1;
}


/* a map that has any values, but only strings as keys, at any depth */

static int
ratelimit_load_check_metadata(ratelimit_load_t *load, yaml_node_t *node,
    unsigned depth)
{
    yaml_node_t       *key;
    yaml_node_pair_t  *pair;

    if (depth == 0 && ratelimit_load_is_null(node)) {
        return 1;
    }

    if (node->type != YAML_MAPPING_NODE) {
        return depth ? 1
                     : ratelimit_load_error(load, node,
                                            "error parsing metadata: "
                                            "must be a map");
    }

    if (!ratelimit_load_enter(load, node)) {
        return 0;
    }

    for (pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top;
         pair++)
    {
        key = yaml_document_get_node(&load->document, pair->key);

        if (key->type != YAML_SCALAR_NODE
            || ratelimit_load_scalar(key).type != RATELIMIT_SCALAR_STRING)
        {
            return ratelimit_load_error(load, key,
                                        "error parsing metadata: key is not "
                                        "of type string: %.64s",
                                        ratelimit_load_quoted(key));
        }

        if (!ratelimit_load_check_metadata(load,
                        yaml_document_get_node(&load->document, pair->value),
                        depth + 1))
        {
            return 0;
        }
    }

    load->depth--;

    return 1;
}


ratelimit_load_key_e
ratelimit_load_find_key(yaml_node_t *node)
{
    size_t  i;

    for (i = 0; i < RATELIMIT_LOAD_KEYS; i++) {
        if (strlen(ratelimit_load_keys[i]) == node->data.scalar.length
            && memcmp(node->data.scalar.value, ratelimit_load_keys[i],
                      node->data.scalar.length)
               == 0)
        {
            break;
        }
    }

    return (ratelimit_load_key_e) i;
}


int
ratelimit_load_is_merge(yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE
           && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE
           && strcmp((char *) node->data.scalar.value, "<<") == 0;
}


/* a key without a value counts as missing */

int
ratelimit_load_is_null(yaml_node_t *node)
{
    return node == NULL
           || (node->type == YAML_SCALAR_NODE
               && ratelimit_load_scalar(node).type == RATELIMIT_SCALAR_NULL);
}


size_t
ratelimit_load_length(yaml_node_t *node)
{
    return ratelimit_load_is_null(node)
           ? 0
           : (size_t) (node->data.sequence.items.top
                       - node->data.sequence.items.start);
}


yaml_node_t *
ratelimit_load_element(ratelimit_load_t *load, yaml_node_t *node, size_t i)
{
    return yaml_document_get_node(&load->document,
                                  node->data.sequence.items.start[i]);
}


const char *
ratelimit_load_quoted(yaml_node_t *node)
{
    if (node->type == YAML_SCALAR_NODE) {
        return (const char *) node->data.scalar.value;
    }

    return node->type == YAML_MAPPING_NODE ? "a map" : "a list";
}


int
ratelimit_load_error(ratelimit_load_t *load, yaml_node_t *node,
    const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    ratelimit_load_set_reason(load->error, node ? &node->start_mark : NULL, fmt,
                              args);
    va_end(args);

    return 0;
}


void
ratelimit_load_warn(ratelimit_load_t *load, yaml_node_t *node,
    const char *fmt, ...)
{
    va_list                   args;
    ratelimit_domain_error_t  warning;

    if (load->warn == NULL) {
        return;
    }

    va_start(args, fmt);
    ratelimit_load_set_reason(&warning, &node->start_mark, fmt, args);
    va_end(args);

    load->warn(load->warn_data, load->file, &warning);
}


static void
ratelimit_load_set_reason(ratelimit_domain_error_t *error, yaml_mark_t *mark,
    const char *fmt, va_list args)
{
    char  *p;

    error->line = mark ? mark->line + 1 : 1;
    error->column = mark ? mark->column + 1 : 1;

    (void) vsnprintf(error->reason, RATELIMIT_DOMAIN_REASON, fmt, args);

    for (p = error->reason; *p; p++) {
        if ((unsigned char) *p < 0x20 || *p == 0x7f) {
            *p = '?';
        }
    }
}
