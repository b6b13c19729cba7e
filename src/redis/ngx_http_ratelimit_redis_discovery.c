
/*
 * Which nodes there are is asked when something has failed, when a connection
 * was lost, when a node says that another one is responsible, and from time to
 * time.  One worker asks for all of a machine, one server after the other until
 * one answers, and not too often.
 *
 * Commands for which no node is known wait meanwhile.  A worker that waits for
 * the answer that another one gets looks for it every few milliseconds.
 */


#include "redis/ngx_http_ratelimit_redis_nodes.h"


/* milliseconds between two looks of a worker that waits for another one */
#define NGX_HTTP_RATELIMIT_REDIS_LOOK         10

/* milliseconds for an answer, at most */
#define NGX_HTTP_RATELIMIT_REDIS_ASK_TIMEOUT  500

/* nodes of a cluster that are asked before the seeds, and after them */
#define NGX_HTTP_RATELIMIT_REDIS_ASK_NODES    2

/* between questions while a node is marked down */
#define NGX_HTTP_RATELIMIT_REDIS_ASK_DOWN     500

/* after a round without an answer: the first pause, and the longest */
#define NGX_HTTP_RATELIMIT_REDIS_FIRST_PAUSE  50
#define NGX_HTTP_RATELIMIT_REDIS_LAST_PAUSE   500

/* between sweeps */
#define NGX_HTTP_RATELIMIT_REDIS_SWEEP        1000


