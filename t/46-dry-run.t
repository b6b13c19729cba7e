#!/usr/bin/perl

# The dry run: everything is decided, counted and logged, and no request is refused.
# If this fails, trying out a limit on a live site refuses its customers, or
# tells the operator something else than what would happen.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

run_tests();

__DATA__

=== TEST 1: what would be refused passes, and it is logged
--- http_config
    ratelimit_zone $arg_k zone=dry:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=dry;
        ratelimit_dry_run on;
        add_header X-Status $ratelimit_status always;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 4]
--- error_code eval
[200, 200, 200, 200]
--- response_headers eval
["X-Status: PASSED", "X-Status: PASSED", "X-Status: REJECTED_DRY_RUN",
 "X-Status: REJECTED_DRY_RUN"]
--- response_body_like eval
[("It works") x 4]
--- logged eval
[undef, undef,
 (qr/\[error\]\ .*\ limiting\ requests,\ dry\ run,\ excess:\ \d+\.\d{3}
     \ by\ zone\ "dry",\ client:\ /x) x 2]



=== TEST 2: the fields tell where the client stands, without Retry-After
--- http_config
    ratelimit_zone $arg_k zone=fields:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=fields cost=$arg_c;
        ratelimit_dry_run on;
        ratelimit_headers x ietf;
        add_header X-Retry "$ratelimit_retry_after." always;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a&c=2", "GET /t?k=a&c=1"]
--- error_code eval
[200, 200]
--- response_headers eval
[("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\nX-Retry: .\n"
  . "!Retry-After\n!X-RateLimit-Retry-After") x 2]



=== TEST 3: what would be refused is not charged either
--- http_config
    ratelimit_zone $arg_a zone=a:1m rate=1r/h;
    ratelimit_zone $arg_b zone=b:1m rate=2r/h;
--- config
    ratelimit zone=a;
    ratelimit zone=b;

    location /dry { ratelimit_dry_run on; try_files /index.html =404; }
    location /wet { try_files /index.html =404; }
--- request eval
["GET /dry?a=1&b=1", "GET /dry?a=1&b=1", "GET /dry?a=1&b=1", "GET /wet?b=1",
 "GET /wet?b=1", "GET /wet?a=1"]
--- error_code eval
[200, 200, 200, 200, 429, 429]



=== TEST 4: a dry run is inherited, and ended where it is off
--- http_config
    ratelimit_zone $arg_k zone=inherited:1m rate=1r/h;
    ratelimit_dry_run on;
--- config
    ratelimit zone=inherited cost=2;

    location /dry { try_files /index.html =404; }
    location /wet { ratelimit_dry_run off; try_files /index.html =404; }
--- request eval
["GET /dry?k=a", "GET /wet?k=a"]
--- error_code eval
[200, 429]



=== TEST 5: a dry run of one place holds on the way to another
--- http_config
    ratelimit_zone $server_name zone=way:1m rate=1r/h;
--- config
    location /dry { ratelimit zone=way cost=2; ratelimit_dry_run on;
                    try_files /no @wet; }
    location @wet { ratelimit zone=way cost=2; try_files /index.html =404; }
--- request
GET /dry
--- error_code: 200



=== TEST 6: what would be refused reaches the upstream, and other limiters
--- http_config
    limit_req_zone $server_name zone=theirs:1m rate=1r/m;
    ratelimit_zone $server_name zone=upstream:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=upstream cost=2;
        ratelimit_dry_run on;
        limit_req zone=theirs;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }
    location /upstream { return 200 reached; }
--- request eval
[("GET /t") x 2]
--- error_code eval
[200, 503]
--- response_body_like eval
["reached", "503"]



=== TEST 7: the level of the log is the same as for true refusals
--- http_config
    ratelimit_zone $server_name zone=level:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=level cost=2;
        ratelimit_dry_run on;
        ratelimit_log_level notice;
        try_files /index.html =404;
    }
--- request
GET /t
--- logged eval
[qr/\[notice\] .* limiting requests, dry run, excess: /]



=== TEST 8: a soft limit that is exceeded passes as soft
--- http_config
    ratelimit_zone $server_name zone=soft:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=soft soft=100%;
        ratelimit_dry_run on;
        add_header X-Status $ratelimit_status always;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-Status: PASSED", "X-Status: SOFT", "X-Status: REJECTED_DRY_RUN"]
--- logged eval
[undef, undef, qr/limiting requests, dry run/]



=== TEST 9: what was charged in earnest stays so if a dry run refuses later
--- http_config
    ratelimit_zone $arg_k zone=earnest:1m rate=3r/h;
    ratelimit_zone $arg_k zone=tried:1m rate=1r/h;
--- config
    add_header X-Status $ratelimit_status always;

    location /direct { ratelimit zone=earnest; try_files /no @after; }
    location /long { ratelimit zone=earnest cost=1; try_files /no @after; }
    location /after { ratelimit zone=earnest after_auth;
                      try_files /no @before; }
    location @after { ratelimit zone=tried after_auth;
                      ratelimit_dry_run on; try_files /index.html =404; }
    location @before { ratelimit zone=tried; ratelimit_dry_run on;
                       try_files /index.html =404; }
--- request eval
[map { ("GET /$_?k=$_") x 5 } qw(direct long after)]
--- error_code eval
[((200) x 3, 429, 429) x 3]
--- response_headers eval
[("X-Status: PASSED", ("X-Status: REJECTED_DRY_RUN") x 2,
  ("X-Status: REJECTED") x 2) x 3]



=== TEST 10: what a dry run charged is refunded by a later refusal
--- http_config
    ratelimit_zone $arg_k zone=dry_first:1m rate=3r/h;
    ratelimit_zone $arg_k zone=second:1m rate=1r/h;
--- config
    location /direct { ratelimit zone=dry_first; ratelimit_dry_run on;
                       try_files /no @wet; }
    location /wet { ratelimit zone=dry_first cost=1; ratelimit_dry_run on;
                    try_files /no @wet; }
    location /dry { ratelimit zone=dry_first; ratelimit zone=second after_auth;
                    ratelimit_dry_run on; try_files /index.html =404; }
    location @wet { ratelimit zone=second after_auth;
                    try_files /index.html =404; }
    location /left { ratelimit zone=dry_first; try_files /index.html =404; }
--- request eval
[map { (("GET /$_?k=$_") x 4, ("GET /left?k=$_") x 3) } qw(direct wet dry)]
--- error_code eval
[(200, 429, 429, 429, 200, 200, 429) x 2, (200) x 4, 200, 200, 429]



=== TEST 11: what a dry run did not charge is not refunded by an outcome
--- http_config
    ratelimit_zone $arg_k zone=outcome:1m rate=2r/h;
    ratelimit_zone $arg_k zone=passes:1m rate=99r/h;
--- config
    location /wet { ratelimit zone=outcome; try_files /index.html =404; }
    location /dry { ratelimit zone=outcome count=401;
                    ratelimit zone=passes after_auth;
                    ratelimit_dry_run on; try_files /index.html =404; }
--- request eval
["GET /wet?k=a", "GET /wet?k=a", "GET /dry?k=a", "GET /dry?k=a",
 "GET /wet?k=a", "GET /wet?k=b", "GET /dry?k=b", "GET /wet?k=b",
 "GET /wet?k=b"]
--- error_code eval
[200, 200, 200, 200, 429, 200, 200, 200, 429]
