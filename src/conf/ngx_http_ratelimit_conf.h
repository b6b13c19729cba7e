
/*
 * The configuration as it is kept, and what the files of this folder share.
 */


#ifndef _NGX_HTTP_RATELIMIT_CONF_H_INCLUDED_
#define _NGX_HTTP_RATELIMIT_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ratelimit.h"
#include "core/ratelimit_parse.h"
#include "store/ngx_http_ratelimit_store.h"
#include "elastic/ngx_http_ratelimit_elastic.h"
#include "domain/ratelimit_domain.h"


#define NGX_HTTP_RATELIMIT_HEADERS_OFF    0x0001
#define NGX_HTTP_RATELIMIT_HEADERS_X      0x0002
#define NGX_HTTP_RATELIMIT_HEADERS_IETF   0x0004
#define NGX_HTTP_RATELIMIT_HEADERS_DELTA  0x0008
#define NGX_HTTP_RATELIMIT_HEADERS_EPOCH  0x0010

/* when limits are decided, a bit each */
#define NGX_HTTP_RATELIMIT_BEFORE_AUTH    0x0001
#define NGX_HTTP_RATELIMIT_AFTER_AUTH     0x0002
#define NGX_HTTP_RATELIMIT_BOTH_STAGES    0x0003

/* rates in the value of a variable */
#define NGX_HTTP_RATELIMIT_MAX_RATES      8

/* descriptors of a call that have limits */
#define NGX_HTTP_RATELIMIT_MAX_MATCHES    64

#define NGX_HTTP_RATELIMIT_BODY_OFF       0
#define NGX_HTTP_RATELIMIT_BODY_PROBLEM   1

/* what is unusual about a location, a bit each */
#define NGX_HTTP_RATELIMIT_MARK_DRY_RUN   0x0001
#define NGX_HTTP_RATELIMIT_MARK_COUNTED   0x0002    /* there are statistics */

/* ratelimit_api, and what it permits */
#define NGX_HTTP_RATELIMIT_API_READ       1
#define NGX_HTTP_RATELIMIT_API_WRITE      2


/* an expression, value is NULL if it is not given */

typedef struct {
    ngx_http_complex_value_t       *value;
    ngx_int_t                       index;    /* of the variable if it is a
                                                 single one, or NGX_ERROR */
} ngx_http_ratelimit_expr_t;


/* rates as configured: a list, or an expression that gives one */

typedef struct {
    ngx_array_t                     list;     /* ratelimit_rate_t */
    ngx_http_complex_value_t       *variable;
} ngx_http_ratelimit_rates_t;


/* the rules that a list of rates makes for a limit */

typedef struct ngx_http_ratelimit_limit_s  ngx_http_ratelimit_limit_t;

typedef struct {
    ngx_str_node_t                  node;     /* by the text, if variable */
    ngx_http_ratelimit_limit_t     *limit;
    ratelimit_rule_t               *rules;
    ratelimit_rule_t               *elastic;  /* with more room, or NULL */
    ngx_uint_t                      nrules;
    const ratelimit_descriptor_t   *descriptor;  /* of a rule file, or NULL */
    ngx_str_t                       quoted_name;  /* "ip", ready to be sent */
    ngx_str_t                       policy;   /* "ip";q=50;w=60 */
    const char                     *reason;   /* why the text is invalid */
} ngx_http_ratelimit_rules_t;


/* when it is known what a request has cost: with which part of a response */

typedef enum {
    NGX_HTTP_RATELIMIT_KNOWN_SENT = 0,        /* that to the client, at its
                                                 end */
    NGX_HTTP_RATELIMIT_KNOWN_TRAILER,         /* that of the upstream */
    NGX_HTTP_RATELIMIT_KNOWN_STATUS,          /* that to the client */
    NGX_HTTP_RATELIMIT_KNOWN_HEADER           /* that of the upstream */
} ngx_http_ratelimit_known_e;


/* KEY:VALUE of descriptor= */

typedef struct {
    ngx_str_t                       key;
    ngx_http_ratelimit_expr_t       value;
} ngx_http_ratelimit_entry_t;


/* one "ratelimit" */

struct ngx_http_ratelimit_limit_s {
    ngx_http_ratelimit_use_t        use;
    ngx_http_ratelimit_expr_t       key;
    ngx_http_ratelimit_expr_t       cost;
    ngx_http_ratelimit_expr_t       settle;
    ngx_http_ratelimit_known_e      known;    /* when settle= is */
    ngx_http_ratelimit_expr_t       filter;   /* if= */

