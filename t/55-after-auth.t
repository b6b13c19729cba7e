#!/usr/bin/perl

# "after_auth": the limit of a user is spent by this user only.  If this fails,
# a stranger spends it with the name and a wrong password, or no user is
# limited at all.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

our $good = "Authorization: Basic dXNlcjpzZWNyZXQ=";
our $bad = "Authorization: Basic dXNlcjp3cm9uZw==";
our $other = "Authorization: Basic b3RoZXI6c2VjcmV0";


# every block has these users, and a session that is theirs

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(user_files => [
        [passwords => "user:{PLAIN}secret\nother:{PLAIN}secret\n"],
        ['page.html' => "the page\n"],
    ]);

    $block->set_value(http_config => $block->http_config . '
        map $http_authorization $session {
            "Basic dXNlcjpzZWNyZXQ="    user;
            "Basic b3RoZXI6c2VjcmV0"    other;
        }

        add_header X-Status $ratelimit_status always;
        add_header X-Zone $ratelimit_zone always;
    ');

    $block->set_value(config => $block->config . '
        auth_basic_user_file $TEST_NGINX_SERVER_ROOT/html/passwords;

        location = /session {
            internal;
            proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/sessions;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }

        location = /sessions {
            auth_basic off;
            add_header X-User $session always;
            if ($session = "") { return 401; }
            return 204;
        }
    ');
});


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: auth_basic: a wrong password spends nothing, the user is limited
--- http_config
    ratelimit_zone $remote_user zone=basic:1m rate=2r/d;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=basic after_auth;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 10]
--- more_headers eval
[$::bad, "", $::bad, $::good, $::bad, $::good, $::bad, $::good, $::bad,
 $::other]
--- error_code eval
[401, 401, 401, 200, 401, 200, 401, 429, 401, 200]
--- response_headers eval
[("!X-RateLimit-Limit\n!X-Status") x 3, "X-RateLimit-Remaining: 1",
 "!X-RateLimit-Limit\n!X-Status", "X-RateLimit-Remaining: 0",
 "!X-RateLimit-Limit\n!X-Status",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED",
 "!X-RateLimit-Limit\n!X-Status", "X-RateLimit-Remaining: 1"]



=== TEST 2: without it, a wrong password does
--- http_config
    ratelimit_zone $remote_user zone=claimed:1m rate=2r/d;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=claimed;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 4]
--- more_headers eval
[$::bad, $::bad, $::bad, $::good]
--- error_code eval
[401, 401, 429, 429]



=== TEST 3: auth_request: as well
--- http_config
    ratelimit_zone $user zone=request:1m rate=2r/d;
--- config
    location /t {
        auth_request /session;
        auth_request_set $user $upstream_http_x_user;
        ratelimit zone=request after_auth;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 8]
--- more_headers eval
[$::bad, "", $::bad, $::good, $::good, $::bad, $::good, $::other]
--- error_code eval
[401, 401, 401, 200, 200, 401, 429, 200]
--- response_headers eval
[("!X-RateLimit-Limit") x 3, "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 0", "!X-RateLimit-Limit",
 "X-RateLimit-Remaining: 0\nX-Status: REJECTED", "X-RateLimit-Remaining: 1"]



=== TEST 4: the page of a refusal is not a verified user
--- http_config
    ratelimit_zone $remote_user zone=page:1m rate=2r/d;
--- config
    auth_basic realm;
    ratelimit zone=page after_auth;

    location /uri { error_page 401 /page.html; try_files /index.html =404; }
    location /code { error_page 401 =403 /page.html;
                     try_files /index.html =404; }
    location /good { error_page 401 =200 /page.html;
                     try_files /index.html =404; }
    location /name { error_page 401 @page; try_files /index.html =404; }
    location = /page.html { auth_basic off; }
    location @page { auth_basic off; try_files /page.html =404; }
    location /t { try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(uri code good name)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 12, ($::good) x 3]
--- error_code eval
[(401) x 3, (403) x 3, (200) x 3, (401) x 3, 200, 200, 429]
--- response_body_like eval
[("the page") x 12, ("It works") x 2, "quota"]



