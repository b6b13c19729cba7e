#!/usr/bin/perl

# The soft limit: so many more are admitted, with a status, by every algorithm,
# and not one beyond.  If this fails, an operator is more or less generous than
# was configured, or can't find the clients that need a larger plan.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';


# fields of answers: so many passed, so many soft, so many refused

sub answers {
    my ($limit, $passed, $soft, $refused) = @_;

    my $head = "X-RateLimit-Limit: $limit\n";

    return (
        map({ "X-Status: PASSED\n${head}X-RateLimit-Remaining: "
              . ($limit - $_) . "\n!Retry-After\n!X-RateLimit-Retry-After" }
            1 .. $passed),
        ("X-Status: SOFT\n${head}X-RateLimit-Remaining: 0\n"
         . "!Retry-After\n!X-RateLimit-Retry-After") x $soft,
        ("X-Status: REJECTED\n${head}X-RateLimit-Remaining: 0") x $refused,
    );
}


# "--- lines" are what the access log says in the end

add_response_body_check(sub {
    my ($block, undef, $i) = @_;

    return if !defined $block->lines || $i < $#{ $block->request };

    ok(Ratelimit::said('access', $_), $block->name . " - $_")
        for @{ $block->lines };
});


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: every algorithm goes half as far again, and no further
--- http_config
    ratelimit_zone $arg_k zone=fw:1m rate=4r/366d algorithm=fixed_window;
    ratelimit_zone $arg_k zone=sw:1m rate=4r/366d algorithm=sliding_window;
    ratelimit_zone $arg_k zone=sw1:1m rate=4r/366d algorithm=sliding_window
                   buckets=1;
    ratelimit_zone $arg_k zone=sw60:1m rate=4r/366d algorithm=sliding_window
                   buckets=60;
    ratelimit_zone $arg_k zone=sl:1m rate=4r/366d algorithm=sliding_log;
    ratelimit_zone $arg_k zone=tb:1m rate=4r/366d algorithm=token_bucket;
    ratelimit_zone $arg_k zone=tbc:1m rate=1r/366d algorithm=token_bucket
                   capacity=4;
    ratelimit_zone $arg_k zone=lb:1m rate=1r/366d algorithm=leaky_bucket;

    add_header X-Status $ratelimit_status always;
--- config
    location /fw { ratelimit zone=fw soft=50%; try_files /index.html =404; }
    location /sw { ratelimit zone=sw soft=50%; try_files /index.html =404; }
    location /sw1 { ratelimit zone=sw1 soft=50%; try_files /index.html =404; }
    location /sw60 { ratelimit zone=sw60 soft=50%; try_files /index.html =404; }
    location /sl { ratelimit zone=sl soft=50%; try_files /index.html =404; }
    location /tb { ratelimit zone=tb soft=50%; try_files /index.html =404; }
    location /tbc { ratelimit zone=tbc soft=50%; try_files /index.html =404; }
    location /lb {
        ratelimit zone=lb burst=3 nodelay soft=50%;
        try_files /index.html =404;
    }
--- request eval
[map { ("GET /$_?k=a") x 8 } qw(fw sw sw1 sw60 sl tb tbc lb)]
--- error_code eval
[((200) x 6, (429) x 2) x 8]
--- response_headers eval
[(::answers(4, 4, 2, 2)) x 8]



=== TEST 2: the share is rounded down: 3.99 is 3, 4.00 is 4
--- http_config
    ratelimit_zone $arg_k zone=fw3:1m rate=3r/366d algorithm=fixed_window;
    ratelimit_zone $arg_k zone=sw3:1m rate=3r/366d algorithm=sliding_window;
    ratelimit_zone $arg_k zone=sl3:1m rate=3r/366d algorithm=sliding_log;
    ratelimit_zone $arg_k zone=tb3:1m rate=3r/366d algorithm=token_bucket;
    ratelimit_zone $arg_k zone=lb3:1m rate=1r/366d algorithm=leaky_bucket;

    add_header X-Status $ratelimit_status always;
