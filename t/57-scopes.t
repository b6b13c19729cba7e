#!/usr/bin/perl

# Scopes: by address and by user together, one budget for all, by endpoint and
# method.  If this fails, users behind one address use up each other's limits,
# a budget is exceeded by its many users, or a cheap endpoint pays for an
# expensive one.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

our $realip = 'set_real_ip_from 127.0.0.0/8;
               real_ip_header X-Forwarded-For;
               add_header X-Zone $ratelimit_zone always;';

# "ADDRESS USER" of each request

sub from {
    return [map {
        my ($address, $user) = split ' ';
        "X-Forwarded-For: 192.0.2.$address" . ($user ? "\nX-User: $user" : '');
    } @_];
}

repeat_each(1);

run_tests();

__DATA__

=== TEST 1: by address and by user: an office shares one, each has the other
--- http_config eval
"$::realip" . '
 ratelimit_zone $ratelimit_client zone=ip1:1m rate=5r/d;
 ratelimit_zone $http_x_user zone=user1:1m rate=2r/d;'
--- config
    location /t {
        ratelimit zone=ip1;
        ratelimit zone=user1;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 12]
--- more_headers eval
::from("1 ann", "1 ann", "1 ann", "1 ann", "1 bob", "1 bob", "1 bob", "1 eve",
       "1 eve", "1", "2 eve", "2 ann")
--- error_code eval
[200, 200, 429, 429, 200, 200, 429, 200, 429, 429, 200, 429]
--- response_headers eval
["X-Zone: user1\nX-RateLimit-Remaining: 1",
 "X-Zone: user1\nX-RateLimit-Remaining: 0", "X-Zone: user1", "X-Zone: user1",
 "X-RateLimit-Remaining: 1", "X-RateLimit-Remaining: 0", "X-Zone: user1",
 "X-Zone: ip1\nX-RateLimit-Remaining: 0", "X-Zone: ip1", "X-Zone: ip1",
 "X-Zone: user1\nX-RateLimit-Remaining: 0", "X-Zone: user1"]



=== TEST 2: users by their name, strangers by their address
--- http_config eval
"$::realip" . '
 map $http_x_user $stranger { "" $ratelimit_client; default ""; }

 ratelimit_zone $stranger zone=ip2:1m rate=1r/d;
 ratelimit_zone $http_x_user zone=user2:1m rate=3r/d;'
--- config
    location /t {
        ratelimit zone=ip2;
        ratelimit zone=user2;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 9]
--- more_headers eval
::from("1", "1", "1 ann", "1 ann", "2 ann", "2 ann", "2", "2", "1 bob")
--- error_code eval
[200, 429, 200, 200, 200, 429, 200, 429, 200]



=== TEST 3: by address and user in one key
--- http_config eval
"$::realip" . '
 ratelimit_zone "$ratelimit_client $http_x_user" zone=pair:1m rate=1r/d;'
--- config
    location /t { ratelimit zone=pair; try_files /index.html =404; }
--- request eval
[("GET /t") x 6]
--- more_headers eval
::from("1 ann", "1 ann", "1 bob", "2 ann", "2 ann", "1")
--- error_code eval
[200, 429, 200, 200, 429, 200]



=== TEST 4: one budget for all clients and endpoints
--- http_config eval
"$::realip" . '
 ratelimit_zone all zone=budget:1m rate=4r/d algorithm=token_bucket;
 ratelimit zone=budget;'
--- config
    location /a { try_files /index.html =404; }
    location /b { try_files /index.html =404; }
    location /off { ratelimit off; try_files /index.html =404; }
--- request eval
["GET /a", "GET /b", "GET /a", "GET /off", "GET /b?x", "GET /a", "GET /b",
 "GET /off"]
--- more_headers eval
::from("1 ann", "2 bob", "3", 4, 5, 6, "1 ann", 7)
--- error_code eval
[200, 200, 200, 200, 200, 429, 429, 200]



=== TEST 5: a budget and a limit for each: a greedy client costs no other
--- http_config eval
"$::realip" . '
 ratelimit_zone $ratelimit_client zone=each:1m rate=2r/d;'
