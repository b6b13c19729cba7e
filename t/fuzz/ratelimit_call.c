
/*
 * Any bytes as a call, as protocol buffers and as JSON: a decoder counts and
 * fills alike, its texts are UTF-8 within the bytes, and a call that was read
 * is the same one when it is written as JSON and read again.
 */


#include <string.h>

#include "service/ratelimit_call.h"

#include "fuzz.h"


static void fuzz_decode(ratelimit_call_decode_pt decode, const uint8_t *data,
    size_t size);
static void fuzz_text(const ratelimit_text_t *text, const uint8_t *data,
    size_t size);
static void fuzz_again(const ratelimit_call_t *call);
static char *fuzz_write(char *p, const ratelimit_text_t *text);
static void fuzz_answer(const ratelimit_call_t *call);


static void
fuzz_decode(ratelimit_call_decode_pt decode, const uint8_t *data, size_t size)
{
    size_t                        i, n, nentries, total;
    uint8_t                      *copy;
    const char                   *reason;
    ratelimit_call_t              call;
    ratelimit_call_descriptor_t  *d;

    memset(&call, 0, sizeof(ratelimit_call_t));

    copy = malloc(size ? size : 1);
    memcpy(copy, data, size);

    reason = decode(&call, copy, size);

    fuzz_check(call.position <= size);
    fuzz_check(memcmp(copy, data, size) == 0);

    if (reason != NULL) {
        fuzz_check(reason[0] != '\0');
        free(copy);
        return;
    }

    n = call.ndescriptors;
    nentries = call.nentries;
    total = 0;

    call.descriptors = malloc(n * sizeof(ratelimit_call_descriptor_t) + 1);
    call.entries = malloc(nentries * sizeof(ratelimit_entry_t) + 1);

    fuzz_check(decode(&call, copy, size) == NULL);
    fuzz_check(n == call.ndescriptors && nentries == call.nentries);

    fuzz_text(&call.domain, copy, size);

    for (i = 0; i < n; i++) {
        d = &call.descriptors[i];
        fuzz_check(d->entries == call.entries + total);
        total += d->nentries;
    }

    fuzz_check(total == nentries);

    for (i = 0; i < nentries; i++) {
        fuzz_text(&call.entries[i].key, copy, size);
        fuzz_text(&call.entries[i].value, copy, size);
    }

    fuzz_again(&call);
    fuzz_answer(&call);

    free(call.descriptors);
    free(call.entries);
    free(copy);
}


static void
fuzz_text(const ratelimit_text_t *text, const uint8_t *data, size_t size)
{
    if (text->len == 0) {
        return;
    }

    fuzz_check(text->data >= data && text->len <= size);
    fuzz_check(text->data + text->len <= data + size);
    fuzz_check(ratelimit_is_utf8(text->data, text->len));
}


/* the texts of the call as JSON */

static void
fuzz_again(const ratelimit_call_t *call)
{
    char                         *json, *p;
    size_t                        i, size;
    ratelimit_call_t              copy;
    ratelimit_entry_t             entries[64];
    ratelimit_call_descriptor_t   descriptor;

    size = 6 * call->domain.len + 256;

    for (i = 0; i < call->nentries && i < 64; i++) {
        size += 6 * (call->entries[i].key.len + call->entries[i].value.len)
                + 64;
    }

    json = malloc(size);

    p = json + sprintf(json, "{\"descriptors\":[{\"entries\":[");

    for (i = 0; i < call->nentries && i < 64; i++) {
        p += sprintf(p, "%s{\"key\":", i ? "," : "");
        p = fuzz_write(p, &call->entries[i].key);
        p += sprintf(p, ",\"value\":");
        p = fuzz_write(p, &call->entries[i].value);
        *p++ = '}';
    }

    p += sprintf(p, "]}],\"domain\":");
    p = fuzz_write(p, &call->domain);
    *p++ = '}';

    memset(&copy, 0, sizeof(ratelimit_call_t));

    copy.descriptors = &descriptor;
    copy.entries = entries;

    fuzz_check(ratelimit_call_decode_json(&copy, (unsigned char *) json,
                                          p - json) == NULL);
    fuzz_check(copy.nentries == i && copy.domain.len == call->domain.len);
    fuzz_check(copy.domain.len == 0
               || memcmp(copy.domain.data, call->domain.data, copy.domain.len)
                  == 0);

    while (i--) {
        fuzz_check(entries[i].key.len == call->entries[i].key.len);
        fuzz_check(entries[i].value.len == 0
                   || memcmp(entries[i].value.data, call->entries[i].value.data,
                             entries[i].value.len) == 0);
    }

    free(json);
}


static char *
fuzz_write(char *p, const ratelimit_text_t *text)
{
    size_t  i;

    *p++ = '"';

    for (i = 0; i < text->len; i++) {
        if (text->data[i] < 0x20 || text->data[i] == '"'
            || text->data[i] == '\\')
        {
            p += sprintf(p, "\\u%04x", text->data[i]);

        } else {
            *p++ = (char) text->data[i];
        }
    }

    *p++ = '"';

    return p;
}


/* an answer fits the size that was said */

static void
fuzz_answer(const ratelimit_call_t *call)
{
    size_t                      i, size;
    unsigned char              *out;
    ratelimit_answer_t          answer;
    ratelimit_answer_status_t  *statuses;

    statuses = calloc(call->ndescriptors + 1,
                      sizeof(ratelimit_answer_status_t));

    for (i = 0; i < call->ndescriptors; i++) {
        statuses[i].code = RATELIMIT_ANSWER_OVER_LIMIT;
        statuses[i].limited = call->descriptors[i].has_limit;
        statuses[i].requests = call->descriptors[i].requests;
        statuses[i].unit = call->descriptors[i].unit % RATELIMIT_UNITS;
        statuses[i].remaining = (uint32_t) call->descriptors[i].hits;
        statuses[i].reset = call->descriptors[i].hits;
        statuses[i].name = call->domain;
    }

    answer.code = RATELIMIT_ANSWER_OK;
    answer.statuses = statuses;
    answer.nstatuses = call->ndescriptors;
    answer.fields = call->entries;
    answer.nfields = call->nentries;

    size = ratelimit_answer_proto_size(&answer);
    out = malloc(size);
    fuzz_check(ratelimit_answer_write_proto(out, &answer) == out + size);
    free(out);

    size = ratelimit_answer_json_size(&answer);
    out = malloc(size);
    fuzz_check(ratelimit_answer_write_json(out, &answer) <= out + size);
    free(out);

    free(statuses);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_decode(ratelimit_call_decode_proto, data, size);
    fuzz_decode(ratelimit_call_decode_json, data, size);

    return 0;
}