    ngx_http_ratelimit_rules_t      rules;    /* unless the rate varies */
    ngx_http_ratelimit_expr_t       rate;
    ngx_rbtree_t                    cache;    /* of a worker: rules by the text
                                                 of a rate that varies */
    ngx_rbtree_node_t               sentinel;
    ngx_uint_t                      ncached;

    const ratelimit_descriptor_t   *domain;   /* rules=; NULL: zone= */
    ngx_uint_t                      match;    /* of those of the set */

    /* as configured */
    ngx_str_t                       zone;
    ngx_str_t                       domain_name;
    ngx_array_t                    *entries;  /* ngx_http_ratelimit_entry_t, of
                                                 descriptor= */
    ngx_http_ratelimit_rates_t      rates;
    uint64_t                        soft;     /* per cent */
    uint64_t                        elastic;  /* per cent */
    uint64_t                        burst;
    ngx_str_t                       delay;
    uint64_t                        free;     /* as ratelimit_rule_t's */
    uint64_t                        wait;     /* as ratelimit_rule_t's */
    ngx_array_t                    *statuses; /* ngx_uint_t, statuses that
                                                 count; 4 is 4xx */
    ngx_uint_t                      stage;
    ngx_uint_t                      order;    /* of the directives */
    ngx_uint_t                      sorted;   /* limits of the set are in
                                                 another order */
    ngx_conf_file_t                 origin;   /* where errors are reported */
};


/* all "ratelimit" of one block, which the blocks inside may inherit */

typedef struct {
    ngx_array_t                     limits;   /* ngx_http_ratelimit_limit_t */
    ngx_uint_t                      nrules_before;  /* at most */
    ngx_uint_t                      nrules_after;
    ngx_uint_t                      nmatches; /* limits that have rules= */
    ngx_uint_t                      stages;
    ngx_http_ratelimit_use_t       *rings[NGX_HTTP_RATELIMIT_BOTH_STAGES + 1];
                                              /* by stages: limits that are all
                                                 of these; NULL: there is no
                                                 such ring */
    ngx_uint_t                      simple;   /* each limit has a variable as
                                                 its key, rates that are known,
                                                 cost 1, and nothing else */
    ngx_str_t                       name;     /* of limits that count apart */
    ngx_http_core_srv_conf_t       *server;   /* the name is this server's */
} ngx_http_ratelimit_set_t;


/* a limit of a rule file, and a domain: the data of their descriptors */

typedef struct {
    ngx_http_ratelimit_use_t        use;
    ratelimit_rule_t                rule;
    ngx_http_ratelimit_rules_t      rates;
} ngx_http_ratelimit_descriptor_t;

typedef struct {
    ngx_http_ratelimit_zone_t      *zone;
    ngx_conf_file_t                 origin;   /* where errors are reported */
    ngx_uint_t                      used;     /* by a limit, or by a service */
    ngx_uint_t                      max_rules;  /* as ...use_t's */
    ngx_uint_t                      reserved;
    ngx_uint_t                      settles;
    ngx_http_ratelimit_hold_e       refusals_hold;
    ngx_http_ratelimit_use_t        override; /* of limits that a call brings
                                                 along, if there is a service */
} ngx_http_ratelimit_domain_t;


/* a location that has "ratelimit_service" */

typedef struct {
    ngx_http_core_srv_conf_t       *server;
    ngx_conf_file_t                 origin;
} ngx_http_ratelimit_service_t;


/* an expression whose variables are checked when all have been declared */

typedef struct {
    ngx_http_complex_value_t       *value;
    ngx_str_t                       directive;
    ngx_conf_file_t                 origin;
} ngx_http_ratelimit_expr_check_t;


typedef struct {
    ngx_array_t                     zones;    /* ngx_http_ratelimit_zone_t * */
    ngx_array_t                     sets;     /* ngx_http_ratelimit_set_t * */
    ngx_array_t                     expr_checks;
                                        /* ngx_http_ratelimit_expr_check_t */
    ngx_array_t                     redis;    /* ngx_http_ratelimit_redis_t * */
    ratelimit_domains_t             domains;  /* of all "ratelimit_rules" */
    ngx_array_t                     services; /* ngx_http_ratelimit_service_t */
    ngx_uint_t                      stages;   /* of all sets */
    ngx_uint_t                      error_pages;  /* a location has some */
    ngx_uint_t                      statuses; /* a limit counts by them */
    ngx_uint_t                      settles;  /* a limit has settle= */
    ngx_uint_t                      api;      /* a location has "ratelimit_api"
                                                 */
    ngx_http_ratelimit_elastic_t   *elastic;
} ngx_http_ratelimit_main_conf_t;


