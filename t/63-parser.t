#!/usr/bin/perl

# npm's ratelimit-header-parser, as clients use it, reads our fields.  If this
# fails, a client that obeys what it reads reads nothing.

use strict;
use warnings;

use JSON::PP;
use Test::More;

use lib 't/lib';
use Gateway;

my $gateway = Gateway->start(workers => 1, http => <<'END');
ratelimit_zone $uri zone=log:1m rate=2r/1000s algorithm=sliding_log;

server {
    listen 127.0.0.1:PORT;

    location / { ratelimit zone=log; empty_gif; }
    location = /epoch { ratelimit zone=log; ratelimit_headers x reset=epoch;
                        empty_gif; }
    location = /both { ratelimit zone=log; ratelimit_headers x ietf;
                       empty_gif; }
    location = /both/epoch { ratelimit zone=log;
                             ratelimit_headers x ietf reset=epoch;
                             empty_gif; }
}
END

for my $uri (qw(/x /epoch /both /both/epoch)) {
    subtest $uri => sub {
        is_read($uri, 1, 'admitted');
        is_read($uri, 0, 'the last one');
        is_read($uri, 0, 'refused');
    };
}

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub is_read {
    my ($uri, $remaining, $name) = @_;

    local $ENV{NODE_PATH} = 'build/npm/node_modules';

    my $url = "http://127.0.0.1:$gateway->{port}$uri";
    my $read = decode_json(`node t/node/parse.js $url`);

    is($read->{limit}, 2, "$name: limit");
    is($read->{used}, 2 - $remaining, "$name: used");
    is($read->{remaining}, $remaining, "$name: remaining");
    cmp_ok($read->{reset} // 0, '>=', 900, "$name: reset");
    cmp_ok($read->{reset} // 0, '<=', 1001, "$name: reset is not later");
}
