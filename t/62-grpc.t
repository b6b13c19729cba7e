#!/usr/bin/perl

# A refused call by gRPC, behind "grpc_pass": the client reads
# RESOURCE_EXHAUSTED, and when to come again.  If this fails, it reads
# UNAVAILABLE, and tries again at once.

use strict;
use warnings;

use JSON::PP;
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;

use constant MESSAGE =>
    'Request cannot be satisfied as assigned quota has been exceeded';

my $h2 = Gateway::free_port();
my $gateway = Gateway->start(workers => 1, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'a client of gRPC' => \&client;
subtest 'what is sent' => \&sent;
subtest 'types that are gRPC, and types that are not' => \&types;
subtest 'HTTP/1.1' => \&http1;
subtest 'what an operator has chosen' => \&chosen;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    return <<"END" =~ s/^    //mgr;
    ratelimit_zone \$arg_k zone=calls:1m rate=1r/d algorithm=sliding_log;
    ratelimit_zone \$uri zone=methods:1m rate=1r/d algorithm=sliding_log;

    log_format grpc "\$request_uri \$status \$ratelimit_status";

    server {
        listen 127.0.0.1:PORT;
        listen 127.0.0.1:$h2 http2;

        access_log logs/access.log grpc;

        location / { ratelimit zone=methods;
                     grpc_pass grpc://127.0.0.2:$h2; }
        location /t { ratelimit zone=calls cost=2; empty_gif; }
        location /off { ratelimit zone=calls cost=2; ratelimit_body off;
                        empty_gif; }
        location /page { ratelimit zone=calls cost=2; error_page 429 = \@page;
                         empty_gif; }
        location /ietf { ratelimit zone=calls cost=2; ratelimit_headers ietf;
                         empty_gif; }
        location /status { ratelimit zone=calls cost=2; ratelimit_status 444;
                           empty_gif; }
        location \@page { add_header grpc-status 14; return 204; }
    }

    server {
        listen 127.0.0.2:$h2 http2;

        location / { default_type application/grpc;
                     add_header grpc-status 0; return 204; }
    }
END
}


# what a client of gRPC sees

sub call {
    my ($method) = @_;

    local $ENV{NODE_PATH} = 'build/npm/node_modules';

    return decode_json(`node t/node/call.js 127.0.0.1:$h2 $method`);
}


sub client {
    my $first = call('/service/Method');

    unlike($first->{status}, qr/RESOURCE_EXHAUSTED|UNAVAILABLE/, 'admitted');
    is($first->{metadata}{'x-ratelimit-remaining'}, 0, 'with the fields');

    my $second = call('/service/Method');

    is($second->{status}, 'RESOURCE_EXHAUSTED', 'refused');
    is($second->{details}, MESSAGE, 'with a message');
    is($second->{metadata}{'x-ratelimit-limit'}, 1, 'with the fields');
    cmp_ok($second->{metadata}{'retry-after'}, '>', 80_000, 'and the wait');

    like(Gateway::slurp("$gateway->{dir}/logs/access.log"),
         qr{^/service/Method 200 REJECTED$}m, 'the log tells them apart');
}


# all frames of one exchange, in the words of nghttp

sub nghttp {
    my ($uri, @fields) = @_;

    my $body = "$gateway->{dir}/message";

    open my $file, '>', $body or die $!;
    print $file "\0\0\0\0\0";
    close $file;

    my @header = map { "-H '$_'" } @fields;

    my $url = "http://127.0.0.1:$h2$uri";

    return scalar `nghttp -v -t 20 -d $body @header '$url' 2>&1`;
}


sub sent {
    my $said = nghttp('/t?k=sent', 'content-type: application/grpc',
                      'te: trailers');

    like($said, qr/recv \(stream_id=\d+\) $_\n/, $_)
        for ':status: 200', 'content-type: application\/grpc',
            'grpc-status: 8', 'grpc-message: ' . MESSAGE,
            'x-ratelimit-limit: 1', 'retry-after: \d+';
    like($said, qr/recv HEADERS frame <.*flags=0x05, stream_id=13>/,
         'the first frame is the last one');
    unlike($said, qr/recv DATA|content-length: 0|problem/, 'without a body');
}


sub types {
    for my $type ('application/grpc+proto', 'application/grpc;charset=utf-8',
                  'Application/GRPC')
    {
        like(nghttp('/t?k=types', "content-type: $type"),
             qr/grpc-status: 8/, $type);
    }

    for my $type ('application/grpc-web', 'application/grpcx', 'text/plain') {
        my $said = nghttp('/t?k=types', "content-type: $type");

        like($said, qr/:status: 429/, $type);
        unlike($said, qr/grpc-status/, 'is not gRPC');
    }
}


sub http1 {
    my @answers = $clients->series(
        (['POST /t?k=http1', 'Content-Type: application/grpc',
          'Content-Length: 0']) x 2);

    is($_->{status}, 200, 'the connection is kept') for @answers;
    is($answers[1]{field}{'grpc-status'}, 8, 'grpc-status');
}


sub chosen {
    my $type = 'content-type: application/grpc';

    like(nghttp('/off?k=chosen', $type), qr/grpc-status: 8/,
         'ratelimit_body is about bodies');
    like(nghttp('/page?k=chosen', $type), qr/grpc-status: 14/,
         'error_page wins');
    unlike(nghttp('/status?k=chosen', $type), qr/grpc-status/, '444 closes');

    my $said = nghttp('/ietf?k=chosen', $type);

    like($said, qr/ratelimit: "calls";r=\d;t=\d+/, 'fields of the IETF');
    unlike($said, qr/x-ratelimit/, 'and no others');
}
