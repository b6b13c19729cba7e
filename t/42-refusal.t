#!/usr/bin/perl

# A refusal: its status, its body, its line in the log, and the connection it
# came on.  If this fails, clients can't tell why they were refused, fail2ban
# and CrowdSec no longer see offenders, or a refused upload breaks the
# connection for the requests behind it.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

repeat_each(1);

our $problem = '{"type":"https://iana.org/assignments/http-problem-types'
               . '#quota-exceeded","title":"Request cannot be satisfied as '
               . 'assigned quota has been exceeded","status":%d,'
               . '"violated-policies":[%s]}' . "\r\n";

our $line = '\[error\] \d+#\d+: \*\d+ limiting requests, '
            . 'excess: \d+\.\d{3} by zone "%s", client: 127\.0\.0\.1, '
            . 'server: localhost, request: "GET /[^"]*", host: "localhost"';

run_tests();

__DATA__

=== TEST 1: the status is 429, the body is problem+json
--- http_config
    ratelimit_zone $arg_k zone=plain:1m rate=1r/h;
--- config
    location /t { ratelimit zone=plain cost=2; }
--- request
GET /t?k=a
--- error_code: 429
--- response_headers
Content-Type: application/problem+json
Content-Length: 192
--- response_body eval
sprintf $::problem, 429, '"plain"'



=== TEST 2: violated policies are all that refuse, each once, and no others
--- http_config
    ratelimit_zone $arg_a zone=first:1m rate=1r/h rate=2r/d;
    ratelimit_zone $arg_b zone=second:1m rate=9r/h;
    ratelimit_zone $arg_c zone=third:1m rate=2r/h;
--- config
    location /t {
        ratelimit zone=first cost=3;
        ratelimit zone=second;
        ratelimit zone=third cost=3;
    }
--- request
GET /t?a=1&b=1&c=1
--- error_code: 429
--- response_body eval
sprintf $::problem, 429, '"first","third"'



=== TEST 3: names are escaped as JSON wants it
--- http_config
    ratelimit_zone $arg_a zone=escaped:1m rate=1r/h;
--- config
    location /t { ratelimit zone=escaped rate=1r/h "name=a\"b\\c" cost=2; }
--- request
GET /t?a=1
--- error_code: 429
--- response_body eval
sprintf $::problem, 429, '"a\"b\\\\c"'



=== TEST 4: the status is the one that is configured
--- http_config
    ratelimit_zone $arg_k zone=status:1m rate=1r/h;
    ratelimit_status 503;
--- config
    ratelimit zone=status cost=2;

    location /t { try_files /index.html =404; }
    location /own { ratelimit_status 420; try_files /index.html =404; }
--- request eval
["GET /t?k=a", "GET /own?k=a"]
--- error_code eval
[503, 420]
--- response_body eval
[map { sprintf $::problem, $_, '"status"' } 503, 420]
--- response_headers_like eval
[("Retry-After: \\d+\nX-RateLimit-Limit: 1") x 2]



=== TEST 5: 444 closes the connection without a word
--- http_config
    ratelimit_zone $arg_k zone=silent:1m rate=1r/h;
--- config
    location /t { ratelimit zone=silent cost=2; ratelimit_status 444; }
--- request
GET /t?k=a
--- ignore_response
--- error_log
limiting requests
--- access_log eval
qr{"GET /t\?k=a HTTP/1\.1" 444 0 }



=== TEST 6: without the body, nginx's own page is sent
--- http_config
    ratelimit_zone $arg_k zone=bodyless:1m rate=1r/h;
--- config
    location /t { ratelimit zone=bodyless cost=2; ratelimit_body off; }
--- request
GET /t?k=a
--- error_code: 429
--- response_headers
Content-Type: text/html
X-RateLimit-Limit: 1
--- response_body_like: <center><h1>429 Too Many Requests</h1></center>



=== TEST 7: the body is inherited and may be had again
--- http_config
    ratelimit_zone $arg_k zone=again:1m rate=1r/h;
    ratelimit_body off;
--- config
    ratelimit zone=again cost=2;

    location /off { try_files /index.html =404; }
    location /on { ratelimit_body problem; try_files /index.html =404; }
--- request eval
["GET /off?k=a", "GET /on?k=a"]
--- error_code eval
[429, 429]
--- response_headers eval
["Content-Type: text/html", "Content-Type: application/problem+json"]



