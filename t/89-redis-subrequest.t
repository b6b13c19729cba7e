#!/usr/bin/perl

# A subrequest that waits for Redis: it is decided, the client's request goes
# on, and what is counted by status is settled.  If this fails, a request hangs,
# or a mirror's charge is lost.

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
my $gateway = Gateway->start(workers => 1, http => <<'END'
ratelimit_redis main redis://127.0.0.1:SLOW timeout=5s connect_timeout=5s;

ratelimit_zone $http_x_key zone=auth:1m rate=2r/d redis=main;
ratelimit_zone $http_x_key zone=count:1m rate=2r/d redis=main;

log_format status "$request_uri $status $ratelimit_status";

server {
    listen 127.0.0.1:PORT;
    access_log logs/access.log status;

    location /auth/t { auth_request /auth; empty_gif; }
    location = /auth { ratelimit zone=auth; empty_gif; }

    location /mirror/t { mirror /mirror; empty_gif; }
    location = /mirror { ratelimit zone=count count=401; empty_gif; }
    location /mirror/look { ratelimit zone=count cost=0; empty_gif; }
}
END
    =~ s/SLOW/$slow->{port}/r);
my $clients = Clients->new($gateway->{port});

subtest 'an authenticator' => \&authenticator;
subtest 'a mirror, whose client does not wait' => \&mirror;
subtest 'a client that leaves' => \&leave;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub statuses {
    my ($uri, $key, $n) = @_;

    return join ' ', map { $clients->ask("GET $uri", "X-Key: $key")->{status} }
                     1 .. $n;
}


sub left {
    my ($key) = @_;

    return $clients->ask('GET /mirror/look', "X-Key: $key")
                   ->{field}{'x-ratelimit-remaining'};
}


sub authenticator {
    is(statuses('/auth/t', 'a', 4), '200 200 500 500', 'is limited');
    is(statuses('/auth/t', 'b', 1), '200', 'by its key');
}


sub mirror {
    is(left('mirror'), 2, 'nothing is used');

    $slow->play('hold');

    my $client = $clients->send('GET /mirror/t', 'X-Key: mirror');

    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'the client has its response');
    $slow->play('honest');
    Gateway::await(sub { log_has('/mirror/t 200 PASSED') }, 'the decision');
    Gateway::await(sub { left('mirror') == 2 }, 'a refund');
    pass('the status does not count');
}


sub leave {
    $slow->play('hold');

    my $client = $clients->send('GET /auth/t?leave', 'X-Key: leave');

    Gateway::await(sub { !Clients::done($client) }, 'a request that waits');
    Clients::leave($client);
    Gateway::await(sub { log_has('/auth/t?leave 499 -') }, 'its end');
    $slow->play('honest');
    is(statuses('/auth/t', 'c', 3), '200 200 500', 'others are decided');
}


sub log_has {
    my ($line) = @_;

    return Gateway::slurp("$gateway->{dir}/logs/access.log")
           =~ /^\Q$line\E$/m;
}
