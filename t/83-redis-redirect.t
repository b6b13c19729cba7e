#!/usr/bin/perl

# A redirect leads to the limits of another location, and when these refuse,
# Redis refunds what the first location has charged.  If this fails, a key that
# was refused in between is refused for hours, though Redis would admit it.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedRedis;

my $redis = RedisServer->start;
my $slow = ScriptedRedis->start(upstream => $redis);
my $config = <<'END_OF_CONFIG' =~ s/REDIS/$redis->{port}/r
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;
ratelimit_redis slow redis://127.0.0.1:SLOW timeout=5s connect_timeout=5s;

ratelimit_zone $arg_k zone=five:1m rate=5r/d redis=main;
ratelimit_zone $arg_k zone=one:1m rate=1r/d redis=slow;
ratelimit_zone $arg_k zone=queue:1m rate=1r/h algorithm=token_bucket;

server {
    listen 127.0.0.1:PORT;
    root no;

    location /early { ratelimit zone=five cost=$arg_c; try_files /no @late; }
    location @late { ratelimit zone=one after_auth rejected=count;
                     empty_gif; }

    location /late { ratelimit zone=five name=late cost=$arg_c after_auth;
                     try_files /no @early; }
    location @early { ratelimit zone=one rejected=count; empty_gif; }

    location /leave { ratelimit zone=five name=leave cost=$arg_c;
                      try_files /no @queue; }
    location @queue { ratelimit zone=queue after_auth delay=1d; empty_gif; }

    location /look/early { ratelimit zone=five cost=$arg_c; empty_gif; }
    location /look/late { ratelimit zone=five name=late cost=$arg_c after_auth;
                          empty_gif; }
    location /look/leave { ratelimit zone=five name=leave cost=$arg_c;
                           empty_gif; }

    location /one { ratelimit zone=one rejected=count; empty_gif; }
    location /queue { ratelimit zone=queue; empty_gif; }
}
END_OF_CONFIG
    =~ s/SLOW/$slow->{port}/r;

my $gateway = Gateway->start(workers => 1, http => $config);
my $other = Gateway->start(workers => 1, http => $config);
my $here = Clients->new($gateway->{port});
my $there = Clients->new($other->{port});

subtest 'refused after authentication' => \&refused, 'early';
subtest 'refused before, somewhere else' => \&refused, 'late';
subtest 'gone while it waits for a token' => \&gone;

is($_->complaints, '', 'nothing to complain about') for $gateway, $other;

done_testing();


sub status {
    my ($clients, $uri) = @_;

    return $clients->ask("GET $uri")->{status};
}


# three of five are out, and come back

sub refused {
    my ($way) = @_;

    is(status($here, "/one?k=$way"), 200, 'another limit is used up');

    $slow->play('hold');

    my $client = $here->send("GET /$way?k=$way&c=3");

    four_of_five($way, sub {
        $slow->play('honest');
        Clients::await_answers(1, $client);
        is($client->{answers}[0]{status}, 429, 'the other one refuses');
    });
}


sub gone {
    is(status($here, '/queue?k=leave'), 200, 'no token is left');

    my $client = $here->send('GET /leave?k=leave&c=3');

    four_of_five('leave', sub { Clients::leave($client) });
}


# a cost that was too high meanwhile is admitted when there is enough again

sub four_of_five {
    my ($way, $come_back) = @_;

    my $uri = "/look/$way?k=$way&c=";

    Gateway::await(sub { left("${uri}0") == 2 }, 'three that are out');
    is(status($_, "${uri}4"), 429, 'four are too many') for $here, $there;

    $come_back->();
    Gateway::await(sub { left("${uri}0") == 5 }, 'three that are back');

    # each by itself: there are not enough for both

    for my $clients ($here, $there) {
        Gateway::await(sub { status($clients, "${uri}4") == 200 }, 'four');
        pass('four are let in');
        $redis->call('FLUSHALL');
    }
}


sub left {
    my ($uri) = @_;

    return $here->ask("GET $uri")->{field}{'x-ratelimit-remaining'};
}
