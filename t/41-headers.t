#!/usr/bin/perl

# The fields that tell a client where it stands.  If this fails, well-behaved
# clients can't pace themselves: they retry too early, wait too long, or read
# two answers that contradict each other.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

run_tests();

__DATA__

=== TEST 1: the dialect "x" is the default
--- http_config
    ratelimit_zone $arg_k zone=x:1m rate=2r/h algorithm=token_bucket;
--- config
    location /t { ratelimit zone=x; try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 1800",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n"
 . "X-RateLimit-Reset: (3600|35\\d\\d)",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n"
 . "X-RateLimit-Reset: (3600|35\\d\\d)\nRetry-After: (1800|17\\d\\d)\n"
 . "X-RateLimit-Retry-After: (1800|17\\d\\d)"]
--- raw_response_headers_unlike eval
["(?i)Retry-After|\r\nRateLimit", "(?i)Retry-After|\r\nRateLimit",
 "(?i)\r\nRateLimit"]



=== TEST 2: the dialect "ietf" has the policies and what is left
--- http_config
    ratelimit_zone $arg_k zone=ietf:1m rate=1r/h algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=ietf;
        ratelimit_headers ietf;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 2]
--- error_code eval
[200, 429]
--- response_headers_like eval
["RateLimit-Policy: \"ietf\";q=1;w=3600\n"
 . "RateLimit: \"ietf\";r=0;t=3600\nRetry-After: ",
 "RateLimit-Policy: \"ietf\";q=1;w=3600\n"
 . "RateLimit: \"ietf\";r=0;t=(3600|35\\d\\d)\nRetry-After: (3600|35\\d\\d)"]
--- raw_response_headers_unlike eval
["(?i)X-RateLimit|Retry-After", "(?i)X-RateLimit"]



=== TEST 3: "ietf" lists all policies, and the tightest one speaks
--- http_config
    ratelimit_zone $arg_k zone=ip:1m rate=5r/m rate=250r/15m;
    ratelimit_zone $arg_j zone=user:1m rate=9r/d algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=ip;
        ratelimit zone=user;
        ratelimit zone=user rate=7r/h name=apart;
        ratelimit_headers ietf;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a&j=a", "GET /t?k=a", "GET /t?j=a"]
--- response_headers_like eval
['RateLimit-Policy: "ip";q=5;w=60, "ip";q=250;w=900, "user";q=9;w=86400, '
 . '"apart";q=7;w=3600' . "\n" . 'RateLimit: "ip";r=4;t=\d+',
 'RateLimit-Policy: "ip";q=5;w=60, "ip";q=250;w=900'
 . "\n" . 'RateLimit: "ip";r=3;t=\d+',
 'RateLimit-Policy: "user";q=9;w=86400, "apart";q=7;w=3600'
 . "\n" . 'RateLimit: "apart";r=5;t=\d+']
--- error_code eval
[200, 200, 200]



=== TEST 4: both dialects at once, Retry-After once
--- http_config
    ratelimit_zone $arg_k zone=both:1m rate=1r/h algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=both;
        ratelimit_headers x ietf;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 2]
--- error_code eval
[200, 429]
--- raw_response_headers_like eval
["(?=.*\r\nX-RateLimit-Limit: 1\r\n)(?=.*\r\nX-RateLimit-Remaining: 0\r\n)"
 . "(?=.*\r\nX-RateLimit-Reset: 3600\r\n)"
 . "(?=.*\r\nRateLimit-Policy: \"both\";q=1;w=3600\r\n)"
 . "(?=.*\r\nRateLimit: \"both\";r=0;t=3600"
 . ";ngx-limit=1;ngx-remaining=0;ngx-reset=3600\r\n)",
 "(?=.*\r\nX-RateLimit-Retry-After: \\d+\r\n)"
 . "(?=.*\r\nRateLimit-Policy: \"both\";q=1;w=3600\r\n)"
 . "(?=.*\r\nRetry-After: \\d+\r\n)"]
--- raw_response_headers_unlike eval
["Retry-After", "\r\nRetry-After.*\r\nRetry-After"]



=== TEST 5: "off" sends none of them, also on refusal
--- http_config
    ratelimit_zone $arg_k zone=off:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=off;
        ratelimit_headers off;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 2]
--- error_code eval
[200, 429]
--- raw_response_headers_unlike eval
["(?i)ratelimit", "(?i)ratelimit"]



