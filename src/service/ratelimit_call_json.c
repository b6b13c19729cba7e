
/*
 * Calls and answers as JSON, by the mapping of proto3: members in camelCase or
 * as the message names them, numbers also as texts, null for what is absent.
 */


#include <string.h>

#include "service/ratelimit_call.h"
#include "service/ratelimit_json.h"


static void ratelimit_json_descriptors(ratelimit_json_t *in, void *field);
static void ratelimit_json_descriptor(ratelimit_json_t *in, void *field);
static void ratelimit_json_entries(ratelimit_json_t *in, void *field);
static void ratelimit_json_entry(ratelimit_json_t *in, void *field);
static void ratelimit_json_limit(ratelimit_json_t *in, void *field);
static void ratelimit_json_hits(ratelimit_json_t *in, void *field);
static void ratelimit_json_negative(ratelimit_json_t *in, void *field);
static void ratelimit_json_unit(ratelimit_json_t *in, void *field);
static unsigned char *ratelimit_json_write_status(unsigned char *p,
    const ratelimit_answer_status_t *status);
static unsigned char *ratelimit_json_write_fields(unsigned char *p,
    const ratelimit_answer_t *answer);


/* members of the messages; a function that needs more than a field has all */

static const ratelimit_json_member_t  ratelimit_json_of_call[] = {

    { "domain", "domain", ratelimit_json_text,
      offsetof(ratelimit_call_t, domain) },

    { "descriptors", "descriptors", ratelimit_json_descriptors, 0 },

    { "hitsAddend", "hits_addend", ratelimit_json_uint32,
      offsetof(ratelimit_call_t, hits) },

    { NULL, NULL, NULL, 0 }
};


static const ratelimit_json_member_t  ratelimit_json_of_descriptor[] = {
    { "entries", "entries", ratelimit_json_entries, 0 },
    { "limit", "limit", ratelimit_json_limit, 0 },
    { "hitsAddend", "hits_addend", ratelimit_json_hits, 0 },
    { "isNegativeHits", "is_negative_hits", ratelimit_json_negative, 0 },
    { NULL, NULL, NULL, 0 }
};


static const ratelimit_json_member_t  ratelimit_json_of_entry[] = {

    { "key", "key", ratelimit_json_text, offsetof(ratelimit_entry_t, key) },

    { "value", "value", ratelimit_json_text,
      offsetof(ratelimit_entry_t, value) },

    { NULL, NULL, NULL, 0 }
};


static const ratelimit_json_member_t  ratelimit_json_of_limit[] = {

    { "requestsPerUnit", "requests_per_unit", ratelimit_json_uint32,
      offsetof(ratelimit_call_descriptor_t, requests) },

    { "unit", "unit", ratelimit_json_unit,
      offsetof(ratelimit_call_descriptor_t, unit) },

    { NULL, NULL, NULL, 0 }
};


static const char  ratelimit_json_codes[][sizeof("OVER_LIMIT")] = {
    "UNKNOWN", "OK", "OVER_LIMIT"
};


const char *
ratelimit_call_decode_json(ratelimit_call_t *call, unsigned char *data,
    size_t len)
{
    ratelimit_json_t  in;

    in.p = data;
    in.end = data + len;
    in.reason = NULL;
    in.fill = (call->descriptors != NULL);
    in.call = call;

    memset(&call->domain, 0, sizeof(ratelimit_text_t));

    call->hits = 0;
    call->ndescriptors = 0;
    call->nentries = 0;

    ratelimit_json_object(&in, ratelimit_json_of_call, call);

    if (in.reason == NULL && ratelimit_json_blank(&in)) {
        (void) ratelimit_json_error(&in, "something follows the object");
    }

    call->position = in.p - data;

    return in.reason;
}


static void
ratelimit_json_descriptors(ratelimit_json_t *in, void *field)
{
    ratelimit_json_list(in, "\"descriptors\" must be a list",
                        ratelimit_json_descriptor, field);
}


static void
ratelimit_json_descriptor(ratelimit_json_t *in, void *field)
{
    ratelimit_call_descriptor_t  counted;

    ratelimit_json_object(in, ratelimit_json_of_descriptor,
                          ratelimit_call_add_descriptor(field, &counted));
}


static void
ratelimit_json_entries(ratelimit_json_t *in, void *field)
{
    ratelimit_json_list(in, "\"entries\" must be a list",
                        ratelimit_json_entry, field);
}


static void
ratelimit_json_entry(ratelimit_json_t *in, void *field)
{
    ratelimit_entry_t  counted;

    ratelimit_json_object(in, ratelimit_json_of_entry,
                          ratelimit_call_add_entry(in->call, field,
                                                   &counted));
}


static void
ratelimit_json_limit(ratelimit_json_t *in, void *field)
{
    ratelimit_call_descriptor_t  *descriptor = field;

    descriptor->has_limit = 1;

    ratelimit_json_object(in, ratelimit_json_of_limit, descriptor);
}


static void
ratelimit_json_hits(ratelimit_json_t *in, void *field)
{
    ratelimit_call_descriptor_t  *descriptor = field;

    descriptor->has_hits = 1;

    ratelimit_json_number(in, UINT64_MAX, &descriptor->hits);
}


