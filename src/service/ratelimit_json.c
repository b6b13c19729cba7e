
/*
 * JSON, byte by byte.
 */


#include <string.h>

#include "service/ratelimit_call.h"
#include "service/ratelimit_json.h"


static int ratelimit_json_next(ratelimit_json_t *in, unsigned char bracket,
    int comma);
static int ratelimit_json_name(ratelimit_json_t *in,
    const ratelimit_json_member_t *members, unsigned *seen);
static int ratelimit_json_find(const ratelimit_json_member_t *members,
    const unsigned char *name, size_t len);
static int ratelimit_json_accept(ratelimit_json_t *in, unsigned char ch);
static int ratelimit_json_literal(ratelimit_json_t *in, const char *word);
static size_t ratelimit_json_append(unsigned char *out, size_t room,
    size_t len, const unsigned char *text, size_t n);
static uint32_t ratelimit_json_escape(ratelimit_json_t *in);
static uint32_t ratelimit_json_hex(ratelimit_json_t *in);
static size_t ratelimit_json_utf8(unsigned char *p, uint32_t code);
static void ratelimit_json_decimal(ratelimit_json_t *in, uint64_t most,
    uint64_t *number);
static void ratelimit_json_digits(ratelimit_json_t *in, uint64_t *number,
    long *zeros, long *n);
static long ratelimit_json_exponent(ratelimit_json_t *in);


void
ratelimit_json_object(ratelimit_json_t *in,
    const ratelimit_json_member_t *members, void *object)
{
    int       found;
    unsigned  seen;

    if (!ratelimit_json_accept(in, '{')) {
        (void) ratelimit_json_error(in, "an object is expected");
        return;
    }

    seen = 0;

    while (ratelimit_json_next(in, '}', seen != 0)) {
        found = ratelimit_json_name(in, members, &seen);

        if (in->reason == NULL && !ratelimit_json_literal(in, "null")) {
            members[found].read(in, (char *) object + members[found].offset);
        }
    }
}


void
ratelimit_json_list(ratelimit_json_t *in, const char *error,
    ratelimit_json_read_pt read, void *field)
{
    int  next;

    if (!ratelimit_json_accept(in, '[')) {
        (void) ratelimit_json_error(in, error);
        return;
    }

    for (next = 0; ratelimit_json_next(in, ']', next); next = 1) {
        read(in, field);
    }
}


/* whether there is another member or element, before this bracket */

static int
ratelimit_json_next(ratelimit_json_t *in, unsigned char bracket, int comma)
{
    if (in->reason || ratelimit_json_accept(in, bracket)) {
        return 0;
    }

    if (comma && !ratelimit_json_accept(in, ',')) {
        return ratelimit_json_error(in, "a comma is expected");
    }

    return 1;
}


/* and the colon behind it */

static int
ratelimit_json_name(ratelimit_json_t *in,
    const ratelimit_json_member_t *members, unsigned *seen)
{
    int            found;
    size_t         len;
    unsigned char  name[RATELIMIT_JSON_WORD];

    if (!ratelimit_json_blank(in) || *in->p != '"') {
        return ratelimit_json_error(in, "the name of a member is expected");
    }

    len = ratelimit_json_string(in, name, RATELIMIT_JSON_WORD);
    found = ratelimit_json_find(members, name, len);

    if (found < 0) {
        return ratelimit_json_error(in, "a member is unknown");
    }

    if (*seen & 1U << found) {
        return ratelimit_json_error(in, "a member occurs twice");
    }

    *seen |= 1U << found;

    if (!ratelimit_json_accept(in, ':')) {
        return ratelimit_json_error(in, "a colon is expected");
    }

    return found;
}