=== TEST 6: the dialect is inherited, and replaced as a whole
--- http_config
    ratelimit_zone $arg_k zone=dialect:1m rate=9r/h;
    ratelimit_headers ietf;
--- config
    ratelimit zone=dialect;

    location /inherited { try_files /index.html =404; }
    location /x { ratelimit_headers x; try_files /index.html =404; }
    location /off { ratelimit_headers off; try_files /index.html =404; }
--- request eval
["GET /inherited?k=a", "GET /x?k=a", "GET /off?k=a"]
--- response_headers_like eval
["RateLimit: .+\nX-RateLimit-Limit: ", "RateLimit: \nX-RateLimit-Limit: 9",
 "RateLimit: \nX-RateLimit-Limit: "]
--- error_code eval
[200, 200, 200]



=== TEST 7: reset=epoch is a time, not a duration
--- http_config
    ratelimit_zone $arg_k zone=epoch:1m rate=1r/h algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=epoch;
        ratelimit_headers x ietf reset=epoch;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 2]
--- error_code eval
[200, 429]
--- response_headers_like eval
my $soon = CORE::join '|', map { time + 3600 + $_ } 0 .. 300;

["X-RateLimit-Reset: ($soon)\nRateLimit: .*;t=3600;.*;ngx-reset=3600",
 "X-RateLimit-Reset: ($soon)\nRateLimit: .*;t=(3600|35\\d\\d);.*\n"
 . "X-RateLimit-Retry-After: (3600|35\\d\\d)\nRetry-After: (3600|35\\d\\d)"]



=== TEST 8: reset=delta is the default said aloud
--- http_config
    ratelimit_zone $arg_k zone=delta:1m rate=1r/h algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=delta;
        ratelimit_headers x reset=delta;
        try_files /index.html =404;
    }
--- request
GET /t?k=a
--- response_headers
X-RateLimit-Reset: 3600



=== TEST 9: every algorithm tells when it is whole again
--- http_config
    ratelimit_zone $arg_k zone=fw:1m rate=2r/h algorithm=fixed_window;
    ratelimit_zone $arg_k zone=sw:1m rate=2r/h;
    ratelimit_zone $arg_k zone=sl:1m rate=2r/h algorithm=sliding_log;
    ratelimit_zone $arg_k zone=lb:1m rate=2r/h algorithm=leaky_bucket;
--- config
    location /fw { ratelimit zone=fw; try_files /index.html =404; }
    location /sw { ratelimit zone=sw; try_files /index.html =404; }
    location /sl { ratelimit zone=sl; try_files /index.html =404; }
    location /lb { ratelimit zone=lb burst=4 nodelay;
                   try_files /index.html =404; }
--- request eval
["GET /fw?k=a", "GET /sw?k=a", "GET /sl?k=a", "GET /lb?k=a"]
--- error_code eval
[200, 200, 200, 200]
--- response_headers_like eval
["X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\n"
 . "X-RateLimit-Reset: ([1-9]|[1-9]\\d\\d?|[12]\\d{3}|3[0-5]\\d\\d|3600)",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\n"
 . "X-RateLimit-Reset: (3[2-9]\\d\\d)",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 3600",
 "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 4\nX-RateLimit-Reset: 1800"]



=== TEST 10: Retry-After is rounded up to whole seconds, and never 0
--- http_config
    ratelimit_zone $arg_k zone=round:1m rate=1r/s algorithm=sliding_log;
    ratelimit_zone $arg_k zone=bucket:1m rate=2r/s algorithm=token_bucket;
--- config
    location /t { ratelimit zone=round; try_files /index.html =404; }
    location /b { ratelimit zone=bucket cost=2; try_files /index.html =404; }
--- pipelined_requests eval
["GET /t?k=a", "GET /t?k=a", "GET /b?k=a", "GET /b?k=a"]
--- error_code eval
[200, 429, 200, 429]
--- response_headers eval
["!Retry-After", "Retry-After: 1\nX-RateLimit-Retry-After: 1",
 "!Retry-After", "Retry-After: 1\nX-RateLimit-Retry-After: 1"]



=== TEST 11: the fields are on a 404
--- http_config
    ratelimit_zone $arg_k zone=e404:1m rate=2r/h;
--- config
    location /t { ratelimit zone=e404; }
