
/*
 * Calls and answers as protocol buffers.  Messages are nested three levels
 * deep, so that there is a function for each, and no recursion.
 */


#include <string.h>

#include "service/ratelimit_call.h"


/* wire types */
#define RATELIMIT_PROTO_VARINT   0
#define RATELIMIT_PROTO_FIXED64  1
#define RATELIMIT_PROTO_BYTES    2
#define RATELIMIT_PROTO_FIXED32  5

#define RATELIMIT_PROTO_NUMBERS  0x1fffffffULL    /* of fields */

/* field and wire type, as the first byte of a field */
#define ratelimit_proto_tag(number, type)  ((number) << 3 | (type))


typedef struct {
    unsigned char                  *p;
    unsigned char                  *end;
    const char                     *reason;   /* NULL: no error so far */
} ratelimit_proto_t;


/* a field of a message */

typedef struct {
    uint64_t                        tag;      /* see ratelimit_proto_tag() */
    uint64_t                        number;   /* of a varint */
    ratelimit_text_t                bytes;
} ratelimit_proto_field_t;


static int ratelimit_proto_next(ratelimit_proto_t *in,
    ratelimit_proto_field_t *field);
static uint64_t ratelimit_proto_varint(ratelimit_proto_t *in);
static void ratelimit_proto_bytes(ratelimit_proto_t *in, uint64_t len,
    ratelimit_text_t *bytes);
static int ratelimit_proto_error(ratelimit_proto_t *in, const char *reason);
static void ratelimit_proto_text(ratelimit_proto_t *in,
    ratelimit_proto_field_t *field, ratelimit_text_t *text);
static void ratelimit_proto_descriptor(ratelimit_call_t *call,
    ratelimit_proto_t *in);
static void ratelimit_proto_entry(ratelimit_proto_t *in,
    ratelimit_entry_t *entry);
static void ratelimit_proto_limit(ratelimit_proto_t *in,
    ratelimit_call_descriptor_t *descriptor);
static void ratelimit_proto_hits(ratelimit_proto_t *in,
    ratelimit_call_descriptor_t *descriptor);
static size_t ratelimit_proto_status_size(
    const ratelimit_answer_status_t *status);
static size_t ratelimit_proto_limit_size(
    const ratelimit_answer_status_t *status);
static size_t ratelimit_proto_field_size(const ratelimit_entry_t *field);
static unsigned char *ratelimit_proto_write_status(unsigned char *p,
    const ratelimit_answer_status_t *status);
static unsigned char *ratelimit_proto_write_text(unsigned char *p,
    unsigned char tag, const ratelimit_text_t *text);


static inline void
ratelimit_proto_enter(ratelimit_proto_field_t *field, ratelimit_proto_t *inner)
{
    inner->p = field->bytes.data;
    inner->end = inner->p + field->bytes.len;
    inner->reason = NULL;
}


/* what is wrong inside is wrong outside */

static inline void
ratelimit_proto_leave(ratelimit_proto_t *in, const ratelimit_proto_t *inner)
{
    if (inner->reason) {
        in->p = inner->p;
        in->reason = inner->reason;
    }
}


