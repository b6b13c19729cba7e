#!/usr/bin/perl

# HTTP/2, as curl speaks it: a stream is not a connection, so fields, bodies,
# delays and clients that leave take other ways through nginx.  If this fails,
# limits hold for old clients only, or a delayed stream blocks its neighbours.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

our $port = Ratelimit::free_port();


# the same configuration a second time, for HTTP/2

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $block->http_config . "
        log_format h2 '\$request_uri \$server_protocol \$status '
                      '\$ratelimit_status.';
        access_log " . server_root() . "/logs/access.log h2;

        server {
            listen 127.0.0.1:$port http2;
            server_name localhost;
            root html;
" . $block->config . "}\n");

    $block->set_value(request => 'GET /index.html');
});


# "--- curl" has the arguments of a call each, "--- output" what it prints

add_response_body_check(sub {
    my ($block) = @_;

    my @expected = @{ $block->output };

    for my $arguments (@{ $block->curl }) {
        my @arguments = map { s{^/}{http://127.0.0.1:$port/}r } @$arguments;
        my $expected = shift @expected;

        open my $curl, '-|', 'curl', '-sS', '-i', '--http2-prior-knowledge',
                             '--max-time', timeout(), @arguments
            or die "curl: $!";
        my $output = CORE::join '', <$curl>;
        close $curl;

        like($output =~ s/\r//gr, $expected, $block->name . " - @$arguments");
    }

    for my $line (@{ $block->lines // [] }) {
        ok(Ratelimit::said('access', $line), $block->name . " - $line");
    }
});


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: fields and refusals, in lower case as HTTP/2 wants it
--- http_config
    ratelimit_zone $arg_k zone=fields:1m rate=1r/h algorithm=token_bucket;
--- config
    location /t {
        ratelimit zone=fields;
        ratelimit_headers x ietf;
        try_files /index.html =404;
    }
--- curl eval
[["/t?k=a"], ["/t?k=a"]]
--- output eval
[qr/^HTTP\/2\ 200\ \n (?=.*\nx-ratelimit-limit:\ 1\n)
    (?=.*\nx-ratelimit-remaining:\ 0\n)(?=.*\nx-ratelimit-reset:\ 3600\n)
    (?=.*\nratelimit-policy:\ "fields";q=1;w=3600\n)
    (?=.*\nratelimit:\ "fields";r=0;t=3600\n)(?!.*retry-after)
    .*\n\n.*It\ works/xs,
 qr/^HTTP\/2\ 429\ \n (?=.*\nx-ratelimit-limit:\ 1\n)
    (?=.*\nx-ratelimit-remaining:\ 0\n)(?=.*\nretry-after:\ \d+\n)
    (?=.*\nx-ratelimit-retry-after:\ \d+\n)
    (?=.*\ncontent-type:\ application\/problem\+json\n)
    (?=.*\nratelimit:\ "fields";r=0;t=\d+\n)
    .*\n\n\{"type":.*"violated-policies":\["fields"\]\}\n$/xs]
--- lines eval
[qr{^/t\?k=a HTTP/2.0 200 PASSED\.}, qr{^/t\?k=a HTTP/2.0 429 REJECTED\.}]



=== TEST 2: HTTP/1 and HTTP/2 share the counters
--- http_config
    ratelimit_zone $server_name zone=shared:1m rate=2r/h;
--- config
    location = /index.html { ratelimit zone=shared; }
--- curl eval
[["/index.html"], ["/index.html"]]
--- output eval
[qr/^HTTP\/2 200 /, qr/^HTTP\/2 429 /]



=== TEST 3: fields are on 304, 404, HEAD and error pages
--- http_config
    ratelimit_zone $arg_k zone=every:1m rate=9r/h;
--- config
    location /t { ratelimit zone=every; }
    location /page { ratelimit zone=every; error_page 404 /index.html; }
--- user_files
>>> t.txt 201801010000.00
text
--- curl eval
[["/t.txt?k=a", "-H", "If-Modified-Since: Mon, 01 Jan 2018 00:00:00 GMT"],
 ["/t/no?k=a"], ["-I", "/t.txt?k=a"], ["/page?k=a"]]
--- output eval
[qr/^HTTP\/2 304 .*\nx-ratelimit-remaining: 8\n/s,
 qr/^HTTP\/2 404 .*\nx-ratelimit-remaining: 7\n/s,
 qr/^HTTP\/2 200 .*\nx-ratelimit-remaining: 6\n/s,
 qr/^HTTP\/2 404 .*\nx-ratelimit-remaining: 5\n.*It works/s]



=== TEST 4: a refused HEAD has no body
--- http_config
    ratelimit_zone $arg_k zone=head:1m rate=1r/h;
--- config
    location /t { ratelimit zone=head cost=2; }
--- curl eval
[["-I", "/t?k=a"]]
--- output eval
[qr/^HTTP\/2 429 .*\ncontent-length: 191\n.*\n\n$/s]



=== TEST 5: a refused upload ends its stream, not the connection
--- http_config
    ratelimit_zone $arg_k zone=upload:1m rate=1r/h;
--- config
    location /t { ratelimit zone=upload cost=2; }
    location /free { try_files /index.html =404; }
--- curl eval
[["-H", "Expect:", "--data-binary", '@' . __FILE__,
  "/t?k=a", "--next", "-sS", "-i", "--http2-prior-knowledge",
  "-w", "%{num_connects}.", "/free"]]
--- output eval
[qr/^HTTP\/2 429 .*quota-exceeded.*HTTP\/2 200 .*It works.*>0\.$/s]



=== TEST 6: a delayed stream waits, and then is answered
--- http_config
    ratelimit_zone $arg_k zone=delay:1m rate=2r/s algorithm=leaky_bucket;
--- config
    location /t {
        ratelimit zone=delay burst=5;
        add_header X-Status $ratelimit_status always;
        add_header X-Time $request_time always;
        try_files /index.html =404;
    }
--- curl eval
[["/t?k=a&n=1", "/t?k=a&n=2"]]
--- output eval
[qr/^HTTP\/2\ 200\ .*\nx-status:\ PASSED\n.*It\ works
    .*HTTP\/2\ 200\ .*\nx-status:\ DELAYED\n
     x-time:\ (0\.[3-9]|[1-9]).*It\ works/xs]
--- lines eval
[qr{^/t\?k=a&n=1 HTTP/2.0 200 PASSED\.}, qr{^/t\?k=a&n=2 HTTP/2.0 200 DELAYED\.}]



=== TEST 7: streams that are delayed together do not hinder each other
--- http_config
    ratelimit_zone $arg_k zone=together:1m rate=5r/s algorithm=leaky_bucket;
--- config
    location /t {
        ratelimit zone=together burst=9;
        try_files /index.html =404;
    }
--- curl eval
[["-Z", "--parallel-max", "5", "-w", "%{http_code}.", map { "/t?k=a&n=$_" } 1 .. 5]]
--- output eval
[qr/^(.*200\.){5}/s]
--- lines eval
[qr{HTTP/2.0 200 PASSED\.}, qr{HTTP/2.0 200 DELAYED\.}]



=== TEST 8: a client that goes away while its stream is delayed
--- http_config
    ratelimit_zone $arg_k zone=leave:1m rate=1r/m algorithm=leaky_bucket;
--- config
    location /t {
        ratelimit zone=leave burst=9;
        try_files /index.html =404;
    }
--- curl eval
[["/t?k=a&n=1"], ["--max-time", "0.5", "/t?k=a&n=2"], ["/index.html"]]
--- output eval
[qr/^HTTP\/2 200 /, qr/^$/, qr/^HTTP\/2 200 /]
--- lines eval
[qr{^/t\?k=a&n=2 HTTP/2.0 499 DELAYED\.}]



=== TEST 9: a request is decided once on its way through HTTP/2 as well
--- http_config
    ratelimit_zone $arg_k zone=once:1m rate=2r/h;
--- config
    location /t { ratelimit zone=once; error_page 404 = /page.html?$args; }
    location /page.html { ratelimit zone=once; ssi on; }
--- user_files
>>> page.html
<!--#include virtual="/part.txt" -->
>>> part.txt
part.
--- curl eval
[["/t?k=a"], ["/t?k=a"], ["/t?k=a"]]
--- output eval
[qr/^HTTP\/2 200 .*\nx-ratelimit-remaining: 1\n.*part\./s,
 qr/^HTTP\/2 200 .*\nx-ratelimit-remaining: 0\n.*part\./s,
 qr/^HTTP\/2 429 .*\nx-ratelimit-remaining: 0\n/s]
