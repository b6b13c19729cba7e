
/*
 * TLS under hiredis: its contexts read and write by the functions of this file.
 *
 * The server's certificate is checked during the handshake, its name too;
 * nothing is sent before, neither a password nor a client's certificate.  A
 * connection that is to be encrypted never becomes one in plain text.
 */


#include "redis/ngx_http_ratelimit_redis_connection.h"


#if (NGX_HTTP_RATELIMIT_TLS)

#include <hiredis/sds.h>


/* int in hiredis 1.0, ssize_t later */
typedef __typeof__(((redisContextFuncs *) NULL)->write(NULL))
    ngx_http_ratelimit_redis_tls_io_t;


static ngx_int_t ngx_http_ratelimit_redis_tls_set_name(
    ngx_http_ratelimit_redis_connection_t *conn, SSL *ssl);
static ngx_str_t *ngx_http_ratelimit_redis_tls_name(
    ngx_http_ratelimit_redis_connection_t *conn);
static void ngx_http_ratelimit_redis_tls_set_io(
    ngx_http_ratelimit_redis_connection_t *conn);
static ngx_uint_t ngx_http_ratelimit_redis_tls_is_verified(
    ngx_http_ratelimit_redis_connection_t *conn, SSL *ssl);
static void ngx_http_ratelimit_redis_tls_reason(
    ngx_http_ratelimit_redis_connection_t *conn, int error, ngx_err_t err,
    char *reason);
static u_char *ngx_http_ratelimit_redis_tls_certificate_reason(
    ngx_http_ratelimit_redis_connection_t *conn, u_char *p, u_char *last);
static void ngx_http_ratelimit_redis_tls_save_session(ngx_connection_t *c);
static ngx_http_ratelimit_redis_tls_io_t ngx_http_ratelimit_redis_tls_read(
    redisContext *context, char *buffer, size_t size);
static ngx_http_ratelimit_redis_tls_io_t ngx_http_ratelimit_redis_tls_write(
    redisContext *context);
static int ngx_http_ratelimit_redis_tls_check_io(
    ngx_http_ratelimit_redis_connection_t *conn, int n);


ngx_int_t
ngx_http_ratelimit_redis_tls_start(ngx_http_ratelimit_redis_connection_t *conn)
{
    SSL                             *ssl;
    ngx_connection_t                *c;
    ngx_http_ratelimit_redis_tls_t  *tls;

    c = conn->connection;
    tls = conn->owner->tls;

    c->pool = ngx_create_pool(2 * sizeof(ngx_ssl_connection_t), c->log);
    if (c->pool == NULL) {
        return NGX_ERROR;
    }

    if (ngx_ssl_create_connection(tls->ssl, c, NGX_SSL_CLIENT) != NGX_OK) {
        return NGX_ERROR;
    }

    c->ssl->save_session = ngx_http_ratelimit_redis_tls_save_session;

    ssl = c->ssl->connection;

    /* what hiredis has to write may have moved when it is tried again */

    SSL_set_mode(ssl, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

#ifdef SSL_OP_NO_RENEGOTIATION
    SSL_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
#endif

    if (tls->verify) {
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    }

    if (ngx_http_ratelimit_redis_tls_set_name(conn, ssl) != NGX_OK
        || ngx_ssl_set_session(c, conn->owner->session) != NGX_OK)
    {
        ngx_ssl_error(NGX_LOG_ALERT, c->log, 0,
                      "ratelimit: TLS could not be set up");
        return NGX_ERROR;
    }

    ngx_http_ratelimit_redis_tls_set_io(conn);

    return NGX_OK;
}


/* that of the certificate, and, unless it is an address, the one of SNI */

static ngx_int_t
ngx_http_ratelimit_redis_tls_set_name(
    ngx_http_ratelimit_redis_connection_t *conn, SSL *ssl)
{
    char               *text;
    ngx_str_t           name;
    ngx_uint_t          verify;
    X509_VERIFY_PARAM  *param;

    name = *ngx_http_ratelimit_redis_tls_name(conn);
    verify = conn->owner->tls->verify;
    param = SSL_get0_param(ssl);

    if (ngx_inet_addr(name.data, name.len) != INADDR_NONE
        || ngx_strlchr(name.data, name.data + name.len, ':') != NULL)
    {
        return (!verify
                || X509_VERIFY_PARAM_set1_ip_asc(param, (char *) name.data))
               ? NGX_OK : NGX_ERROR;
    }

    /* a name may end with a dot, which a certificate does not show */

    if (name.data[name.len - 1] == '.') {
        name.len--;
    }

    text = ngx_pnalloc(conn->connection->pool, name.len + 1);
    if (text == NULL) {
        return NGX_ERROR;
    }

    ngx_cpystrn((u_char *) text, name.data, name.len + 1);

    if (verify) {
        X509_VERIFY_PARAM_set_hostflags(param,
                                        X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);

        if (X509_VERIFY_PARAM_set1_host(param, text, name.len) == 0) {
            return NGX_ERROR;
        }
    }

    return SSL_set_tlsext_host_name(ssl, text) ? NGX_OK : NGX_ERROR;
}


static ngx_str_t *
ngx_http_ratelimit_redis_tls_name(ngx_http_ratelimit_redis_connection_t *conn)
{
    ngx_http_ratelimit_redis_owner_t  *owner;

    owner = conn->owner;

    return owner->tls->name.len ? &owner->tls->name : &owner->host;
}


static void
ngx_http_ratelimit_redis_tls_set_io(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    redisContext  *context;

    static redisContextFuncs  funcs;

    context = &conn->context->c;

    funcs = *context->funcs;
    funcs.read = ngx_http_ratelimit_redis_tls_read;
    funcs.write = ngx_http_ratelimit_redis_tls_write;

    context->funcs = &funcs;
    context->privctx = conn;
}


ngx_int_t
ngx_http_ratelimit_redis_tls_handshake(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    int         n, error;
    SSL        *ssl;
    char        reason[NGX_HTTP_RATELIMIT_REDIS_REASON];
    ngx_err_t   err;

    ssl = conn->connection->ssl->connection;

    ERR_clear_error();

    n = SSL_do_handshake(ssl);

    err = ngx_socket_errno;
    error = (n == 1) ? SSL_ERROR_NONE : SSL_get_error(ssl, n);

    conn->blocked = (error == SSL_ERROR_WANT_WRITE);

    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        return NGX_AGAIN;
    }

    if (n != 1 || !ngx_http_ratelimit_redis_tls_is_verified(conn, ssl)) {
        ngx_http_ratelimit_redis_tls_reason(conn, error, err, reason);
        ngx_http_ratelimit_redis_tls_forget(conn->owner);
        ERR_clear_error();

        conn->owner->on_unreachable(conn->owner->data, reason);

        return NGX_ERROR;
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, conn->connection->log, 0,
                   "ratelimit redis: %s, %s, session %s",
                   SSL_get_version(ssl), SSL_get_cipher_name(ssl),
                   SSL_session_reused(ssl) ? "reused" : "new");

    conn->encrypted = 1;

    return NGX_OK;
}