static void
ratelimit_json_negative(ratelimit_json_t *in, void *field)
{
    ratelimit_call_descriptor_t  *descriptor = field;

    descriptor->negative = ratelimit_json_bool(in);
}


/* RateLimitUnit, which has no week, by name or by number */

static void
ratelimit_json_unit(ratelimit_json_t *in, void *field)
{
    size_t         len, n;
    uint32_t      *unit = field;
    uint64_t       number;
    const char    *name;
    unsigned char  word[RATELIMIT_JSON_WORD];

    if (!ratelimit_json_blank(in) || *in->p != '"') {
        ratelimit_json_number(in, INT32_MAX, &number);
        *unit = (uint32_t) number;
        return;
    }

    len = ratelimit_json_string(in, word, RATELIMIT_JSON_WORD);

    for (n = RATELIMIT_UNIT_UNKNOWN; n <= RATELIMIT_UNIT_YEAR; n++) {
        name = ratelimit_unit_name((ratelimit_unit_e) n);

        if (strlen(name) == len && memcmp(name, word, len) == 0) {
            *unit = (uint32_t) n;
            return;
        }
    }

    (void) ratelimit_json_error(in, "a unit is unknown");
}


size_t
ratelimit_answer_json_size(const ratelimit_answer_t *answer)
{
    size_t  i, size;

    static const char  status[] =
        "{\"code\":\"OVER_LIMIT\",\"currentLimit\":{\"requestsPerUnit\":"
        "4294967295,\"unit\":\"UNKNOWN\",\"name\":\"\"},\"limitRemaining\":"
        "4294967295,\"durationUntilReset\":\"18446744073709551615s\"},";

    size = sizeof("{\"overallCode\":\"OVER_LIMIT\",\"statuses\":[],"
                  "\"responseHeadersToAdd\":[]}\n");

    /* a byte of a text may take six, as \u0001 */

    for (i = 0; i < answer->nstatuses; i++) {
        size += sizeof(status) + 6 * answer->statuses[i].name.len;
    }

    for (i = 0; i < answer->nfields; i++) {
        size += sizeof("{\"key\":\"\",\"value\":\"\"},")
                + 6 * (answer->fields[i].key.len
                       + answer->fields[i].value.len);
    }

    return size;
}


/* what is 0 or empty is left out, as the mapping has it */

unsigned char *
ratelimit_answer_write_json(unsigned char *p, const ratelimit_answer_t *answer)
{
    size_t  i;

    p = ratelimit_json_write(p, "{\"overallCode\":\"");
    p = ratelimit_json_write(p, ratelimit_json_codes[answer->code]);
    *p++ = '"';

    for (i = 0; i < answer->nstatuses; i++) {
        p = ratelimit_json_write(p, i ? "," : ",\"statuses\":[");
        p = ratelimit_json_write_status(p, &answer->statuses[i]);
    }

    if (answer->nstatuses) {
        *p++ = ']';
    }

    if (answer->nfields) {
        p = ratelimit_json_write_fields(p, answer);
    }

    *p++ = '}';
    *p++ = '\n';

    return p;
}


static unsigned char *
ratelimit_json_write_status(unsigned char *p,
    const ratelimit_answer_status_t *status)
{
    p = ratelimit_json_write(p, "{\"code\":\"");
    p = ratelimit_json_write(p, ratelimit_json_codes[status->code]);
    *p++ = '"';

    if (status->limited) {
        p = ratelimit_json_write(p, ",\"currentLimit\":{");

        if (status->requests) {
            p = ratelimit_json_write(p, "\"requestsPerUnit\":");
            p = ratelimit_write_number(p, status->requests);
            *p++ = ',';
        }

        p = ratelimit_json_write(p, "\"unit\":\"");
        p = ratelimit_json_write(p, ratelimit_unit_name(status->unit));
        *p++ = '"';

        if (status->name.len) {
            p = ratelimit_json_write(p, ",\"name\":");
            p = ratelimit_json_write_text(p, &status->name);
        }

        *p++ = '}';
    }

    if (status->remaining) {
        p = ratelimit_json_write(p, ",\"limitRemaining\":");
        p = ratelimit_write_number(p, status->remaining);
    }

    if (status->limited) {
        p = ratelimit_json_write(p, ",\"durationUntilReset\":\"");
        p = ratelimit_write_number(p, status->reset);
        p = ratelimit_json_write(p, "s\"");
    }

    *p++ = '}';

    return p;
}


static unsigned char *
ratelimit_json_write_fields(unsigned char *p, const ratelimit_answer_t *answer)
{
    size_t  i;

    for (i = 0; i < answer->nfields; i++) {
        p = ratelimit_json_write(p, i ? ",{\"key\":"
                                      : ",\"responseHeadersToAdd\":[{"
                                        "\"key\":");
        p = ratelimit_json_write_text(p, &answer->fields[i].key);
        p = ratelimit_json_write(p, ",\"value\":");
        p = ratelimit_json_write_text(p, &answer->fields[i].value);
        *p++ = '}';
    }

    *p++ = ']';

    return p;
}
