#!/usr/bin/perl

# A client's request is decided once, whatever nginx makes of it on its way,
# and "allowed" leaves the word to all others.  If this fails, a page with
# ten includes costs eleven requests, or other limiters and passwords are
# skipped for requests that we admit.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

run_tests();

__DATA__

=== TEST 1: an index file is not a second request
--- http_config
    ratelimit_zone $server_name zone=index:1m rate=2r/h;
--- config
    ratelimit zone=index;
--- request eval
[("GET /") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 1, 0, 0]



=== TEST 2: limits of where a redirect leads are not asked
--- http_config
    ratelimit_zone $server_name zone=from:1m rate=9r/h;
    ratelimit_zone $server_name zone=to:1m rate=2r/h;
--- config
    location /uri { ratelimit zone=from; try_files /no /to; }
    location /named { ratelimit zone=from; try_files /no @to; }
    location /error { ratelimit zone=from; error_page 404 = /to; }
    location /error_named { ratelimit zone=from; error_page 404 = @to; }
    location /accel {
        ratelimit zone=from;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }
    location /upstream { add_header X-Accel-Redirect /to; return 200; }
    location /to { ratelimit zone=to; try_files /index.html =404; }
    location @to { ratelimit zone=to; try_files /index.html =404; }
--- request eval
["GET /uri", "GET /named", "GET /error", "GET /error_named", "GET /accel",
 "GET /to", "GET /to", "GET /to", "GET /uri"]
--- error_code eval
[(200) x 7, 429, 200]
--- response_headers eval
["X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 8",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 7",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 6",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 5",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 4",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 0",
 "X-RateLimit-Limit: 9\nX-RateLimit-Remaining: 3"]



=== TEST 3: from where nothing is limited, a redirect leads to limits
--- http_config
    ratelimit_zone $server_name zone=reached:1m rate=2r/h;
--- config
    location /uri { try_files /no /to; }
    location /error { error_page 404 = @to; }
    location /to { ratelimit zone=reached; try_files /index.html =404; }
    location @to { ratelimit zone=reached; try_files /index.html =404; }
--- request eval
["GET /uri", "GET /error", "GET /uri", "GET /error"]
--- error_code eval
[200, 200, 429, 429]



=== TEST 4: a redirect through several limited places is one request
--- http_config
    ratelimit_zone $server_name zone=chain:1m rate=2r/h;
    ratelimit zone=chain;
--- config
    location /a { try_files /no /b; }
    location /b { try_files /no @c; }
    location @c { error_page 404 /d; }
    location /d { try_files /index.html =404; }
--- request eval
[("GET /a") x 3]
--- error_code eval
[404, 404, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 1, 0, 0]



=== TEST 5: a rewritten request is decided where it ends
--- http_config
    ratelimit_zone $server_name zone=before:1m rate=1r/h;
    ratelimit_zone $server_name zone=after:1m rate=2r/h;
--- config
    location /a { ratelimit zone=before; rewrite ^ /b last; }
    location /b { ratelimit zone=after; rewrite ^ /index.html break; }
