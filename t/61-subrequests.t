#!/usr/bin/perl

# Limits of locations that only subrequests reach: they run if no limit has run
# for the client's request yet, as limit_req's do.  If this fails, a limit that
# stands in the configuration is not there, without a word.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

# parts of pages, and fields that tell what was decided

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(user_files => [
        ['part.txt' => "part.\n"],
        ['refused.txt' => "refused.\n"],
        ['page.html' => '<!--#include virtual="/part.txt" -->'
                        . '<!--#include virtual="/part.txt?n=2" -->'],
    ]);

    $block->set_value(http_config => $block->http_config . '
        add_header X-Status "$ratelimit_status." always;
        add_header X-Zone "$ratelimit_zone." always;
    ');
});


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: a limit of the authenticator's location, as limit_req's
--- http_config
    ratelimit_zone $server_name zone=auth1:1m rate=2r/d;
    limit_req_zone $server_name zone=req1:1m rate=1r/m;
--- config
    location /t { auth_request /auth; try_files /index.html =404; }
    location /theirs { auth_request /req; try_files /index.html =404; }
    location = /auth { ratelimit zone=auth1;
                       proxy_pass http://127.0.0.1:$server_port/good; }
    location = /req { limit_req zone=req1 burst=1 nodelay;
                      proxy_pass http://127.0.0.1:$server_port/good; }
    location /good { return 204; }
--- request eval
[("GET /t") x 3, ("GET /theirs") x 3]
--- error_code eval
[200, 200, 500, 200, 200, 500]
--- response_headers eval
[("X-Status: PASSED.\nX-Zone: auth1.\n!X-RateLimit-Limit") x 2,
 "X-Status: REJECTED.\nX-Zone: auth1.\n!X-RateLimit-Limit\n!Retry-After",
 ("X-Status: .") x 3]
--- no_error_log
[alert]



=== TEST 2: a limit of a page's part, which is decided once
--- http_config
    ratelimit_zone $server_name zone=part2:1m rate=2r/d;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=part2; }
--- request eval
[("GET /page.html") x 3, "GET /part.txt"]
--- error_code eval
[200, 200, 200, 429]
--- response_body_like eval
["^part\\.\\s+part\\.\\s+\$", "^part\\.\\s+part\\.\\s+\$",
 "^<html>.*429 Too Many Requests.*part\\.\\s+\$", "quota"]
--- response_headers eval
[("!X-RateLimit-Limit") x 3, "X-RateLimit-Limit: 2"]



=== TEST 3: a limit of a mirror, which the client does not notice
--- http_config
    ratelimit_zone $server_name zone=mirror3:1m rate=2r/d;
--- config
    location /t { mirror /mirror; try_files /index.html =404; }
    location = /mirror { internal; ratelimit zone=mirror3;
                         try_files /index.html =404; }
    location /direct { ratelimit zone=mirror3; try_files /index.html =404; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /direct"]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
[("!X-RateLimit-Limit") x 3, "X-Status: REJECTED."]



=== TEST 4: limits of both stages, whose refusal gives the first back
--- http_config
    ratelimit_zone $server_name zone=first4:1m rate=3r/d;
    ratelimit_zone $server_name zone=second4:1m rate=1r/d;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=first4; ratelimit zone=second4 after_auth; }
    location /first { ratelimit zone=first4; try_files /index.html =404; }
--- request eval
[("GET /page.html") x 3, ("GET /first") x 3]
--- error_code eval
[(200) x 5, 429]
--- response_body_like eval
["^part", ("429") x 2, ("It works") x 2, "quota"]



=== TEST 5: what a subrequest was limited by does not spare the client
--- http_config
    ratelimit_zone $server_name zone=auth5:1m rate=9r/d;
    ratelimit_zone $server_name zone=user5:1m rate=2r/d;
--- config
    location /t { auth_request /auth; ratelimit zone=user5 after_auth;
                  try_files /index.html =404; }
    location /to { auth_request /auth;
                   proxy_pass http://127.0.0.1:$server_port/accel; }
    location = /auth { ratelimit zone=auth5; try_files /index.html =404; }
    location /accel { add_header X-Accel-Redirect /limited; return 200; }
    location /limited { ratelimit zone=user5 name=limited;
                        rewrite ^ /index.html break; }
--- request eval
[("GET /t") x 3, ("GET /to") x 3]
--- error_code eval
[200, 200, 429, 200, 200, 429]
--- response_headers eval
[("X-Zone: user5.\nX-RateLimit-Remaining: 1",
  "X-Zone: user5.\nX-RateLimit-Remaining: 0",
  "X-Zone: user5.\nX-Status: REJECTED.") x 2]



=== TEST 6: a part, an authenticator and a mirror that are slowed down
--- http_config
    ratelimit_zone $server_name zone=slow6:1m rate=50r/s
                   algorithm=leaky_bucket;
    ratelimit_zone $server_name zone=token6:1m rate=50r/s capacity=1
                   algorithm=token_bucket;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=slow6 burst=9; }
    location /t { auth_request /auth; try_files /index.html =404; }
    location = /auth { ratelimit zone=token6 delay=1m;
                       try_files /index.html =404; }
    location /mirrored { mirror /mirror; try_files /index.html =404; }
    location = /mirror { ratelimit zone=slow6 burst=9;
                         try_files /index.html =404; }
--- pipelined_requests eval
[("GET /page.html") x 3, ("GET /t") x 3, ("GET /mirrored") x 3, "GET /t"]
--- error_code eval
[(200) x 10]



=== TEST 7: an authenticator that is counted by what the client gets
--- http_config
    ratelimit_zone $server_name zone=auth7:1m rate=2r/d;
--- config
    location /t { auth_request /auth; try_files /index.html =404; }
    location = /auth { ratelimit zone=auth7 count=401;
                       proxy_pass http://127.0.0.1:$server_port/$http_x_user; }
    location /good { return 204; }
    location /bad { return 401; }
--- pipelined_requests eval
[("GET /t") x 8]
--- more_headers eval
[("X-User: good") x 4, "X-User: bad", "X-User: good", ("X-User: bad") x 2]
--- error_code eval
[(200) x 4, 401, 200, 401, 500]



=== TEST 8: the page of a refused part is neither charged nor refused
--- http_config
    ratelimit_zone $server_name zone=part8:1m rate=1r/d;
    ratelimit_zone $server_name zone=page8:1m rate=1r/d;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=part8; error_page 429 =200 /refused.txt; }
    location = /refused.txt { ratelimit zone=page8 after_auth; }
--- request eval
[("GET /page.html") x 3, "GET /refused.txt", "GET /refused.txt"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_body_like eval
["^part\\.\\s+part\\.\\s+\$", ("^refused\\.\\s+part\\.\\s+\$") x 2,
 "refused", "quota"]



=== TEST 9: a dry run, and a part to which no limit applies
--- http_config
    ratelimit_zone $server_name zone=part9:1m rate=1r/d;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=part9 if=$arg_n;
                     ratelimit_dry_run on; }
--- request eval
[("GET /page.html") x 3]
--- error_code eval
[200, 200, 200]
--- response_body_like eval
[("^part\\.\\s+part\\.\\s+\$") x 3]



=== TEST 10: nor is that of a part whose limit can't be asked and fails closed
--- http_config
    ratelimit_zone $server_name zone=part10:1m rate=$http_x_rate fail=closed;
    ratelimit_zone $server_name zone=page10:1m rate=1r/d;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=part10; error_page 503 =200 /refused.txt; }
    location = /refused.txt { ratelimit zone=page10 after_auth; }