=== TEST 8: error_page wins
--- http_config
    ratelimit_zone $arg_k zone=page:1m rate=1r/h;
--- config
    ratelimit zone=page cost=2;

    location /uri { error_page 429 /index.html; }
    location /named { error_page 429 = @slow; }
    location /code { error_page 429 =503 /index.html; }
    location /away { error_page 429 http://example.com/slow; }
    location @slow { ratelimit off; add_header X-Slow yes always;
                     try_files /index.html =404; }
--- request eval
["GET /uri?k=a", "GET /named?k=a", "GET /code?k=a", "GET /away?k=a"]
--- error_code eval
[429, 200, 503, 302]
--- response_body_like eval
["It works", "It works", "It works", "302 Found"]
--- response_headers_like eval
["X-RateLimit-Limit: 1\nRetry-After: \\d+\nX-Slow: ",
 "X-RateLimit-Limit: 1\nRetry-After: \\d+\nX-Slow: yes",
 "X-RateLimit-Limit: 1\nRetry-After: \\d+\nX-Slow: ",
 "X-RateLimit-Limit: 1\nRetry-After: \\d+\nX-Slow: "]



=== TEST 9: error_page of another status does not matter
--- http_config
    ratelimit_zone $arg_k zone=other:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=other cost=2;
        error_page 404 503 /index.html;
    }
--- request
GET /t?k=a
--- error_code: 429
--- response_body eval
sprintf $::problem, 429, '"other"'



=== TEST 10: a refusal on an error page keeps the body
--- http_config
    ratelimit_zone $request_uri zone=nested:1m rate=1r/h;
--- config
    error_page 404 /slow;
    error_page 429 /never;

    location /t { }
    location /slow { ratelimit zone=nested cost=2; }
--- request
GET /t?k=a
--- error_code: 429
--- response_body eval
sprintf $::problem, 429, '"nested"'



=== TEST 11: HEAD is refused without a body, but with its length
--- http_config
    ratelimit_zone $arg_k zone=head:1m rate=1r/h;
--- config
    location /t { ratelimit zone=head cost=2; }
--- request
HEAD /t?k=a
--- error_code: 429
--- response_headers_like
Content-Type: application/problem\+json
Content-Length: 191
Retry-After: \d+
--- response_body



=== TEST 12: a connection lives on after a refusal
--- http_config
    ratelimit_zone $arg_k zone=alive:1m rate=1r/h;
--- config
    location /t { ratelimit zone=alive; try_files /index.html =404; }
    location /h { ratelimit zone=alive cost=2; ratelimit_body off; }
    location /free { try_files /index.html =404; }
--- pipelined_requests eval
["GET /t?k=a", "GET /t?k=a", "GET /h?k=a", "GET /t?k=a", "GET /free"]
--- error_code eval
[200, 429, 429, 429, 200]
--- response_headers eval
["Connection: keep-alive", "Connection: keep-alive", "Connection: keep-alive",
 "Connection: keep-alive", "Connection: close"]



=== TEST 13: a body that is refused is discarded, the next request is whole
--- http_config
    ratelimit_zone $arg_k zone=upload:1m rate=1r/h;
--- config
    location /t { ratelimit zone=upload cost=2; }
    location /free { try_files /index.html =404; }
--- pipelined_requests eval
["POST /t?k=a\n" . "x" x 2_000_000, "GET /free",
 "POST /t?k=a\nGET /t HTTP/1.1", "GET /free"]
--- error_code eval
[429, 200, 429, 200]
--- response_body_like eval
["quota-exceeded", "It works", "quota-exceeded", "It works"]



=== TEST 14: a body in chunks that is refused is discarded as well
--- http_config
    ratelimit_zone $arg_k zone=chunks:1m rate=1r/h;
--- config
    location /t { ratelimit zone=chunks cost=2; }
    location /free { try_files /index.html =404; }
--- raw_request eval
"POST /t?k=a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
. ("10000\r\n" . "x" x 65536 . "\r\n") x 4 . "0\r\n\r\n"
. "GET /free HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
--- ignore_response
--- access_log eval
[qr{"POST /t\?k=a HTTP/1.1" 429 }, qr{"GET /free HTTP/1.1" 200 }]