--- config
    location /fw33 { ratelimit zone=fw3 soft=33%; try_files /index.html =404; }
    location /sw33 { ratelimit zone=sw3 soft=33%; try_files /index.html =404; }
    location /sl33 { ratelimit zone=sl3 soft=33%; try_files /index.html =404; }
    location /tb33 { ratelimit zone=tb3 soft=33%; try_files /index.html =404; }
    location /lb33 { ratelimit zone=lb3 soft=33% burst=2 nodelay;
                     try_files /index.html =404; }

    location /fw34 { ratelimit zone=fw3 soft=34%; try_files /index.html =404; }
    location /sw34 { ratelimit zone=sw3 soft=34%; try_files /index.html =404; }
    location /sl34 { ratelimit zone=sl3 soft=34%; try_files /index.html =404; }
    location /tb34 { ratelimit zone=tb3 soft=34%; try_files /index.html =404; }
    location /lb34 { ratelimit zone=lb3 soft=34% burst=2 nodelay;
                     try_files /index.html =404; }
--- request eval
[map { my $share = $_;
       map { ("GET /$_$share?k=$share") x 5 } qw(fw sw sl tb lb) } 33, 34]
--- error_code eval
[(200, 200, 200, 429, 429) x 5, (200, 200, 200, 200, 429) x 5]
--- response_headers eval
[(::answers(3, 3, 0, 2)) x 5, (::answers(3, 3, 1, 1)) x 5]



=== TEST 3: ten times as many again is the most, and too little is nothing
--- http_config
    ratelimit_zone $arg_k zone=most:1m rate=1r/366d;

    add_header X-Status $ratelimit_status always;
--- config
    location /most { ratelimit zone=most soft=1000%;
                     try_files /index.html =404; }
    location /none { ratelimit zone=most soft=99%; try_files /index.html =404; }
--- request eval
[("GET /most?k=a") x 12, ("GET /none?k=b") x 2]
--- error_code eval
[(200) x 11, 429, 200, 429]
--- response_headers eval
[::answers(1, 1, 10, 1), ::answers(1, 1, 0, 1)]



=== TEST 4: hard is something else: where it is shared, each has its own end
--- http_config
    ratelimit_zone $arg_k zone=both:1m rate=2r/366d;

    add_header X-Status $ratelimit_status always;
--- config
    location /hard { ratelimit zone=both; try_files /index.html =404; }
    location /soft { ratelimit zone=both soft=100%;
                     try_files /index.html =404; }
--- request eval
["GET /hard?k=a", "GET /soft?k=a", "GET /hard?k=a", "GET /soft?k=a",
 "GET /hard?k=a", "GET /soft?k=a", "GET /soft?k=a"]
--- error_code eval
[200, 200, 429, 200, 429, 200, 429]
--- response_headers eval
["X-Status: PASSED", "X-Status: PASSED", "X-Status: REJECTED",
 "X-Status: SOFT", "X-Status: REJECTED", "X-Status: SOFT", "X-Status: REJECTED"]



=== TEST 5: each of several rates has its allowance
--- http_config
    ratelimit_zone $arg_k zone=rates:1m rate=2r/366d rate=3r/365d;

    add_header X-Status $ratelimit_status always;
--- config
    location /t { ratelimit zone=rates soft=100%; try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 5]
--- error_code eval
[(200) x 4, 429]
--- response_headers eval
[::answers(2, 2, 2, 1)]



=== TEST 6: of two limits the hard one refuses, the soft one only warns
--- http_config
    ratelimit_zone $arg_a zone=hard:1m rate=3r/366d;
    ratelimit_zone $arg_b zone=soft:1m rate=1r/366d;

    add_header X-Status $ratelimit_status always;
    add_header X-Zone $ratelimit_zone always;
