#!/usr/bin/perl

# Requests that are never limited: monitoring, the office, a partner.  If this fails,
# either they are refused, or every client gets through.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

run_tests();

__DATA__

=== TEST 1: a value that is neither empty nor 0 bypasses all limits
--- http_config
    ratelimit_zone $server_name zone=values:1m rate=5r/h;
--- config
    location /t {
        ratelimit zone=values;
        ratelimit_bypass $arg_free;
        add_header X-Status $ratelimit_status always;
        try_files /index.html =404;
    }
--- request eval
["GET /t", "GET /t?free=", "GET /t?free=0", "GET /t?free=1", "GET /t?free=no",
 "GET /t?free=00", "GET /t?other=1"]
--- error_code eval
[(200) x 7]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Remaining: 4",
 "X-Status: PASSED\nX-RateLimit-Remaining: 3",
 "X-Status: PASSED\nX-RateLimit-Remaining: 2",
 "X-Status: BYPASSED\n!X-RateLimit-Remaining",
 "X-Status: BYPASSED\n!X-RateLimit-Remaining",
 "X-Status: BYPASSED\n!X-RateLimit-Remaining",
 "X-Status: PASSED\nX-RateLimit-Remaining: 1"]



=== TEST 2: a request that bypasses passes where others are refused
--- http_config
    ratelimit_zone $server_name zone=passes:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=passes;
        ratelimit_bypass $arg_free;
        try_files /index.html =404;
    }
--- request eval
["GET /t", "GET /t", "GET /t?free=1", "GET /t"]
--- error_code eval
[200, 429, 200, 429]



=== TEST 3: one of several values is enough
--- http_config
    ratelimit_zone $server_name zone=several:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=several cost=2;
        ratelimit_bypass $arg_a "$arg_b$arg_c";
        try_files /index.html =404;
    }
--- request eval
["GET /t", "GET /t?a=1", "GET /t?b=1", "GET /t?c=1", "GET /t?a=0&b=0",
 "GET /t?b=0&c=0", "GET /t?a=0&c=1"]
--- error_code eval
[429, 200, 200, 200, 429, 200, 200]



=== TEST 4: a bypass may be a network
--- http_config
    geo $office { 127.0.0.0/8 1; default 0; }
    geo $elsewhere { 192.0.2.0/24 1; default 0; }
    ratelimit_zone $server_name zone=network:1m rate=1r/h;
--- config
    ratelimit zone=network cost=2;

    location /office { ratelimit_bypass $office; try_files /index.html =404; }
    location /elsewhere { ratelimit_bypass $elsewhere;
                          try_files /index.html =404; }
--- request eval
["GET /office", "GET /elsewhere"]
--- error_code eval
[200, 429]



=== TEST 5: a bypass is inherited, and replaced as a whole
--- http_config
    ratelimit_zone $server_name zone=inherited:1m rate=1r/h;
    ratelimit_bypass $arg_a;
--- config
    ratelimit zone=inherited cost=2;

    location /inherited { try_files /index.html =404; }
    location /own { ratelimit_bypass $arg_b; try_files /index.html =404; }
--- request eval
["GET /inherited?a=1", "GET /inherited?b=1", "GET /own?a=1", "GET /own?b=1"]
--- error_code eval
[200, 429, 429, 200]



=== TEST 6: where nothing is limited, nothing is bypassed
--- http_config
    ratelimit_zone $server_name zone=nothing:1m rate=1r/h;
--- config
    location /t { ratelimit zone=nothing; }
    location /off {
        ratelimit_bypass $arg_free;
        add_header X-Status "$ratelimit_status." always;
        try_files /index.html =404;
    }
--- request
GET /off?free=1
--- response_headers
X-Status: .



=== TEST 7: a request that bypasses us does not bypass limit_req
--- http_config
    limit_req_zone $server_name zone=theirs:1m rate=1r/m;
    ratelimit_zone $server_name zone=ours:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=ours cost=2;
        ratelimit_bypass 1;
        limit_req zone=theirs;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 2]
--- error_code eval
[200, 503]



=== TEST 8: an upstream's fields are not touched for a bypass
--- http_config
    ratelimit_zone $server_name zone=upstream:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=upstream;
        ratelimit_bypass $arg_free;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }
    location /upstream { add_header X-RateLimit-Limit 77; return 200; }
--- request
GET /t?free=1
--- response_headers
X-RateLimit-Limit: 77



