
/*
 * Tags of scalars: "!!str 1.5" is a text, and "!!int "5"" a number.
 */


#include <string.h>

#include "domain/ratelimit_domain_load.h"


#define RATELIMIT_TAG_PREFIX  "tag:yaml.org,2002:"


static int ratelimit_load_is_tagged(const unsigned char *p,
    const unsigned char *last);


/*
 * The parser says "!!str" of a scalar that has no tag as well, so the file is
 * looked at: a node begins there with its tag or anchor.  A scalar with this
 * tag becomes one in quotes.
 */

void
ratelimit_load_tags(ratelimit_load_t *load)
{
    size_t                at;
    yaml_node_t          *node;
    const unsigned char  *p, *last;

    if (load->parser.encoding != YAML_UTF8_ENCODING) {
        return;
    }

    p = load->parser.input.string.start;
    last = load->parser.input.string.end;

    if (last - p >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) {
        p += 3;
    }

    at = 0;

    for (node = load->document.nodes.start;
         node < load->document.nodes.top;
         node++)
    {
        /* marks count characters, and nodes are in the order of the file */

        while (p < last && at < node->start_mark.index) {
            for (p++; p < last && (*p & 0xc0) == 0x80; p++) { /* void */ }
            at++;
        }

        if (node->type == YAML_SCALAR_NODE
            && strcmp((char *) node->tag, YAML_STR_TAG) == 0
            && ratelimit_load_is_tagged(p, last))
        {
            node->data.scalar.style = YAML_DOUBLE_QUOTED_SCALAR_STYLE;
        }
    }
}


/* with or without an anchor before the tag */

static int
ratelimit_load_is_tagged(const unsigned char *p, const unsigned char *last)
{
    if (p < last && *p == '&') {
        while (p < last && *p != ' ' && *p != '\n') {
            p++;
        }

        while (p < last && *p == ' ') {
            p++;
        }
    }

    return p < last && *p == '!';
}


/* a text with another tag is what this says, if it can be */

ratelimit_scalar_t
ratelimit_load_scalar(yaml_node_t *node)
{
    const char          *tag;
    ratelimit_scalar_t   scalar;

    static const ratelimit_scalar_t  quoted = { RATELIMIT_SCALAR_STRING, 0 };
    static const char *const         names[] = {
        "str", "int", "bool", "null", NULL, "float", "timestamp"
    };

    tag = (char *) node->tag;
    scalar = ratelimit_yaml_scalar((const char *) node->data.scalar.value);

    if (strcmp(tag, YAML_STR_TAG) == 0) {
        return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? scalar
                                                                : quoted;
    }

    if (strncmp(tag, RATELIMIT_TAG_PREFIX, sizeof(RATELIMIT_TAG_PREFIX) - 1)
        != 0)
    {
        return quoted;
    }

    tag += sizeof(RATELIMIT_TAG_PREFIX) - 1;

    if (strcmp(tag, "float") == 0
        && (scalar.type == RATELIMIT_SCALAR_INTEGER
            || scalar.type == RATELIMIT_SCALAR_LONG))
    {
        scalar.type = RATELIMIT_SCALAR_FLOAT;

    } else if (scalar.type != RATELIMIT_SCALAR_LONG
               ? strcmp(tag, names[scalar.type]) != 0
               : strcmp(tag, "int") != 0)
    {
        scalar.type = RATELIMIT_SCALAR_MISFIT;
    }

    return scalar;
}
