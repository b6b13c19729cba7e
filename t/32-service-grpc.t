#!/usr/bin/perl

# The service by gRPC: a client with Envoy's own messages, and the frames that
# are sent.  If this fails, Envoy can't use nginx as its rate limit service.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RuleFiles;
use ServiceCalls;

use constant METHOD =>
    '/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit';

my $files = RuleFiles->new('basic.yaml' => <<'END');
domain: basic
descriptors:
  - key: one
    rate_limit: { unit: day, requests_per_unit: 5, name: x }
  - key: many
    rate_limit: { unit: day, requests_per_unit: 4000000 }
END

my $h2 = Gateway::free_port();
my $small = Gateway::free_port();
my $gateway = Gateway->start(workers => 2, http => <<"END");
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m algorithm=fixed_window;
client_body_buffer_size 16k;

server {
    listen 127.0.0.1:PORT;
    listen 127.0.0.1:$h2 http2;

    location / { ratelimit_service; }
}

server {
    listen 127.0.0.1:$small http2;
    client_max_body_size 32k;
    client_body_buffer_size 1k;

    location / { ratelimit_service; }
}
END

my $clients = Clients->new($gateway->{port});
my $json = ServiceCalls->new($clients, '/');

subtest 'a client of gRPC' => \&client;
subtest 'limits and hits of descriptors' => \&descriptors;
subtest 'what is sent' => \&sent;
subtest 'what is refused' => \&refused;
subtest 'bodies over frames' => \&bodies;
subtest 'health' => \&health;
subtest 'many calls on one connection' => \&many;
subtest 'over HTTP/1.1' => \&http1;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');

done_testing();


# what a client of gRPC gets for each message

sub calls { return ServiceCalls::grpc($h2, @_) }


sub message {
    my ($domain, $key, $value, %more) = @_;

    return { domain => $domain, %more, descriptors => [
        { entries => [{ key => $key, value => $value }] },
    ] };
}


sub client {
    my @answers = calls(message('basic', 'one', 'a'),
                        message('basic', 'one', 'a', hits_addend => 4),
                        message('basic', 'one', 'a'),
                        message('unknown', 'one', 'a'),
                        message('', 'one', 'a'),
                        { domain => 'basic' });

    my $first = $answers[0]{response};
    my $status = $first->{statuses}[0];

    is($first->{overall_code}, 'OK', 'OK');
    is($status->{code}, 'OK', 'its status');
    is_deeply($status->{current_limit},
              { requests_per_unit => 5, unit => 'DAY', name => 'x' },
              'its limit');
    is($status->{limit_remaining}, 4, 'what is left');
    cmp_ok($status->{duration_until_reset}{seconds}, '>', 0, 'until when');
    is_deeply([map { lc $_->{key} } @{$first->{response_headers_to_add}}],
              [qw(x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset)],
              'fields for the client');

    is($answers[1]{response}{statuses}[0]{limit_remaining}, 0, 'more hits');
    is($answers[2]{status}, 'OK', 'a refusal is not an error of gRPC');
    is($answers[2]{response}{overall_code}, 'OVER_LIMIT', 'OVER_LIMIT');
    is($answers[3]{response}{overall_code}, 'OK', 'an unknown domain');
    is_deeply($answers[4], { status => 'INVALID_ARGUMENT',
                             details => 'the domain must not be empty' },
              'no domain');
    is_deeply($answers[5], { status => 'INVALID_ARGUMENT', details =>
                             'the list of descriptors must not be empty' },
              'no descriptors');
    is(ServiceCalls::short($json->ask('basic', { one => 'a' })->{json}),
       'OVER_LIMIT OVER_LIMIT(0 of 5/DAY x)', 'JSON counts the same');
}


# all frames of one exchange, in the words of nghttp

sub nghttp {
    my ($path, $bytes, @fields) = @_;

    my $body = "$gateway->{dir}/message";

    open my $file, '>:raw', $body or die $!;
    print $file $bytes;
    close $file;

    my @header = map { "-H '$_'" } 'content-type: application/grpc',
                                   'te: trailers', @fields;

    return scalar `nghttp -v -t 20 -d $body @header 'http://127.0.0.1:$h2$path' 2>&1`;
}