--- request eval
[("GET /page.html") x 3, "GET /refused.txt", "GET /refused.txt"]
--- more_headers
X-Rate: much
--- error_code eval
[200, 200, 200, 200, 429]
--- response_body_like eval
[("^refused\\.\\s+part\\.\\s+\$") x 3, "refused", "quota"]



=== TEST 11: what an upstream has worked for is not refunded
--- http_config
    ratelimit_zone $server_name zone=first11:1m rate=3r/2d;
    ratelimit_zone $server_name zone=second11:1m rate=1r/d;
--- config
    location /page { ssi on; }
    location /part { ratelimit zone=first11;
                     proxy_pass http://127.0.0.1:$server_port/upstream; }
    location /upstream { add_header X-Accel-Redirect /late; return 200; }
    location = /late { ratelimit zone=second11 after_auth;
                       try_files /refused.txt =404; }
    location /left { ratelimit zone=first11; try_files /index.html =404; }
--- request eval
[("GET /page.html") x 3, "GET /left"]
--- error_code eval
[200, 200, 200, 429]



=== TEST 12: the page of what limit_req refuses is neither charged nor refused
--- http_config
    limit_req_zone $server_name zone=req12:1m rate=1r/m;
    ratelimit_zone $server_name zone=first12:1m rate=2r/d;
    ratelimit_zone $server_name zone=second12:1m rate=2r/d;
--- config
    location /page { ssi on; }
    location /part { limit_req zone=req12; error_page 503 =200 /refused.txt; }
    location = /refused.txt { ratelimit zone=first12;
                              ratelimit zone=second12 after_auth; }
--- request eval
[("GET /page.html") x 4, ("GET /refused.txt") x 3]
--- error_code eval
[(200) x 6, 429]
--- response_body_like eval
["^part\\.\\s+part\\.\\s+\$", ("^refused\\.\\s+part\\.\\s+\$") x 3,
 "refused", "refused", "quota"]
