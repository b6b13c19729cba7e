#!/usr/bin/perl

# HTTP/2, as nghttp speaks it: a stream is not a connection, so fields, bodies,
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


# "--- nghttp" has the arguments of a call each, "--- answers" what comes back,
# "--- lines" what the access log says of it in the end

add_response_body_check(sub {
    my ($block) = @_;

    my @expected = @{ $block->answers };

    for my $arguments (@{ $block->nghttp }) {
        like(answers(@$arguments), shift @expected,
             $block->name . " - @$arguments");
    }

    for my $line (@{ $block->lines // [] }) {
        ok(Ratelimit::said('access', $line), $block->name . " - $line");
    }
});


# all fields of one stream, an empty line, those of the next one, ..., all else

sub answers {
    my @arguments = map { s{^/}{http://127.0.0.1:$port/}r } @_;

    open my $nghttp, '-|', 'sh', '-c', 'exec nghttp -v "$@" 2>&1', 'sh',
                           '-t', timeout(), @arguments
        or die "nghttp: $!";
    my $text = CORE::join '', <$nghttp>;
    close $nghttp;

    my %fields;

    while ($text =~ s/^\[[ \d.]+\] recv \(stream_id=(\d+)\) (.*\n)//m) {
        $fields{$1} .= $2;
    }

    my @streams = map { $fields{$_} } sort { $a <=> $b } keys %fields;

    return CORE::join "\n", @streams, $text;
}


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
--- nghttp eval
[["/t?k=a"], ["/t?k=a"]]
--- answers eval
[qr/^:status:\ 200\n (?=.*^x-ratelimit-limit:\ 1\n)
    (?=.*^x-ratelimit-remaining:\ 0\n)(?=.*^x-ratelimit-reset:\ 3600\n)
    (?=.*^ratelimit-policy:\ "fields";q=1;w=3600\n)
    (?=.*^ratelimit:\ "fields";r=0;t=3600;)(?!.*retry-after)
    .*^\n.*It\ works/xsm,
 qr/^:status:\ 429\n (?=.*^x-ratelimit-limit:\ 1\n)
    (?=.*^x-ratelimit-remaining:\ 0\n)(?=.*^retry-after:\ \d+\n)
    (?=.*^x-ratelimit-retry-after:\ \d+\n)
    (?=.*^content-type:\ application\/problem\+json\n)
    (?=.*^ratelimit:\ "fields";r=0;t=\d+;)
    .*^\n.*\{"type":.*"violated-policies":\["fields"\]\}/xsm]
--- lines eval
[qr{^/t\?k=a HTTP/2.0 200 PASSED\.}, qr{^/t\?k=a HTTP/2.0 429 REJECTED\.}]



=== TEST 2: HTTP/1 and HTTP/2 share the counters
--- http_config
    ratelimit_zone $server_name zone=shared:1m rate=2r/h;
--- config
    location = /index.html { ratelimit zone=shared; }
--- nghttp eval
[["/index.html"], ["/index.html"]]
--- answers eval
[qr/^:status: 200\n/, qr/^:status: 429\n/]



=== TEST 3: every stream of a connection is decided for itself
--- http_config
    ratelimit_zone $server_name zone=streams:1m rate=2r/h;
--- config
    location /t { ratelimit zone=streams; try_files /index.html =404; }
--- nghttp eval
[["/t?1", "/t?2", "/t?3"]]
--- answers eval
[qr/^:status: 200\n.*^:status: 200\n.*^:status: 429\n/sm]



=== TEST 4: fields are on 304, 404, HEAD and error pages
--- http_config
    ratelimit_zone $arg_k zone=every:1m rate=9r/h;
--- config
    location /t { ratelimit zone=every; }
    location /page { ratelimit zone=every; error_page 404 /index.html; }
--- user_files
>>> t.txt 201801010000.00
text
--- nghttp eval
[["/t.txt?k=a", "-H", "If-Modified-Since: Mon, 01 Jan 2018 00:00:00 GMT"],
 ["/t/no?k=a"], ["-H", ":method: HEAD", "/t.txt?k=a"], ["/page?k=a"]]
--- answers eval
[qr/^:status: 304\n.*^x-ratelimit-remaining: 8\n/sm,
 qr/^:status: 404\n.*^x-ratelimit-remaining: 7\n/sm,
 qr/^:status: 200\n.*^x-ratelimit-remaining: 6\n(?!.*recv DATA)/sm,
 qr/^:status: 404\n.*^x-ratelimit-remaining: 5\n.*It works/sm]



=== TEST 5: a refused HEAD has no body
--- http_config
    ratelimit_zone $arg_k zone=head:1m rate=1r/h;
--- config
    location /t { ratelimit zone=head cost=2; }
--- nghttp eval
[["-H", ":method: HEAD", "/t?k=a"]]
--- answers eval
[qr/^:status: 429\n.*^content-length: 191\n(?!.*recv DATA)/sm]



=== TEST 6: a refused upload ends its stream, not the connection
--- http_config
    ratelimit_zone $arg_k zone=upload:1m rate=1r/h;
--- config
    client_body_buffer_size 1m;

    location /t { ratelimit zone=upload cost=2; }
    location /free {
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/upstream;
    }
    location /upstream { return 200 $http_content_length; }
--- user_files eval
[["body", "x" x 500_000]]
--- nghttp eval
[["--data=" . ::server_root() . "/html/body", "/t?k=a", "/free?"]]
--- answers eval
[qr/^:status: 429\n.*^:status: 200\n.*quota-exceeded.*500000/sm]



=== TEST 7: a delayed stream waits, and then is answered
--- http_config
    ratelimit_zone $arg_k zone=delay:1m rate=1r/s algorithm=leaky_bucket;
--- config
    location /t {
        ratelimit zone=delay burst=5;
        add_header X-Status $ratelimit_status always;
        add_header X-Time $request_time always;
        try_files /index.html =404;
    }
--- nghttp eval
[["/t?k=a&n=1", "/t?k=a&n=2"]]
--- answers eval
[qr/^:status:\ 200\n.*^x-status:\ PASSED\n.*
    ^:status:\ 200\n.*^x-status:\ DELAYED\nx-time:\ (0\.[2-9]|[1-9])/xsm]
--- lines eval
[qr{^/t\?k=a&n=1 HTTP/2.0 200 PASSED\.},
 qr{^/t\?k=a&n=2 HTTP/2.0 200 DELAYED\.}]



=== TEST 8: streams that are delayed do not hinder the others
--- http_config
    ratelimit_zone $arg_k zone=together:1m rate=1r/s algorithm=leaky_bucket;
--- config
    location /t { ratelimit zone=together burst=2; try_files /index.html =404; }
--- nghttp eval
[["/t?k=a&n=1", "/t?k=a&n=2", "/t?k=a&n=3", "/t?k=a&n=4", "/t?k=b&n=5",
  "/index.html?n=6"]]
--- answers eval
[qr/^(:status:\ 200\n.*^){3}:status:\ 429\n.*^
    :status:\ 200\n.*^:status:\ 200\n/xsm]
--- lines eval
[qr{&n=1 HTTP/2.0 200 PASSED\.}, qr{&n=2 HTTP/2.0 200 DELAYED\.},
 qr{&n=3 HTTP/2.0 200 DELAYED\.}, qr{&n=4 HTTP/2.0 429 REJECTED\.},
 qr{&n=5 HTTP/2.0 200 PASSED\.}, qr{\?n=6 HTTP/2.0 200 -\.}]



=== TEST 9: a client that disconnects while its stream is delayed
--- http_config
    ratelimit_zone $arg_k zone=leave:1m rate=1r/m algorithm=leaky_bucket;
--- config
    location /t { ratelimit zone=leave burst=9; try_files /index.html =404; }
--- nghttp eval
[["/t?k=a&n=1"], ["-t", "3s", "/t?k=a&n=2"], ["/index.html"]]
--- answers eval
[qr/^:status: 200\n/, qr/^(?!:status)/, qr/^:status: 200\n/]
--- lines eval
[qr{^/t\?k=a&n=2 HTTP/2.0 499 DELAYED\.}]



=== TEST 10: a request is decided once on its way through HTTP/2 as well
--- http_config
    ratelimit_zone $server_name zone=once:1m rate=2r/h;
--- config
    location /t { ratelimit zone=once; error_page 404 = /page.html; }
    location /page.html { ratelimit zone=once; ssi on; }
    location /part { ratelimit zone=once; }
--- user_files
>>> page.html
<!--#include virtual="/part.txt" -->
>>> part.txt
part.
--- nghttp eval
[["/t"], ["/t"], ["/t"]]
--- answers eval
[qr/^:status: 200\n.*^x-ratelimit-remaining: 1\n.*part\./sm,
 qr/^:status: 200\n.*^x-ratelimit-remaining: 0\n.*part\./sm,
 qr/^:status: 429\n.*^x-ratelimit-remaining: 0\n/sm]