static int
ratelimit_json_find(const ratelimit_json_member_t *members,
    const unsigned char *name, size_t len)
{
    int  i;

    if (len >= RATELIMIT_JSON_WORD) {
        return -1;
    }

    for (i = 0; members[i].camel; i++) {

        if ((len == strlen(members[i].camel)
             && memcmp(name, members[i].camel, len) == 0)
            || (len == strlen(members[i].snake)
                && memcmp(name, members[i].snake, len) == 0))
        {
            return i;
        }
    }

    return -1;
}


int
ratelimit_json_blank(ratelimit_json_t *in)
{
    while (in->p < in->end
           && (*in->p == ' ' || *in->p == '\t' || *in->p == '\n'
               || *in->p == '\r'))
    {
        in->p++;
    }

    return in->p < in->end;
}


/* whether this is next: then it is passed over */

static int
ratelimit_json_accept(ratelimit_json_t *in, unsigned char ch)
{
    if (!ratelimit_json_blank(in) || *in->p != ch) {
        return 0;
    }

    in->p++;

    return 1;
}


/* true, false, null */

static int
ratelimit_json_literal(ratelimit_json_t *in, const char *word)
{
    size_t  len;

    len = strlen(word);

    if (!ratelimit_json_blank(in) || (size_t) (in->end - in->p) < len
        || memcmp(in->p, word, len) != 0)
    {
        return 0;
    }

    in->p += len;

    return 1;
}


void
ratelimit_json_text(ratelimit_json_t *in, void *field)
{
    ratelimit_text_t  *text = field;

    if (!ratelimit_json_blank(in) || *in->p != '"') {
        (void) ratelimit_json_error(in, "a text is expected");
        return;
    }

    text->data = in->p + 1;
    text->len = ratelimit_json_string(in, text->data,
                                      in->fill ? SIZE_MAX : 0);
}


size_t
ratelimit_json_string(ratelimit_json_t *in, unsigned char *out, size_t room)
{
    size_t          len;
    uint32_t        code;
    unsigned char  *start, utf8[4];

    len = 0;
    in->p++;

    for ( ;; ) {
        start = in->p;

        while (in->p < in->end && *in->p != '"' && *in->p != '\\'
               && *in->p >= 0x20)
        {
            in->p++;
        }

        if (!ratelimit_is_utf8(start, in->p - start)) {
            return (size_t) ratelimit_json_error(in, "a text is not UTF-8");
        }

        len = ratelimit_json_append(out, room, len, start, in->p - start);

        if (in->p == in->end) {
            return (size_t) ratelimit_json_error(in, "a text is not ended");
        }

        if (*in->p < 0x20) {
            return (size_t) ratelimit_json_error(in, "a text has a control "
                                                     "character");
        }

        if (*in->p++ == '"') {
            return len;
        }

        code = ratelimit_json_escape(in);

        if (in->reason) {
            return 0;
        }

        len = ratelimit_json_append(out, room, len, utf8,
                                    ratelimit_json_utf8(utf8, code));
    }
}


static size_t
ratelimit_json_append(unsigned char *out, size_t room, size_t len,
    const unsigned char *text, size_t n)
{
    size_t  fits;

    if (len < room && n) {
        fits = room - len;
        memmove(out + len, text, n < fits ? n : fits);
    }

    return len + n;
}


/* behind a backslash; surrogates are a pair */

static uint32_t
ratelimit_json_escape(ratelimit_json_t *in)
{
    uint32_t     high, low;
    const char  *found;

    static const char  names[] = "\"\\/bfnrt";
    static const char  codes[] = "\"\\/\b\f\n\r\t";

    if (in->p == in->end) {
        return (uint32_t) ratelimit_json_error(in, "a text is not ended");
    }

    if (*in->p != 'u') {
        found = memchr(names, *in->p, sizeof(names) - 1);

        if (found == NULL) {
            return (uint32_t) ratelimit_json_error(in, "an escape is unknown");
        }

        in->p++;

        return (unsigned char) codes[found - names];
    }

    in->p++;
    high = ratelimit_json_hex(in);

    if (high < 0xd800 || high > 0xdfff) {
        return high;
    }

    if (high < 0xdc00 && in->end - in->p >= 2
        && in->p[0] == '\\' && in->p[1] == 'u')
    {
        in->p += 2;
        low = ratelimit_json_hex(in);

        if (low >= 0xdc00 && low <= 0xdfff) {
            return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
        }
    }

    return (uint32_t) ratelimit_json_error(in, "a surrogate has no partner");
}