=== TEST 15: a client that asks before it sends is not told to continue
--- http_config
    ratelimit_zone $arg_k zone=expect:1m rate=1r/h;
--- config
    location /t { ratelimit zone=expect cost=2; }
--- raw_request eval
"POST /t?k=a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
. "Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello"
--- error_code: 429



=== TEST 16: HTTP/1.0 is refused as well
--- http_config
    ratelimit_zone $arg_k zone=old:1m rate=1r/h;
--- config
    location /t { ratelimit zone=old cost=2; }
--- raw_request eval
"GET /t?k=a HTTP/1.0\r\n\r\n"
--- error_code: 429
--- response_body eval
sprintf $::problem, 429, '"old"'



=== TEST 17: a refusal is logged in limit_req's words
--- http_config
    ratelimit_zone $arg_k zone=words:1m rate=2r/h;
--- config
    location /t { ratelimit zone=words; try_files /index.html =404; }
--- request eval
[("GET /t?k=a") x 4]
--- error_code eval
[200, 200, 429, 429]
--- logged eval
my $line = sprintf $::line, 'words';

[undef, undef, qr/$line/, qr/$line/]



=== TEST 18: the same parser reads limit_req's lines and ours
--- http_config
    limit_req_zone $arg_k zone=theirs:1m rate=1r/m;
    ratelimit_zone $arg_k zone=ours:1m rate=1r/m algorithm=leaky_bucket;
--- config
    location /limit_req { limit_req zone=theirs; try_files /index.html =404; }
    location /ratelimit { ratelimit zone=ours; try_files /index.html =404; }
--- request eval
[("GET /limit_req?k=a") x 2, ("GET /ratelimit?k=a") x 2]
--- error_code eval
[200, 503, 200, 429]
--- logged eval
[map { my $line = sprintf $::line, $_; (undef, qr/$line/) } 'theirs', 'ours']



=== TEST 19: the zone that is logged is the one that speaks
--- http_config
    ratelimit_zone $arg_k zone=quick:1m rate=1r/h;
    ratelimit_zone $arg_k zone=slow:1m rate=1r/d;
--- config
    location /t { ratelimit zone=quick cost=2; ratelimit zone=slow cost=2;
                  ratelimit zone=quick cost=2 rate=1r/h name=apart; }
--- request
GET /t?k=a
--- error_code: 429
--- logged eval
my $line = sprintf $::line, 'slow';

[qr/$line/]



=== TEST 20: refusals are logged at the level that is configured
--- http_config
    ratelimit_zone $arg_k zone=level:1m rate=1r/h;
    ratelimit_log_level warn;
--- config
    ratelimit zone=level cost=2;

    location /warn { try_files /index.html =404; }
    location /error { ratelimit_log_level error; try_files /index.html =404; }
    location /notice { ratelimit_log_level notice; try_files /index.html =404; }
    location /info { ratelimit_log_level info; try_files /index.html =404; }
--- request eval
["GET /warn?k=a", "GET /error?k=a", "GET /notice?k=a", "GET /info?k=a"]
--- error_code eval
[429, 429, 429, 429]
--- logged eval
[map { qr/\[$_\] .* limiting requests, excess: / } qw(warn error notice info)]



=== TEST 21: a refused request does not reach the upstream
--- http_config
    ratelimit_zone $arg_k zone=away:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=away cost=2;
        proxy_pass http://127.0.0.1:$server_port/upstream;
    }

    location /upstream { return 200; }
--- request
GET /t?k=a
--- error_code: 429
--- no_error_log
http upstream
[alert]
[crit]
[emerg]



=== TEST 22: filters see a refusal as any response
--- http_config
    ratelimit_zone $arg_k zone=filtered:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=filtered cost=2;
        add_header X-Added $status always;
        sub_filter_types application/problem+json;
        sub_filter '"filtered"' '"FILTERED"';
    }
--- request
GET /t?k=a
--- error_code: 429
--- response_headers
X-Added: 429
!Content-Length
--- response_body eval
sprintf $::problem, 429, '"FILTERED"'



=== TEST 23: statuses of nginx's own are answered as limit_req's are
--- http_config
    ratelimit_zone $arg_k zone=own:1m rate=1r/h;
    limit_req_zone $arg_k zone=req:1m rate=1r/m;