sub frame {
    my ($message, $flag) = @_;

    return pack('CN', $flag // 0, length $message) . $message;
}


# the client's messages know limits, but not hits of descriptors

sub descriptors {
    my $message = message('basic', 'one', 'd');

    $message->{descriptors}[0]{limit} = { requests_per_unit => 2,
                                          unit => 'HOUR' };

    my @answers = map { $_->{response} } calls(($message) x 3);

    is_deeply($answers[0]{statuses}[0]{current_limit},
              { requests_per_unit => 2, unit => 'HOUR', name => '' },
              'a limit that the call brings along');
    is(join(' ', map { $_->{overall_code} } @answers), 'OK OK OVER_LIMIT',
       'counts');

    my $left = sub {
        my ($more) = @_;
        my $descriptor = "\x0a\x08\x0a\x03one\x12\x01h$more";

        like(nghttp(METHOD, frame("\x0a\x05basic\x12"
                                  . chr(length $descriptor) . $descriptor)),
             qr/grpc-status: 0\n/, 'a call');

        return ServiceCalls::short($json->ask('basic', [one => 'h',
                                                        -hitsAddend => 0])
                                   ->{json});
    };

    is($left->("\x1a\x02\x08\x03"), 'OK OK(2 of 5/DAY x)', 'three hits');
    is($left->("\x1a\x00"), 'OK OK(2 of 5/DAY x)', 'none: a look');
    is($left->("\x1a\x02\x08\x02\x20\x01"), 'OK OK(4 of 5/DAY x)',
       'two that are given back');
    is($left->(''), 'OK OK(3 of 5/DAY x)', 'one by default');
}


sub sent {
    my $sample = "\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
    my $said = nghttp(METHOD, frame($sample));

    like($said, qr/:status: 200\n/, 'the status of HTTP');
    like($said, qr/content-type: application\/grpc\n/, 'the type');
    like($said, qr/recv DATA frame <length=11, flags=0x00/, 'a message');
    like($said, qr/grpc-status: 0\n.*recv HEADERS frame <length=\d+, flags=0x05/s,
         'and a trailer, which is the end');
}


sub refused {
    my $sample = "\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
    my @bad = (
        ['another method', '/envoy.service.ratelimit.v3.RateLimitService/Other',
         frame($sample), 12, 'there is no such method'],
        ['another case', lc METHOD, frame($sample), 12,
         'there is no such method'],
        ['no message', METHOD, '', 3, 'there is no message'],
        ['half a frame', METHOD, "\0\0\0", 3, 'there is no message'],
        ['a message that is cut', METHOD, "\0\0\0\0\x0d\x0a\x01d", 3,
         'the message is cut short'],
        ['a compressed message', METHOD, frame($sample, 1), 12,
         'the message is compressed'],
        ['two messages', METHOD, frame($sample) . frame($sample), 12,
         'there is more than one message'],
        ['an empty message', METHOD, frame(''), 3,
         'the domain must not be empty'],
        ['no message at all', METHOD, frame("\xff" x 20), 3,
         'a number is too long'],
        ['a long message', METHOD, frame('x' x 66_000), 8,
         'the message is longer than 65536 bytes'],
    );

    for (@bad) {
        my ($name, $path, $bytes, $status, $reason) = @$_;
        my $said = nghttp($path, $bytes);

        like($said, qr/:status: 200\n/, $name);
        like($said, qr/grpc-status: $status\n/, "status $status");
        like($said, qr/grpc-message: \Q$reason\E\n/, $reason);
    }

    like(nghttp(METHOD, frame($sample, 1)), qr/grpc-accept-encoding: identity/,
         'what may be sent instead');
    like(nghttp(METHOD, frame($sample), 'grpc-timeout: 0m'),
         qr/grpc-status: 4\n/, 'a deadline that has passed');
    like(nghttp(METHOD, frame($sample), 'grpc-timeout: 10S'),
         qr/grpc-status: 0\n/, 'one that has not');
    like(nghttp(METHOD, frame($sample), 'grpc-timeout: x'),
         qr/grpc-status: 0\n/, 'one that is none');
}


sub bodies {
    for my $size (100, 10_000, 20_000, 40_000, 65_000) {
        my ($answer) = calls(message('basic', 'many', 'x' x $size));

        is($answer->{response}{statuses}[0]{limit_remaining}, 3_999_999,
           "$size bytes");
    }

    my @answers = ServiceCalls::grpc(
        $small, map { message('basic', 'many', $_) }
                'y' x 30_000, 'y' x 40_000, 'y' x 3_000_000, 'z');

    is($answers[0]{response}{statuses}[0]{limit_remaining}, 3_999_999,
       'with a small buffer');

    for (1, 2) {
        is_deeply($answers[$_], { status => 'RESOURCE_EXHAUSTED', details =>
                      'the message is longer than client_max_body_size' },
                  'longer than nginx permits');
    }

    is($answers[3]{status}, 'OK', 'and the connection goes on');

    my $said = nghttp(METHOD, frame('x' x 1_100_000));

    like($said, qr/:status: 200\n/, 'with a length');
    like($said, qr/grpc-status: 8\n/, 'RESOURCE_EXHAUSTED');
    unlike($said, qr/html/, 'no page');
}


sub health {
    my @answers = calls({ health => '' }, { health => 'ratelimit' },
                        { health => 'other' });

    is($answers[0]{response}{status}, 'SERVING', 'of all');
    is($answers[1]{response}{status}, 'SERVING', 'of the service');
    is($answers[2]{status}, 'NOT_FOUND', 'of another one');

    my $port = Gateway::free_port();
    my $empty = Gateway->start(http => <<"END");
ratelimit_zone localhost zone=one:1m rate=1r/s;

server {
    listen 127.0.0.1:PORT;
    listen 127.0.0.1:$port http2;
    keepalive_requests 10000;

    location / { ratelimit_service; }
}
END
    is(ServiceCalls::health($port, $_), 'NOT_SERVING', "'$_' without rules")
        for '', 'ratelimit';
}


sub many {
    my $sample = "\x0a\x05basic\x12\x0b\x0a\x09\x0a\x04many\x12\x01v";
    my $body = "$gateway->{dir}/message";

    open my $file, '>:raw', $body or die $!;
    print $file frame($sample);
    close $file;

    my $method = METHOD;
    my $said = `h2load -n 5000 -c 4 -m 20 -d $body -H 'content-type: application/grpc' -H 'te: trailers' 'http://127.0.0.1:$h2$method' 2>&1`;

    like($said, qr/5000 succeeded, 0 failed/, 'all are answered');
    is(ServiceCalls::short($json->ask('basic', [many => 'v', -hitsAddend => 0])
                           ->{json}),
       'OK OK(3995000 of 4000000/DAY)', 'and counted');
}


sub http1 {
    my $sample = frame("\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v");
    my $client = $clients->connect;

    Clients::put($client, $clients->text('POST ' . METHOD, 'TE: trailers',
                 'Content-Type: application/grpc', 'Connection: close',
                 'Content-Length: ' . length $sample) . $sample);

    my $text = join '', readline $client->{socket};

    like($text, qr/\AHTTP\/1\.1 200 OK\r\n/, 'the same');
    like($text, qr/\r\n0\r\ngrpc-status: 0\r\n\r\n\z/, 'with a trailer');
}