typedef struct {
    ngx_http_ratelimit_set_t       *set;
    ngx_array_t                    *bypass;   /* ngx_http_complex_value_t */
    ngx_uint_t                      headers;
    ngx_uint_t                      status;
    ngx_uint_t                      body;
    ngx_uint_t                      limit_log_level;
    ngx_uint_t                      delay_log_level;
    uint64_t                        log_limit;  /* lines of a zone in a second;
                                                   0: any number */
    ngx_uint_t                      ipv6_prefix;
    ngx_uint_t                      error_pages;  /* there are */
    ngx_flag_t                      dry_run;
    ngx_uint_t                      marks;
    ngx_uint_t                      api;      /* 0: it is none */
    ngx_str_t                       api_root; /* the path of "/" */
} ngx_http_ratelimit_loc_conf_t;


/*
 * A name=value parameter of a directive, or a bare word if the name does not
 * end with "=".  The parser returns NULL, the reason why the value is invalid,
 * or NGX_CONF_ERROR if it has logged an error itself.
 */

typedef struct ngx_http_ratelimit_param_s  ngx_http_ratelimit_param_t;

typedef const char *ngx_http_ratelimit_param_parse_t(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);

struct ngx_http_ratelimit_param_s {
    ngx_str_t                       name;
    ngx_http_ratelimit_param_parse_t  *parse;
    size_t                          offset;   /* of the field */
    uint64_t                        low;
    uint64_t                        high;
    ngx_uint_t                      many;     /* may be given again */
    void                           *post;
};

#define ngx_http_ratelimit_null_param                                         \
    { ngx_null_string, NULL, 0, 0, 0, 0, NULL }


/* ngx_http_ratelimit_conf_params.c */

char *ngx_http_ratelimit_params(ngx_conf_t *cf, ngx_uint_t first,
    ngx_http_ratelimit_param_t *params, void *conf);
ngx_http_ratelimit_param_t *ngx_http_ratelimit_find_param(
    ngx_http_ratelimit_param_t *params, ngx_str_t *text);

/* why a parameter is invalid that has none of these names */
const char *ngx_http_ratelimit_unknown_param(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *params);

/* the parsers, and the type of their field */
ngx_http_ratelimit_param_parse_t
    ngx_http_ratelimit_param_number,    /* uint64_t, from low to high */
    ngx_http_ratelimit_param_percent,   /* the same, of "10%" */
    ngx_http_ratelimit_param_enum,      /* ngx_uint_t, of the ngx_conf_enum_t
                                           that post points to */
    ngx_http_ratelimit_param_flag,      /* ngx_uint_t, a bare word: high */
    ngx_http_ratelimit_param_rate,      /* ngx_http_ratelimit_rates_t */
    ngx_http_ratelimit_param_name,      /* ngx_str_t */
    ngx_http_ratelimit_param_expr;      /* ngx_http_ratelimit_expr_t */

/* returns NULL, or why the text is none of the names */
const char *ngx_http_ratelimit_parse_enum(ngx_conf_t *cf,
    ngx_conf_enum_t *known, ngx_str_t *text, ngx_uint_t *value);
ngx_int_t ngx_http_ratelimit_parse_number(ngx_str_t *text, uint64_t low,
    uint64_t high, uint64_t *number);
/* NAME:VALUE */
ngx_int_t ngx_http_ratelimit_parse_pair(ngx_str_t *text, ngx_str_t *name,
    ngx_str_t *value);

/* why a value is invalid; of an enum: must be "a", "b" or "c" */
const char *ngx_cdecl ngx_http_ratelimit_reason(ngx_conf_t *cf,
    const char *fmt, ...);
const char *ngx_http_ratelimit_enum_reason(ngx_conf_t *cf,
    const char *must_be, ngx_conf_enum_t *e);


/* ngx_http_ratelimit_conf_expr.c */

ngx_int_t ngx_http_ratelimit_expr_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_complex_value_t *value);
void ngx_http_ratelimit_expr_init(ngx_conf_t *cf,
    ngx_http_ratelimit_expr_t *expr, ngx_http_complex_value_t *value);

/* whether the single variable is one that a directive defines */
ngx_uint_t ngx_http_ratelimit_expr_is_defined(ngx_conf_t *cf,
    ngx_http_ratelimit_expr_t *expr);

