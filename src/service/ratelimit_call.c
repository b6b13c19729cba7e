
/*
 * What the decoders of a call share.
 */


#include <string.h>

#include "service/ratelimit_call.h"


ratelimit_call_descriptor_t *
ratelimit_call_add_descriptor(ratelimit_call_t *call)
{
    ratelimit_call_descriptor_t  *descriptor;

    if (call->descriptors == NULL) {
        call->ndescriptors++;
        return NULL;
    }

    descriptor = &call->descriptors[call->ndescriptors++];

    memset(descriptor, 0, sizeof(ratelimit_call_descriptor_t));

    descriptor->entries = &call->entries[call->nentries];

    return descriptor;
}


ratelimit_entry_t *
ratelimit_call_add_entry(ratelimit_call_t *call,
    ratelimit_call_descriptor_t *descriptor)
{
    ratelimit_entry_t  *entry;

    if (call->descriptors == NULL) {
        call->nentries++;
        return NULL;
    }

    entry = &call->entries[call->nentries++];

    memset(entry, 0, sizeof(ratelimit_entry_t));

    descriptor->nentries++;

    return entry;
}