--- request
GET /t/nothing-here?k=a
--- error_code: 404
--- response_headers
X-RateLimit-Limit: 2
X-RateLimit-Remaining: 1



=== TEST 12: the fields are on a 304
--- http_config
    ratelimit_zone $arg_k zone=e304:1m rate=2r/h;
--- config
    location /t { ratelimit zone=e304; }
--- user_files
>>> t.txt 201801010000.00
text
--- request
GET /t.txt?k=a
--- more_headers
If-Modified-Since: Mon, 01 Jan 2018 00:00:00 GMT
--- error_code: 304
--- response_headers
X-RateLimit-Limit: 2
X-RateLimit-Remaining: 1



=== TEST 13: the fields are on a part of a file
--- http_config
    ratelimit_zone $arg_k zone=e206:1m rate=2r/h;
--- config
    location /t { ratelimit zone=e206; }
--- user_files
>>> t.txt
text
--- request
GET /t.txt?k=a
--- more_headers
Range: bytes=1-2
--- error_code: 206
--- response_body chomp
ex
--- response_headers
X-RateLimit-Limit: 2



=== TEST 14: the fields are on HEAD, without a body
--- http_config
    ratelimit_zone $arg_k zone=head:1m rate=2r/h;
--- config
    location /t { ratelimit zone=head; try_files /index.html =404; }
--- request
HEAD /t?k=a
--- response_body
--- response_headers
X-RateLimit-Limit: 2
X-RateLimit-Remaining: 1



=== TEST 15: the fields are on the redirect of a directory
--- http_config
    ratelimit_zone $arg_k zone=e301:1m rate=2r/h;
--- config
    location /d { ratelimit zone=e301; }
--- user_files
>>> d/t.txt
text
--- request
GET /d?k=a
--- error_code: 301
--- response_headers
X-RateLimit-Limit: 2



=== TEST 16: the fields are on error pages, once
--- http_config
    ratelimit_zone $arg_k zone=page:1m rate=2r/h;
--- config
    error_page 404 /index.html;
    error_page 403 @named;

    location /t { ratelimit zone=page; }
    location /n { ratelimit zone=page; deny all; }
    location @named { try_files /index.html =404; }
--- request eval
["GET /t?k=a", "GET /n?k=b"]
--- error_code eval
[404, 403]
--- response_body_like eval
["It works", "It works"]
--- response_headers eval
[("X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1") x 2]



=== TEST 17: the fields are on 5xx of a proxy that finds no upstream
--- http_config
    ratelimit_zone $arg_k zone=e502:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=e502;
        proxy_pass http://127.0.0.1:1;
    }
--- request
GET /t?k=a
--- error_code: 502
--- response_headers
X-RateLimit-Limit: 2
X-RateLimit-Remaining: 1



=== TEST 18: the fields are on what access rules refuse
--- http_config
    ratelimit_zone $arg_k zone=e403:1m rate=2r/h;
--- config
    location /t { ratelimit zone=e403; deny all; }
--- request
GET /t?k=a
--- error_code: 403
--- response_headers
X-RateLimit-Limit: 2
X-RateLimit-Remaining: 1



=== TEST 19: what an upstream says of its own limits is replaced
--- http_config
    ratelimit_zone $arg_k zone=replaced:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=replaced;
        ratelimit_headers x ietf;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }

    location /upstream {
        ratelimit off;
        add_header x-ratelimit-limit 77 always;
        add_header X-RateLimit-Remaining 77 always;
        add_header X-Ratelimit-Reset 77 always;
        add_header RATELIMIT 77 always;
        add_header RateLimit-Policy 77 always;
        return 200;
    }
--- request
GET /t?k=a
--- raw_response_headers_like eval
"(?=.*\r\nX-RateLimit-Limit: 2\r\n)(?=.*\r\nX-RateLimit-Remaining: 1\r\n)"
. "(?=.*\r\nRateLimit-Policy: \"replaced\")(?=.*\r\nRateLimit: \"replaced\")"
--- raw_response_headers_unlike: (?i): 77\b|X-RateLimit-Reset.*X-RateLimit-Reset



=== TEST 20: what an upstream says in fields that are not ours is kept
--- http_config
    ratelimit_zone $arg_k zone=kept:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=kept;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }

    location /upstream {
        add_header Retry-After 77 always;
        add_header RateLimit 78 always;
        add_header X-RateLimit-Limit-Other 79 always;
        add_header X-RateLimit 80 always;
        return 503;
    }
