
/*
 * Calls and answers of the service, as protocol buffers and as JSON: what is
 * read, what is refused, and what is written.
 */


#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "service/ratelimit_call.h"

#include "tap.h"


#define CALL_ROOM  4096

#define call_bytes(s)  s, sizeof(s) - 1


typedef struct {
    const char                     *title;
    const char                     *message;
    size_t                          len;
    const char                     *expected;
} call_case_t;


static const char *call_show(ratelimit_call_decode_pt decode,
    const char *message, size_t len);
static char *call_show_descriptor(char *p, ratelimit_call_descriptor_t *d);
static void call_cases(ratelimit_call_decode_pt decode,
    const call_case_t *cases, size_t n);
static void call_test_cut(ratelimit_call_decode_pt decode,
    const char *message, size_t len, const char *title);
static void call_test_long(void);
static void call_test_answer(void);
static void call_test_zeros(void);
static void call_test_health(void);


static const call_case_t  call_proto[] = {

    { "the sample", call_bytes("\x0a\x01" "d" "\x12\x08\x0a\x06\x0a\x01" "k"
                               "\x12\x01" "v"), "d 0 [k=v]" },
    { "nothing", call_bytes(""), " 0" },
    { "no descriptor", call_bytes("\x0a\x01" "d"), "d 0" },
    { "a descriptor without entries", call_bytes("\x0a\x01" "d\x12\x00"),
      "d 0 []" },
    { "two descriptors", call_bytes("\x12\x05\x0a\x03\x0a\x01" "a"
                                    "\x12\x0a\x0a\x03\x0a\x01" "b"
                                    "\x0a\x03\x0a\x01" "c"),
      " 0 [a=] [b=,c=]" },

    { "hits", call_bytes("\x18\x07"), " 7" },
    { "hits of a longer number are cut",
      call_bytes("\x18\x85\x80\x80\x80\x10"), " 5" },
    { "the last one of a number counts", call_bytes("\x18\x07\x18\x08"),
      " 8" },
    { "the last one of a text counts", call_bytes("\x0a\x01" "d\x0a\x01" "e"),
      "e 0" },

    { "hits of a descriptor", call_bytes("\x12\x04\x1a\x02\x08\x05"),
      " 0 [] 5" },
    { "hits that are 0", call_bytes("\x12\x02\x1a\x00"), " 0 [] 0" },
    { "hits of 64 bits",
      call_bytes("\x12\x0d\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff"
                 "\x01"), " 0 [] 18446744073709551615" },
    { "hits that occur twice are merged",
      call_bytes("\x12\x06\x1a\x02\x08\x05\x1a\x00"), " 0 [] 5" },
    { "hits that are given back", call_bytes("\x12\x06\x1a\x02\x08\x05\x20"
                                             "\x01"), " 0 [] -5" },
    { "any number is true", call_bytes("\x12\x06\x1a\x02\x08\x05\x20\x02"),
      " 0 [] -5" },

    { "a limit", call_bytes("\x12\x06\x12\x04\x08\x05\x10\x02"),
      " 0 [] 5/2" },
    { "an empty limit", call_bytes("\x12\x02\x12\x00"), " 0 [] 0/0" },
    { "a limit that occurs twice is merged",
      call_bytes("\x12\x08\x12\x02\x08\x05\x12\x02\x10\x02"), " 0 [] 5/2" },

    { "an unknown number", call_bytes("\x78\x01\x18\x07"), " 7" },
    { "unknown bytes", call_bytes("\x7a\x02\xff\xff\x18\x07"), " 7" },
    { "unknown bytes of 8", call_bytes("\x79" "12345678\x18\x07"), " 7" },
    { "unknown bytes of 4", call_bytes("\x7d" "1234\x18\x07"), " 7" },
    { "a field of another type is unknown",
      call_bytes("\x08\x01\x1a\x01x\x0d" "1234\x18\x07"), " 7" },
    { "a number may have zeros at its end", call_bytes("\x18\x87\x80\x00"),
      " 7" },
    { "a text of UTF-8", call_bytes("\x0a\x05\xc3\xa9\xe2\x82\xac"),
      "\xc3\xa9\xe2\x82\xac 0" },

    { "a group", call_bytes("\x7b\x7c"),
      "! a field has no type that is known" },
    { "the end of a group", call_bytes("\x7c"),
      "! a field has no type that is known" },
    { "a type that is not used", call_bytes("\x7e"),
      "! a field has no type that is known" },
    { "a field without a number", call_bytes("\x02\x00"),
      "! a field has no valid number" },
    { "a field of too large a number",
      call_bytes("\x80\x80\x80\x80\x10\x01"),
      "! a field has no valid number" },
    { "a number of eleven bytes",
      call_bytes("\x18\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
      "! a number is too long" },
    { "a number of 65 bits",
      call_bytes("\x18\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02"),
      "! a number is too long" },
    { "a tag alone", call_bytes("\x18"), "! it is cut short" },
    { "a number that does not end", call_bytes("\x18\x80"),
      "! it is cut short" },
    { "a text longer than the rest", call_bytes("\x0a\x02" "d"),
      "! it is cut short" },
    { "a text much longer than the rest",
      call_bytes("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" "d"),
      "! it is cut short" },
    { "a descriptor longer than the rest", call_bytes("\x12\x05\x0a\x03\x0a"),
      "! it is cut short" },
    { "an entry longer than its descriptor",
      call_bytes("\x12\x02\x0a\x03\x0a\x01" "k"), "! it is cut short" },
    { "eight bytes that are seven", call_bytes("\x79" "1234567"),
      "! it is cut short" },

    { "a domain that is not UTF-8", call_bytes("\x0a\x01\xff"),
      "! a text is not UTF-8" },
    { "a key that is not UTF-8", call_bytes("\x12\x06\x0a\x04\x0a\x02\xc3k"),
      "! a text is not UTF-8" },
    { "a longer form than needed", call_bytes("\x0a\x02\xc0\x80"),
      "! a text is not UTF-8" },
    { "a surrogate", call_bytes("\x0a\x03\xed\xa0\x80"),
      "! a text is not UTF-8" },
    { "beyond Unicode", call_bytes("\x0a\x04\xf4\x90\x80\x80"),
      "! a text is not UTF-8" },
};


static const call_case_t  call_json[] = {

    { "the sample", call_bytes("{\"domain\":\"d\",\"descriptors\":[{"
                               "\"entries\":[{\"key\":\"k\","
                               "\"value\":\"v\"}]}]}"), "d 0 [k=v]" },
    { "with blanks", call_bytes(" {\t\"domain\"\r: \"d\" ,\n\"descriptors\":"
                                "[ { \"entries\" : [ { } , {} ] } , { } ] } "),
      "d 0 [=,=] []" },
    { "nothing", call_bytes("{}"), " 0" },

    { "names of both styles",
      call_bytes("{\"hits_addend\":3,\"descriptors\":[{\"hits_addend\":4,"
                 "\"is_negative_hits\":true,\"limit\":{"
                 "\"requests_per_unit\":5,\"unit\":\"DAY\"}},"
                 "{\"hitsAddend\":4,\"isNegativeHits\":true,\"limit\":{"
                 "\"requestsPerUnit\":5,\"unit\":4}}]}"),
      " 3 [] -4 5/4 [] -4 5/4" },
    { "a name with escapes", call_bytes("{\"dom\\u0061in\":\"d\"}"), "d 0" },

    { "null is absent",
      call_bytes("{\"domain\":null,\"hitsAddend\":null,\"descriptors\":[{"
                 "\"entries\":null,\"limit\":null,\"hitsAddend\":null,"
                 "\"isNegativeHits\":null}]}"), " 0 []" },
    { "null as the last member", call_bytes("{\"domain\":null}"), " 0" },
    { "hits that are 0", call_bytes("{\"descriptors\":[{\"hitsAddend\":0}]}"),
      " 0 [] 0" },
    { "an empty limit", call_bytes("{\"descriptors\":[{\"limit\":{}}]}"),
      " 0 [] 0/0" },
    { "a unit of no name", call_bytes("{\"descriptors\":[{\"limit\":{"
                                      "\"unit\":99}}]}"), " 0 [] 0/99" },
    { "false", call_bytes("{\"descriptors\":[{\"hitsAddend\":1,"
                          "\"isNegativeHits\":false}]}"), " 0 [] 1" },

    { "a number as a text", call_bytes("{\"hitsAddend\":\"3\"}"), " 3" },
    { "64 bits", call_bytes("{\"descriptors\":[{\"hitsAddend\":"
                            "\"18446744073709551615\"}]}"),
      " 0 [] 18446744073709551615" },
    { "1e3", call_bytes("{\"hitsAddend\":1e3}"), " 1000" },
    { "1.5e1", call_bytes("{\"hitsAddend\":1.5e1}"), " 15" },
    { "120E-1", call_bytes("{\"hitsAddend\":120E-1}"), " 12" },
    { "7.000", call_bytes("{\"hitsAddend\":7.000}"), " 7" },
    { "0.00e9", call_bytes("{\"hitsAddend\":0.00e9}"), " 0" },
    { "-0", call_bytes("{\"hitsAddend\":-0}"), " 0" },
    { "-0.0 as a text", call_bytes("{\"hitsAddend\":\"-0.0\"}"), " 0" },
    { "4294967295", call_bytes("{\"hitsAddend\":4294967295}"),
      " 4294967295" },
    { "4294967295000e-3", call_bytes("{\"hitsAddend\":4294967295000e-3}"),
      " 4294967295" },

    { "escapes", call_bytes("{\"domain\":\"a\\\"\\\\\\/\\t\\u00e9\\u20AC"
                            "\\ud83d\\ude00z\"}"),
      "a\"\\/\t\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z 0" },
    { "escapes and UTF-8", call_bytes("{\"domain\":\"\\u0041\xc3\xa9\\u0042"
                                      "\xe2\x82\xac\"}"),
      "A\xc3\xa9" "B\xe2\x82\xac 0" },

    { "empty", call_bytes(""), "! an object is expected" },
    { "blanks", call_bytes("  "), "! an object is expected" },
    { "a list", call_bytes("[]"), "! an object is expected" },
    { "null", call_bytes("null"), "! an object is expected" },
    { "more than one", call_bytes("{}{}"), "! something follows the object" },
    { "an unknown member", call_bytes("{\"Domain\":\"d\"}"),
      "! a member is unknown" },
    { "a member of another message", call_bytes("{\"key\":\"d\"}"),
      "! a member is unknown" },
    { "a member twice", call_bytes("{\"hitsAddend\":1,\"hits_addend\":1}"),
      "! a member occurs twice" },
    { "a member and null", call_bytes("{\"domain\":null,\"domain\":\"d\"}"),
      "! a member occurs twice" },
    { "no comma", call_bytes("{\"domain\":\"d\"\"hitsAddend\":1}"),
      "! a comma is expected" },
    { "a comma too many", call_bytes("{\"domain\":\"d\",}"),
      "! the name of a member is expected" },
    { "a comma too many in a list", call_bytes("{\"descriptors\":[{},]}"),
      "! an object is expected" },
    { "no comma in a list", call_bytes("{\"descriptors\":[{}{}]}"),
      "! a comma is expected" },
    { "no colon", call_bytes("{\"domain\"\"d\"}"), "! a colon is expected" },
    { "a name without quotes", call_bytes("{domain:\"d\"}"),
      "! the name of a member is expected" },
    { "null in a list", call_bytes("{\"descriptors\":[null]}"),
      "! an object is expected" },
    { "no list", call_bytes("{\"descriptors\":{}}"),
      "! \"descriptors\" must be a list" },
    { "no list of entries", call_bytes("{\"descriptors\":[{\"entries\":1}]}"),
      "! \"entries\" must be a list" },
    { "a number as the domain", call_bytes("{\"domain\":1}"),
      "! a text is expected" },
    { "a truth in quotes", call_bytes("{\"descriptors\":[{\"isNegativeHits\":"
                                      "\"true\"}]}"),
      "! true or false is expected" },
    { "a unit that has no name", call_bytes("{\"descriptors\":[{\"limit\":{"
                                            "\"unit\":\"WEEK\"}}]}"),
      "! a unit is unknown" },
    { "a unit in small letters", call_bytes("{\"descriptors\":[{\"limit\":{"
                                            "\"unit\":\"day\"}}]}"),
      "! a unit is unknown" },

    { "a negative number", call_bytes("{\"hitsAddend\":-1}"),
      "! a number must not be negative" },
    { "a negative number as a text", call_bytes("{\"hitsAddend\":\"-1\"}"),
      "! a number must not be negative" },
    { "a sign alone", call_bytes("{\"hitsAddend\":-}"),
      "! a number is expected" },
    { "two signs", call_bytes("{\"hitsAddend\":--1}"),
      "! a number is expected" },
    { "a fraction", call_bytes("{\"hitsAddend\":1.5}"),
      "! a number must be an integer" },
    { "1e-1", call_bytes("{\"hitsAddend\":1e-1}"),
      "! a number must be an integer" },
    { "4294967296", call_bytes("{\"hitsAddend\":4294967296}"),
      "! a number is too large" },
    { "1e99", call_bytes("{\"hitsAddend\":1e99}"), "! a number is too large" },
    { "1e99999999999", call_bytes("{\"hitsAddend\":1e99999999999}"),
      "! a number is too large" },
    { "65 bits", call_bytes("{\"descriptors\":[{\"hitsAddend\":"
                            "18446744073709551616}]}"),
      "! a number is too large" },
    { "01", call_bytes("{\"hitsAddend\":01}"),
      "! a number must not begin with 0" },
    { "1.", call_bytes("{\"hitsAddend\":1.}"), "! a number is expected" },
    { ".1", call_bytes("{\"hitsAddend\":.1}"), "! a number is expected" },
    { "1e", call_bytes("{\"hitsAddend\":1e}"), "! a number is expected" },
    { "an empty text as a number", call_bytes("{\"hitsAddend\":\"\"}"),
      "! a number is expected" },
    { "a blank in it", call_bytes("{\"hitsAddend\":\"1 \"}"),
      "! a number is expected" },
    { "a long text as a number",
      call_bytes("{\"hitsAddend\":\"1.0000000000000000000000000000000000000"
                 "000000000000000000000000000000000\"}"),
      "! a number is expected" },

    { "a text that is not ended", call_bytes("{\"domain\":\"d"),
      "! a text is not ended" },
    { "a line end in a text", call_bytes("{\"domain\":\"a\nb\"}"),
      "! a text has a control character" },
    { "a text that is not UTF-8", call_bytes("{\"domain\":\"\xff\"}"),
      "! a text is not UTF-8" },
    { "an unknown escape", call_bytes("{\"domain\":\"\\x41\"}"),
      "! an escape is unknown" },
    { "an escape of zero", call_bytes("{\"domain\":\"\\\0\"}"),
      "! an escape is unknown" },
    { "an escape without digits", call_bytes("{\"domain\":\"\\u00g0\"}"),
      "! an escape is unknown" },
    { "half a pair", call_bytes("{\"domain\":\"\\ud83d\"}"),
      "! a surrogate has no partner" },
    { "the other half", call_bytes("{\"domain\":\"\\ude00\"}"),
      "! a surrogate has no partner" },
    { "two first halves", call_bytes("{\"domain\":\"\\ud83d\\ud83d\"}"),
      "! a surrogate has no partner" },
};


/* a call as a line, or why it is refused; of a copy of its exact size */

static const char *
call_show(ratelimit_call_decode_pt decode, const char *message, size_t len)
{
    char              *p;
    size_t             i, n, nentries;
    const char        *reason;
    unsigned char     *copy;
    ratelimit_call_t   call;

    static char        shown[CALL_ROOM];

    memset(&call, 0, sizeof(ratelimit_call_t));

    copy = malloc(len ? len : 1);
    memcpy(copy, message, len);

    reason = decode(&call, copy, len);

    if (reason) {
        sprintf(shown, "! %s%s", reason,
                (call.position <= len && memcmp(copy, message, len) == 0)
                ? "" : " (and the bytes are changed)");
        free(copy);
        return shown;
    }

    n = call.ndescriptors;
    nentries = call.nentries;

    call.descriptors = malloc(n * sizeof(ratelimit_call_descriptor_t) + 1);
    call.entries = malloc(nentries * sizeof(ratelimit_entry_t) + 1);

    reason = decode(&call, copy, len);

    if (reason || n != call.ndescriptors || nentries != call.nentries) {
        p = shown + sprintf(shown, "! the second call differs");

    } else {
        p = shown + sprintf(shown, "%.*s %" PRIu32, (int) call.domain.len,
                            call.domain.data, call.hits);

        for (i = 0; i < n; i++) {
            p = call_show_descriptor(p, &call.descriptors[i]);
        }
    }

    free(call.descriptors);
    free(call.entries);
    free(copy);

    return shown;
}


static char *
call_show_descriptor(char *p, ratelimit_call_descriptor_t *d)
{
    size_t  i;

    p += sprintf(p, " [");

    for (i = 0; i < d->nentries; i++) {
        p += sprintf(p, "%s%.*s=%.*s", i ? "," : "",
                     (int) d->entries[i].key.len, d->entries[i].key.data,
                     (int) d->entries[i].value.len, d->entries[i].value.data);
    }

    p += sprintf(p, "]");

    if (d->has_hits) {
        p += sprintf(p, " %s%" PRIu64, d->negative ? "-" : "", d->hits);
    }

    if (d->has_limit) {
        p += sprintf(p, " %" PRIu32 "/%" PRIu32, d->requests, d->unit);
    }

    return p;
}


static void
call_cases(ratelimit_call_decode_pt decode, const call_case_t *cases, size_t n)
{
    size_t       i;
    const char  *shown;

    for (i = 0; i < n; i++) {
        shown = call_show(decode, cases[i].message, cases[i].len);

        if (!tap_ok(strcmp(shown, cases[i].expected) == 0, "%s",
                    cases[i].title))
        {
            tap_note("%s", shown);
        }
    }
}


/* cut anywhere, or with any byte replaced, it is read or refused */

static void
call_test_cut(ratelimit_call_decode_pt decode, const char *message, size_t len,
    const char *title)
{
    char    *copy;
    size_t   i, k, refused;

    copy = malloc(len);
    refused = 0;

    for (i = 0; i < len; i++) {
        refused += (call_show(decode, message, i)[0] == '!');

        for (k = 0; k < 256; k++) {
            memcpy(copy, message, len);
            copy[i] = (char) k;
            (void) call_show(decode, copy, len);
        }
    }

    free(copy);

    tap_ok(refused > len / 2, "%s that is cut is refused %zu times of %zu",
           title, refused, len);
}


/* 64 KB of descriptors, each of two bytes */

static void
call_test_long(void)
{
    size_t             i;
    const char        *reason;
    unsigned char     *message;
    ratelimit_call_t   call;

    message = malloc(65536);
    memset(&call, 0, sizeof(ratelimit_call_t));

    for (i = 0; i < 65536; i += 2) {
        message[i] = 0x12;
        message[i + 1] = 0;
    }

    reason = ratelimit_call_decode_proto(&call, message, 65536);

    tap_ok(reason == NULL && call.ndescriptors == 32768,
           "64 KB may be %zu descriptors", call.ndescriptors);

    free(message);
}


static void
call_test_answer(void)
{
    size_t                     size;
    unsigned char              out[CALL_ROOM], *end;
    ratelimit_answer_t         answer;
    ratelimit_answer_status_t  status;

    static const char  sample[] =
        "\x08\x02\x12\x11\x08\x02\x12\x07\x08\x05\x10\x02\x1a\x01x\x18\x07"
        "\x22\x02\x08\x25";

    memset(&answer, 0, sizeof(ratelimit_answer_t));
    memset(&status, 0, sizeof(ratelimit_answer_status_t));

    answer.code = RATELIMIT_ANSWER_OVER_LIMIT;
    answer.statuses = &status;
    answer.nstatuses = 1;

    status.code = RATELIMIT_ANSWER_OVER_LIMIT;
    status.limited = 1;
    status.requests = 5;
    status.unit = RATELIMIT_UNIT_MINUTE;
    status.name.data = (unsigned char *) "x";
    status.name.len = 1;
    status.remaining = 7;
    status.reset = 37;

    size = ratelimit_answer_proto_size(&answer);
    end = ratelimit_answer_write_proto(out, &answer);

    tap_ok(size == sizeof(sample) - 1 && end == out + size
           && memcmp(out, sample, size) == 0, "the bytes of an answer");

    status.name.data = (unsigned char *) "\x01\x1f\"\\";
    status.name.len = 4;

    size = ratelimit_answer_json_size(&answer);
    end = ratelimit_answer_write_json(out, &answer);
    *end = '\0';

    tap_ok(strstr((char *) out, "\"name\":\"\\u0001\\u001f\\\"\\\\\"") != NULL
           && (size_t) (end - out) <= size, "a name of any letters");
}


static void
call_test_zeros(void)
{
    size_t                     size;
    unsigned char              out[CALL_ROOM], *end;
    ratelimit_answer_t         answer;
    ratelimit_answer_status_t  statuses[2];

    static const ratelimit_entry_t  fields[] = {
        { { 1, (unsigned char *) "a" }, { 2, (unsigned char *) "\"b" } },
        { { 1, (unsigned char *) "c" }, { 0, NULL } }
    };

    static const char  bytes[] =
        "\x08\x01\x12\x02\x08\x01"
        "\x12\x0e\x08\x01\x12\x02\x10\x07\x18\xff\xff\xff\xff\x0f\x22\x00"
        "\x1a\x07\x0a\x01" "a\x12\x02\"b\x1a\x05\x0a\x01" "c\x12\x00";

    static const char  json[] =
        "{\"overallCode\":\"OK\",\"statuses\":[{\"code\":\"OK\"},"
        "{\"code\":\"OK\",\"currentLimit\":{\"unit\":\"WEEK\"},"
        "\"limitRemaining\":4294967295,\"durationUntilReset\":\"0s\"}],"
        "\"responseHeadersToAdd\":[{\"key\":\"a\",\"value\":\"\\\"b\"},"
        "{\"key\":\"c\",\"value\":\"\"}]}\n";

    memset(&answer, 0, sizeof(ratelimit_answer_t));
    memset(statuses, 0, sizeof(statuses));

    answer.code = RATELIMIT_ANSWER_OK;
    answer.statuses = statuses;
    answer.nstatuses = 2;
    answer.fields = fields;
    answer.nfields = 2;

    statuses[0].code = RATELIMIT_ANSWER_OK;
    statuses[1].code = RATELIMIT_ANSWER_OK;
    statuses[1].limited = 1;
    statuses[1].unit = RATELIMIT_UNIT_WEEK;
    statuses[1].remaining = UINT32_MAX;

    size = ratelimit_answer_proto_size(&answer);
    end = ratelimit_answer_write_proto(out, &answer);

    tap_ok(size == sizeof(bytes) - 1 && end == out + size
           && memcmp(out, bytes, size) == 0, "what is 0 is left out");

    size = ratelimit_answer_json_size(&answer);
    end = ratelimit_answer_write_json(out, &answer);

    tap_ok((size_t) (end - out) == sizeof(json) - 1
           && memcmp(out, json, sizeof(json) - 1) == 0
           && size >= sizeof(json), "the same as JSON");
}


static void
call_test_health(void)
{
    ratelimit_text_t  service;

    tap_ok(ratelimit_health_decode_proto(&service, (unsigned char *) "", 0)
           == NULL && service.len == 0, "the health of all services");
    tap_ok(ratelimit_health_decode_proto(&service,
                                  (unsigned char *) "\x18\x07\x0a\x02" "ab", 6)
           == NULL && service.len == 2 && service.data[1] == 'b',
           "of one of them");
    tap_ok(ratelimit_health_decode_proto(&service,
                                         (unsigned char *) "\x0a\x02" "a", 3)
           != NULL, "cut short");
}


int
main(void)
{
    const call_case_t  *sample;

    call_cases(ratelimit_call_decode_proto, call_proto,
               sizeof(call_proto) / sizeof(call_case_t));
    call_cases(ratelimit_call_decode_json, call_json,
               sizeof(call_json) / sizeof(call_case_t));

    sample = &call_proto[0];
    call_test_cut(ratelimit_call_decode_proto, sample->message, sample->len,
                  "a message");

    sample = &call_json[3];
    call_test_cut(ratelimit_call_decode_json, sample->message, sample->len,
                  "an object");

    call_test_long();
    call_test_answer();
    call_test_zeros();
    call_test_health();

    return tap_done();
}