--- request eval
[("GET /a") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers eval
[map { "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: $_" } 1, 0, 0]



=== TEST 6: the error page of a refusal is neither limited nor charged
--- http_config
    ratelimit_zone $server_name zone=refused:1m rate=1r/h;
    ratelimit_zone $server_name zone=errors:1m rate=2r/h;
--- config
    location /t { ratelimit zone=refused; error_page 429 /slow;
                  try_files /index.html =404; }
    location /slow { ratelimit zone=errors; try_files /index.html =404; }
--- request eval
["GET /t", "GET /t", "GET /t", "GET /t", "GET /slow"]
--- error_code eval
[200, 429, 429, 429, 200]
--- response_body_like eval
[("It works") x 5]
--- response_headers eval
[("X-RateLimit-Limit: 1\nX-RateLimit-Remaining: 0") x 4,
 "X-RateLimit-Limit: 2\nX-RateLimit-Remaining: 1"]



=== TEST 7: the parts of a page are not requests
--- http_config
    ratelimit_zone $server_name zone=parts:1m rate=2r/h;
    ratelimit zone=parts;
--- config
    location /page.html { ssi on; }
    location /part {
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }
    location /upstream { ratelimit off; return 200 part.; }
    location /inner.html { ssi on; }
--- user_files
>>> page.html
<!--#include virtual="/part" --><!--#include virtual="/inner.html" -->
>>> inner.html
<!--#include virtual="/part" --><!--#include virtual="/missing" -->
--- request eval
[("GET /page.html") x 3]
--- error_code eval
[200, 200, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 1, 0, 0]
--- response_body_like eval
["^part\\.part\\..*404 Not Found", "^part\\.part\\.", "quota-exceeded"]



=== TEST 8: limits of the parts of a limited page are not asked
--- http_config
    ratelimit_zone $server_name zone=page:1m rate=9r/h;
    ratelimit_zone $server_name zone=part:1m rate=1r/h;
--- config
    location /page.html { ratelimit zone=page; ssi on; }
    location /late.html { ratelimit zone=page after_auth; ssi on; }
    location /part { ratelimit zone=part; }
--- user_files
>>> page.html
<!--#include virtual="/part.txt" --><!--#include virtual="/part.txt" -->
>>> late.html
<!--#include virtual="/part.txt" --><!--#include virtual="/part.txt" -->
>>> part.txt
part.
--- request eval
["GET /page.html", "GET /late.html", "GET /part.txt", "GET /part.txt"]
--- error_code eval
[200, 200, 200, 429]
--- response_body_like eval
["part\\.\\s*part\\.", "part\\.\\s*part\\.", "part", "quota-exceeded"]
--- response_headers eval
["X-RateLimit-Remaining: 8", "X-RateLimit-Remaining: 7",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 0"]



=== TEST 9: what is added before and after a page is not a request
--- http_config
    ratelimit_zone $server_name zone=added:1m rate=2r/h;
    ratelimit zone=added;
--- config
    location /t {
        default_type text/html;
        add_before_body /part.txt;
        add_after_body /part.txt;
        try_files /index.html =404;
    }
--- user_files
>>> part.txt
part.
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 429]
--- response_body_like eval
["part\\..*It works.*part\\.", "part\\..*It works.*part\\.", "quota-exceeded"]



=== TEST 10: asking an authenticator is not a request
--- http_config
    ratelimit_zone $server_name zone=auth:1m rate=3r/h;
    ratelimit zone=auth;
--- config
    location /t { auth_request /auth; try_files /index.html =404; }
    location /auth { try_files /auth-$http_x_user =403; }
--- user_files
>>> auth-good
--- request eval
[("GET /t") x 4]
--- more_headers eval
["X-User: good", "X-User: bad", "X-User: good", "X-User: good"]
--- error_code eval
[200, 403, 200, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 2, 1, 0, 0]



=== TEST 11: a mirror is not a request
--- http_config
    ratelimit_zone $server_name zone=mirror:1m rate=2r/h;
    ratelimit zone=mirror;
--- config
    location /t { mirror /mirror; mirror /mirror; try_files /index.html =404; }
    location /mirror { try_files /index.html =404; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 429]



=== TEST 12: limit_req goes on working beside us
--- http_config
    limit_req_zone $server_name zone=theirs:1m rate=1r/m;
    ratelimit_zone $server_name zone=ours:1m rate=9r/h;
--- config
    location /t {
        ratelimit zone=ours;
        limit_req zone=theirs;
        add_header X-Status "ours $ratelimit_status, theirs $limit_req_status"
                   always;
        try_files /index.html =404;
    }
--- request eval
["GET /t", "GET /t"]
--- error_code eval
[200, 503]
--- response_headers eval
["X-Status: ours PASSED, theirs PASSED", "X-Status: ours , theirs REJECTED"]



=== TEST 13: limit_conn goes on working beside us
--- http_config
    limit_conn_zone $server_name zone=connections:1m;
    ratelimit_zone $server_name zone=requests:1m rate=9r/h;
--- config
    ratelimit zone=requests;
    limit_conn connections 1;

    location /one { try_files /index.html =404; }
    location /two { proxy_pass http://127.0.0.1:$server_port/one; }
--- request eval
["GET /one", "GET /two"]
--- error_code eval
[200, 503]



=== TEST 14: what limit_req refuses is not counted by us
--- http_config
    limit_req_zone $server_name zone=spared:1m rate=1r/m;
    ratelimit_zone $arg_k zone=first:1m rate=1r/h;
--- config
    ratelimit zone=first;

    location /both { limit_req zone=spared; try_files /index.html =404; }
    location /ours { try_files /index.html =404; }
--- request eval
["GET /both?k=a", "GET /both?k=b", "GET /ours?k=b", "GET /ours?k=b"]
--- error_code eval
[200, 503, 200, 429]



=== TEST 15: access rules go on working beside us
--- http_config
    ratelimit_zone $server_name zone=access:1m rate=3r/h;
--- config
    ratelimit zone=access;

    location /deny { deny all; try_files /index.html =404; }
    location /allow { allow all; try_files /index.html =404; }
--- request eval
["GET /deny", "GET /allow", "GET /deny", "GET /deny"]
--- error_code eval
[403, 200, 403, 429]



=== TEST 16: passwords are asked for beside us, also with "satisfy any"
--- http_config
    ratelimit_zone $server_name zone=password:1m rate=6r/h;
--- config
    ratelimit zone=password;

    auth_basic realm;
    auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/passwords;

    location /all { try_files /index.html =404; }
    location /any { satisfy any; deny all; try_files /index.html =404; }
    location /free { satisfy any; allow all; try_files /index.html =404; }
--- user_files
>>> passwords
user:{PLAIN}secret
--- request eval
["GET /all", "GET /all", "GET /any", "GET /any", "GET /any", "GET /free",
 "GET /all", "GET /any"]
--- more_headers eval
my $good = "Authorization: Basic dXNlcjpzZWNyZXQ=";
my $bad = "Authorization: Basic dXNlcjp3cm9uZw==";

["", $good, $good, $bad, "", "", $good, $bad]
--- error_code eval
[401, 200, 200, 401, 401, 200, 429, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 5, 4, 3, 2, 1, 0, 0, 0]



=== TEST 17: every request on a connection is decided for itself
--- http_config
    ratelimit_zone $server_name zone=connection:1m rate=2r/h;
--- config
    ratelimit zone=connection;
--- pipelined_requests eval
["GET /", "GET /index.html", "GET /", "GET /index.html"]
--- error_code eval
[200, 200, 429, 429]



=== TEST 18: a bypass is decided once as well
--- http_config
    ratelimit_zone $server_name zone=bypassed:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=bypassed;
        ratelimit_bypass $arg_free;
        error_page 404 = @to;
    }
    location @to { ratelimit zone=bypassed; try_files /index.html =404;
                   add_header X-Status $ratelimit_status; }
--- request eval
["GET /t?free=1", "GET /t?free=1", "GET /t", "GET /t?free=1", "GET /t"]
--- error_code eval
[200, 200, 200, 200, 429]
--- response_headers eval
["X-Status: BYPASSED\n!X-RateLimit-Limit",
 "X-Status: BYPASSED\n!X-RateLimit-Limit",
 "X-Status: PASSED\nX-RateLimit-Remaining: 0",
 "X-Status: BYPASSED\n!X-RateLimit-Limit",
 "X-RateLimit-Remaining: 0"]