--- request
GET /t?k=a
--- error_code: 503
--- response_headers
Retry-After: 77
RateLimit: 78
X-RateLimit-Limit-Other: 79
X-RateLimit: 80
X-RateLimit-Limit: 2



=== TEST 21: "off" leaves an upstream's fields alone
--- http_config
    ratelimit_zone $arg_k zone=alone:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=alone;
        ratelimit_headers off;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }

    location /upstream {
        add_header X-RateLimit-Limit 77;
        return 204;
    }
--- request
GET /t?k=a
--- error_code: 204
--- response_headers
X-RateLimit-Limit: 77



=== TEST 22: names of limits are quoted as structured fields want it
--- http_config
    ratelimit_zone $arg_k zone=quoted:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=quoted rate=3r/h "name=a\"b\\c";
        ratelimit_headers ietf;
        try_files /index.html =404;
    }
--- request
GET /t?k=a
--- response_headers
RateLimit-Policy: "a\"b\\c";q=3;w=3600



=== TEST 23: a limit that counts apart is called by its name, or its zone
--- http_config
    ratelimit_zone $arg_k zone=called:1m rate=2r/h;
--- config
    ratelimit_headers ietf;

    location /named {
        ratelimit zone=called rate=3r/h name=login;
        try_files /index.html =404;
    }
    location ~ ^/(regex|secret)$ {
        ratelimit zone=called rate=4r/h;
        try_files /index.html =404;
    }
--- request eval
["GET /named?k=a", "GET /regex?k=a"]
--- response_headers eval
["RateLimit-Policy: \"login\";q=3;w=3600",
 "RateLimit-Policy: \"called\";q=4;w=3600"]



=== TEST 24: when refused, the violated limit with the longest wait speaks
--- http_config
    ratelimit_zone $arg_a zone=hour:1m rate=1r/h algorithm=token_bucket;
    ratelimit_zone $arg_b zone=day:1m rate=1r/d algorithm=token_bucket;
    ratelimit_zone $arg_c zone=free:1m rate=9r/d algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=free;
        ratelimit zone=hour;
        ratelimit zone=day;
        ratelimit_headers ietf;
        try_files /index.html =404;
    }
--- request eval
["GET /t?a=1&b=1&c=1", "GET /t?a=1&b=1&c=1", "GET /t?a=1&b=2&c=1",
 "GET /t?a=2&c=1"]
--- error_code eval
[200, 429, 429, 200]
--- response_headers_like eval
["RateLimit: \"(hour|day)\";r=0;t=\\d+",
 "RateLimit: \"day\";r=0;t=\\d+\nRetry-After: 86[34]\\d\\d",
 "RateLimit: \"hour\";r=0;t=\\d+\nRetry-After: 3[56]\\d\\d",
 "RateLimit: \"hour\";r=0;t=\\d+"]



=== TEST 25: the fields are on what a filter refuses, once
--- http_config
    ratelimit_zone $arg_k zone=e412:1m rate=9r/h;
--- config
    location /t { ratelimit zone=e412; }
    location /p { ratelimit zone=e412; error_page 412 /index.html; }
--- user_files
>>> t.txt
text
>>> p.txt
text
--- request eval
["GET /t.txt?k=a", "GET /p.txt?k=a", "GET /t.txt?k=a"]
--- more_headers eval
['If-Match: "other"', 'If-Match: "other"', 'Range: bytes=1000-']
--- error_code eval
[412, 412, 416]
--- response_headers eval
["X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 8",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 7",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 6"]



=== TEST 26: the limit that admits the fewest further requests speaks
--- http_config
    ratelimit_zone $arg_k zone=few:1m rate=3r/h;
    ratelimit_zone $arg_k zone=dear:1m rate=100r/h;
    ratelimit_zone $arg_k zone=looked:1m rate=100r/h;
--- config
    location /t {
        ratelimit zone=few;
        ratelimit zone=dear cost=$arg_c;
        ratelimit zone=looked cost=0;
        ratelimit_headers x ietf;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a&c=60", "GET /t?k=b&c=34", "GET /t?k=c&c=33", "GET /t?k=d&c=99",
 "GET /t?k=e&c=1"]
