#!/usr/bin/perl

# A refusal is final, whichever module refuses, and its error page is neither
# charged nor refused again.  If this fails, a stranger spends a user's quota
# with wrong passwords, or the client reads the page, the status and the
# Retry-After of a limit that it has not violated.

use strict;
use warnings;

use lib 't/lib';
use Certificates;
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

our $good = "Authorization: Basic dXNlcjpzZWNyZXQ=";
our $bad = "Authorization: Basic dXNlcjp3cm9uZw==";

# two authorities that know one name

our ($ours, $theirs) = map { Certificates->new } 1, 2;

$_->issue('user') for $ours, $theirs;

# every block has this user, this page, and fields that tell what was decided

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(user_files => [
        [passwords => "user:{PLAIN}secret\n"],
        ['page.html' => "the page\n"],
        ['parts.html' => 'the page<!--#include virtual="/part.txt" -->'],
        ['part.txt' => " and a part\n"],
    ]);

    $block->set_value(http_config => $block->http_config . '
        add_header X-Status "$ratelimit_status." always;
        add_header X-Zone "$ratelimit_zone." always;
    ');

    $block->set_value(config => '
        auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/passwords;
    ' . $block->config);
});


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: a wrong password where other limits, or none, apply
--- http_config
    ratelimit_zone $server_name zone=ip1:1m rate=99r/d;
    ratelimit_zone $remote_user zone=user1:1m rate=2r/d;
--- config
    auth_basic realm;
    ratelimit zone=user1 after_auth;
    error_page 401 /page.html;

    location /login { ratelimit zone=ip1; try_files /index.html =404; }
    location /off { ratelimit off; try_files /index.html =404; }
    location /t { try_files /index.html =404; }
    location = /page.html { auth_basic off; }
