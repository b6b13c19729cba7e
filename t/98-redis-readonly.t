#!/usr/bin/perl

# Servers behind sentinels that change their roles while all connections stay: a
# primary that was made a replica answers READONLY.  nginx asks for the primary
# again, limits go on where they were, and the former one is sent nothing more.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RedisCluster;
use RedisSentinel;

my $fleet = RedisSentinel->start(replicas => 1, sentinels => 1, down => 60_000);
my ($former, $next) = @{$fleet->{servers}};
my ($sentinel) = @{$fleet->{sentinels}};

for my $sync ('', 'sync=60s') {
    subtest $sync || 'strict' => sub { swapped($sync) };
}

subtest 'a refund' => \&refunded;

done_testing();


sub config {
    my ($sync) = @_;

    return <<"END" . Gateway->server('/' => 'ratelimit zone=z;');
ratelimit_redis main @{[$fleet->urls]} sentinel=mymaster timeout=10s
                     connect_timeout=10s;
ratelimit_zone \$http_x_key zone=z:1m rate=60r/d redis=main fail=closed $sync;
END
}


# the sentinel is told, and does nothing itself

sub swap {
    my ($between) = @_;

    $sentinel->call('SENTINEL', 'REMOVE', 'mymaster');
    $next->call('REPLICAOF', 'NO', 'ONE');
    $former->call('REPLICAOF', $next->{host}, $next->{port});
    RedisSentinel::await(sub { RedisSentinel::synced($former) }, 'a replica');
    $former->forget_calls;
    $between->() if $between;
    $sentinel->call('SENTINEL', 'MONITOR', 'mymaster', $next->{host},
                    $next->{port}, 1);
    $sentinel->call('SENTINEL', 'SET', 'mymaster', 'down-after-milliseconds',
                    60_000);
}


# it is sent to the former primary, and then to the new one

sub refunded {
    my $backend = Clients::backend();
    my $gateway = Gateway->start(workers => 1, http => config('') =~
        s/zone=z;/zone=z count=500; proxy_pass http:\/\/127.0.0.1:@{[
          $backend->sockport]};/r);
    my $clients = Clients->new($gateway->{port});
    my $client = $clients->send('GET /', 'X-Key: refund');
    my $errand = Clients::errand($backend);
    my $name = 'ratelimit:{2:refund}:z::86400w10';

    RedisCluster::await_replicas($former);
    is($next->call('EXISTS', $name), 1, 'charged, as the next primary knows');

    swap(sub {
        Clients::reply($errand, 200);
        Clients::await_answers(1, $client);
        Gateway::await(sub { $former->calls('evalsha') }, 'a refund');
    });

    Gateway::await(sub { !$next->call('EXISTS', $name) }, 'the refund');
    pass('is not lost');

    ($former, $next) = ($next, $former);
}


sub swapped {
    my ($sync) = @_;

    my $gateway = Gateway->start(workers => 2, http => config($sync));
    my $clients = Clients->new($gateway->{port});
    my $admitted = 0;
    my $ask = sub {
        my $status = $clients->ask('GET /', "X-Key: key $sync")->{status};

        $admitted += $status == 200;

        return $status;
    };

    is($ask->(), 200, 'admitted') for 1 .. 20;
    RedisCluster::await_replicas($former);
    swap();
    Gateway::await(sub { $ask->() == 429 }, 'the end of the limit');
    is($admitted, 60, 'what was counted is known to the other one');
    like($gateway->log, qr/main\/\Q$next->{host}:$next->{port}\E" is a primary/,
         'it is told');

    my $sent = $former->calls('evalsha') + $former->calls('eval');

    is($clients->ask('GET /', "X-Key: other $_")->{status}, 200, "other $_")
        for 1 .. 20;
    is($former->calls('evalsha') + $former->calls('eval'), $sent,
       'the former one is sent nothing');

    ($former, $next) = ($next, $former);
}
