#!/usr/bin/perl

# Write-back to a cluster, to servers behind sentinels, and over TLS: two
# gateways of two workers each admit what the limit says, and hardly more, and
# what is counted in the end is what was admitted, also while hash slots move and
# after another server has become the primary.

use strict;
use warnings;

use List::Util qw(sum0);
use Test::More;

use lib 't/lib';
use Certificates;
use Clients;
use Gateway;
use RedisCluster;
use RedisSentinel;
use RedisServer;
use Together;

use constant LARGE => 60_000;

subtest 'TLS' => \&tls;
subtest 'cluster' => \&cluster;
subtest 'a node that is down' => \&node_down;
subtest 'a hash slot that no node serves' => \&not_served;
subtest 'sentinels' => \&sentinels;

done_testing();


sub config {
    my ($redis) = @_;

    my $large = LARGE;

    return <<"END" . Gateway->server('/small' => 'ratelimit zone=small;',
ratelimit_redis main $redis timeout=2s connect_timeout=2s;
ratelimit_zone \$http_x_key zone=few:1m rate=5r/1h redis=main sync=50ms;
ratelimit_zone \$http_x_key zone=small:1m rate=300r/1h redis=main sync=50ms;
ratelimit_zone \$http_x_key zone=large:1m rate=${large}r/1h redis=main
               sync=50ms;
END
                                      '/few' => 'ratelimit zone=few;',
                                      '/large' => 'ratelimit zone=large;');
}


sub gateways {
    my ($redis) = @_;

    return map { Gateway->start(workers => 2, http => config($redis)) } 1 .. 2;
}


# so many requests for each key, to each gateway, all at once

sub load {
    my ($gateways, $path, $n, @keys) = @_;

    my @tallies = Together::run(undef, map { my $gateway = $_; sub {
        return $gateway->load(connections => 8,
                              requests => [map { [$path, $_] } (@keys) x $n]);
    } } @$gateways);

    is(sum0(map { $_->{hang} } @tallies), 0, 'no hang');

    return GatewayClient::add_up(@tallies);
}


# what a server has counted, by the state of a sliding_window

sub counted {
    my ($server, $zone, $key) = @_;

    my $state = eval { $server->call('GET',
                                     "ratelimit:{2:$key}:$zone\::3600w10") };

    return defined $state ? sum0(unpack 'x10 v*', $state) : 0;
}


# of each key what was admitted, no more and no less

sub await_counted {
    my ($found, $zone, $count) = @_;

    my @keys = sort keys %$count;
    my $all = sub { join ' ', map { counted($found->($zone, $_), $zone, $_) }
                              @keys };
    my $admitted = join ' ', map { $count->{$_}{200} } @keys;

    eval { Gateway::await(sub { $all->() eq $admitted }, 'reports') };

    is($all->(), $admitted, 'what was admitted is counted');
}


# a limit holds, and each charge counts once

sub exact {
    my ($gateways, $found) = @_;

    my $count = load($gateways, '/small', 250, map { "key-$_" } 1 .. 5);

    for my $key (sort keys %$count) {
        is(sum0(@{$count->{$key}}{qw(200 429)}), 500, "$key: all are answered");
        cmp_ok($count->{$key}{200}, '>=', 300, "$key: none under");
        cmp_ok($count->{$key}{200}, '<=', 315, "$key: at most 5 % over");
    }

    await_counted($found, 'small', $count);
}


sub tls {
    my $made = Certificates->new;

    $made->issue('server', names => 'DNS:localhost,IP:127.0.0.1');

    my $redis = RedisServer->start(tls => "$made->{dir}/server");
    my @gateways = gateways("rediss://localhost:$redis->{tls_port} "
                            . "ssl_ca=$made->{dir}/ca.pem");

    exact(\@gateways, sub { $redis });
    is($_->complaints, '', 'nothing to complain about') for @gateways;
}


sub cluster {
    my $cluster = RedisCluster->start(primaries => 3, replicas => 0);
    my @gateways = gateways($cluster->urls . ' cluster');
    my $found = sub {
        my ($zone, $key) = @_;

        return $cluster->primary_of("ratelimit:{2:$key}:$zone\::3600w10");
    };

    exact(\@gateways, $found);

    # a tenth of the hash slots, while requests come

    my @keys = map { "moved-$_" } 1 .. 40;
    my ($from, $to) = map { $_->call('CLUSTER', 'MYID') }
                      @{$cluster->{servers}}[0, 1];
    my $node = "127.0.0.1:$cluster->{servers}[0]{port}";

    my (undef, @tallies) = Together::run(undef,
        sub {
            return { moved => $cluster->cli('reshard', $node, '--cluster-from',
                                            $from, '--cluster-to', $to,
                                            '--cluster-slots', 1600,
                                            '--cluster-yes') };
        },
        map { my $gateway = $_; sub {
            return $gateway->load(connections => 8, requests =>
                                  [map { ['/large', $_] } (@keys) x 100]);
        } } @gateways);

    my $count = GatewayClient::add_up(@tallies);

    is(sum0(map { $_->{hang} } @tallies), 0, 'no hang');
    is(sum0(map { $_->{200} } values %$count), 2 * 100 * @keys,
       'all are admitted');
    $cluster->await_agreement;
    await_counted($found, 'large', $count);
    is($_->complaints, '', 'nothing to complain about') for @gateways;
}


