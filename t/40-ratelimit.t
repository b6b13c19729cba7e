#!/usr/bin/perl

# The directive "ratelimit": which requests are counted, under which key, by
# which rate, together with which others, and at what price.  If this fails, a
# client is refused for what others did, or gets more than was agreed.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

run_tests();

__DATA__

=== TEST 1: a limit admits N requests of a key, and N of another one
--- http_config
    ratelimit_zone $arg_k zone=each:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=each;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a", "GET /t?k=a", "GET /t?k=a", "GET /t?k=b", "GET /t?k=b",
 "GET /t?k=b", "GET /t?k=a"]
--- error_code eval
[200, 200, 429, 200, 200, 429, 429]



=== TEST 2: all rates of a zone are enforced
--- http_config
    ratelimit_zone $arg_k zone=rates:1m rate=10r/d rate=2r/h;
    ratelimit_zone $arg_k zone=etar:1m rate=10r/h rate=2r/d;
--- config
    location /t {
        ratelimit zone=rates;
        try_files /index.html =404;
    }

    location /r {
        ratelimit zone=etar;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a", "GET /t?k=a", "GET /t?k=a",
 "GET /r?k=a", "GET /r?k=a", "GET /r?k=a"]
--- error_code eval
[200, 200, 429, 200, 200, 429]



=== TEST 3: every algorithm admits its N requests
--- http_config
    ratelimit_zone $arg_k zone=fw:1m rate=2r/d algorithm=fixed_window;
    ratelimit_zone $arg_k zone=sw:1m rate=2r/d algorithm=sliding_window;
    ratelimit_zone $arg_k zone=sw1:1m rate=2r/d algorithm=sliding_window
                   buckets=1;
    ratelimit_zone $arg_k zone=sw60:1m rate=2r/d algorithm=sliding_window
                   buckets=60;
    ratelimit_zone $arg_k zone=sl:1m rate=2r/d algorithm=sliding_log;
    ratelimit_zone $arg_k zone=tb:1m rate=2r/d algorithm=token_bucket;
    ratelimit_zone $arg_k zone=tbc:1m rate=9r/d algorithm=token_bucket
                   capacity=2;
    ratelimit_zone $arg_k zone=lb:1m rate=2r/d algorithm=leaky_bucket;
--- config
    location /fw { ratelimit zone=fw; try_files /index.html =404; }
    location /sw { ratelimit zone=sw; try_files /index.html =404; }
    location /sw1 { ratelimit zone=sw1; try_files /index.html =404; }
    location /sw60 { ratelimit zone=sw60; try_files /index.html =404; }
    location /sl { ratelimit zone=sl; try_files /index.html =404; }
    location /tb { ratelimit zone=tb; try_files /index.html =404; }
    location /tbc { ratelimit zone=tbc; try_files /index.html =404; }
    location /lb {
        ratelimit zone=lb burst=1 nodelay;
        try_files /index.html =404;
    }
--- request eval
[map { ("GET /$_?k=a") x 3 } qw(fw sw sw1 sw60 sl tb tbc lb)]
--- error_code eval
[(200, 200, 429) x 8]



=== TEST 4: two places that use a zone share its counters
--- http_config
    ratelimit_zone $arg_k zone=shared:1m rate=2r/h;
--- config
    location /a { ratelimit zone=shared; try_files /index.html =404; }
    location /b { ratelimit zone=shared; try_files /index.html =404; }
--- request eval
["GET /a?k=a", "GET /b?k=a", "GET /a?k=a", "GET /b?k=a"]
--- error_code eval
[200, 200, 429, 429]



=== TEST 5: two zones do not share counters, though their keys are equal
--- http_config
    ratelimit_zone $arg_k zone=one:1m rate=1r/h;
    ratelimit_zone $arg_k zone=two:1m rate=1r/h;
--- config
    location /a { ratelimit zone=one; try_files /index.html =404; }
    location /b { ratelimit zone=two; try_files /index.html =404; }
--- request eval
["GET /a?k=a", "GET /b?k=a", "GET /a?k=a", "GET /b?k=a"]
--- error_code eval
[200, 200, 429, 429]