--- response_headers_like eval
["RateLimit: \"dear\";r=40;.*\nX-RateLimit-Remaining: 40",
 "RateLimit: \"dear\";r=66;.*", "RateLimit: \"few\";r=2;.*",
 "RateLimit: \"dear\";r=1;.*", "RateLimit: \"few\";r=2;.*"]



=== TEST 27: a limit that admits any number of them does not
--- http_config
    ratelimit_zone $arg_k zone=seen27:1m rate=1r/h;
    ratelimit_zone $arg_k zone=left27:1m rate=5r/h;
--- config
    location /take { ratelimit zone=seen27; empty_gif; }
    location /t { ratelimit zone=seen27 cost=0; ratelimit zone=left27;
                  ratelimit_headers ietf; empty_gif; }
    location /look { ratelimit zone=left27 cost=0; ratelimit zone=seen27 cost=0;
                     ratelimit_headers ietf; empty_gif; }
--- request eval
["GET /take?k=a", "GET /t?k=a", "GET /look?k=a"]
--- response_headers_like eval
["", "RateLimit: \"left27\";r=4;.*", "RateLimit: \"seen27\";r=0;.*"]



=== TEST 28: an upstream's wait is not that of an admitted request
--- http_config
    ratelimit_zone $arg_k zone=wait:1m rate=2r/h;
--- config
    location /x { ratelimit zone=wait;
                  proxy_pass http://127.0.0.1:$server_port/upstream; }
    location /ietf { ratelimit zone=wait; ratelimit_headers ietf;
                     proxy_pass http://127.0.0.1:$server_port/upstream; }
    location /upstream {
        add_header X-RateLimit-Retry-After 77 always;
        add_header Retry-After 78 always;
        return 503;
    }
--- request eval
["GET /x?k=a", "GET /ietf?k=a"]
--- error_code eval
[503, 503]
--- response_headers eval
["!X-RateLimit-Retry-After\nRetry-After: 78",
 "X-RateLimit-Retry-After: 77\nRetry-After: 78"]



=== TEST 29: the quota of a bucket is what may be used at once
--- http_config
    ratelimit_zone $arg_k zone=leaky28:1m rate=1r/s algorithm=leaky_bucket;
    ratelimit_zone $arg_k zone=slow28:1m rate=7r/m algorithm=leaky_bucket;
    ratelimit_zone $arg_k zone=token28:1m rate=2r/h algorithm=token_bucket
                   capacity=6;
    ratelimit_zone $arg_k zone=plain28:1m rate=2r/h algorithm=token_bucket;
--- config
    ratelimit_headers ietf;

    location /burst { ratelimit zone=leaky28 burst=9 nodelay;
                      try_files /index.html =404; }
    location /leaky { ratelimit zone=leaky28 name=alone;
                      try_files /index.html =404; }
    location /slow { ratelimit zone=slow28; try_files /index.html =404; }
    location /token { ratelimit zone=token28; try_files /index.html =404; }
    location /plain { ratelimit zone=plain28; try_files /index.html =404; }
--- request eval
[map { "GET /$_?k=a" } qw(burst leaky slow token plain)]
--- response_headers_like eval
["RateLimit-Policy: \"leaky28\";q=10;w=10\nRateLimit: \"leaky28\";r=9;.*",
 "RateLimit-Policy: \"alone\";q=1;w=1\nRateLimit: \"alone\";r=0;.*",
 "RateLimit-Policy: \"slow28\";q=1;w=9\nRateLimit: \"slow28\";r=0;.*",
 "RateLimit-Policy: \"token28\";q=6;w=10800\nRateLimit: \"token28\";r=5;.*",
 "RateLimit-Policy: \"plain28\";q=2;w=3600\nRateLimit: \"plain28\";r=1;.*"]



=== TEST 30: a stage whose only limit has a malformed rate has no policy
--- http_config
    ratelimit_zone $arg_k zone=malformed29:1m rate=$arg_r;
    ratelimit_zone $arg_k zone=fine29:1m rate=2r/h;
--- config
    location /t { ratelimit zone=malformed29; ratelimit zone=fine29 after_auth;
                  ratelimit_headers ietf; try_files /index.html =404; }
--- request
GET /t?k=a&r=x
--- response_headers_like
RateLimit-Policy: "fine29";q=2;w=3600
RateLimit: "fine29";r=1;.*
