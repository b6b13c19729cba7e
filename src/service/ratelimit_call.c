
/*
 * What the decoders of a call share.
 */


#include <string.h>

#include "service/ratelimit_call.h"


ratelimit_call_descriptor_t *
ratelimit_call_add_descriptor(ratelimit_call_t *call,
    ratelimit_call_descriptor_t *counted)
{
    ratelimit_call_descriptor_t  *descriptor;

    descriptor = call->descriptors ? &call->descriptors[call->ndescriptors]
                                   : counted;

    memset(descriptor, 0, sizeof(ratelimit_call_descriptor_t));

    if (call->descriptors) {
        descriptor->entries = &call->entries[call->nentries];
    }

    call->ndescriptors++;

    return descriptor;
}


ratelimit_entry_t *
ratelimit_call_add_entry(ratelimit_call_t *call,
    ratelimit_call_descriptor_t *descriptor, ratelimit_entry_t *counted)
{
    ratelimit_entry_t  *entry;

    entry = call->descriptors ? &call->entries[call->nentries] : counted;

    memset(entry, 0, sizeof(ratelimit_entry_t));

    call->nentries++;
    descriptor->nentries++;

    return entry;
}