=== TEST 5: nor is that with a status of its own
--- http_config
    ratelimit_zone $remote_user zone=own:1m rate=2r/d;
--- config
    auth_basic realm;
    ratelimit zone=own after_auth;

    location /uri { error_page 401 = /page.html; try_files /index.html =404; }
    location /name { error_page 401 = @page; try_files /index.html =404; }
    location = /page.html { auth_basic off; }
    location @page { auth_basic off; try_files /page.html =404; }
    location /t { try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(uri name)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 6, ($::good) x 3]
--- error_code eval
[(200) x 6, 200, 200, 429]
--- response_body_like eval
[("the page") x 6, ("It works") x 2, "quota"]



=== TEST 6: nor are pages of pages
--- http_config
    ratelimit_zone $remote_user zone=recursive:1m rate=2r/d;
--- config
    recursive_error_pages on;
    auth_basic realm;
    ratelimit zone=recursive after_auth;

    location /uri { error_page 401 /no.html; try_files /index.html =404; }
    location /same { error_page 401 /page.html; try_files /index.html =404; }
    location /name { error_page 401 = @no; try_files /index.html =404; }
    location /good { error_page 401 =200 @page; try_files /index.html =404; }
    location = /no.html { auth_basic off; error_page 404 /page.html; }
    location @no { auth_basic off; error_page 404 = @page;
                   try_files /no.html =404; }
    location = /page.html { auth_basic off; }
    location @page { auth_basic off; try_files /page.html =404; }
    location /t { try_files /index.html =404; }
--- request eval
[(map { ("GET /$_") x 3 } qw(uri same name good)), ("GET /t") x 3]
--- more_headers eval
[($::bad) x 12, ($::good) x 3]
--- error_code eval
[(404) x 3, (401) x 3, (200) x 6, 200, 200, 429]
--- response_body_like eval
[("the page") x 12, ("It works") x 2, "quota"]



=== TEST 7: nor are those of auth_request
--- http_config
    ratelimit_zone $arg_user zone=request_page:1m rate=2r/d;
--- config
    auth_request /session;
    ratelimit zone=request_page after_auth;

    location /uri { error_page 401 /page.html; try_files /index.html =404; }
    location /name { error_page 401 = @page; try_files /index.html =404; }
    location = /page.html { auth_request off; }
    location @page { auth_request off; try_files /page.html =404; }
    location /t { try_files /index.html =404; }
--- request eval
[(map { ("GET /$_?user=user") x 3 } qw(uri name)), ("GET /t?user=user") x 3]
--- more_headers eval
[($::bad) x 6, ($::good) x 3]
--- error_code eval
[(401) x 3, (200) x 3, 200, 200, 429]



=== TEST 8: both kinds on one location, each in its place
--- http_config
    ratelimit_zone $server_name zone=before8:1m rate=6r/d;
    ratelimit_zone $remote_user zone=after8:1m rate=2r/d;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=after8 after_auth;
        ratelimit zone=before8;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 9]
--- more_headers eval
[$::bad, $::good, $::good, $::good, $::good, $::bad, $::other, $::bad, $::good]
--- error_code eval
[401, 200, 200, 429, 429, 401, 200, 401, 429]
--- response_headers eval
["X-Zone: before8\nX-RateLimit-Remaining: 5\nX-Status: PASSED",
 "X-Zone: after8\nX-RateLimit-Remaining: 1\nX-Status: PASSED",
 "X-Zone: after8\nX-RateLimit-Remaining: 0\nX-Status: PASSED",
 "X-Zone: after8\nX-Status: REJECTED", "X-Zone: after8\nX-Status: REJECTED",
 "X-Zone: before8\nX-RateLimit-Remaining: 2",
 "X-RateLimit-Remaining: 1",
 "X-Zone: before8\nX-RateLimit-Remaining: 0",
 "X-Zone: before8\nX-Status: REJECTED"]



