
/*
 * Numbers as the scripts read and write them: little endian, whatever the
 * machine.  Compilers make one instruction of those of eight bytes.
 */


#ifndef _RATELIMIT_BYTES_H_INCLUDED_
#define _RATELIMIT_BYTES_H_INCLUDED_


#include <stddef.h>
#include <stdint.h>


static inline unsigned char *
ratelimit_bytes_write(unsigned char *p, uint64_t number)
{
    p[0] = (unsigned char) number;
    p[1] = (unsigned char) (number >> 8);
    p[2] = (unsigned char) (number >> 16);
    p[3] = (unsigned char) (number >> 24);
    p[4] = (unsigned char) (number >> 32);
    p[5] = (unsigned char) (number >> 40);
    p[6] = (unsigned char) (number >> 48);
    p[7] = (unsigned char) (number >> 56);

    return p + 8;
}


static inline uint64_t
ratelimit_bytes_read(const unsigned char *p)
{
    return (uint64_t) p[0] | (uint64_t) p[1] << 8 | (uint64_t) p[2] << 16
           | (uint64_t) p[3] << 24 | (uint64_t) p[4] << 32
           | (uint64_t) p[5] << 40 | (uint64_t) p[6] << 48
           | (uint64_t) p[7] << 56;
}


#endif /* _RATELIMIT_BYTES_H_INCLUDED_ */