const char *
ratelimit_call_decode_proto(ratelimit_call_t *call, unsigned char *data,
    size_t len)
{
    ratelimit_proto_t        in, inner;
    ratelimit_proto_field_t  field;

    in.p = data;
    in.end = data + len;
    in.reason = NULL;

    memset(&call->domain, 0, sizeof(ratelimit_text_t));

    call->hits = 0;
    call->ndescriptors = 0;
    call->nentries = 0;

    while (ratelimit_proto_next(&in, &field)) {

        switch (field.tag) {

        case ratelimit_proto_tag(1, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_text(&in, &field, &call->domain);
            break;

        case ratelimit_proto_tag(2, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_enter(&field, &inner);
            ratelimit_proto_descriptor(call, &inner);
            ratelimit_proto_leave(&in, &inner);
            break;

        case ratelimit_proto_tag(3, RATELIMIT_PROTO_VARINT):
            call->hits = (uint32_t) field.number;
            break;
        }
    }

    call->position = in.p - data;

    return in.reason;
}


const char *
ratelimit_health_decode_proto(ratelimit_text_t *service, unsigned char *data,
    size_t len)
{
    ratelimit_proto_t        in;
    ratelimit_proto_field_t  field;

    in.p = data;
    in.end = data + len;
    in.reason = NULL;

    memset(service, 0, sizeof(ratelimit_text_t));

    while (ratelimit_proto_next(&in, &field)) {
        if (field.tag == ratelimit_proto_tag(1, RATELIMIT_PROTO_BYTES)) {
            ratelimit_proto_text(&in, &field, service);
        }
    }

    return in.reason;
}


/* the next field; 0 at the end, and if something is wrong */

static int
ratelimit_proto_next(ratelimit_proto_t *in, ratelimit_proto_field_t *field)
{
    if (in->p == in->end || in->reason) {
        return 0;
    }

    field->bytes.len = 0;
    field->bytes.data = in->p;
    field->tag = ratelimit_proto_varint(in);

    if (in->reason == NULL && (field->tag >> 3 == 0
                               || field->tag >> 3 > RATELIMIT_PROTO_NUMBERS))
    {
        return ratelimit_proto_error(in, "a field has no valid number");
    }

    switch (field->tag & 7) {

    case RATELIMIT_PROTO_VARINT:
        field->number = ratelimit_proto_varint(in);
        break;

    case RATELIMIT_PROTO_FIXED64:
        ratelimit_proto_bytes(in, sizeof(uint64_t), &field->bytes);
        break;

    case RATELIMIT_PROTO_BYTES:
        ratelimit_proto_bytes(in, ratelimit_proto_varint(in), &field->bytes);
        break;

    case RATELIMIT_PROTO_FIXED32:
        ratelimit_proto_bytes(in, sizeof(uint32_t), &field->bytes);
        break;

    default:
        (void) ratelimit_proto_error(in, "a field has no type that is known");
        break;
    }

    return in->reason == NULL;
}


static uint64_t
ratelimit_proto_varint(ratelimit_proto_t *in)
{
    unsigned  shift;
    uint64_t  number, byte;

    number = 0;

    for (shift = 0; shift < 64; shift += 7) {

        if (in->p == in->end) {
            return ratelimit_proto_error(in, "it is cut short");
        }

        byte = *in->p++;
        number |= (byte & 0x7f) << shift;

        if (byte < 0x80) {

            if (shift == 63 && byte > 1) {
                break;
            }

            return number;
        }
    }

    return ratelimit_proto_error(in, "a number is too long");
}


static void
ratelimit_proto_bytes(ratelimit_proto_t *in, uint64_t len,
    ratelimit_text_t *bytes)
{
    if (in->reason || len > (uint64_t) (in->end - in->p)) {
        (void) ratelimit_proto_error(in, "it is cut short");
        return;
    }

    bytes->len = (size_t) len;
    bytes->data = in->p;

    in->p += len;
}


/* the first one is kept; returns 0, as what fails does */

static int
ratelimit_proto_error(ratelimit_proto_t *in, const char *reason)
{
    if (in->reason == NULL) {
        in->reason = reason;
    }

    return 0;
}


static void
ratelimit_proto_text(ratelimit_proto_t *in, ratelimit_proto_field_t *field,
    ratelimit_text_t *text)
{
    *text = field->bytes;

    if (!ratelimit_is_utf8(text->data, text->len)) {
        (void) ratelimit_proto_error(in, "a text is not UTF-8");
    }
}


static void
ratelimit_proto_descriptor(ratelimit_call_t *call, ratelimit_proto_t *in)
{
    ratelimit_entry_t             entry;
    ratelimit_proto_t             inner;
    ratelimit_proto_field_t       field;
    ratelimit_call_descriptor_t  *d, counted;

    d = ratelimit_call_add_descriptor(call, &counted);

    while (ratelimit_proto_next(in, &field)) {

        ratelimit_proto_enter(&field, &inner);

        switch (field.tag) {

        case ratelimit_proto_tag(1, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_entry(&inner,
                                  ratelimit_call_add_entry(call, d, &entry));
            break;

        case ratelimit_proto_tag(2, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_limit(&inner, d);
            break;

        case ratelimit_proto_tag(3, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_hits(&inner, d);
            break;

        case ratelimit_proto_tag(4, RATELIMIT_PROTO_VARINT):
            d->negative = (field.number != 0);
            break;
        }

        ratelimit_proto_leave(in, &inner);
    }
}


static void
ratelimit_proto_entry(ratelimit_proto_t *in, ratelimit_entry_t *entry)
{
    ratelimit_proto_field_t  field;

    while (ratelimit_proto_next(in, &field)) {

        switch (field.tag) {

        case ratelimit_proto_tag(1, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_text(in, &field, &entry->key);
            break;

        case ratelimit_proto_tag(2, RATELIMIT_PROTO_BYTES):
            ratelimit_proto_text(in, &field, &entry->value);
            break;
        }
    }
}


static void
ratelimit_proto_limit(ratelimit_proto_t *in,
    ratelimit_call_descriptor_t *descriptor)
{
    ratelimit_proto_field_t  field;

    descriptor->has_limit = 1;

    while (ratelimit_proto_next(in, &field)) {

        switch (field.tag) {

        case ratelimit_proto_tag(1, RATELIMIT_PROTO_VARINT):
            descriptor->requests = (uint32_t) field.number;
            break;

        case ratelimit_proto_tag(2, RATELIMIT_PROTO_VARINT):
            descriptor->unit = (uint32_t) field.number;
            break;
        }
    }
}


/* UInt64Value */

static void
ratelimit_proto_hits(ratelimit_proto_t *in,
    ratelimit_call_descriptor_t *descriptor)
{
    ratelimit_proto_field_t  field;

    descriptor->has_hits = 1;

    while (ratelimit_proto_next(in, &field)) {
        if (field.tag == ratelimit_proto_tag(1, RATELIMIT_PROTO_VARINT)) {
            descriptor->hits = field.number;
        }
    }
}


static inline size_t
ratelimit_proto_varint_size(uint64_t number)
{
    size_t  size;

    for (size = 1; number > 0x7f; size++) {
        number >>= 7;
    }

    return size;
}


/* of a field that has a number; 0 is not sent */

static inline size_t
ratelimit_proto_number_size(uint64_t number)
{
    return number ? 1 + ratelimit_proto_varint_size(number) : 0;
}


/* of a field that has so many bytes */

static inline size_t
ratelimit_proto_bytes_size(size_t len)
{
    return 1 + ratelimit_proto_varint_size(len) + len;
}


static inline unsigned char *
ratelimit_proto_write_varint(unsigned char *p, uint64_t number)
{
    while (number > 0x7f) {
        *p++ = (unsigned char) (number | 0x80);
        number >>= 7;
    }

    *p++ = (unsigned char) number;

    return p;
}


static inline unsigned char *
ratelimit_proto_write_number(unsigned char *p, unsigned char field,
    uint64_t number)
{
    if (number == 0) {
        return p;
    }

    *p++ = ratelimit_proto_tag(field, RATELIMIT_PROTO_VARINT);

    return ratelimit_proto_write_varint(p, number);
}


/* the caller writes the bytes */

static inline unsigned char *
ratelimit_proto_write_bytes(unsigned char *p, unsigned char field, size_t len)
{
    *p++ = ratelimit_proto_tag(field, RATELIMIT_PROTO_BYTES);

    return ratelimit_proto_write_varint(p, len);
}


size_t
ratelimit_answer_proto_size(const ratelimit_answer_t *answer)
{
    size_t  i, size;

    size = ratelimit_proto_number_size(answer->code);

    for (i = 0; i < answer->nstatuses; i++) {
        size += ratelimit_proto_bytes_size(
                          ratelimit_proto_status_size(&answer->statuses[i]));
    }

    for (i = 0; i < answer->nfields; i++) {
        size += ratelimit_proto_bytes_size(
                          ratelimit_proto_field_size(&answer->fields[i]));
    }

    return size;
}


static size_t
ratelimit_proto_status_size(const ratelimit_answer_status_t *status)
{
    size_t  size;

    size = ratelimit_proto_number_size(status->code)
           + ratelimit_proto_number_size(status->remaining);

    if (status->limited) {
        size += ratelimit_proto_bytes_size(ratelimit_proto_limit_size(status))
                + ratelimit_proto_bytes_size(
                      ratelimit_proto_number_size(status->reset));
    }

    return size;
}


static size_t
ratelimit_proto_limit_size(const ratelimit_answer_status_t *status)
{
    return ratelimit_proto_number_size(status->requests)
           + ratelimit_proto_number_size(status->unit)
           + (status->name.len ? ratelimit_proto_bytes_size(status->name.len)
                               : 0);
}


static size_t
ratelimit_proto_field_size(const ratelimit_entry_t *field)
{
    return ratelimit_proto_bytes_size(field->key.len)
           + ratelimit_proto_bytes_size(field->value.len);
}


unsigned char *
ratelimit_answer_write_proto(unsigned char *p,
    const ratelimit_answer_t *answer)
{
    size_t                      i;
    const ratelimit_entry_t    *field;
    ratelimit_answer_status_t  *status;

    p = ratelimit_proto_write_number(p, 1, answer->code);

    for (i = 0; i < answer->nstatuses; i++) {
        status = &answer->statuses[i];

        p = ratelimit_proto_write_bytes(p, 2,
                                        ratelimit_proto_status_size(status));
        p = ratelimit_proto_write_status(p, status);
    }

    for (i = 0; i < answer->nfields; i++) {
        field = &answer->fields[i];

        p = ratelimit_proto_write_bytes(p, 3,
                                        ratelimit_proto_field_size(field));
        p = ratelimit_proto_write_text(p, 1, &field->key);
        p = ratelimit_proto_write_text(p, 2, &field->value);
    }

    return p;
}


static unsigned char *
ratelimit_proto_write_status(unsigned char *p,
    const ratelimit_answer_status_t *status)
{
    p = ratelimit_proto_write_number(p, 1, status->code);

    if (status->limited) {
        p = ratelimit_proto_write_bytes(p, 2,
                                        ratelimit_proto_limit_size(status));
        p = ratelimit_proto_write_number(p, 1, status->requests);
        p = ratelimit_proto_write_number(p, 2, status->unit);

        if (status->name.len) {
            p = ratelimit_proto_write_text(p, 3, &status->name);
        }
    }

    p = ratelimit_proto_write_number(p, 3, status->remaining);

    if (status->limited) {
        p = ratelimit_proto_write_bytes(p, 4,
                                  ratelimit_proto_number_size(status->reset));
        p = ratelimit_proto_write_number(p, 1, status->reset);
    }

    return p;
}


static unsigned char *
ratelimit_proto_write_text(unsigned char *p, unsigned char field,
    const ratelimit_text_t *text)
{
    p = ratelimit_proto_write_bytes(p, field, text->len);

    if (text->len) {
        memcpy(p, text->data, text->len);
    }

    return p + text->len;
}
