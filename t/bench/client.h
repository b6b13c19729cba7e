
/*
 * What the clients of t/bench share: connections to a server on this machine,
 * and the processor time of other processes.
 */


#ifndef _CLIENT_H_INCLUDED_
#define _CLIENT_H_INCLUDED_


#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>


static void
client_fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}


static uint64_t
client_number(const char *text)
{
    char      *end;
    uint64_t   n;

    n = strtoull(text, &end, 10);

    if (end == text || *end != '\0') {
        errno = EINVAL;
        client_fail(text);
    }

    return n;
}


static uint64_t
client_nanoseconds(clockid_t id)
{
    struct timespec  ts;

    if (clock_gettime(id, &ts) != 0) {
        client_fail("clock_gettime");
    }

    return (uint64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}


/* the clock that goes on while this process has a processor */

static clockid_t
client_clock(const char *pid)
{
    clockid_t  id;

    errno = clock_getcpuclockid(client_number(pid), &id);

    if (errno != 0) {
        client_fail(pid);
    }

    return id;
}


static int
client_open(struct sockaddr *address, socklen_t size)
{
    int  fd;

    fd = socket(address->sa_family, SOCK_STREAM, 0);

    if (fd == -1 || connect(fd, address, size) != 0) {
        client_fail("connect");
    }

    return fd;
}


static int
client_connect(unsigned port)
{
    int                 fd, on;
    struct sockaddr_in  address;

    on = 1;
    memset(&address, 0, sizeof(struct sockaddr_in));

    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    fd = client_open((struct sockaddr *) &address, sizeof(struct sockaddr_in));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(int));

    return fd;
}


/* over a socket of the file system, which costs both sides less */

static int __attribute__((unused))
client_connect_local(const char *path)
{
    struct sockaddr_un  address;

    memset(&address, 0, sizeof(struct sockaddr_un));

    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);

    return client_open((struct sockaddr *) &address,
                       sizeof(struct sockaddr_un));
}


static void
client_send(int fd, const char *text, size_t size)
{
    if (send(fd, text, size, MSG_NOSIGNAL) != (ssize_t) size) {
        client_fail("send");
    }
}


#endif /* _CLIENT_H_INCLUDED_ */