=== TEST 6: a request refused by one limit is not charged by the others
--- http_config
    ratelimit_zone $arg_a zone=wide:1m rate=2r/h;
    ratelimit_zone $arg_b zone=tight:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=wide;
        ratelimit zone=tight;
        try_files /index.html =404;
    }

    location /r {
        ratelimit zone=tight;
        ratelimit zone=wide;
        try_files /index.html =404;
    }
--- request eval
["GET /t?a=1&b=1", "GET /t?a=1&b=1", "GET /t?a=1&b=1", "GET /t?a=1&b=2",
 "GET /t?a=1&b=3", "GET /t?a=2&b=3",
 "GET /r?a=3&b=4", "GET /r?a=3&b=4", "GET /r?a=3&b=4", "GET /r?a=3&b=5",
 "GET /r?a=3&b=6", "GET /r?a=4&b=6"]
--- error_code eval
[(200, 429, 429, 200, 429, 200) x 2]



=== TEST 7: a key of its own makes a limit that counts apart
--- http_config
    ratelimit_zone $arg_k zone=keyed:1m rate=1r/h;
--- config
    location /zone { ratelimit zone=keyed; try_files /index.html =404; }
    location /own {
        ratelimit zone=keyed key=$arg_u;
        try_files /index.html =404;
    }
--- request eval
["GET /zone?k=a", "GET /own?u=a", "GET /own?u=a&k=b", "GET /own?u=b",
 "GET /zone?k=a&u=c", "GET /zone?k=b&u=a"]
--- error_code eval
[200, 200, 429, 200, 429, 200]



=== TEST 8: a key is an expression of any variables and text
--- http_config
    ratelimit_zone "$arg_a-$request_method" zone=expression:1m rate=1r/h;
--- config
    location /t { ratelimit zone=expression; try_files /index.html =404; }
--- request eval
["GET /t?a=1", "GET /t?a=2", "HEAD /t?a=1", "GET /t?a=1", "HEAD /t?a=1"]
--- error_code eval
[200, 200, 200, 429, 429]



=== TEST 9: a rate of its own makes a limit that counts apart
--- http_config
    ratelimit_zone $arg_k zone=rated:1m rate=1r/h;
--- config
    location /zone { ratelimit zone=rated; try_files /index.html =404; }
    location /own {
        ratelimit zone=rated rate=2r/h rate=9r/d;
        try_files /index.html =404;
    }
--- request eval
["GET /own?k=a", "GET /zone?k=a", "GET /own?k=a", "GET /zone?k=a",
 "GET /own?k=a"]
--- error_code eval
[200, 200, 200, 429, 429]



=== TEST 10: a zone may leave its rate to its limits
--- http_config
    ratelimit_zone $arg_k zone=rateless:1m;
--- config
    location /one { ratelimit zone=rateless rate=1r/h;
                    try_files /index.html =404; }
    location /two { ratelimit zone=rateless rate=2r/h;
                    try_files /index.html =404; }
--- request eval
["GET /one?k=a", "GET /one?k=a", "GET /two?k=a", "GET /two?k=a", "GET /two?k=a"]
--- error_code eval
[200, 429, 200, 200, 429]



=== TEST 11: limits of the same name share counters, others do not
--- http_config
    ratelimit_zone $arg_k zone=named:1m rate=9r/h;
--- config
    location /a { ratelimit zone=named rate=1r/h name=both;
                  try_files /index.html =404; }
    location /b { ratelimit zone=named rate=1r/h name=both;
                  try_files /index.html =404; }
    location /c { ratelimit zone=named rate=1r/h name=other;
                  try_files /index.html =404; }
    location /d { ratelimit zone=named rate=1r/h;
                  try_files /index.html =404; }
    location /e { ratelimit zone=named rate=1r/h;
                  try_files /index.html =404; }
--- request eval
["GET /a?k=a", "GET /b?k=a", "GET /c?k=a", "GET /d?k=a", "GET /e?k=a",
 "GET /a?k=a", "GET /c?k=a", "GET /d?k=a", "GET /e?k=a"]