# reports to other nodes go on, however many keys that one has

sub node_down {
    my $cluster = RedisCluster->start(
        replicas => 0, '--cluster-require-full-coverage' => 'no');
    my $gateway = Gateway->start(workers => 2, http => config(
        $cluster->urls . ' cluster') =~ s/sync=50ms/sync=1s/gr
                                     =~ s/ timeout=2s/ timeout=500ms/r);
    my $down = $cluster->{servers}[0];
    my %server = map { my $name = "ratelimit:{2:$_}:large\::3600w10";
                       ($_ => $cluster->primary_of($name)) }
                 map { "key-$_" } 1 .. 60;
    my @others = grep { $server{$_} != $down } keys %server;
    my $found = sub { $server{$_[1]} };

    load([$gateway], '/large', 2, keys %server);
    await_counted($found, 'large', { map { ($_ => { 200 => 2 }) }
                                     keys %server });
    $down->kill;

    load([$gateway], '/large', 2, keys %server) for 1, 2;
    await_counted($found, 'large', { map { ($_ => { 200 => 6 }) } @others });
}


# What was charged meanwhile is counted when a node serves it again.  So is what
# was decided here, as the answer to a question was late, and not twice.

sub not_served {
    my $cluster = RedisCluster->start(
        replicas => 0, '--cluster-require-full-coverage' => 'no');
    my $gateway = Gateway->start(workers => 2, http => config(
        $cluster->urls . ' cluster'));
    my $name = 'ratelimit:{2:slot}:large::3600w10';
    my $primary = $cluster->primary_of($name);
    my $slot = $primary->call('CLUSTER', 'KEYSLOT', $name);

    load([$gateway], '/large', 50, 'slot');
    await_counted(sub { $primary }, 'large', { slot => { 200 => 50 } });
    $primary->call('CLUSTER', 'DELSLOTS', $slot);

    load([$gateway], '/large', 30, 'slot');
    Gateway::await(sub { $gateway->log =~ /CLUSTERDOWN Hash slot not served/ },
                   'an error');

    $primary->call('CLUSTER', 'ADDSLOTS', $slot);
    await_counted(sub { $primary }, 'large', { slot => { 200 => 80 } });

    my ($other) = grep { $_ != $primary } @{$cluster->{servers}};
    my $assign = sub {
        $primary->call('CLUSTER', 'SETSLOT', $slot, 'NODE',
                       $_[0]->call('CLUSTER', 'MYID'));
    };
    my $n = 0;

    for my $error ('CLUSTERDOWN Hash slot not', 'too many redirections') {
        my $logged = length $gateway->log;

        # workers have connections then
        load([$gateway], '/few', 1, map { "$error $_" } 1 .. 30);
        $primary->pause;
        load([$gateway], '/few', 1, 'slot');

        # Redis reads the question, then this

        $primary->kept->send(['CLUSTER', 'DELSLOTS', $slot]);
        $primary->resume;
        $primary->kept->reply;
        $assign->($other) if $n;    # which has not heard of that
        Gateway::await(sub { substr($gateway->log, $logged) =~ /$error/ },
                       'an error');
        sleep 1;
        $assign->($primary);
        sleep 3;    # all has been sent again
        await_counted(sub { $primary }, 'few', { slot => { 200 => ++$n } });
    }
}


# what is not reported yet is told to the new primary

sub sentinels {
    my $fleet = RedisSentinel->start;
    my @gateways = gateways($fleet->urls . ' sentinel=mymaster');
    my $former = $fleet->primary;

    exact(\@gateways, sub { $former });

    my $before = load(\@gateways, '/large', 50, 'over');

    await_counted(sub { $former }, 'large', $before);
    Gateway::await(sub { grep({ $_ != $former && counted($_, 'large', 'over')
                                                 == $before->{over}{200} }
                              @{$fleet->{servers}}) >= 2 },
                   'replicas');

    $former->kill;

    my $during = load(\@gateways, '/large', 200, 'over');
    my $next = $fleet->await_primary_but($former);
    my $after = load(\@gateways, '/large', 50, 'over');

    is(sum0(map { $_->{over}{200} } $before, $during, $after), 600,
       'all are admitted');
    await_counted(sub { $next }, 'large', { over => { 200 => 600 } });
}
