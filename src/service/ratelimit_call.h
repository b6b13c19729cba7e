
/*
 * A call of the rate limit service, and its answer: RateLimitRequest and
 * RateLimitResponse of Envoy's API, as protocol buffers or as JSON.
 */


#ifndef _RATELIMIT_CALL_H_INCLUDED_
#define _RATELIMIT_CALL_H_INCLUDED_


#include "core/ratelimit_text.h"
#include "domain/ratelimit_domain.h"


/* one descriptor of a call */

typedef struct {
    ratelimit_entry_t              *entries;
    size_t                          nentries;
    uint64_t                        hits;
    uint32_t                        requests; /* of the limit */
    uint32_t                        unit;
    unsigned                        has_hits:1;
    unsigned                        has_limit:1;  /* it overrides the rules */
    unsigned                        negative:1;   /* hits are refunded */
} ratelimit_call_descriptor_t;


/* texts are in the bytes of the message */

typedef struct {
    ratelimit_text_t                domain;
    uint32_t                        hits;     /* of descriptors without; 0: 1 */
    ratelimit_call_descriptor_t    *descriptors;
    size_t                          ndescriptors;
    ratelimit_entry_t              *entries;  /* of all descriptors */
    size_t                          nentries;
    size_t                          position; /* where the decoder ended */
} ratelimit_call_t;


/* as the messages number them */

typedef enum {
    RATELIMIT_ANSWER_UNKNOWN = 0,
    RATELIMIT_ANSWER_OK,
    RATELIMIT_ANSWER_OVER_LIMIT
} ratelimit_answer_e;


/* about one descriptor */

typedef struct {
    ratelimit_answer_e              code;
    unsigned                        limited;  /* there is a limit */
    uint32_t                        requests;
    ratelimit_unit_e                unit;
    ratelimit_text_t                name;
    uint32_t                        remaining;
    uint64_t                        reset;    /* seconds */
} ratelimit_answer_status_t;


typedef struct {
    ratelimit_answer_e              code;
    ratelimit_answer_status_t      *statuses;
    size_t                          nstatuses;
    const ratelimit_entry_t        *fields;   /* for the client's response */
    size_t                          nfields;
} ratelimit_answer_t;


/*
 * Both decoders return NULL, or why the message is refused.  They are called
 * twice: at first descriptors is NULL, and they count descriptors and entries;
 * then the caller has set descriptors and entries to memory for so many.  The
 * second call never fails if the bytes are the same; that of JSON changes them.
 */

typedef const char *(*ratelimit_call_decode_pt)(ratelimit_call_t *call,
    unsigned char *data, size_t len);


/* ratelimit_call_proto.c */

const char *ratelimit_call_decode_proto(ratelimit_call_t *call,
    unsigned char *data, size_t len);

/* the exact size; returns the end */
size_t ratelimit_answer_proto_size(const ratelimit_answer_t *answer);
unsigned char *ratelimit_answer_write_proto(unsigned char *p,
    const ratelimit_answer_t *answer);

/* HealthCheckRequest: its service, or the reason why it is refused */
const char *ratelimit_health_decode_proto(ratelimit_text_t *service,
    unsigned char *data, size_t len);


/* ratelimit_call_json.c */

const char *ratelimit_call_decode_json(ratelimit_call_t *call,
    unsigned char *data, size_t len);

/* at most so many bytes */
size_t ratelimit_answer_json_size(const ratelimit_answer_t *answer);
unsigned char *ratelimit_answer_write_json(unsigned char *p,
    const ratelimit_answer_t *answer);


/* ratelimit_call.c: what both do */

/* of a decoder: the next one, which is zeros; while it counts, counted */
ratelimit_call_descriptor_t *ratelimit_call_add_descriptor(
    ratelimit_call_t *call, ratelimit_call_descriptor_t *counted);
ratelimit_entry_t *ratelimit_call_add_entry(ratelimit_call_t *call,
    ratelimit_call_descriptor_t *descriptor, ratelimit_entry_t *counted);


#endif /* _RATELIMIT_CALL_H_INCLUDED_ */