--- error_code eval
[200, 429, 200, 200, 200, 429, 429, 429, 429]



=== TEST 12: limits are inherited unless the block has some of its own
--- http_config
    ratelimit_zone $arg_k zone=outer:1m rate=1r/h;
    ratelimit_zone $arg_k zone=inner:1m rate=2r/h;
    ratelimit_zone $arg_j zone=third:1m rate=1r/h;

    ratelimit zone=outer;
--- config
    ratelimit zone=inner;
    ratelimit zone=third;

    location /inherited { try_files /index.html =404; }
    location /own { ratelimit zone=inner; try_files /index.html =404; }
--- request eval
["GET /inherited?k=a&j=1", "GET /inherited?k=a&j=1", "GET /own?k=a&j=1",
 "GET /inherited?k=a&j=2",
 "GET /inherited?k=b", "GET /inherited?k=b", "GET /inherited?k=b"]
--- error_code eval
[200, 429, 200, 429, 200, 200, 429]



=== TEST 13: limits of http reach every server and location
--- http_config
    ratelimit_zone $arg_k zone=global:1m rate=2r/h;

    ratelimit zone=global;
--- config
    location /a/ {
        location /a/b { try_files /index.html =404; }
        try_files /index.html =404;
    }
--- request eval
["GET /a/?k=a", "GET /a/b?k=a", "GET /index.html?k=a"]
--- error_code eval
[200, 200, 429]



=== TEST 14: "off" ends the inheritance
--- http_config
    ratelimit_zone $arg_k zone=ended:1m rate=1r/h;

    ratelimit zone=ended;
--- config
    location /on { try_files /index.html =404; }
    location /off { ratelimit off; try_files /index.html =404; }
--- request eval
["GET /on?k=a", "GET /on?k=a", "GET /off?k=a", "GET /off?k=a", "GET /on?k=a"]
--- error_code eval
[200, 429, 200, 200, 429]
--- raw_response_headers_unlike eval
["xxx", "xxx", "(?i)ratelimit", "(?i)ratelimit", "xxx"]



=== TEST 15: "if" spares requests for which it is empty or 0
--- http_config
    ratelimit_zone $arg_k zone=if:1m rate=1r/h;
--- config
    location /t { ratelimit zone=if if=$arg_if; try_files /index.html =404; }
--- request eval
["GET /t?k=a", "GET /t?k=a&if=", "GET /t?k=a&if=0", "GET /t?k=a&if=1",
 "GET /t?k=a&if=00", "GET /t?k=a&if=no", "GET /t?k=a"]
--- error_code eval
[200, 200, 200, 200, 429, 429, 200]



=== TEST 16: "if" spares from one limit only
--- http_config
    ratelimit_zone $arg_k zone=if1:1m rate=1r/h;
    ratelimit_zone $arg_k zone=if2:1m rate=3r/h;
--- config
    location /t {
        ratelimit zone=if1 if=$arg_if;
        ratelimit zone=if2;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a&if=1", "GET /t?k=a&if=1", "GET /t?k=a", "GET /t?k=a",
 "GET /t?k=a"]
--- error_code eval
[200, 429, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1", "X-RateLimit-Limit: 3",
 "X-RateLimit-Limit: 3", "X-RateLimit-Limit: 3"]



=== TEST 17: an empty key is not limited
--- http_config
    ratelimit_zone $arg_k zone=empty:1m rate=1r/h;
--- config
    location /t { ratelimit zone=empty; try_files /index.html =404; }