static ngx_int_t ngx_http_ratelimit_redis_create_seed(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_uint_t i);
static void ngx_http_ratelimit_redis_on_trouble(
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_discovery_timer(ngx_event_t *ev);
static ngx_uint_t ngx_http_ratelimit_redis_is_due(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_msec_t *left);
static ngx_uint_t ngx_http_ratelimit_redis_claim_question(
    ngx_http_ratelimit_redis_discovery_t *discovery);
static void ngx_http_ratelimit_redis_set_timer(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_msec_t msec);
static ngx_msec_t ngx_http_ratelimit_redis_question_timeout(
    ngx_http_ratelimit_redis_discovery_t *discovery);
static void ngx_http_ratelimit_redis_ask(
    ngx_http_ratelimit_redis_discovery_t *discovery);
static ngx_http_ratelimit_redis_server_t *ngx_http_ratelimit_redis_choose(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_uint_t attempt);
static ngx_int_t ngx_http_ratelimit_redis_ask_server(
    ngx_http_ratelimit_redis_discovery_t *discovery,
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_question_expired(
    ngx_http_ratelimit_redis_discovery_t *discovery);
static void ngx_http_ratelimit_redis_on_answer(
    ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text);
static void ngx_http_ratelimit_redis_note_reason(
    ngx_http_ratelimit_redis_discovery_t *discovery,
    ngx_http_ratelimit_redis_server_t *server);
static void ngx_http_ratelimit_redis_discovery_succeeded(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_msec_t asked);
static void ngx_http_ratelimit_redis_discovery_failed(
    ngx_http_ratelimit_redis_discovery_t *discovery);
static void ngx_http_ratelimit_redis_set_problem(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_uint_t problem);


ngx_int_t
ngx_http_ratelimit_redis_discovery_create(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_t *redis)
{
    ngx_uint_t                             i;
    ngx_http_ratelimit_redis_discovery_t  *discovery;

    discovery = ngx_pcalloc(cf->pool,
                            sizeof(ngx_http_ratelimit_redis_discovery_t));
    if (discovery == NULL) {
        return NGX_ERROR;
    }

    discovery->redis = redis;
    discovery->kind = redis->cluster ? &ngx_http_ratelimit_redis_kind_cluster
                                     : &ngx_http_ratelimit_redis_kind_sentinel;
    discovery->nseeds = redis->endpoints.nelts;

    discovery->seeds = ngx_pcalloc(cf->pool, discovery->nseeds
                                * sizeof(ngx_http_ratelimit_redis_server_t *));
    discovery->shared = ngx_pcalloc(cf->pool, discovery->nseeds
                                * sizeof(ngx_http_ratelimit_redis_shared_t));

    if (discovery->seeds == NULL || discovery->shared == NULL
        || discovery->kind->create(cf, redis, &discovery->text) != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < discovery->nseeds; i++) {
        if (ngx_http_ratelimit_redis_create_seed(cf, discovery, i) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    redis->discovery = discovery;

    return NGX_OK;
}


/* a server that is only asked: it has no breaker, and no counters */

static ngx_int_t
ngx_http_ratelimit_redis_create_seed(ngx_conf_t *cf,
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_uint_t i)
{
    u_char                               *p;
    ngx_str_t                            *label;
    ngx_http_ratelimit_redis_t           *redis;
    ngx_http_ratelimit_redis_server_t    *seed;
    ngx_http_ratelimit_redis_endpoint_t  *endpoints;

    redis = discovery->redis;
    endpoints = redis->endpoints.elts;

    seed = ngx_http_ratelimit_redis_server_create(cf, redis, &endpoints[i]);
    if (seed == NULL) {
        return NGX_ERROR;
    }

    p = ngx_pnalloc(cf->pool,
                    ngx_http_ratelimit_redis_label_len(redis, &endpoints[i]));
    if (p == NULL) {
        return NGX_ERROR;
    }

    label = &seed->owner.label;
    label->data = p;
    label->len = ngx_http_ratelimit_redis_write_label(p, redis, &endpoints[i])
                 - p;

    seed->nconnections = 1;
    seed->owner.shared = &discovery->shared[i];

    if (redis->sentinel.len) {
        seed->owner.login = &redis->sentinel_login;
        seed->owner.tls = redis->sentinel_tls;
        seed->owner.shared->version = 1;
    }

    discovery->seeds[i] = seed;

    return NGX_OK;
}


void
ngx_http_ratelimit_redis_discovery_open(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    ngx_uint_t                          i;
    ngx_http_ratelimit_redis_server_t  *lobby;

    ngx_http_ratelimit_timer_init(&discovery->timer, &discovery->dummy,
                                  ngx_http_ratelimit_redis_discovery_timer,
                                  discovery);
    discovery->timer.cancelable = 1;

    for (i = 0; i < discovery->nseeds; i++) {
        ngx_http_ratelimit_redis_timeout_init(discovery->seeds[i], NULL, NULL);
    }

    lobby = discovery->redis->server;

    lobby->on_trouble = ngx_http_ratelimit_redis_on_trouble;
    discovery->redis->nodes->on_trouble = ngx_http_ratelimit_redis_on_trouble;

    ngx_http_ratelimit_redis_set_reason(lobby, NULL, "no primary is known");

    ngx_http_ratelimit_redis_set_timer(discovery, 0);
}


void
ngx_http_ratelimit_redis_discovery_close(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    ngx_uint_t  i;

    if (discovery->timer.timer_set) {
        ngx_del_timer(&discovery->timer);
    }

    if (discovery->question != NULL) {
        discovery->question->discovery = NULL;
        discovery->question = NULL;
    }

    for (i = 0; i < discovery->nseeds; i++) {
        ngx_http_ratelimit_redis_server_close(discovery->seeds[i]);
    }
}


static void
ngx_http_ratelimit_redis_on_trouble(ngx_http_ratelimit_redis_server_t *server)
{
    ngx_http_ratelimit_redis_discover(server->redis->discovery);
}


void
ngx_http_ratelimit_redis_discover(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    discovery->wanted = 1;
    discovery->since = ngx_current_msec;

    if (discovery->question == NULL) {
        ngx_http_ratelimit_redis_set_timer(discovery, 0);
    }
}


static void
ngx_http_ratelimit_redis_discovery_timer(ngx_event_t *ev)
{
    ngx_msec_t                             left;
    ngx_http_ratelimit_redis_nodes_t      *nodes;
    ngx_http_ratelimit_redis_discovery_t  *discovery;

    discovery = ngx_http_ratelimit_timer_data(ev);
    nodes = discovery->redis->nodes;

    if (discovery->question != NULL) {
        ngx_http_ratelimit_redis_question_expired(discovery);
        ngx_http_ratelimit_redis_ask(discovery);
        return;
    }

    if (ngx_current_msec - discovery->swept >= NGX_HTTP_RATELIMIT_REDIS_SWEEP) {
        discovery->swept = ngx_current_msec;
        ngx_http_ratelimit_redis_nodes_sweep(nodes);
    }

    if (discovery->wanted
        && (ngx_msec_int_t) (nodes->directory->asked - discovery->since) >= 0)
    {
        discovery->wanted = 0;
        ngx_http_ratelimit_redis_nodes_wake(nodes);
    }

    if (ngx_http_ratelimit_redis_is_due(discovery, &left)) {

        if (ngx_http_ratelimit_redis_claim_question(discovery)) {
            discovery->attempt = 0;
            ngx_http_ratelimit_redis_ask(discovery);
            return;
        }

        left = NGX_HTTP_RATELIMIT_REDIS_LOOK;
    }

    ngx_http_ratelimit_redis_set_timer(discovery, left);
}


/* otherwise sets the time that is left */

static ngx_uint_t
ngx_http_ratelimit_redis_is_due(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_msec_t *left)
{
    ngx_msec_t                         age, watch;
    ngx_http_ratelimit_redis_nodes_t  *nodes;

    if (discovery->wanted) {
        return 1;
    }

    nodes = discovery->redis->nodes;
    watch = discovery->kind->watch;
    age = ngx_current_msec - nodes->directory->asked;

    if (watch > NGX_HTTP_RATELIMIT_REDIS_ASK_DOWN
        && ngx_http_ratelimit_redis_nodes_down(nodes))
    {
        watch = NGX_HTTP_RATELIMIT_REDIS_ASK_DOWN;
    }

    /* the clock of this worker may be a bit behind */

    if ((ngx_msec_int_t) age < 0) {
        age = 0;
    }

    if (age >= watch) {
        return 1;
    }

    *left = ngx_min(watch - age, NGX_HTTP_RATELIMIT_REDIS_ASK_DOWN);

    return 0;
}


/* of all workers one asks, until it is done or too late */

static ngx_uint_t
ngx_http_ratelimit_redis_claim_question(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    ngx_atomic_uint_t                      claim;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = discovery->redis->nodes->directory;
    claim = directory->claim;

    if (claim && (ngx_msec_int_t) (claim - ngx_current_msec) > 0) {
        return 0;
    }

    return ngx_atomic_cmp_set(&directory->claim, claim, ngx_current_msec
                   + 2 * ngx_http_ratelimit_redis_question_timeout(discovery));
}


static void
ngx_http_ratelimit_redis_set_timer(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_msec_t msec)
{
    if (discovery->timer.timer_set) {
        ngx_del_timer(&discovery->timer);
    }

    ngx_add_timer(&discovery->timer, msec);
}


static ngx_msec_t
ngx_http_ratelimit_redis_question_timeout(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    return ngx_min(discovery->redis->connect_timeout
                   + discovery->redis->timeout,
                   NGX_HTTP_RATELIMIT_REDIS_ASK_TIMEOUT);
}


/* the next server of this round */

static void
ngx_http_ratelimit_redis_ask(ngx_http_ratelimit_redis_discovery_t *discovery)
{
    ngx_uint_t                             last;
    ngx_msec_t                             timeout;
    ngx_http_ratelimit_redis_server_t     *server;
    ngx_http_ratelimit_redis_directory_t  *directory;

    directory = discovery->redis->nodes->directory;
    timeout = ngx_http_ratelimit_redis_question_timeout(discovery);

    last = discovery->nseeds;

    if (discovery->redis->cluster) {
        last += 2 * NGX_HTTP_RATELIMIT_REDIS_ASK_NODES;
    }

    while (discovery->attempt < last) {
        server = ngx_http_ratelimit_redis_choose(discovery,
                                                 discovery->attempt++);
        if (server == NULL) {
            continue;
        }

        if (ngx_http_ratelimit_redis_ask_server(discovery, server) == NGX_OK) {
            directory->claim = ngx_current_msec + 2 * timeout;
            ngx_http_ratelimit_redis_set_timer(discovery, timeout);
            return;
        }

        ngx_http_ratelimit_redis_note_reason(discovery, server);
    }

    ngx_http_ratelimit_redis_discovery_failed(discovery);
}


/*
 * The seeds, that of the last answer first.  In a cluster, nodes that are up
 * are asked before, and any others after them.
 */

static ngx_http_ratelimit_redis_server_t *
ngx_http_ratelimit_redis_choose(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_uint_t attempt)
{
    ngx_http_ratelimit_redis_nodes_t  *nodes;

    nodes = discovery->redis->nodes;

    if (discovery->redis->cluster) {

        if (attempt < NGX_HTTP_RATELIMIT_REDIS_ASK_NODES) {
            return ngx_http_ratelimit_redis_nodes_pick(nodes, 1);
        }

        attempt -= NGX_HTTP_RATELIMIT_REDIS_ASK_NODES;

        if (attempt >= discovery->nseeds) {
            return ngx_http_ratelimit_redis_nodes_pick(nodes, 0);
        }
    }

    discovery->seed = (nodes->directory->seed + attempt) % discovery->nseeds;

    return discovery->seeds[discovery->seed];
}


static ngx_int_t
ngx_http_ratelimit_redis_ask_server(
    ngx_http_ratelimit_redis_discovery_t *discovery,
    ngx_http_ratelimit_redis_server_t *server)
{
    ngx_http_ratelimit_redis_question_t    *question;
    const ngx_http_ratelimit_redis_kind_t  *kind;

    kind = discovery->kind;

    question = ngx_alloc(sizeof(ngx_http_ratelimit_redis_question_t)
                         + kind->size, ngx_cycle->log);
    if (question == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(question, sizeof(ngx_http_ratelimit_redis_question_t));

    question->discovery = discovery;
    question->server = server;
    question->asked = ngx_current_msec;
    question->data = question + 1;
    question->message.data = discovery->text.data;
    question->message.len = discovery->text.len;
    question->message.handler = ngx_http_ratelimit_redis_on_answer;
    question->message.on_element = kind->on_element;

    kind->init(question);

    if (ngx_http_ratelimit_redis_server_send(server, &question->message)
        != NGX_OK)
    {
        ngx_free(question);
        return NGX_ERROR;
    }

    discovery->question = question;

    return NGX_OK;
}


/* the question is freed with its late answer, or with the connection */

static void
ngx_http_ratelimit_redis_question_expired(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    ngx_http_ratelimit_redis_server_t    *server;
    ngx_http_ratelimit_redis_question_t  *question;

    question = discovery->question;
    server = question->server;

    discovery->question = NULL;
    question->discovery = NULL;
    question->message.expired = 1;

    ngx_http_ratelimit_redis_set_reason(server, NULL, "no reply within %Mms",
                         ngx_http_ratelimit_redis_question_timeout(discovery));
    ngx_http_ratelimit_redis_note_reason(discovery, server);

    /* the next question to a seed gets another connection */

    if (server->id == 0) {
        ngx_http_ratelimit_redis_server_retire(server);
    }
}


static void
ngx_http_ratelimit_redis_on_answer(ngx_http_ratelimit_redis_message_t *message,
    ngx_http_ratelimit_redis_reply_e type, ngx_str_t *text)
{
    ngx_int_t                              rc;
    ngx_msec_t                             asked;
    ngx_http_ratelimit_redis_server_t     *server;
    ngx_http_ratelimit_redis_question_t   *question;
    ngx_http_ratelimit_redis_discovery_t  *discovery;

    question = (ngx_http_ratelimit_redis_question_t *) message;
    discovery = question->discovery;
    server = question->server;
    asked = question->asked;

    if (discovery == NULL) {
        ngx_free(question);
        return;
    }

    rc = NGX_DECLINED;

    if (type == NGX_HTTP_RATELIMIT_REDIS_OTHER) {
        rc = discovery->kind->conclude(question);

    } else if (type == NGX_HTTP_RATELIMIT_REDIS_ERROR) {
        ngx_http_ratelimit_redis_set_reason(server, text, "error reply");
    }

    discovery->question = NULL;
    ngx_free(question);

    if (rc == NGX_OK) {
        ngx_http_ratelimit_redis_discovery_succeeded(discovery, asked);
        return;
    }

    ngx_http_ratelimit_redis_note_reason(discovery, server);
    ngx_http_ratelimit_redis_ask(discovery);
}


/* of the server that was asked last, without the name of the redis */

static void
ngx_http_ratelimit_redis_note_reason(
    ngx_http_ratelimit_redis_discovery_t *discovery,
    ngx_http_ratelimit_redis_server_t *server)
{
    u_char     *p;
    ngx_str_t   label;

    label = server->owner.label;
    label.data += discovery->redis->name.len + 1;
    label.len -= discovery->redis->name.len + 1;

    p = ngx_slprintf(discovery->reason,
                     discovery->reason + NGX_HTTP_RATELIMIT_REDIS_REASON,
                     "%V: %*s", &label, server->reason_len, server->reason);

    discovery->reason_len = p - discovery->reason;
}


static void
ngx_http_ratelimit_redis_discovery_succeeded(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_msec_t asked)
{
    ngx_http_ratelimit_redis_nodes_t      *nodes;
    ngx_http_ratelimit_redis_directory_t  *directory;

    nodes = discovery->redis->nodes;
    directory = nodes->directory;

    discovery->pause = 0;

    directory->seed = discovery->seed;
    directory->asked = asked;
    directory->claim = ngx_current_msec + discovery->kind->pace;

    ngx_http_ratelimit_redis_set_problem(discovery, 0);
    ngx_http_ratelimit_redis_nodes_log(nodes);

    if (ngx_http_ratelimit_redis_nodes_complete(nodes)) {
        ngx_http_ratelimit_redis_success(discovery->redis->server,
                                         RATELIMIT_BREAKER_PROBE);
    }

    /* commands that wait are sent by the timer's handler */

    ngx_http_ratelimit_redis_set_timer(discovery, 0);
}


static void
ngx_http_ratelimit_redis_discovery_failed(
    ngx_http_ratelimit_redis_discovery_t *discovery)
{
    discovery->pause = ngx_min(2 * discovery->pause,
                               NGX_HTTP_RATELIMIT_REDIS_LAST_PAUSE);
    discovery->pause = ngx_max(discovery->pause,
                               NGX_HTTP_RATELIMIT_REDIS_FIRST_PAUSE);

    discovery->redis->nodes->directory->claim = ngx_current_msec
                                                + discovery->pause;

    ngx_http_ratelimit_redis_set_problem(discovery, 1);
    ngx_http_ratelimit_redis_set_timer(discovery, discovery->pause);
}


/* one line for each change */

static void
ngx_http_ratelimit_redis_set_problem(
    ngx_http_ratelimit_redis_discovery_t *discovery, ngx_uint_t problem)
{
    ngx_http_ratelimit_redis_t            *redis;
    ngx_http_ratelimit_redis_directory_t  *directory;

    redis = discovery->redis;
    directory = redis->nodes->directory;

    if (directory->problem == problem
        || !ngx_atomic_cmp_set(&directory->problem, !problem, problem))
    {
        return;
    }

    if (problem) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "ratelimit: redis \"%V\" could not be looked up: %*s",
                      &redis->name, discovery->reason_len, discovery->reason);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "ratelimit: redis \"%V\" is looked up again", &redis->name);
}