=== TEST 9: a bypass by what authentication finds, beside a limit before it
--- http_config
    map $user $staff { admin 1; }
    map $user $plan { admin ""; other "1r/h"; default "9r/h"; }

    ratelimit_zone $server_name zone=before9:1m rate=3r/h;
    ratelimit_zone $user zone=after9:1m rate=$plan;
    ratelimit_zone $server_name zone=early9:1m rate=$plan;
--- config
    location /t {
        auth_request /auth;
        auth_request_set $user $upstream_http_x_user;
        ratelimit zone=before9;
        ratelimit zone=early9;
        ratelimit zone=after9 cost=2 after_auth;
        ratelimit_bypass $staff;
        add_header X-Status $ratelimit_status always;
        add_header X-Staff "$staff." always;
        try_files /index.html =404;
    }
    location = /auth { internal;
                       proxy_pass http://127.0.0.1:$server_port/name; }
    location /name { add_header X-User $http_x_name; return 204; }
--- request eval
[("GET /t") x 8]
--- more_headers eval
[("X-Name: admin") x 5, "X-Name: user", "X-Name: other", "X-Name: user"]
--- error_code eval
[(200) x 6, 429, 200]
--- response_headers eval
[("X-Status: BYPASSED\nX-Staff: 1.\n!X-RateLimit-Limit") x 5,
 "X-Status: PASSED\nX-Staff: .", "X-Status: REJECTED\nX-RateLimit-Limit: 1",
 "X-Status: PASSED\nX-RateLimit-Remaining: 1"]



=== TEST 10: the same where a redirect leads from that limit to authentication
--- http_config
    map $user $staff { admin 1; }
    map $user $plan { admin "9r/h"; default "1r/h"; }
    map $staff $guest { "" $server_name; }

    ratelimit_zone $server_name zone=before10:1m rate=9r/h;
    ratelimit_zone $server_name zone=early10:1m rate=$plan;
    ratelimit_zone $guest zone=guest10:1m rate=9r/h;
    ratelimit_zone $server_name zone=after10:1m rate=1r/h;
    ratelimit_zone $user zone=plan10:1m rate=$plan;
--- config
    location /t { ratelimit zone=before10; ratelimit_bypass $staff;
                  try_files /no /app; }
    location /key { ratelimit zone=guest10; try_files /no /app; }
    location /rate { ratelimit zone=early10; try_files /no /plan; }
    location /app { auth_request /auth;
                    auth_request_set $user $upstream_http_x_user;
                    ratelimit zone=after10 after_auth;
                    ratelimit_bypass $staff; try_files /index.html =404; }
    location /plan { auth_request /auth;
                     auth_request_set $user $upstream_http_x_user;
                     ratelimit zone=plan10 after_auth;
                     add_header X-Plan $plan;
                     try_files /index.html =404; }
    location = /auth { internal; ratelimit off;
                       proxy_pass http://127.0.0.1:$server_port/name; }
    location /name { add_header X-User $http_x_name; return 204; }
--- request eval
[("GET /t") x 5, "GET /rate", "GET /key"]
--- more_headers eval
[("X-Name: admin") x 3, ("X-Name: user") x 2, ("X-Name: admin") x 2]
--- error_code eval
[(200) x 4, 429, 200, 200]
--- response_headers eval
[("!X-RateLimit-Limit") x 3, ("X-RateLimit-Limit: 1") x 2,
 "X-Plan: 9r/h", "!X-RateLimit-Limit"]



=== TEST 11: what groups of a map's expression have matched is not forgotten
--- http_config
    map $http_authorization $token { "~^Bearer (?<secret>.+)$" $secret; }
    map $http_x_plan $plan { "~^(?<planned>[a-z]+)$" "9r/h"; }

    ratelimit_zone $token zone=token11:1m rate=9r/h;
    ratelimit_zone $server_name zone=plan11:1m rate=$plan;
    ratelimit_zone $server_name zone=after11:1m rate=9r/h;
--- config
    location /key { ratelimit zone=token11; add_header X-Secret $secret;
                    try_files /index.html =404; }
    location /plan { ratelimit zone=plan11; add_header X-Planned $planned;
                     try_files /index.html =404; }
    location /after { ratelimit zone=after11 after_auth; }
--- request eval
["GET /key", "GET /plan"]
--- more_headers
Authorization: Bearer abc
X-Plan: gold
--- response_headers eval
["X-Secret: abc", "X-Planned: gold"]