--- request eval
["GET /t", "GET /t?k=", "GET /t", "GET /t?k=a", "GET /t?k=a"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_headers eval
["!X-RateLimit-Limit", "!X-RateLimit-Limit", "!X-RateLimit-Limit",
 "X-RateLimit-Limit: 1", "X-RateLimit-Limit: 1"]



=== TEST 18: a cost is what a request takes
--- http_config
    ratelimit_zone $arg_k zone=cost:1m rate=6r/h;
--- config
    location /t { ratelimit zone=cost cost=$arg_c; try_files /index.html =404; }
    location /one { ratelimit zone=cost; try_files /index.html =404; }
    location /two { ratelimit zone=cost cost=2; try_files /index.html =404; }
--- request eval
["GET /t?k=a&c=3", "GET /t?k=a&c=4", "GET /two?k=a", "GET /two?k=a",
 "GET /one?k=a", "GET /one?k=a"]
--- error_code eval
[200, 429, 200, 429, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 3", "X-RateLimit-Remaining: 3",
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 19: a cost of 0 looks without counting, also where nothing is left
--- http_config
    ratelimit_zone $arg_k zone=look:1m rate=2r/h;
--- config
    location /t { ratelimit zone=look cost=$arg_c; try_files /index.html =404; }
--- request eval
["GET /t?k=a&c=0", "GET /t?k=a&c=1", "GET /t?k=a&c=0", "GET /t?k=a&c=000",
 "GET /t?k=a&c=1", "GET /t?k=a&c=0", "GET /t?k=a&c=1"]
--- error_code eval
[200, 200, 200, 200, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Remaining: 2", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]



=== TEST 20: a cost that is not a number counts as 1, as an empty one, and is logged
--- http_config
    ratelimit_zone $arg_k zone=nan:1m rate=7r/h;
--- config eval
CORE::join '', map { "location /$_ { ratelimit zone=nan cost=\$http_x_cost$_;
                              try_files /index.html =404; }\n" } 1 .. 8
--- request eval
[map { "GET /$_?k=a" } 1 .. 8]
--- more_headers eval
["X-Cost1: 2x", "X-Cost2: -1", "X-Cost3: 1.5", "X-Cost4: 0x10", "",
 "X-Cost6: \xff\x80\t\x7f" . "a" x 100, "X-Cost7: 1 1", "X-Cost8: ten"]
--- error_code eval
[(200) x 7, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 6, 5, 4, 3, 2, 1, 0, 0]
--- logged eval
[map({ qr/\[error\] .*cost "\$http_x_cost\d" of zone "nan" .*: "$_", 1 is c/ }
     "2x", "-1", "1\\.5", "0x10"), undef,
 map({ qr/\[error\] .*cost "\$http_x_cost\d" of zone "nan" .*: "$_", 1 is c/ }
     "\\?{4}a{28}", "1 1"),
 [qr/\[error\] .*cost .* "ten", 1 is counted/, qr/limiting requests/]]



=== TEST 21: a cost larger than the limit is refused, and for the whole window
--- http_config
    ratelimit_zone $arg_k zone=large:1m rate=5r/h;
    ratelimit_zone $arg_k zone=largelog:1m rate=5r/h algorithm=sliding_log;
    ratelimit_zone $arg_k zone=largetoken:1m rate=5r/h algorithm=token_bucket;
--- config
    location /t { ratelimit zone=large cost=$arg_c;
                  try_files /index.html =404; }
    location /log { ratelimit zone=largelog cost=$arg_c;
                    try_files /index.html =404; }
    location /token { ratelimit zone=largetoken cost=$arg_c;
                      try_files /index.html =404; }
--- request eval
[map { ("GET /$_?k=a&c=6", "GET /$_?k=a&c=99999999999999999999999999",
        "GET /$_?k=a&c=18446744073709551617", "GET /$_?k=a&c=5") }
     "t", "log", "token"]
--- error_code eval
[(429, 429, 429, 200) x 3]
--- raw_response_headers_like eval
[((map { "Retry-After: (3[6-9]\\d\\d|[4-9]\\d{3}|\\d{5,})\r\n" } 1 .. 3),
  "X-RateLimit-Remaining: 0") x 3]



=== TEST 22: limits of one request may have costs of their own
--- http_config
    ratelimit_zone $arg_k zone=count:1m rate=3r/h;
    ratelimit_zone $arg_k zone=units:1m rate=100r/h;
--- config
    location /t {
        ratelimit zone=count;
        ratelimit zone=units cost=$arg_c;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a&c=99", "GET /t?k=a&c=2", "GET /t?k=a&c=1", "GET /t?k=a&c=0",
 "GET /t?k=a&c=0"]
--- error_code eval
[200, 429, 200, 200, 429]
--- response_headers eval
["X-RateLimit-Limit: 100", "X-RateLimit-Limit: 100", "X-RateLimit-Limit: 100",
 "X-RateLimit-Limit: 3", "X-RateLimit-Limit: 3"]



=== TEST 23: a soft limit admits some more and says so
--- http_config
    ratelimit_zone $arg_k zone=soft:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=soft soft=75%;
        add_header X-Status $ratelimit_status always;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 5]
--- error_code eval
[200, 200, 200, 429, 429]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-Status: PASSED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-Status: SOFT\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0\n"
 . "!Retry-After\n!X-RateLimit-Retry-After",
 "X-Status: REJECTED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-Status: REJECTED\nX-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0"]



=== TEST 24: the same zone is hard in one place and soft in another
--- http_config
    ratelimit_zone $arg_k zone=halfsoft:1m rate=1r/h;
--- config
    location /hard { ratelimit zone=halfsoft; try_files /index.html =404; }
    location /soft { ratelimit zone=halfsoft soft=100%;
                     try_files /index.html =404; }
--- request eval
["GET /hard?k=a", "GET /hard?k=a", "GET /soft?k=a", "GET /soft?k=a"]
--- error_code eval
[200, 429, 200, 429]



=== TEST 25: keys of 64 KB that differ in a byte at either end are two keys
--- http_config
    ratelimit_zone $http_x_key zone=long:1m rate=1r/h;
    large_client_header_buffers 4 80k;
--- config
    location /t { ratelimit zone=long; try_files /index.html =404; }
--- request eval
[("GET /t") x 7]
--- more_headers eval
["X-Key: " . "k" x 65536, "X-Key: " . "k" x 65535 . "l",
 "X-Key: " . "l" . "k" x 65535, "X-Key: " . "k" x 65535,
 "X-Key: " . "k" x 65536, "X-Key: " . "k" x 65535 . "l",
 "X-Key: " . "l" . "k" x 65535]
--- error_code eval
[200, 200, 200, 200, 429, 429, 429]



=== TEST 26: keys may have any bytes, and each of them counts
--- http_config
    ratelimit_zone $http_x_key zone=bytes:1m rate=1r/h;
--- config
    location /t { ratelimit zone=bytes; try_files /index.html =404; }
--- request eval
[("GET /t") x 11]
--- more_headers eval
[map { "X-Key: $_" } "\xff", "\xfe", "\xff\xff", "\x80", "a\x01b", "a\x02b",
                     "\xff", "\xfe", "\xff\xff", "\x80", "a\x01b"]
--- error_code eval
[(200) x 6, (429) x 5]



=== TEST 27: a zero byte does not end a key, nor does the end of line
--- http_config
    set_real_ip_from 127.0.0.0/8;
    real_ip_header X-Client;

    ratelimit_zone $binary_remote_addr zone=zero:1m rate=1r/h;
    ratelimit_zone $uri zone=lines:1m rate=1r/h;
--- config
    location /t { ratelimit zone=zero; try_files /index.html =404; }
    location /l { ratelimit zone=lines; try_files /index.html =404; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /l%0Aa", "GET /l%0Ab",
 "GET /l%0Aa", "GET /l"]
--- more_headers eval
["X-Client: 127.0.0.8", "X-Client: 127.0.0.9", "X-Client: 127.0.8.0",
 "X-Client: 127.0.0.8", "", "", "", ""]
--- error_code eval
[200, 200, 200, 429, 200, 200, 429, 200]



=== TEST 28: a key is never in the log above the level of debugging
--- http_config
    ratelimit_zone $http_x_key zone=secret:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=secret cost=2;
        try_files /index.html =404;
    }
--- request
GET /t
--- more_headers
X-Key: do-not-tell
--- error_code: 429
--- error_log
limiting requests
--- no_error_log eval
[qr/\[(?:info|notice|warn|error|crit|alert|emerg)\] .*do-not-tell/,
 "[alert]", "[crit]", "[emerg]"]