static uint32_t
ratelimit_json_hex(ratelimit_json_t *in)
{
    unsigned  i, digit;
    uint32_t  code;

    code = 0;

    for (i = 0; i < 4; i++) {

        if (in->p == in->end) {
            return (uint32_t) ratelimit_json_error(in, "a text is not ended");
        }

        digit = (*in->p >= '0' && *in->p <= '9')
                ? *in->p - '0' + 0U
                : ((*in->p | 0x20) >= 'a' && (*in->p | 0x20) <= 'f')
                  ? (*in->p | 0x20) - 'a' + 10U : 16;

        if (digit == 16) {
            return (uint32_t) ratelimit_json_error(in, "an escape is unknown");
        }

        code = code << 4 | digit;
        in->p++;
    }

    return code;
}


static size_t
ratelimit_json_utf8(unsigned char *p, uint32_t code)
{
    if (code < 0x80) {
        p[0] = (unsigned char) code;
        return 1;
    }

    if (code < 0x800) {
        p[0] = (unsigned char) (0xc0 | code >> 6);
        p[1] = (unsigned char) (0x80 | (code & 0x3f));
        return 2;
    }

    if (code < 0x10000) {
        p[0] = (unsigned char) (0xe0 | code >> 12);
        p[1] = (unsigned char) (0x80 | (code >> 6 & 0x3f));
        p[2] = (unsigned char) (0x80 | (code & 0x3f));
        return 3;
    }

    p[0] = (unsigned char) (0xf0 | code >> 18);
    p[1] = (unsigned char) (0x80 | (code >> 12 & 0x3f));
    p[2] = (unsigned char) (0x80 | (code >> 6 & 0x3f));
    p[3] = (unsigned char) (0x80 | (code & 0x3f));

    return 4;
}


void
ratelimit_json_number(ratelimit_json_t *in, uint64_t most, uint64_t *number)
{
    size_t            len;
    unsigned char     digits[RATELIMIT_JSON_WORD];
    ratelimit_json_t  inner;

    *number = 0;

    if (!ratelimit_json_blank(in) || *in->p != '"') {
        ratelimit_json_decimal(in, most, number);
        return;
    }

    len = ratelimit_json_string(in, digits, RATELIMIT_JSON_WORD);

    inner.p = digits;
    inner.end = digits + (len < RATELIMIT_JSON_WORD ? len : 0);
    inner.reason = in->reason;

    ratelimit_json_decimal(&inner, most, number);

    if (inner.reason || inner.p != inner.end) {
        (void) ratelimit_json_error(in, inner.reason ? inner.reason
                                                     : "a number is expected");
    }
}


void
ratelimit_json_uint32(ratelimit_json_t *in, void *field)
{
    uint64_t   number;
    uint32_t  *value = field;

    ratelimit_json_number(in, UINT32_MAX, &number);

    *value = (uint32_t) number;
}


/* 12, but also 12.0, 1.2e1 or 120e-1, and -0 */