--- config
    location /t {
        ratelimit zone=hard;
        ratelimit zone=soft soft=300%;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?a=1&b=1") x 4, ("GET /t?a=2&b=1") x 2]
--- error_code eval
[200, 200, 200, 429, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-Zone: soft", "X-Status: SOFT\nX-Zone: soft",
 "X-Status: SOFT\nX-RateLimit-Remaining: 0",
 "X-Status: REJECTED\nX-Zone: hard",
 "X-Status: SOFT\nX-Zone: soft", "X-Status: REJECTED\nX-Zone: soft"]



=== TEST 7: a request that costs more than is left goes above, if it may
--- http_config
    ratelimit_zone $arg_k zone=cost:1m rate=10r/366d;

    add_header X-Status $ratelimit_status always;
--- config
    location /t { ratelimit zone=cost soft=50% cost=$arg_c;
                  try_files /index.html =404; }
--- request eval
["GET /t?k=a&c=9", "GET /t?k=a&c=7", "GET /t?k=a&c=6", "GET /t?k=a&c=1",
 "GET /t?k=a&c=0", "GET /t?k=b&c=15", "GET /t?k=c&c=16"]
--- error_code eval
[200, 429, 200, 429, 200, 200, 429]
--- response_headers eval
["X-Status: PASSED\nX-RateLimit-Remaining: 1",
 "X-Status: REJECTED\nX-RateLimit-Remaining: 1",
 "X-Status: SOFT\nX-RateLimit-Remaining: 0", "X-Status: REJECTED",
 "X-RateLimit-Remaining: 0",
 "X-Status: SOFT\nX-RateLimit-Remaining: 0", "X-Status: REJECTED"]



=== TEST 8: the access log has it, the error log only what is refused
--- http_config
    ratelimit_zone $arg_k zone=log:1m rate=1r/366d;

    log_format soft "$request_uri $status $ratelimit_status.";
    access_log $TEST_NGINX_SERVER_ROOT/logs/access.log soft;
--- config
    location /t { ratelimit zone=log soft=100%; try_files /index.html =404; }
--- request eval
["GET /t?k=a&n=1", "GET /t?k=a&n=2", "GET /t?k=a&n=3"]
--- error_code eval
[200, 200, 429]
--- lines eval
[qr/k=a&n=1 200 PASSED\.$/, qr/k=a&n=2 200 SOFT\.$/,
 qr/k=a&n=3 429 REJECTED\.$/]
--- logged eval
[undef, undef, qr/limiting requests, excess: \d+\.\d{3} by zone "log"/]



=== TEST 9: a plan has it, too
--- http_config
    ratelimit_zone $arg_k zone=plan:1m rate=$arg_r;

    add_header X-Status $ratelimit_status always;
--- config
    location /t { ratelimit zone=plan soft=50%; try_files /index.html =404; }
--- request eval
[("GET /t?k=a&r=2r/366d") x 4, ("GET /t?k=a&r=4r/366d") x 4]
--- error_code eval
[200, 200, 200, 429, 200, 200, 200, 429]
--- response_headers eval
[::answers(2, 2, 1, 1), "X-Status: PASSED\nX-RateLimit-Remaining: 0",
 "X-Status: SOFT", "X-Status: SOFT", "X-Status: REJECTED"]



=== TEST 10: a dry run says what would be
--- http_config
    ratelimit_zone $arg_k zone=dry:1m rate=1r/366d;

    add_header X-Status $ratelimit_status always;
--- config
    location /t { ratelimit zone=dry soft=100%; ratelimit_dry_run on;
                  try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 3]
--- error_code eval
[200, 200, 200]
--- response_headers eval
["X-Status: PASSED", "X-Status: SOFT", "X-Status: REJECTED_DRY_RUN"]



=== TEST 11: the fields of the draft promise the limit, not the allowance
--- http_config
    ratelimit_zone $arg_k zone=draft:1m rate=1r/366d algorithm=token_bucket;
--- config
    location /t { ratelimit zone=draft soft=100%; ratelimit_headers ietf;
                  try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers_like eval
["RateLimit-Policy: \"draft\";q=1;w=31622400
RateLimit: \"draft\";r=0;t=31622400",
 "RateLimit-Policy: \"draft\";q=1;w=31622400
RateLimit: \"draft\";r=0;t=\\d+",
 "RateLimit: \"draft\";r=0;t=\\d+\nRetry-After: \\d+"]
