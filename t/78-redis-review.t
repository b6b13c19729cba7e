#!/usr/bin/perl

# What goes wrong only when several things come together: a request that asks
# twice, one dead connection among others that live, a greeting that is slow.
# If this fails, some wait longer than they should, or for ever.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedRedis;

use constant SLACK => 0.07;     # seconds: this machine has other things to do

my $redis = RedisServer->start;

subtest 'who asks twice delays nobody else' => \&asks_twice;

done_testing();


sub gateway {
    my ($http, %location) = @_;

    return Gateway->start(http => <<'END' . $http . Gateway->server(%location));
add_header X-Backend $ratelimit_backend always;
END
}


sub backend {
    my ($clients, $uri) = @_;

    return $clients->ask("GET $uri")->{field}{'x-backend'};
}


# the first one runs out of time, and asks again after authentication

sub asks_twice {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $gateway = gateway(<<"END", '/twice' => <<'END2', '/once' => <<'END3');
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=250ms;
ratelimit_zone \$arg_k zone=one:1m rate=100r/d redis=main;
ratelimit_zone \$arg_k zone=two:1m rate=100r/d redis=main;
END
ratelimit zone=one;
ratelimit zone=two after_auth;
END2
ratelimit zone=one;
END3
    my $clients = Clients->new($gateway->{port});

    is(backend($clients, '/once?k=a'), 'redis', 'Redis is well');

    $scripted->play('silent');

    my $first = $clients->send('GET /twice?k=a');
    sleep 0.15;

    my $start = time;
    my $second = $clients->send('GET /once?k=a');

    Clients::await_answers(1, $second);
    cmp_ok($second->{answers}[0]{at} - $start, '<', 0.25 + SLACK,
           'the other one waits no longer than its timeout');
    Clients::await_answers(1, $first);

    is($gateway->complaints, '', 'nothing to complain about');
}