/* checks that the variables are known, now or when all have been declared */
ngx_int_t ngx_http_ratelimit_expr_check_later(ngx_conf_t *cf,
    ngx_http_complex_value_t *value);
ngx_int_t ngx_http_ratelimit_expr_check_all(ngx_conf_t *cf);


/* directives */

extern ngx_conf_enum_t  ngx_http_ratelimit_log_levels[];
extern ngx_conf_enum_t  ngx_http_ratelimit_bodies[];
extern ngx_conf_num_bounds_t  ngx_http_ratelimit_status_bounds;
extern ngx_conf_num_bounds_t  ngx_http_ratelimit_ipv6_prefix_bounds;

char *ngx_http_ratelimit_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_ratelimit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_ratelimit_set_rules(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_redis(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_elastic(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_bypass(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_log_level(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_number(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_ratelimit_set_enum(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/*
 * When http {} has been read, names are resolved: ngx_http_ratelimit_resolve()
 * calls the others.  Errors are reported at the directive that cf->conf_file
 * is set to.
 */

ngx_int_t ngx_http_ratelimit_resolve(ngx_conf_t *cf);
ngx_int_t ngx_http_ratelimit_resolve_rates(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);
ngx_int_t ngx_http_ratelimit_resolve_redis(ngx_conf_t *cf);
ngx_int_t ngx_http_ratelimit_resolve_domains(ngx_conf_t *cf);
ngx_int_t ngx_http_ratelimit_resolve_elastic(ngx_conf_t *cf);
void ngx_http_ratelimit_check_services(ngx_conf_t *cf);


/* ngx_http_ratelimit_conf_domain.c */

/* sets the zone of a limit that has rules=; logs errors */
ngx_int_t ngx_http_ratelimit_resolve_domain(ngx_conf_t *cf,
    ngx_http_ratelimit_limit_t *limit);

/* a limit of a set that uses the domain */
void ngx_http_ratelimit_domain_use(ngx_http_ratelimit_limit_t *limit);

/* returns NULL, or the reason why there can't be such a rule; 0 refuses all */
const char *ngx_http_ratelimit_domain_rule(ngx_http_ratelimit_use_t *use,
    uint32_t requests, ratelimit_unit_e unit, ratelimit_rule_t *rule);


/* ngx_http_ratelimit_conf_zone.c */

/*
 * Declares the zone that the parameters from the first one on describe.  The
 * key is NULL if its counters are those of rule files.  Logs errors.
 */
ngx_http_ratelimit_zone_t *ngx_http_ratelimit_zone_create(ngx_conf_t *cf,
    ngx_uint_t first, ngx_str_t *key);
ngx_uint_t ngx_http_ratelimit_is_zone_param(ngx_str_t *text);

/* whether its counters are those of rule files */
#define ngx_http_ratelimit_has_rules(zone)  ((zone)->key.value.data == NULL)

ngx_http_ratelimit_zone_t *ngx_http_ratelimit_find_zone(
    ngx_http_ratelimit_main_conf_t *rmcf, ngx_str_t *name);

/* where errors of the zone are reported */
void ngx_http_ratelimit_zone_origin(ngx_http_ratelimit_zone_t *zone,
    ngx_conf_file_t *origin);

/* in an array of pointers to structs that have a name at the offset */
void *ngx_http_ratelimit_find_name(ngx_array_t *array, size_t offset,
    ngx_str_t *name);

/* logs an error unless the zone's algorithm takes the parameter */
ngx_int_t ngx_http_ratelimit_check_algorithm(ngx_conf_t *cf,
    ngx_http_ratelimit_zone_t *zone, const char *directive,
    const char *parameter, unsigned takes);

#define ngx_http_ratelimit_traits(zone)                                       \
    ratelimit_algorithms[(zone)->shape.algorithm]


/* ngx_http_ratelimit_conf_redis.c: NULL, or why the name is invalid */

const char *ngx_http_ratelimit_redis_name(ngx_str_t *name);

/* a parameter that is such a name, ngx_str_t */
const char *ngx_http_ratelimit_param_redis(ngx_conf_t *cf,
    ngx_http_ratelimit_param_t *param, ngx_str_t *value, void *field);


/* ngx_http_ratelimit_conf_redis_url.c */

/* whether a text is a URL, right or wrong */
ngx_uint_t ngx_http_ratelimit_is_url(ngx_str_t *text);

/* the text without the password that a URL may have */
ngx_str_t ngx_http_ratelimit_masked(ngx_conf_t *cf, ngx_str_t *text);

/* both log errors */
ngx_int_t ngx_http_ratelimit_redis_set_url(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_ratelimit_redis_t *redis);
ngx_int_t ngx_http_ratelimit_redis_set_password(ngx_conf_t *cf,
    ngx_str_t *file, ngx_http_ratelimit_redis_t *redis);

/* after the URLs; how to log in to the sentinels, if there are any */
ngx_int_t ngx_http_ratelimit_redis_set_sentinel(ngx_conf_t *cf,
    ngx_str_t *user, ngx_str_t *file, ngx_http_ratelimit_redis_t *redis);

/* NULL, or why the file can't be opened, or is not a file */
const char *ngx_http_ratelimit_open_file(ngx_str_t *path, ngx_fd_t *fd,
    ngx_err_t *err);


/* ngx_http_ratelimit_conf_redis_tls.c: "ssl_...", empty if not given */

typedef struct {
    ngx_str_t                       ca;
    ngx_str_t                       certificate;
    ngx_str_t                       key;
    ngx_str_t                       name;
    ngx_uint_t                      verify;
    ngx_uint_t                      sentinel; /* of "sentinel_ssl=" */
    ngx_str_t                       protocols;
    ngx_str_t                       ciphers;
} ngx_http_ratelimit_tls_params_t;


/* after the URLs */
ngx_int_t ngx_http_ratelimit_redis_set_tls(ngx_conf_t *cf,
    ngx_http_ratelimit_tls_params_t *params,
    ngx_http_ratelimit_redis_t *redis);


/* ngx_http_ratelimit_conf_policy.c: what is shown of a limit */

ngx_int_t ngx_http_ratelimit_make_quoted_name(ngx_pool_t *pool,
    ngx_str_t *name, ngx_str_t *quoted);
ngx_int_t ngx_http_ratelimit_make_policy(ngx_pool_t *pool,
    ngx_http_ratelimit_rules_t *rules);
ngx_int_t ngx_http_ratelimit_make_label(ngx_pool_t *pool,
    ngx_http_ratelimit_use_t *use);


/* ngx_http_ratelimit_conf_rules.c */

/* returns NULL, or the reason why there can't be such a rule */
const char *ngx_http_ratelimit_make_rule(ngx_http_ratelimit_limit_t *limit,
    ratelimit_rate_t *rate, ratelimit_rule_t *rule);

/*
 * Rates separated by blanks, at most NGX_HTTP_RATELIMIT_MAX_RATES; returns
 * NULL, or why the text is invalid.
 */
const char *ngx_http_ratelimit_parse_rates(ngx_str_t *text,
    ratelimit_rate_t *rates, ngx_uint_t *n);

/* the rules of a limit whose rate varies, for a request */
ngx_http_ratelimit_rules_t *ngx_http_ratelimit_get_rules(
    ngx_http_request_t *r, ngx_http_ratelimit_limit_t *limit,
    ngx_str_t *text);

/* bytes of a value for the log, at most size; returns how many */
size_t ngx_http_ratelimit_printable(u_char *text, size_t size,
    ngx_str_t *value);


extern ngx_module_t  ngx_http_ratelimit_module;


/* whole seconds, rounded up */

static ngx_inline uint64_t
ngx_http_ratelimit_seconds(uint64_t usec)
{
    return usec / RATELIMIT_SECOND + (usec % RATELIMIT_SECOND != 0);
}


/*
 * The value of a variable, without a copy of it; empty if it is not found.  As
 * ngx_http_get_flushed_variable(), faster if there is nothing to flush.
 */

static ngx_inline void
ngx_http_ratelimit_get_value(ngx_http_request_t *r, ngx_uint_t index,
    ngx_str_t *value)
{
    ngx_http_variable_value_t  *vv;

    vv = r->variables[index].no_cacheable
         ? ngx_http_get_flushed_variable(r, index)
         : ngx_http_get_indexed_variable(r, index);

    if (vv == NULL || vv->not_found) {
        value->len = 0;
        return;
    }

    value->len = vv->len;
    value->data = vv->data;
}


/* a single variable needs no script */

static ngx_inline ngx_int_t
ngx_http_ratelimit_eval(ngx_http_request_t *r, ngx_http_ratelimit_expr_t *expr,
    ngx_str_t *value)
{
    if (expr->index == NGX_ERROR) {
        return ngx_http_complex_value(r, expr->value, value);
    }

    ngx_http_ratelimit_get_value(r, expr->index, value);

    return NGX_OK;
}


#endif /* _NGX_HTTP_RATELIMIT_CONF_H_INCLUDED_ */