=== TEST 9: a refusal of the second gives the first back, by every algorithm
--- http_config
    ratelimit_zone $arg_k zone=fw:1m rate=3r/366d algorithm=fixed_window;
    ratelimit_zone $arg_k zone=sw:1m rate=3r/d rate=4r/2d;
    ratelimit_zone $arg_k zone=sl:1m rate=3r/d algorithm=sliding_log;
    ratelimit_zone $arg_k zone=tb:1m rate=3r/d algorithm=token_bucket;
    ratelimit_zone $arg_k zone=lb:1m rate=3r/d algorithm=leaky_bucket;
    ratelimit_zone $arg_k zone=one:1m rate=1r/d;
--- config
    location /fw { ratelimit zone=fw; ratelimit zone=one name=fw after_auth;
                   try_files /index.html =404; }
    location /sw { ratelimit zone=sw; ratelimit zone=one name=sw after_auth;
                   try_files /index.html =404; }
    location /sl { ratelimit zone=sl; ratelimit zone=one name=sl after_auth;
                   try_files /index.html =404; }
    location /tb { ratelimit zone=tb; ratelimit zone=one name=tb after_auth;
                   try_files /index.html =404; }
    location /lb { ratelimit zone=lb burst=2 nodelay;
                   ratelimit zone=one name=lb after_auth;
                   try_files /index.html =404; }

    location /alone/fw { ratelimit zone=fw; try_files /index.html =404; }
    location /alone/sw { ratelimit zone=sw; try_files /index.html =404; }
    location /alone/sl { ratelimit zone=sl; try_files /index.html =404; }
    location /alone/tb { ratelimit zone=tb; try_files /index.html =404; }
    location /alone/lb { ratelimit zone=lb burst=2 nodelay;
                         try_files /index.html =404; }
--- request eval
[map { (("GET /$_?k=a") x 9, ("GET /alone/$_?k=a") x 3) } qw(fw sw sl tb lb)]
--- error_code eval
[(200, (429) x 8, 200, 200, 429) x 5]



=== TEST 10: a refusal of the first asks no other limit
--- http_config
    ratelimit_zone $arg_k zone=first10:1m rate=1r/d;
    ratelimit_zone $remote_user zone=second10:1m rate=2r/d;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=first10;
        ratelimit zone=second10 after_auth;
        try_files /index.html =404;
    }
--- request eval
["GET /t?k=a", "GET /t?k=a", "GET /t?k=a", "GET /t?k=b", "GET /t?k=c"]
--- more_headers eval
[($::good) x 5]
--- error_code eval
[200, 429, 429, 200, 429]



=== TEST 11: a wrong password spends what is before authentication
--- http_config
    ratelimit_zone $arg_k zone=guess:1m rate=3r/d;
    ratelimit_zone $remote_user zone=known:1m rate=9r/d;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=guess count=401;
        ratelimit zone=known after_auth;
        try_files /index.html =404;
    }
--- pipelined_requests eval
[("GET /t?k=a") x 8]
--- more_headers eval
[($::good) x 3, ($::bad) x 3, $::bad, $::good]
--- error_code eval
[(200) x 3, (401) x 3, 429, 429]



=== TEST 12: "satisfy any": a denied address needs a password, and is limited
--- http_config
    ratelimit_zone $remote_user zone=any:1m rate=2r/d;
    ratelimit_zone $server_name zone=any_before:1m rate=99r/d;
--- config
    satisfy any;
    auth_basic realm;
    ratelimit zone=any_before;
    ratelimit zone=any after_auth;

    location /deny { deny all; try_files /index.html =404; }
    location /allow { allow all; try_files /index.html =404; }
--- request eval
[("GET /deny") x 6, ("GET /allow") x 3]
--- more_headers eval
[$::bad, $::good, $::bad, $::good, $::good, $::bad, "", $::other, ""]
--- error_code eval
[401, 200, 401, 200, 429, 401, 200, 200, 200]
--- response_headers eval
["X-RateLimit-Remaining: 98", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 96", "X-RateLimit-Remaining: 0",
 "X-RateLimit-Remaining: 0", "X-RateLimit-Remaining: 94",
 "X-RateLimit-Remaining: 93", "X-RateLimit-Remaining: 1",
 "X-RateLimit-Remaining: 91"]



=== TEST 13: a dry run refuses none, and a wrong password spends nothing
--- http_config
    ratelimit_zone $server_name zone=dry_before:1m rate=9r/d;
    ratelimit_zone $remote_user zone=dry:1m rate=2r/d;