--- config
    location /t {
        ratelimit zone=each;
        ratelimit zone=each key=all rate=5r/d name=budget;
        try_files /index.html =404;
    }
--- request eval
[("GET /t") x 11]
--- more_headers eval
::from(1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 4)
--- error_code eval
[200, 200, 429, 429, 429, 200, 200, 200, 429, 429, 429]
--- response_headers eval
[("X-RateLimit-Limit: 2") x 7, "X-RateLimit-Limit: 5",
 ("X-RateLimit-Limit: 5") x 3]



=== TEST 6: by endpoint and method
--- http_config
    ratelimit_zone "$request_method $uri $arg_k" zone=endpoint:1m rate=1r/d;
--- config
    error_page 405 =200 /index.html;

    location /t { ratelimit zone=endpoint; try_files /index.html =404; }
--- request eval
["GET /t/a?k=1", "GET /t/a?k=1&x", "GET /t/b?k=1", "GET /t/a?k=2",
 "POST /t/a?k=1\n", "POST /t/a?k=1\n", "HEAD /t/a?k=1", "GET /t//a?k=1",
 "GET /t/./a?k=1", "GET /t/%61?k=1"]
--- error_code eval
[200, 429, 200, 200, 200, 429, 200, 429, 429, 429]



=== TEST 7: one location of many has a limit of its own besides the common one
--- http_config
    ratelimit_zone $arg_k zone=common:1m rate=4r/d;
--- config
    location /cheap { ratelimit zone=common; try_files /index.html =404; }
    location /dear {
        ratelimit zone=common;
        ratelimit zone=common rate=1r/d;
        try_files /index.html =404;
    }
--- request eval
["GET /dear?k=a", "GET /dear?k=a", "GET /dear?k=a", "GET /cheap?k=a",
 "GET /cheap?k=a", "GET /cheap?k=a", "GET /cheap?k=a", "GET /dear?k=a"]
--- error_code eval
[200, 429, 429, 200, 200, 200, 429, 429]



=== TEST 8: reads and writes of one location are different limits
--- http_config
    map $request_method $writes { GET ""; HEAD ""; default 1; }
    map $request_method $reads { GET 1; HEAD 1; default ""; }

    ratelimit_zone $arg_k zone=methods:1m;
--- config
    error_page 405 =200 /index.html;

    location /t {
        ratelimit zone=methods rate=3r/d name=read if=$reads;
        ratelimit zone=methods rate=1r/d name=write if=$writes;
        try_files /index.html =404;
    }
--- request eval
["POST /t?k=a\n", "POST /t?k=a\n", "GET /t?k=a", "HEAD /t?k=a", "GET /t?k=a",
 "GET /t?k=a", "DELETE /t?k=a", "DELETE /t?k=b"]
--- error_code eval
[200, 429, 200, 200, 200, 429, 429, 200]



=== TEST 9: a budget that only some requests draw on
--- http_config
    ratelimit_zone all zone=export:1m rate=5r/d;

    map $uri $price { /t/report 3; /t/page 1; default 0; }
--- config
    location /t { ratelimit zone=export cost=$price;
                  try_files /index.html =404; }
--- request eval
["GET /t/report", "GET /t/free", "GET /t/report", "GET /t/page", "GET /t/page",
 "GET /t/page", "GET /t/free"]
--- error_code eval
[200, 200, 429, 200, 200, 429, 200]



=== TEST 10: per tenant, with a plan for each, and a budget for all
--- http_config
    map $arg_k $plan { gold 4r/d; silver 2r/d; partner ""; default 1r/d; }

    ratelimit_zone $arg_k zone=tenant:1m rate=$plan;
    ratelimit_zone all zone=everybody:1m rate=9r/d;
--- config
    location /t {
        ratelimit zone=tenant;
        ratelimit zone=everybody;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=gold") x 5, ("GET /t?k=silver") x 3, ("GET /t?k=x") x 2,
 ("GET /t?k=partner") x 3, "GET /t?k=y"]
--- error_code eval
[(200) x 4, 429, 200, 200, 429, 200, 429, 200, 200, 429, 429]
