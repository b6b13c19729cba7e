#!/usr/bin/perl

# What a worker does to Redis, and to its clients, when it is slow itself, gives
# up too early, ends at once, or is not welcome.  If this fails, Redis is blamed
# for what it has not done, requests are counted that were refused or in a place
# where they do not belong, or a worker that ends lets all through.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedDns;
use ScriptedRedis;

my $redis = RedisServer->start;

subtest 'a worker that is busy' => \&busy;
subtest 'a refusal costs nothing, however late' => \&late;
subtest 'a fast shutdown admits no request' => \&quick_end;
subtest 'a worker exits, though a refund is refused' => \&refused_refund;
subtest 'nothing is counted before the greeting' => \&not_welcome;
subtest 'this machine needs no resolver' => \&localhost;

done_testing();


# all requests come in one turn of the event loop, which takes longer than the
# timeout, as the worker stands still in the middle of it: Redis is sent them
# only at the end

sub busy {
    my @slow = map { "\$slow_$_" } 'a' .. 'h';
    my @maps = map { qq(map \$arg_x $_ { default 0; "~^(a+)+\$" 1; }\n) } @slow;
    my $gateway = Gateway->start(http => <<"END");
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=1s;
ratelimit_zone \$arg_k zone=busy:1m rate=1000r/d redis=main;
add_header X-Backend \$ratelimit_backend always;

@maps

server {
    listen 127.0.0.1:PORT;
    location /limited { ratelimit zone=busy; empty_gif; }
    location /slow { return 200 "${\ join '', @slow}"; }
    location /fast { return 200 fast; }
}
END
    my $clients = Clients->new($gateway->{port});
    my ($worker) = $gateway->current_workers;
    my @limited = map { $clients->connect } 1 .. 8;
    my @fast = map { $clients->connect } 1 .. 30;
    my $slow = $clients->connect;
    my @all = (@limited, @fast, $slow);
    my $ask = sub { Clients::put($_[1], $clients->text("GET $_[0]")) };

    # connections that are known, and the script is

    $ask->($_ == $limited[0] ? '/limited?k=first' : '/fast', $_) for @all;
    Clients::await_answers(scalar @all, @all);

    my ($rounds, $round) = (0, 0);

    Gateway::await(sub {
        $_->{expected}++ for @all;
        $round++;

        stop($worker);

        my $ticks = ticks($worker);

        $ask->('/limited?k=busy', $_) for @limited;
        $ask->('/slow?x=' . 'a' x 20 . 'b', $slow);
        kill 'CONT', $worker;

        # the next turn is to have more to do than to read what Redis says

        Gateway::await(sub { ticks($worker) > $ticks + 1 }, 'a busy worker');
        $ask->('/fast', $_) for @fast;
        stop($worker);

        # unless the turn was over before

        my $busy = Clients::quiet($slow->{socket});

        sleep 1.1 if $busy;
        kill 'CONT', $worker;
        Clients::await_answers(scalar @all, @all);

        is_deeply([map { $_->{answers}[$round]{field}{'x-backend'} } @limited],
                  [('redis') x 8], 'Redis is asked by a worker that is busy');

        return ($rounds += $busy) >= 4;
    }, 'four turns');

    unlike($gateway->log, qr/is marked down/, 'nor is it blamed');
}


sub stop {
    my ($pid) = @_;

    kill 'STOP', $pid;
    Gateway::await(sub { Gateway::slurp("/proc/$pid/stat") =~ /\) T / },
                   'a worker that stands still');
}


# hundredths of a second that it has worked

sub ticks {
    my ($pid) = @_;

    return (split ' ', Gateway::slurp("/proc/$pid/stat"))[13];
}


# a server answers each attempt, but executes none: it writes nothing as long
# as it has no replica

sub refused_refund {
    my $backend = Clients::backend();
    my $http = <<"END" . Gateway->server('/' => <<"END2");
ratelimit_redis main redis://127.0.0.1:$redis->{port};
ratelimit_zone \$arg_k zone=z:1m rate=60r/d redis=main;
END
ratelimit zone=z count=401; proxy_pass http://127.0.0.1:@{[$backend->sockport]};
END2
    my $gateway = Gateway->start(workers => 1, http => $http);
    my $client = Clients->new($gateway->{port})->send('GET /?k=refund');
    my $errand = Clients::errand($backend);

    $redis->call('CONFIG', 'SET', 'min-replicas-to-write', 1);
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    Gateway::await(sub { $gateway->log =~ /NOREPLICAS/ }, 'a refused refund');

    $gateway->reload($http);
    Gateway::await(sub { $gateway->settled }, 'the end of the worker', 20);
    pass('it does not try for ever');

    $redis->call('CONFIG', 'SET', 'min-replicas-to-write', 0);
}


# the reply is on its way when its command expires; what has been charged is
# refunded, unless it is for a request that has passed