--- request eval
[(map { ("GET /$_") x 3 } qw(login off t)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 9, ($::good) x 3]
--- error_code eval
[(401) x 9, 200, 200, 429]
--- response_body_like eval
[("the page") x 9, ("It works") x 2, "quota"]
--- response_headers eval
[("X-Zone: ip1.\nX-Status: PASSED.") x 3, ("!X-RateLimit-Limit") x 6,
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-Zone: user1.\nX-Status: REJECTED."]



=== TEST 2: the page lies in the location that asked for the password
--- http_config
    map $uri $realm { volatile; default realm; /page.html off; }

    ratelimit_zone $remote_user zone=user2:1m rate=2r/d;
--- config
    location ~ html$ {
        auth_basic $realm;
        ratelimit zone=user2 after_auth;
        error_page 401 /page.html;
    }
--- request eval
[("GET /index.html") x 6]
--- more_headers eval
[($::bad) x 3, ($::good) x 3]
--- error_code eval
[401, 401, 401, 200, 200, 429]
--- response_body_like eval
[("the page") x 3, ("It works") x 2, "quota"]



=== TEST 3: pages that overwrite the status, also of pages
--- http_config
    ratelimit_zone $remote_user zone=user3:1m rate=2r/d;
--- config
    auth_basic realm;
    ratelimit zone=user3 after_auth;

    location /code { ratelimit off; error_page 401 =200 /page.html; }
    location /none { ratelimit off; error_page 401 = /page.html; }
    location /name { ratelimit off; error_page 401 = @page; }
    location /again { ratelimit off; recursive_error_pages on;
                      error_page 401 = @page; }
    location /twice { ratelimit off; recursive_error_pages on;
                      error_page 401 = @twice; }
    location @twice { ratelimit off; auth_basic off;
                      recursive_error_pages on; error_page 404 = @page; }
    location @page { auth_basic off; try_files /page.html =404; }
    location = /page.html { auth_basic off; }
    location /t { try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(code none name again twice)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 15, ($::good) x 3]
--- error_code eval
[(200) x 17, 429]
--- response_body_like eval
[("the page") x 15, ("It works") x 2, "quota"]



=== TEST 4: passwords that a rewrite or an upstream refuses
--- http_config
    ratelimit_zone $remote_user zone=user4:1m rate=2r/d;
--- config
    ratelimit zone=user4 after_auth;
    error_page 401 /page.html;

    location /rewrite { if ($http_authorization !~ secret) { return 401; } }
    location /proxy { ratelimit off; proxy_intercept_errors on;
                      proxy_pass http://127.0.0.1:$server_port/password; }
    location /200 { ratelimit off; proxy_intercept_errors on;
                    error_page 401 =200 /page.html;
                    proxy_pass http://127.0.0.1:$server_port/password; }
    location /password { ratelimit off; auth_basic realm;
                         try_files /index.html =404; }
    location = /page.html { }
    location /t { auth_basic realm; try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(rewrite proxy 200)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 9, ($::good) x 3]
--- error_code eval
[(401) x 6, (200) x 5, 429]



=== TEST 5: the page of a refusal before authentication
--- http_config
    ratelimit_zone $server_name zone=first5:1m rate=1r/2d
                   algorithm=sliding_log;
    ratelimit_zone $server_name zone=second5:1m rate=2r/d;
--- config
    error_page 429 /page.html;

    location /t { ratelimit zone=first5; try_files /index.html =404; }
    location = /page.html { ratelimit zone=second5 after_auth; }
--- request eval
[("GET /t") x 4, ("GET /page.html") x 3]
--- error_code eval
[200, 429, 429, 429, 200, 200, 429]
--- response_body_like eval
["It works", ("the page") x 6]
--- response_headers_like eval
["X-Status: PASSED.",
 ("X-Status: REJECTED.\nX-Zone: first5.\nX-RateLimit-Limit: 1\n"
  . "Retry-After: 172[78]\\d\\d") x 3,
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-Zone: second5."]



=== TEST 6: the page of a refusal after authentication
--- http_config
    ratelimit_zone $server_name zone=first6:1m rate=2r/d;
    ratelimit_zone $server_name zone=second6:1m rate=1r/2d
                   algorithm=sliding_log;
--- config
    error_page 429 /page.html;

    location /t { ratelimit zone=second6 after_auth;
                  try_files /index.html =404; }
    location = /page.html { ratelimit zone=first6; }
--- request eval
[("GET /t") x 4, ("GET /page.html") x 3]
--- error_code eval
[200, 429, 429, 429, 200, 200, 429]
--- response_body_like eval
["It works", ("the page") x 6]
--- response_headers_like eval
["X-Status: PASSED.",
 ("X-Status: REJECTED.\nX-Zone: second6.\nX-RateLimit-Limit: 1\n"
  . "Retry-After: 172[78]\\d\\d") x 3,
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-Zone: first6."]



=== TEST 7: the page of what limit_req refuses
--- http_config
    limit_req_zone $server_name zone=req7:1m rate=1r/m;
    ratelimit_zone $server_name zone=first7:1m rate=2r/d;
    ratelimit_zone $server_name zone=second7:1m rate=2r/d;
--- config
    error_page 503 /page.html;

    location /none { limit_req zone=req7; try_files /index.html =404; }
    location /some { limit_req zone=req7; try_files /index.html =404;
                     ratelimit zone=first7; ratelimit zone=second7 after_auth; }
    location = /page.html { ratelimit zone=first7;
                            ratelimit zone=second7 after_auth; }
--- request eval
[("GET /none") x 4, ("GET /some") x 3, ("GET /page.html") x 3]
--- error_code eval
[200, (503) x 6, 200, 200, 429]
--- response_body_like eval
["It works", ("the page") x 8, "quota"]
--- response_headers eval
[("X-Status: .\n!X-RateLimit-Limit\n!Retry-After") x 7,
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0"]



=== TEST 8: the page of what limit_conn refuses
--- http_config
    limit_conn_zone $server_name zone=conn8:1m;
    ratelimit_zone $server_name zone=first8:1m rate=2r/d;
--- config
    error_page 503 /page.html;

    location /t { limit_conn conn8 1;
                  proxy_pass http://127.0.0.1:$server_port/second; }
    location /second { limit_conn conn8 1; try_files /index.html =404; }
    location = /page.html { ratelimit zone=first8; }
--- request eval
[("GET /t") x 3, ("GET /page.html") x 3]
--- error_code eval
[(503) x 3, 200, 200, 429]



=== TEST 9: the page of what access rules refuse
--- http_config
    ratelimit_zone $server_name zone=first9:1m rate=2r/d;
--- config
    location /t { deny all; error_page 403 /page.html; }
    location /name { deny all; recursive_error_pages on;
                     error_page 403 = @page; }
    location @page { ratelimit zone=first9; try_files /page.html =404; }
    location = /page.html { ratelimit zone=first9; }
--- request eval
[("GET /t") x 3, ("GET /name") x 3, ("GET /page.html") x 3]
--- error_code eval
[(403) x 3, (200) x 5, 429]
--- response_body_like eval
[("the page") x 8, "quota"]



=== TEST 10: the page of a limit that can't be asked and fails closed
--- http_config
    ratelimit_zone $server_name zone=closed10:1m rate=$arg_r fail=closed;
    ratelimit_zone $server_name zone=page10:1m rate=2r/d;
--- config
    error_page 503 /page.html?$args;

    location /first { ratelimit zone=closed10; try_files /index.html =404; }
    location /second { ratelimit zone=closed10 after_auth;
                       try_files /index.html =404; }
    location = /page.html { ratelimit zone=page10 if=$arg_first;
                            ratelimit zone=page10 name=second after_auth
                                      if=$arg_second; }
--- request eval
[map({ ("GET /$_?r=x&first=1", "GET /$_?r=x&second=1") x 2 }
     qw(first second)),
 ("GET /page.html?first=1") x 3]
--- error_code eval
[(503) x 8, 200, 200, 429]
--- response_body_like eval
[("the page") x 10, "quota"]
--- response_headers eval
[("X-Status: FAILED_CLOSED.\n!X-RateLimit-Limit\n!Retry-After") x 8,
 "X-Status: PASSED.", "X-Status: PASSED.", "X-Status: REJECTED."]



=== TEST 11: an error page that is no refusal leads to limits
--- http_config
    ratelimit_zone $uri zone=first11:1m rate=2r/d;
    ratelimit_zone $uri zone=second11:1m rate=2r/d;
--- config
    location /return { error_page 418 = @first; return 418; }
    location /static { error_page 404 = @first; }
    location /try { error_page 404 = @first; try_files /no =404; }
    location /proxy { error_page 404 = @first; proxy_intercept_errors on;
                      proxy_pass http://127.0.0.1:$server_port/no; }
    location @first { ratelimit zone=first11; try_files /index.html =404; }

    location /2/return { error_page 418 = @second; return 418; }
    location /2/static { error_page 404 = @second; }
    location /2/try { error_page 404 = @second; try_files /no =404; }
    location /2/proxy { error_page 404 = @second; proxy_intercept_errors on;
                        proxy_pass http://127.0.0.1:$server_port/no; }
    location @second { ratelimit zone=second11 after_auth;
                       try_files /index.html =404; }
--- request eval
[map { ("GET $_") x 3 } map { ("$_/return", "$_/static", "$_/try", "$_/proxy") }
 "", "/2"]
--- error_code eval
[(200, 200, 429) x 8]



=== TEST 12: what a content handler has worked for is not refunded
--- http_config
    ratelimit_zone $arg_k zone=first12:1m rate=3r/2d
                   algorithm=sliding_log;
    ratelimit_zone $arg_k zone=second12:1m rate=1r/d;
--- config
    location /accel { ratelimit zone=first12;
                      proxy_pass http://127.0.0.1:$server_port/upstream?$args; }
    location /upstream { add_header X-Accel-Redirect /late?$args;
                         return 200; }
    location /late { ratelimit zone=second12 after_auth; rewrite ^ /index.html
                     break; }
    location /error { ratelimit zone=first12; proxy_intercept_errors on;
                      error_page 404 = @late;
                      proxy_pass http://127.0.0.1:$server_port/missing; }
    location /missing { return 404; }
    location @late { ratelimit zone=second12 after_auth;
                     try_files /index.html =404; }
    location /file { ratelimit zone=first12; error_page 404 = @late; }

    location /reverse { ratelimit zone=first12 after_auth;
                        proxy_intercept_errors on; error_page 404 = @early;
                        proxy_pass http://127.0.0.1:$server_port/missing; }
    location @early { ratelimit zone=second12; try_files /index.html =404; }
--- request eval
[map { ("GET /$_?k=$_") x 5 } qw(accel error file reverse)]
--- error_code eval
[(200, (429) x 4) x 4]
--- response_headers_like eval
[("X-Status: PASSED.", ("X-Zone: second12.") x 2,
  ("X-Zone: first12.\nRetry-After: 172[78]\\d\\d") x 2) x 4]



=== TEST 13: what only "try_files" has looked for is refunded
--- http_config
    ratelimit_zone $arg_k zone=first13:1m rate=3r/2d;
    ratelimit_zone $arg_k zone=second13:1m rate=1r/d;
--- config
    location /t { ratelimit zone=first13; try_files /no @late; }
    location @late { ratelimit zone=second13 after_auth;
                     try_files /index.html =404; }
    location /left { ratelimit zone=first13; try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 5, ("GET /left?k=a") x 3]
--- error_code eval
[200, (429) x 4, 200, 200, 429]



=== TEST 14: what is counted by its status is settled after such a refusal
--- http_config
    ratelimit_zone $arg_k zone=first14:1m rate=2r/d;
    ratelimit_zone $arg_k zone=second14:1m rate=1r/d;
--- config
    location /accel { ratelimit zone=first14 count=401;
                      proxy_pass http://127.0.0.1:$server_port/upstream?$args; }
    location /upstream { add_header X-Accel-Redirect /late?$args;
                         return 200; }
    location /late { ratelimit zone=second14 after_auth; rewrite ^ /index.html
                     break; }
    location /left { ratelimit zone=first14; try_files /index.html =404; }
--- pipelined_requests eval
[("GET /accel?k=a") x 5, ("GET /left?k=a") x 3]
--- error_code eval
[200, (429) x 4, 200, 200, 429]



=== TEST 15: an authenticator that is asked meanwhile is no content
--- http_config
    ratelimit_zone $arg_k zone=first15:1m rate=3r/2d;
    ratelimit_zone $arg_k zone=second15:1m rate=1r/d;
--- config
    location /t { ratelimit zone=first15; auth_request /auth;
                  ratelimit zone=second15 after_auth;
                  try_files /index.html =404; }
    location = /auth { try_files /index.html =404; }
    location /left { ratelimit zone=first15; try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 5, ("GET /left?k=a") x 3]
--- error_code eval
[200, (429) x 4, 200, 200, 429]



=== TEST 16: parts of the page of a refusal
--- http_config
    ratelimit_zone $remote_user zone=user16:1m rate=2r/d;
    ratelimit_zone $server_name zone=ip16:1m rate=1r/d;
--- config
    auth_basic realm;
    ratelimit zone=user16 after_auth;
    error_page 401 /parts.html;

    location = /parts.html { auth_basic off; ssi on; mirror /mirror; }
    location /again { ratelimit off; error_page 401 =200 /parts.html;
                      try_files /index.html =404; }
    location = /part.txt { ratelimit zone=ip16;
                           ratelimit zone=user16 after_auth; }
    location = /mirror { try_files /index.html =404; }
    location /t { try_files /index.html =404; }
    location /left { ratelimit zone=ip16; auth_basic off;
                     try_files /index.html =404; }
--- request eval
[("GET /t") x 3, ("GET /again") x 3, ("GET /t") x 3, ("GET /left") x 2]
--- more_headers eval
[($::bad) x 6, ($::good) x 5]
--- error_code eval
[(401) x 3, (200) x 5, 429, 200, 429]
--- response_body_like eval
[("the page and a part") x 6, ("It works") x 2, "quota", "It works", "quota"]



=== TEST 17: parts of a page that an upstream or a rewrite refuses
--- http_config
    ratelimit_zone $remote_user zone=user17:1m rate=2r/d;
--- config
    ratelimit zone=user17 after_auth;
    error_page 401 /parts.html;

    location /rewrite { if ($http_authorization !~ secret) { return 401; } }
    location /proxy { ratelimit off; proxy_intercept_errors on;
                      proxy_pass http://127.0.0.1:$server_port/password; }
    location /password { ratelimit off; auth_basic realm;
                         try_files /index.html =404; }
    location = /parts.html { ssi on; }
    location /t { auth_basic realm; try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(rewrite proxy)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 6, ($::good) x 3]
--- error_code eval
[(401) x 6, 200, 200, 429]



=== TEST 18: the authenticator inherits the limit of the user
--- http_config
    ratelimit_zone $remote_user zone=user18:1m rate=2r/d;
--- config
    ratelimit zone=user18 after_auth;

    location /t { auth_request /auth; try_files /index.html =404; }
    location = /auth { proxy_pass http://127.0.0.1:$server_port/password; }
    location /password { ratelimit off; auth_basic realm;
                         try_files /index.html =404; }
--- request eval
[("GET /t") x 6]
--- more_headers eval
[($::bad) x 3, ($::good) x 3]
--- error_code eval
[(401) x 3, 200, 200, 429]



=== TEST 19: a password that an upstream refuses by 403, or before another one
--- http_config
    ratelimit_zone $remote_user zone=user19:1m rate=2r/d;
--- config
    proxy_intercept_errors on;
    recursive_error_pages on;

    location /403 { error_page 403 =200 /page.html;
                    proxy_pass http://127.0.0.1:$server_port/forbidden; }
    location /name { error_page 403 = @page;
                     proxy_pass http://127.0.0.1:$server_port/forbidden; }
    location /again { error_page 401 = @again;
                      proxy_pass http://127.0.0.1:$server_port/password; }
    location @again { error_page 404 = @page; rewrite ^ /missing break;
                      proxy_pass http://127.0.0.1:$server_port; }
    location @page { ratelimit zone=user19 after_auth;
                     rewrite ^ /page.html break; }
    location = /page.html { ratelimit zone=user19 after_auth; }

    location /forbidden { if ($http_authorization !~ ZWNyZXQ) { return 403; } }
    location /password { auth_basic realm; }
    location /t { auth_basic realm; ratelimit zone=user19 after_auth;
                  try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(403 name again)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 9, ($::good) x 3]
--- error_code eval
[(200) x 11, 429]



=== TEST 20: what one of several servers has refused is not refused
--- http_config
    upstream several {
        server 127.0.0.1:$TEST_NGINX_SERVER_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_RAND_PORT_1 backup;
    }

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        add_header X-Accel-Redirect /late;
        return 200;
    }

    ratelimit_zone $server_name zone=late20:1m rate=2r/d;
--- config
    location /t { proxy_next_upstream http_403;
                  proxy_pass http://several/forbidden; }
    location /forbidden { return 403; }
    location /late { ratelimit zone=late20 after_auth;
                     rewrite ^ /page.html break; }
--- request eval
[("GET /t") x 3]
--- error_code eval
[200, 200, 429]



=== TEST 21: a certificate that is refused, or missing
--- http_config eval
'
    ratelimit_zone $server_name zone=first21:1m rate=2r/d;
    ratelimit_zone $ssl_client_s_dn zone=user21:1m rate=2r/d;
    error_page 495 =200 /page.html;
    error_page 496 /page.html;
    ratelimit zone=first21;
    ratelimit zone=user21 after_auth;

    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 ssl;
        ssl_certificate ' . "$::ours->{dir}/user.pem" . ';
        ssl_certificate_key ' . "$::ours->{dir}/user.key" . ';
        ssl_client_certificate ' . "$::ours->{dir}/ca.pem" . ';
        ssl_verify_client on;
    }
'
--- config eval
'
    ratelimit off;
    proxy_ssl_session_reuse off;

    location /none { rewrite ^ / break; proxy_pass
                     https://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
' . CORE::join '', map { "
    location /$_->[0] {
        rewrite ^ / break;
        proxy_ssl_certificate $_->[1]{dir}/user.pem;
        proxy_ssl_certificate_key $_->[1]{dir}/user.key;
        proxy_pass https://127.0.0.1:\$TEST_NGINX_RAND_PORT_1;
    }
" } [theirs => $::theirs], [ours => $::ours]
--- request eval
[map { ("GET /$_") x 3 } qw(theirs none ours)]
--- error_code eval
[(200) x 3, (400) x 3, 200, 200, 429]
--- response_body_like eval
[("the page") x 6, ("It works") x 2, "quota"]
