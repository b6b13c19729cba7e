
/*
 * The keys that are refused most, as JSON.
 */


#include "api/ngx_http_ratelimit_api.h"


static void ngx_http_ratelimit_api_top_score(ngx_http_request_t *r,
    ngx_http_ratelimit_text_t *text, ngx_http_ratelimit_zone_t *zone,
    ratelimit_top_score_t *score);
static ngx_http_ratelimit_tally_t *ngx_http_ratelimit_api_find_tally(
    ngx_http_ratelimit_zone_t *zone, ngx_uint_t number);


void
ngx_http_ratelimit_api_top(ngx_http_request_t *r,
    ngx_http_ratelimit_text_t *text, ngx_http_ratelimit_zone_t *zone)
{
    ngx_uint_t              i, n;
    ratelimit_top_score_t  *score;

    n = 0;
    score = NULL;

    if (zone->top_zone != NULL) {
        score = ngx_http_ratelimit_top_read(zone, text->pool, &n);

        if (score == NULL) {
            text->failed = 1;
            return;
        }
    }

    ngx_http_ratelimit_json_open(text, '{');
    ngx_http_ratelimit_json_name(text, "zone");
    ngx_http_ratelimit_json_string(text, &zone->name);
    ngx_http_ratelimit_json_name(text, "top");
    ngx_http_ratelimit_json_open(text, '[');

    for (i = 0; i < n; i++) {
        ngx_http_ratelimit_api_top_score(r, text, zone, &score[i]);
    }

    ngx_http_ratelimit_json_close(text, ']');
    ngx_http_ratelimit_json_close(text, '}');
}


static void
ngx_http_ratelimit_api_top_score(ngx_http_request_t *r,
    ngx_http_ratelimit_text_t *text, ngx_http_ratelimit_zone_t *zone,
    ratelimit_top_score_t *score)
{
    ngx_str_t                    key, shown;
    ngx_uint_t                   i;
    ngx_http_ratelimit_tally_t  *tally;

    tally = ngx_http_ratelimit_api_find_tally(zone, score->limit);

    /* it has left the configuration */

    if (tally == NULL) {
        return;
    }

    key.data = score->text;
    key.len = ngx_min(score->len, RATELIMIT_TOP_TEXT);

    /* text is not cut in the midst of a character, which has up to 4 bytes */

    for (i = 0; i < 4 && score->len > RATELIMIT_TOP_TEXT; i++) {
        if (ratelimit_is_utf8(key.data, RATELIMIT_TOP_TEXT - i)) {
            key.len = RATELIMIT_TOP_TEXT - i;
            break;
        }
    }

    if (ngx_http_ratelimit_api_format_key(r, &key, tally, &shown) != NGX_OK) {
        text->failed = 1;
        return;
    }

    ngx_http_ratelimit_json_open(text, '{');
    ngx_http_ratelimit_json_name(text, "key");
    ngx_http_ratelimit_json_string(text, &shown);

    /* the rest is not known */

    if (score->len > RATELIMIT_TOP_TEXT) {
        ngx_http_ratelimit_json_name(text, "cut");
        ngx_http_ratelimit_json_literal(text, "true");
    }

    ngx_http_ratelimit_json_name(text, "name");
    ngx_http_ratelimit_json_string(text, &tally->use->name);
    ngx_http_ratelimit_json_name(text, "refused");
    ngx_http_ratelimit_json_number(text, (score->count + RATELIMIT_TOP_ONE / 2)
                                         / RATELIMIT_TOP_ONE);
    ngx_http_ratelimit_json_name(text, "error");
    ngx_http_ratelimit_json_number(text, (score->error + RATELIMIT_TOP_ONE / 2)
                                         / RATELIMIT_TOP_ONE);
    ngx_http_ratelimit_json_close(text, '}');
}


static ngx_http_ratelimit_tally_t *
ngx_http_ratelimit_api_find_tally(ngx_http_ratelimit_zone_t *zone,
    ngx_uint_t number)
{
    ngx_uint_t                   i;
    ngx_http_ratelimit_tally_t  *tally;

    tally = zone->tallies.elts;

    for (i = 0; i < zone->tallies.nelts; i++) {
        if (tally[i].use->number == number) {
            return &tally[i];
        }
    }

    return NULL;
}