static void
ratelimit_json_decimal(ratelimit_json_t *in, uint64_t most, uint64_t *number)
{
    int       negative;
    long      zeros, n, scale;
    uint64_t  value;

    value = 0;
    zeros = 0;
    scale = 0;

    negative = (in->p < in->end && *in->p == '-');
    in->p += negative;

    if (in->end - in->p > 1 && in->p[0] == '0'
        && in->p[1] >= '0' && in->p[1] <= '9')
    {
        (void) ratelimit_json_error(in, "a number must not begin with 0");
        return;
    }

    ratelimit_json_digits(in, &value, &zeros, &n);

    if (in->reason == NULL && in->p < in->end && *in->p == '.') {
        in->p++;
        ratelimit_json_digits(in, &value, &zeros, &n);
        scale = -n;
    }

    scale += zeros + ratelimit_json_exponent(in);

    if (in->reason || value == 0) {
        return;
    }

    if (negative) {
        (void) ratelimit_json_error(in, "a number must not be negative");
        return;
    }

    if (scale < 0) {
        (void) ratelimit_json_error(in, "a number must be an integer");
        return;
    }

    for ( /* void */ ; scale && value <= most / 10; scale--) {
        value *= 10;
    }

    if (scale || value > most) {
        (void) ratelimit_json_error(in, "a number is too large");
        return;
    }

    *number = value;
}


/* at least one; zeros at the end are counted, as they may be a fraction */

static void
ratelimit_json_digits(ratelimit_json_t *in, uint64_t *number, long *zeros,
    long *n)
{
    unsigned  digit;

    for (*n = 0; in->p < in->end && *in->p >= '0' && *in->p <= '9'; (*n)++) {
        digit = *in->p++ - '0';

        if (digit == 0) {
            (*zeros)++;
            continue;
        }

        for ((*zeros)++; *zeros && *number <= UINT64_MAX / 10; (*zeros)--) {
            *number *= 10;
        }

        if (*zeros || *number > UINT64_MAX - digit) {
            (void) ratelimit_json_error(in, "a number is too large");
            return;
        }

        *number += digit;
    }

    if (*n == 0) {
        (void) ratelimit_json_error(in, "a number is expected");
    }
}


static long
ratelimit_json_exponent(ratelimit_json_t *in)
{
    int   negative;
    long  exponent;

    if (in->reason || in->p == in->end || (*in->p | 0x20) != 'e') {
        return 0;
    }

    in->p++;
    negative = (in->p < in->end && *in->p == '-');

    if (in->p < in->end && (*in->p == '-' || *in->p == '+')) {
        in->p++;
    }

    if (in->p == in->end || *in->p < '0' || *in->p > '9') {
        (void) ratelimit_json_error(in, "a number is expected");
        return 0;
    }

    exponent = 0;

    while (in->p < in->end && *in->p >= '0' && *in->p <= '9') {

        /* more than any message has digits */

        if (exponent < 1000000) {
            exponent = exponent * 10 + (*in->p - '0');
        }

        in->p++;
    }

    return negative ? -exponent : exponent;
}


unsigned
ratelimit_json_bool(ratelimit_json_t *in)
{
    if (ratelimit_json_literal(in, "true")) {
        return 1;
    }

    if (!ratelimit_json_literal(in, "false")) {
        (void) ratelimit_json_error(in, "true or false is expected");
    }

    return 0;
}


int
ratelimit_json_error(ratelimit_json_t *in, const char *reason)
{
    if (in->reason == NULL) {
        in->reason = reason;
    }

    return 0;
}


unsigned char *
ratelimit_json_write(unsigned char *p, const char *text)
{
    size_t  len;

    len = strlen(text);
    memcpy(p, text, len);

    return p + len;
}


unsigned char *
ratelimit_json_write_text(unsigned char *p, const ratelimit_text_t *text)
{
    size_t         i;
    unsigned char  ch;

    static const char  hex[] = "0123456789abcdef";

    *p++ = '"';

    for (i = 0; i < text->len; i++) {
        ch = text->data[i];

        if (ch < 0x20) {
            p = ratelimit_json_write(p, "\\u00");
            *p++ = hex[ch >> 4];
            *p++ = hex[ch & 0xf];
            continue;
        }

        if (ch == '"' || ch == '\\') {
            *p++ = '\\';
        }

        *p++ = ch;
    }

    *p++ = '"';

    return p;
}