const char *
ngx_http_ratelimit_redis_tls_timeout(
    ngx_http_ratelimit_redis_connection_t *conn)
{
    SSL  *ssl;

    ssl = conn->connection->ssl->connection;

    return BIO_number_read(SSL_get_rbio(ssl))
           ? "TLS handshake timed out"
           : "no answer to a TLS handshake (a server without TLS needs "
             "redis://)";
}


/* some ciphers do without a certificate, which is no error to OpenSSL */

static ngx_uint_t
ngx_http_ratelimit_redis_tls_is_verified(
    ngx_http_ratelimit_redis_connection_t *conn, SSL *ssl)
{
    X509  *certificate;

    if (!conn->owner->tls->verify) {
        return 1;
    }

    certificate = SSL_get_peer_certificate(ssl);

    if (certificate == NULL) {
        return 0;
    }

    X509_free(certificate);

    return SSL_get_verify_result(ssl) == X509_V_OK;
}


/* why it failed, in a text that has an end */

static void
ngx_http_ratelimit_redis_tls_reason(
    ngx_http_ratelimit_redis_connection_t *conn, int error, ngx_err_t err,
    char *reason)
{
    SSL         *ssl;
    u_char      *p, *last;
    const char  *text;

    ssl = conn->connection->ssl->connection;

    p = (u_char *) reason;
    last = p + NGX_HTTP_RATELIMIT_REDIS_REASON - 1;

    if (!conn->encrypted && conn->owner->tls->verify
        && (error == SSL_ERROR_NONE || SSL_get_verify_result(ssl) != X509_V_OK))
    {
        p = ngx_http_ratelimit_redis_tls_certificate_reason(conn, p, last);

    } else if (error == SSL_ERROR_SSL
               && ERR_GET_REASON(ERR_peek_error())
                  == SSL_R_WRONG_VERSION_NUMBER)
    {
        p = ngx_slprintf(p, last, "the server does not speak TLS");

    } else if (error == SSL_ERROR_SSL) {
        text = ERR_reason_error_string(ERR_peek_error());
        p = ngx_slprintf(p, last, "TLS: %s", text ? text : "failed");

    } else if (error == SSL_ERROR_SYSCALL && err) {
        p = ngx_strerror(err, p, last - p);

    } else {
        p = ngx_slprintf(p, last, "Server closed the connection");
    }

    *p = '\0';
}