sub late {
    my %known;
    my $scripted = ScriptedRedis->start(upstream => $redis, parts => {
        late => sub {
            my ($command, $reply) = @_;
            my $key = $command->[3] // '';

            return $key =~ /{2:late}/ && !$known{$key}++ ? (['wait', 0.4], $reply)
                                                       : $reply;
        },
    });
    my %location = (
        '/closed' => 'ratelimit zone=closed;',
        '/count' => 'ratelimit zone=local name=n rate=5r/d count=401;',
        '/local' => 'ratelimit zone=local;',
    );
    my %look = map { my $cost = $location{$_} =~ s/count=401/cost=0/r;
                     $cost =~ s/;/ cost=0;/ if $cost !~ /cost/;
                     ("/look$_" => $cost) } keys %location;
    my $gateway = Gateway->start(http => <<"END" . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=200ms;
ratelimit_zone \$arg_k zone=closed:1m rate=5r/d redis=main fail=closed;
ratelimit_zone \$arg_k zone=local:1m rate=5r/d redis=main;
add_header X-Backend \$ratelimit_backend always;
END
                                     %location, %look));
    my $clients = Clients->new($gateway->{port});
    my $left = sub {
        my $answer = $clients->ask("GET /look$_[0]?k=$_[1]");

        return ($answer->{field}{'x-backend'} // '') eq 'redis'
               && $answer->{field}{'x-ratelimit-remaining'};
    };

    $clients->ask("GET $_?k=known") for sort keys %location;
    $scripted->play('late');

    for (['/closed', 503, 5], ['/count', 200, 5], ['/local', 200, 4]) {
        my ($uri, $status, $rest) = @$_;

        is($clients->ask("GET $uri?k=late")->{status}, $status,
           "$uri: no reply in time");

        # the late one has come when another one on the connection is answered

        Gateway::await(sub { $left->($uri, 'other') }, 'Redis');
        Gateway::await(sub { my $n = $left->($uri, 'late');
                             $n && $n == $rest }, "$rest left in $uri");
        pass("$uri: $rest are left");
    }
}


# TERM, which waits for nothing

sub quick_end {
    my $scripted = ScriptedRedis->start(upstream => $redis);
    my $backend = Clients::backend();
    my $gateway = Gateway->start(http => <<"END" . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$scripted->{port} timeout=15s;
ratelimit_zone \$arg_k zone=quick:1m rate=1000r/d redis=main;
END
        '/' => 'ratelimit zone=quick; proxy_pass http://127.0.0.1:'
               . $backend->sockport . ';'));
    my $clients = Clients->new($gateway->{port});

    my $client = $clients->send('GET /?k=first');

    Clients::reply(Clients::errand($backend), 200);
    Clients::await_answers(1, $client);

    $scripted->play('hold');
    my @waiting = map { $clients->send("GET /?k=$_") } 1 .. 6;
    Gateway::await(sub { grep({ /^EVAL/ } $scripted->seen) >= 6 }, 'requests');

    kill 'TERM', $gateway->{pid};
    waitpid delete $gateway->{pid}, 0;

    ok(Clients::quiet($backend), 'a worker that ends admits no request');
    unlike($gateway->log, qr/is marked down/, 'nor is Redis blamed');
}


# the scripts are known, so that they would be run at once

sub not_welcome {
    my $gateway = Gateway->start(http => <<"END" . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s
                connect_timeout=5s;
ratelimit_redis base redis://127.0.0.1:$redis->{port}/99 timeout=5s
                connect_timeout=5s;
ratelimit_redis user redis://who:knows\@127.0.0.1:$redis->{port} timeout=5s
                connect_timeout=5s;
ratelimit_redis good redis://127.0.0.1:$redis->{port}/3 timeout=5s
                connect_timeout=5s;
ratelimit_zone \$arg_k zone=main:1m rate=10r/d redis=main;
ratelimit_zone \$arg_k zone=base:1m rate=10r/d redis=base;
ratelimit_zone \$arg_k zone=user:1m rate=10r/d redis=user;
ratelimit_zone \$arg_k zone=good:1m rate=10r/d redis=good;
add_header X-Backend \$ratelimit_backend always;
END
        map { ("/$_" => "ratelimit zone=$_;") } qw(main base user good)));
    my $clients = Clients->new($gateway->{port});

    for (['main', 'redis'], ['base', 'local'], ['user', 'local'],
         ['good', 'redis'])
    {
        my ($name, $backend) = @$_;

        is($clients->ask("GET /$name?k=welcome")->{field}{'x-backend'},
           $backend, "$name: $backend") for 1 .. 6;
    }

    is_deeply([grep { /welcome/ } $redis->keys],
              ['ratelimit:{2:welcome}:main::86400w10'],
              'only what is meant is counted there');
    like($gateway->log, qr/"base" is marked down: error reply "ERR DB index/,
         'it is told why: the database');
    like($gateway->log, qr/"user" is marked down: error reply "WRONGPASS/,
         'and the password');
}


sub localhost {
    my $dns = ScriptedDns->start;
    my $gateway = Gateway->start(http => <<"END" . Gateway->server(
resolver 127.0.0.1:$dns->{port};
ratelimit_redis main redis://localhost:$redis->{port} timeout=5s;
ratelimit_zone \$arg_k zone=here:1m rate=10r/d redis=main;
add_header X-Backend \$ratelimit_backend always;
END
        '/' => 'ratelimit zone=here;'));
    my $clients = Clients->new($gateway->{port});

    Gateway::await(sub { $clients->ask('GET /?k=a')->{field}{'x-backend'}
                         eq 'redis' }, 'Redis');
    is($dns->asked('localhost'), 0, 'no name server is asked');
}