--- config
    ratelimit_dry_run on;

    location /t {
        auth_basic realm;
        ratelimit zone=dry_before;
        ratelimit zone=dry after_auth;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 6]
--- more_headers eval
[$::bad, $::bad, $::bad, $::good, $::good, $::good]
--- error_code eval
[401, 401, 401, 200, 200, 200]
--- response_headers eval
[("X-Status: PASSED\nX-Zone: dry_before") x 3,
 ("X-Status: PASSED\nX-Zone: dry") x 2,
 "X-Status: REJECTED_DRY_RUN\nX-Zone: dry"]



=== TEST 14: redirects after authentication are not decided again
--- http_config
    ratelimit_zone $remote_user zone=redirect:1m rate=3r/d;
--- config
    auth_basic realm;
    ratelimit zone=redirect after_auth;

    location /try { try_files /no @to; }
    location /error { error_page 404 = @to; }
    location @to { try_files /index.html =404; }
--- request eval
["GET /", "GET /try", "GET /error", "GET /try"]
--- more_headers eval
[($::good) x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers eval
[map { "X-RateLimit-Remaining: $_" } 2, 1, 0, 0]



=== TEST 15: an invalid plan after authentication gives the first back, too
--- http_config
    ratelimit_zone $server_name zone=before15:1m rate=2r/d;
    ratelimit_zone $remote_user zone=closed15:1m rate=$arg_r fail=closed;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=before15;
        ratelimit zone=closed15 after_auth;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?r=x") x 4, ("GET /t?r=9r/d") x 3]
--- more_headers eval
[($::good) x 7]
--- error_code eval
[(503) x 4, 200, 200, 429]
--- response_headers eval
[("X-Status: FAILED_CLOSED\n!X-RateLimit-Limit") x 4, "X-Status: PASSED",
 "X-Status: PASSED", "X-Status: REJECTED\nX-Zone: before15"]



=== TEST 16: a limit that counts refused requests does so
--- http_config
    ratelimit_zone $arg_k zone=rejected:1m rate=3r/d;
    ratelimit_zone $arg_k zone=forgives:1m rate=3r/d;
    ratelimit_zone $remote_user zone=after16:1m rate=1r/d;
--- config
    location /t {
        auth_basic realm;
        ratelimit zone=rejected rejected=count;
        ratelimit zone=forgives;
        ratelimit zone=after16 after_auth;
        try_files /index.html =404;
    }

    location /rejected { ratelimit zone=rejected; try_files /index.html =404; }
    location /forgives { ratelimit zone=forgives; try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 3, "GET /rejected?k=a", ("GET /forgives?k=a") x 3]
--- more_headers eval
[($::good) x 3, ("") x 4]
--- error_code eval
[200, 429, 429, 429, 200, 200, 429]



=== TEST 17: without any authentication it is a limit like others
--- http_config
    ratelimit_zone $arg_k zone=free:1m rate=2r/d;
--- config
    location /t { ratelimit zone=free after_auth; try_files /index.html =404; }
    location /gif { ratelimit zone=free after_auth; empty_gif; }
    location /proxy {
        ratelimit zone=free after_auth;
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/upstream;
    }
    location /upstream { return 200; }
--- request eval
["GET /t?k=a", "GET /gif?k=a", "GET /proxy?k=a",
 "GET /proxy?k=b", "GET /proxy?k=b", "GET /t?k=b"]
--- error_code eval
[200, 200, 429, 200, 200, 429]



=== TEST 18: the user's plan comes from the user
--- http_config
    map $user $plan { user "1r/d"; other "3r/d"; }

    ratelimit_zone $user zone=plan:1m rate=$plan;
--- config
    location /t {
        auth_request /session;
        auth_request_set $user $upstream_http_x_user;
        ratelimit zone=plan after_auth;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 6]
--- more_headers eval
[($::good) x 2, ($::other) x 4]
--- error_code eval
[200, 429, 200, 200, 200, 429]



=== TEST 19: where none applied, a redirect leads to those that do
--- http_config
    ratelimit_zone $remote_user zone=there:1m rate=2r/d;
    ratelimit_zone $arg_k zone=here:1m rate=$arg_r;
--- config
    auth_basic realm;

    location /if { ratelimit zone=there after_auth if=$arg_x;
                   try_files /no @to; }
    location /key { ratelimit zone=here after_auth rate=1r/d;
                    try_files /no /between; }
    location /rate { ratelimit zone=here key=x after_auth;
                     error_page 404 = @to; }
    location /between { ratelimit zone=there cost=9 after_auth if=$arg_x;
                        try_files /no @to; }
    location @to { auth_basic off; ratelimit zone=there after_auth;
                   try_files /index.html =404; }
--- request eval
["GET /if", "GET /key", "GET /rate", "GET /if", "GET /key", "GET /rate"]
--- more_headers eval
[$::good, $::good, $::good, ($::other) x 3]
--- error_code eval
[200, 200, 429, 200, 200, 429]
--- response_headers eval
[(map { "X-Zone: there\nX-RateLimit-Remaining: $_" } 1, 0, 0) x 2]



=== TEST 20: there the page of a refusal is not a verified user either
--- http_config
    ratelimit_zone $remote_user zone=later:1m rate=2r/d;
--- config
    auth_basic realm;
    recursive_error_pages on;

    location /t { ratelimit zone=later after_auth if=$arg_x;
                  error_page 401 = @page; try_files /no @to; }
    location /free { auth_basic off; ratelimit zone=later after_auth if=$arg_x;
                     try_files /no @to; }
    location @to { ratelimit zone=later after_auth;
                   error_page 401 = @page; try_files /index.html =404; }
    location @page { auth_basic off; ratelimit zone=later after_auth;
                     try_files /page.html =404; }
--- request eval
[("GET /t") x 3, ("GET /free") x 3, "GET /t", "GET /free", "GET /t"]
--- more_headers eval
[($::bad) x 6, ($::good) x 3]
--- error_code eval
[(200) x 8, 429]
--- response_body_like eval
[("the page") x 6, ("It works") x 2, "quota"]



=== TEST 21: a value stays what it was, unless it may depend on the user
--- http_config
    split_clients $request_id $sampled { 50% 1; * ""; }
    map $ratelimit_status $first { "" early; default late; }

    ratelimit_zone $server_name zone=count21:1m rate=99r/d;
    ratelimit_zone $server_name zone=after21:1m rate=99r/d;
--- config
    location /elsewhere { ratelimit zone=after21 after_auth; }
    location /map { ratelimit zone=count21 if=$first;
                    add_header X-First $first; empty_gif; }
    location /split { ratelimit zone=count21 if=$sampled;
                      add_header X-Sampled "[$sampled] [$ratelimit_status]";
                      empty_gif; }
    location /both { ratelimit zone=count21 if=$request_id;
                     auth_request /id;
                     auth_request_set $id $upstream_http_x_id;
                     ratelimit zone=after21 after_auth;
                     add_header X-Ids "$id $request_id"; empty_gif; }
    location = /id { proxy_set_header X-Id $request_id;
                     proxy_pass http://127.0.0.1:$server_port/ids; }
    location = /ids { add_header X-Id $http_x_id; return 204; }
--- request eval
["GET /map", "GET /both", ("GET /split") x 20]
--- error_code eval
[(200) x 22]
--- raw_response_headers_like eval
["X-First: early", qr/X-Ids: (\w+) \1\r/,
 (qr/X-Sampled: (\[1\] \[PASSED\]|\[\] \[\])\r/) x 20]



=== TEST 22: a limit of the authenticator has made the user's plan before
--- http_config
    map $user $plan { user "9r/d"; default ""; }

    ratelimit_zone $server_name zone=plan22:1m rate=$plan;
--- config
    location /t {
        auth_request /check;
        auth_request_set $user $upstream_http_x_user;
        ratelimit zone=plan22 after_auth;
        try_files /index.html =404;
    }
    location = /check {
        internal;
        ratelimit zone=plan22;
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/sessions;
    }
--- request eval
[("GET /t") x 2]
--- more_headers eval
[$::good, $::other]
--- response_headers eval
["X-RateLimit-Limit: 9", "!X-RateLimit-Limit"]