static u_char *
ngx_http_ratelimit_redis_tls_certificate_reason(
    ngx_http_ratelimit_redis_connection_t *conn, u_char *p, u_char *last)
{
    long  result;

    result = SSL_get_verify_result(conn->connection->ssl->connection);

    switch (result) {

    case X509_V_OK:
        return ngx_slprintf(p, last, "the server has no certificate");

    case X509_V_ERR_CERT_HAS_EXPIRED:
        return ngx_slprintf(p, last, "the certificate has expired");

    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return ngx_slprintf(p, last, "the certificate is not for \"%V\"",
                            ngx_http_ratelimit_redis_tls_name(conn));

    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return ngx_slprintf(p, last, "the certificate is not of a trusted CA");

    default:
        return ngx_slprintf(p, last, "the certificate is not valid: %s",
                            X509_verify_cert_error_string(result));
    }
}


/* of a ticket that the server has sent, at any time after the handshake */

static void
ngx_http_ratelimit_redis_tls_save_session(ngx_connection_t *c)
{
    ngx_ssl_session_t                      *session;
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = c->data;

    session = ngx_ssl_get_session(c);

    if (session != NULL) {
        ngx_http_ratelimit_redis_tls_forget(conn->owner);
        conn->owner->session = session;
    }
}


void
ngx_http_ratelimit_redis_tls_forget(ngx_http_ratelimit_redis_owner_t *owner)
{
    if (owner->session != NULL) {
        ngx_ssl_free_session(owner->session);
        owner->session = NULL;
    }
}


void
ngx_http_ratelimit_redis_tls_close(ngx_http_ratelimit_redis_connection_t *conn)
{
    SSL               *ssl;
    ngx_connection_t  *c;

    c = conn->connection;

    if (c->ssl != NULL) {
        ssl = c->ssl->connection;

        if (conn->encrypted && conn->context->c.err == 0) {
            SSL_set_shutdown(ssl, SSL_RECEIVED_SHUTDOWN);
            (void) SSL_shutdown(ssl);
            ERR_clear_error();

        } else {

            /* so that the session may be used again */

            SSL_set_shutdown(ssl, SSL_RECEIVED_SHUTDOWN|SSL_SENT_SHUTDOWN);
        }

        SSL_free(ssl);
        c->ssl = NULL;
    }

    if (c->pool != NULL) {
        ngx_destroy_pool(c->pool);
        c->pool = NULL;
    }
}


/* a record at a time; says when there is no more, in TLS or in the socket */

static ngx_http_ratelimit_redis_tls_io_t
ngx_http_ratelimit_redis_tls_read(redisContext *context, char *buffer,
    size_t size)
{
    int                                     n;
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = context->privctx;

    if (conn->encrypted) {
        ERR_clear_error();

        n = SSL_read(conn->connection->ssl->connection, buffer, (int) size);

        if (n > 0) {
            return n;
        }

        n = ngx_http_ratelimit_redis_tls_check_io(conn, n);

    } else {
        n = 0;
    }

    conn->drained = 1;

    return n;
}


static ngx_http_ratelimit_redis_tls_io_t
ngx_http_ratelimit_redis_tls_write(redisContext *context)
{
    int                                     n, rc;
    SSL                                    *ssl;
    char                                    byte;
    ngx_http_ratelimit_redis_connection_t  *conn;

    conn = context->privctx;
    ssl = conn->connection->ssl->connection;

    ERR_clear_error();

    n = SSL_write(ssl, context->obuf, (int) sdslen(context->obuf));

    if (n > 0) {
        return n;
    }

    rc = ngx_http_ratelimit_redis_tls_check_io(conn, n);

    if (context->err == REDIS_ERR_IO) {

        /* before it closed, the server may have said why */

        n = SSL_read(ssl, &byte, 1);

        if (n <= 0 && SSL_get_error(ssl, n) == SSL_ERROR_SSL) {
            rc = ngx_http_ratelimit_redis_tls_check_io(conn, n);
        }
    }

    return rc;
}


/* 0: later; -1: the reason is set, as hiredis sets it */

static int
ngx_http_ratelimit_redis_tls_check_io(
    ngx_http_ratelimit_redis_connection_t *conn, int n)
{
    int            error;
    ngx_err_t      err;
    redisContext  *context;

    err = ngx_socket_errno;
    context = &conn->context->c;

    error = SSL_get_error(conn->connection->ssl->connection, n);

    switch (error) {

    case SSL_ERROR_WANT_WRITE:
        conn->blocked = 1;
        /* fall through */

    case SSL_ERROR_WANT_READ:
        return 0;

    case SSL_ERROR_SSL:
        ngx_http_ratelimit_redis_tls_forget(conn->owner);
        context->err = REDIS_ERR_OTHER;
        break;

    default:
        context->err = (error == SSL_ERROR_SYSCALL && err) ? REDIS_ERR_IO
                                                           : REDIS_ERR_EOF;
    }

    ngx_http_ratelimit_redis_tls_reason(conn, error, err, context->errstr);
    ERR_clear_error();

    return -1;
}

#endif