--- config eval
CORE::join '', 'location /first { limit_req zone=req; try_files /index.html =404; }',
    map { "location /ours$_ { ratelimit zone=own cost=2; ratelimit_status $_;"
          . " try_files /index.html =404; }\n"
          . "location /req$_ { limit_req zone=req; limit_req_status $_;"
          . " try_files /index.html =404; }\n" } 494 .. 497
--- request eval
["GET /first?k=a", map { ("GET /ours$_?k=a", "GET /req$_?k=a") } 494 .. 497]
--- error_code eval
[200, (400) x 8]
--- response_body_like eval
[qr/./, (map { ($_) x 2 } qr/Request Header Or Cookie Too Large/,
                          qr/The SSL certificate error/,
                          qr/No required SSL certificate was sent/,
                          qr/plain HTTP request was sent to HTTPS/)]



=== TEST 24: 499 closes the connection without a word
--- http_config
    ratelimit_zone $arg_k zone=silent:1m rate=1r/h;
--- config
    location /t { ratelimit zone=silent cost=2; ratelimit_status 499; }
--- request
GET /t?k=a
--- ignore_response
--- error_log
limiting requests
--- access_log eval
qr{"GET /t\?k=a HTTP/1\.1" 499 0 }



=== TEST 25: 408 closes the connection if the body is nginx's, as limit_req's
--- http_config
    ratelimit_zone $arg_k zone=silent:1m rate=1r/h;
--- config
    location /t {
        ratelimit zone=silent cost=2;
        ratelimit_status 408;
        ratelimit_body off;
    }
--- request
GET /t?k=a
--- ignore_response
--- error_log
limiting requests
--- access_log eval
qr{"GET /t\?k=a HTTP/1\.1" 408 0 }



=== TEST 26: 408 is sent with a body
--- http_config
    ratelimit_zone $arg_k zone=late:1m rate=1r/h;
--- config
    location /t { ratelimit zone=late cost=2; ratelimit_status 408; }
--- request
GET /t?k=a
--- error_code: 408
--- response_body eval
sprintf $::problem, 408, '"late"'



=== TEST 27: policies are called by their name, or their zone, each once
--- http_config
    ratelimit_zone $arg_k zone=called:1m rate=1r/h;
    ratelimit_zone $arg_k zone=other:1m rate=1r/h;
--- config
    location ~ ^/(t|secret) {
        ratelimit zone=other name=login cost=2;
        ratelimit zone=called rate=1r/d cost=2;
        ratelimit zone=called name=called cost=2;
    }
--- request
GET /t?k=a
--- error_code: 429
--- response_body eval
sprintf $::problem, 429, '"login","called"'



=== TEST 28: a name that is not ASCII is the same in fields and body
--- http_config
    ratelimit_zone $arg_k zone=ascii:1m rate=1r/h;
--- config
    location /t { ratelimit zone=ascii "name=größe \"x\"" cost=2;
                  ratelimit_headers ietf; }
--- request
GET /t?k=a
--- error_code: 429
--- response_headers
RateLimit-Policy: "gr%C3%B6%C3%9Fe \"x\"";q=1;w=3600
--- response_body eval
sprintf $::problem, 429, '"gr%C3%B6%C3%9Fe \"x\""'



=== TEST 29: policies are in the order of the directives
--- http_config
    ratelimit_redis nowhere redis://127.0.0.1:1 timeout=5s connect_timeout=5s;
    ratelimit_redis none redis://127.0.0.1:2 timeout=5s connect_timeout=5s;
    ratelimit_zone $arg_k zone=a:1m rate=1r/h redis=nowhere;
    ratelimit_zone $arg_k zone=b:1m rate=1r/h;
    ratelimit_zone $arg_k zone=c:1m rate=1r/h redis=none;
    ratelimit_zone $arg_k zone=d:1m rate=1r/h redis=nowhere;
--- config
    ratelimit_headers ietf;

    location /t { ratelimit zone=a cost=2;
                  ratelimit zone=b;
                  ratelimit zone=c;
                  ratelimit zone=d cost=2; }
--- request
GET /t?k=a
--- error_code: 429
--- response_headers
RateLimit-Policy: "a";q=1;w=3600, "b";q=1;w=3600, "c";q=1;w=3600, "d";q=1;w=3600
--- response_body eval
sprintf $::problem, 429, '"a","d"'
