#!/usr/bin/perl

# What logs, maps and upstreams are told of a decision.  If this fails, an
# operator's dashboards show numbers that are not true.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

our $config = <<'_EOC_';
        add_header S "$ratelimit_status" always;
        add_header V "$ratelimit_zone/$ratelimit_limit/$ratelimit_remaining"
                   always;
        add_header B "$ratelimit_backend" always;
        add_header T "$ratelimit_reset:$ratelimit_retry_after." always;
_EOC_

run_tests();

__DATA__

=== TEST 1: the variables say what was decided
--- http_config
    ratelimit_zone $arg_k zone=all:1m rate=2r/h algorithm=token_bucket;
--- config eval
"location /t { ratelimit zone=all; try_files /index.html =404; $::config }"
--- request eval
[("GET /t?k=a") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers_like eval
["S: PASSED\nV: all/2/1\nB: shm\nT: 1800:\\.",
 "S: PASSED\nV: all/2/0\nB: shm\nT: (3600|359\\d):\\.",
 "S: REJECTED\nV: all/2/0\nB: shm\nT: (3600|359\\d):(1800|179\\d)\\."]



=== TEST 2: where no limit ran, there is nothing to say
--- http_config
    ratelimit_zone $arg_k zone=none:1m rate=2r/h;
--- config eval
"location /t { ratelimit zone=none; try_files /index.html =404; $::config }
 location /n { try_files /index.html =404; $::config }"
--- request eval
["GET /t", "GET /n?k=a"]
--- error_code eval
[200, 200]
--- response_headers_like eval
[("S: \nV: //\nB: \nT: :\\.") x 2]



=== TEST 3: not found is a dash in the access log
--- http_config
    ratelimit_zone $arg_k zone=dash:1m rate=1r/h;
    log_format dash '$request_uri:$ratelimit_status:$ratelimit_zone:'
                    '$ratelimit_limit:$ratelimit_remaining:$ratelimit_reset:'
                    '$ratelimit_retry_after:$ratelimit_backend.';
--- config
    access_log $TEST_NGINX_SERVER_ROOT/logs/access.log dash;

    location /t {
        ratelimit zone=dash cost=$arg_c;
        try_files /index.html =404;
    }
--- pipelined_requests eval
["GET /t?n=1", "GET /t?k=a&c=1", "GET /t?k=b&c=2"]
--- error_code eval
[200, 200, 429]
--- access_log eval
["/t?n=1:-:-:-:-:-:-:-.", qr{/t\?k=a&c=1:PASSED:dash:1:0:\d+:-:shm\.},
 qr{/t\?k=b&c=2:REJECTED:dash:1:1:0:\d+:shm\.}]



=== TEST 4: of several limits the tightest one speaks
--- http_config
    ratelimit_zone $arg_a zone=wide:1m rate=5r/h;
    ratelimit_zone $arg_b zone=narrow:1m rate=2r/h rate=3r/d;
--- config eval
"location /t { ratelimit zone=wide; ratelimit zone=narrow;
               try_files /index.html =404; $::config }"
--- request eval
["GET /t?a=1", "GET /t?a=1&b=1", "GET /t?a=1&b=1", "GET /t?a=1&b=1",
 "GET /t?a=1", "GET /t?a=1&b=2", "GET /t?a=1"]
--- error_code eval
[200, 200, 200, 429, 200, 200, 429]
--- response_headers_like eval
["V: wide/5/4\nB: shm", "V: narrow/2/1\nB: shm", "V: narrow/2/0\nB: shm",
 "S: REJECTED\nV: narrow/2/0\nB: shm", "V: wide/5/1\nB: shm",
 "V: wide/5/0\nB: shm", "V: wide/5/0\nB: shm"]



=== TEST 5: the zone of a limit with a name of its own is the zone
--- http_config
    ratelimit_zone $arg_k zone=own:1m rate=5r/h;
--- config eval
"location /t { ratelimit zone=own rate=7r/h name=other;
               try_files /index.html =404; $::config }"
--- request
GET /t?k=a
--- response_headers
S: PASSED
V: own/7/6
B: shm



=== TEST 6: an upstream may be told
--- http_config
    ratelimit_zone $arg_k zone=told:1m rate=5r/h;
--- config
    location /t {
        ratelimit zone=told;
        proxy_set_header X-Told "$ratelimit_status $ratelimit_remaining";
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }

    location /upstream { return 200 $http_x_told; }
--- request
GET /t?k=a
--- response_body chomp
PASSED 4



=== TEST 7: a variable that was read before the decision is read again
--- http_config
    ratelimit_zone $arg_k zone=early:1m rate=5r/h;
--- config eval
"location /t { set \$early \$ratelimit_status\$ratelimit_remaining.;
               ratelimit zone=early; try_files /index.html =404;
               add_header E \$early; $::config }"
--- request
GET /t?k=a
--- response_headers
E: .
S: PASSED
V: early/5/4
B: shm



=== TEST 8: the variables survive a redirect, a named location, an error page
--- http_config
    ratelimit_zone $arg_k zone=survive:1m rate=5r/h;
--- config eval
"location /index { ratelimit zone=survive; index no.html index.html; }
 location /named { ratelimit zone=survive; try_files /no.html \@named; }
 location /error { ratelimit zone=survive; error_page 404 /page.html; }
 location /page.html { try_files /index.html =500; $::config }
 location /index/ { ratelimit zone=survive; alias html/; $::config }
 location \@named { try_files /index.html =404; $::config }"
--- request eval
["GET /index/?k=a", "GET /named?k=b", "GET /error?k=c"]
--- error_code eval
[200, 200, 404]
--- response_headers eval
[("S: PASSED\nV: survive/5/4\nB: shm") x 3]



=== TEST 9: subrequests see the decision about their client
--- http_config
    ratelimit_zone $arg_k zone=sub:1m rate=5r/h;
--- config
    location /t {
        ratelimit zone=sub;
        add_after_body /after;
        default_type text/html;
        try_files /index.html =404;
    }

    location /after {
        proxy_set_header X-Told "$ratelimit_status $ratelimit_remaining";
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }

    location /upstream { return 200 $http_x_told; }
--- request
GET /t?k=a
--- response_body_like: It works!</body></html>PASSED 4$



=== TEST 10: $ratelimit_client is the address in binary
--- http_config
    map $ratelimit_client $client { "~^\x7f\x00\x00\x01$" yes; default no; }
--- config
    location /t { add_header C $client; try_files /index.html =404; }
--- request
GET /t
--- response_headers
C: yes



=== TEST 11: values are those of the request, not of the one before it
--- http_config
    ratelimit_zone $arg_k zone=fresh:1m rate=5r/h;
--- config eval
"location /t { ratelimit zone=fresh; try_files /index.html =404; $::config }"
--- pipelined_requests eval
["GET /t?k=a", "GET /t?k=a", "GET /t", "GET /t?k=b"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
["V: fresh/5/4\nB: shm", "V: fresh/5/3\nB: shm", "V: //",
 "V: fresh/5/4\nB: shm"]
