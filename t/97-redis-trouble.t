#!/usr/bin/perl

# Servers that are cut off, slow, or lie, behind sentinels and in a cluster,
# under load from two gateways with two workers each.  A proxy stands before
# each of them, and plays its part.  Whatever it is: nothing is admitted that
# was not counted, each request is answered in time, other nodes go on, and
# when it is over limits are exact, soon and without a reload.

use strict;
use warnings;

use List::Util qw(shuffle sum0);
use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Clients;
use Gateway;
use Ports qw(free_port);
use RedisCluster;
use RedisSentinel;
use ScriptedRedis;
use Stopwatch;
use Together;

use constant LIMIT => 100;
use constant USED => 20;        # before, by each gateway
use constant TIMEOUT => 2;      # seconds; a server that is well needs less
use constant SLACK => 4;        # seconds that a busy machine may add

# seconds until all is well again: Stopwatch.pm leaves out what the machine adds
use constant SOON => 5;

# what no script says; the last one is an error of one command
my @lies = ("+OK\r\n", ":1\r\n", "\$-1\r\n", "\$3\r\nabc\r\n", "*1\r\n:1\r\n",
            '$64' . "\r\n" . '7' x 64 . "\r\n", "-ERR nonsense\r\n");

my @path = ('/fixed', '/log');
my (@gateways, @clients);

subtest 'sentinels' => \&sentinels;
subtest 'a cluster' => \&cluster;

done_testing();


sub start_gateways {
    my ($urls) = @_;

    my $timeout = TIMEOUT . 's';
    my $config = <<"END" . Gateway->server(
add_header X-Backend \$ratelimit_backend always;
add_header X-Status \$ratelimit_status always;
ratelimit_redis main $urls timeout=$timeout connect_timeout=$timeout;
ratelimit_zone \$http_x_key zone=fixed:1m algorithm=fixed_window
               rate=100r/366d redis=main fail=closed;
ratelimit_zone \$http_x_key zone=log:1m algorithm=sliding_log
               rate=100r/1h redis=main fail=closed;
ratelimit_zone \$http_x_key zone=plenty:1m rate=100000r/h redis=main
               fail=closed;
ratelimit_zone \$http_x_key zone=local:1m rate=100000r/h redis=main;
ratelimit_zone \$http_x_key zone=open:1m rate=1r/1h redis=main fail=open;
END
        '/fixed' => 'ratelimit zone=fixed;',
        '/log' => 'ratelimit zone=log;',
        '/plenty' => 'ratelimit zone=plenty;',
        '/local' => 'ratelimit zone=local;',
        '/open' => 'ratelimit zone=open;',
        '/api/' => 'ratelimit_api;',
    );

    @gateways = map { Gateway->start(workers => 2, http => $config) } 1 .. 2;
    @clients = map { Clients->new($_->{port}) } @gateways;

    await_redis();
}


# A server behind a proxy.  One that is cut off hears nothing, and whatever was
# connected is lost when that ends.

sub proxy {
    my ($server, %option) = @_;

    my $n = 0;
    my $parts = delete $option{parts} // {};

    return ScriptedRedis->start(
        upstream => $server, %option,
        parts => {
            cut_off => sub { return ['hold'], ['reset'] },
            liar => sub {
                my ($command) = @_;

                return $command->[0] eq 'CONNECT' ? () : $lies[$n++ % @lies];
            },
            %$parts,
        },
        deaf => { map { ($_ => sub { 1 }) }
                  qw(cut_off liar replica astray busy mad) });
}


sub all_at_once {
    my (@requests) = @_;

    my $watch = Stopwatch->start;
    my @tallies = Together::run(undef, map { my $gateway = $_; sub {
        return $gateway->load(connections => 16,
                              requests => [shuffle(@requests)]);
    } } @gateways);

    is($_->{hang}, 0, 'no hang') for @tallies;
    cmp_ok($_->{slowest} - $watch->late, '<', TIMEOUT + SLACK,
           'answered in time') for @tallies;

    return GatewayClient::add_up(@tallies);
}


# The proxy plays a part.  "there" are requests whose keys are behind it, two
# limits that are exact; "others" have keys elsewhere, and no end.

sub trouble {
    my ($part, $proxy, $there, $others) = @_;

    my @keys = map { $_->[1] } @$there;
    my $before = all_at_once((@$there) x USED);

    is_deeply([map { $before->{$_}{200} } @keys], [(2 * USED) x @keys],
              'a part is used');

    $proxy->play($part);

    my @first = map { $clients[0]->send("GET $_->[0]", "X-Key: $_->[1]") }
                (@$there) x 5;

    Clients::await_answers(10, @first);
    is_deeply([grep { $_->{answers}[0]{status} != 503 } @first], [],
              'nothing is admitted at first');

    my $during = all_at_once((@$there, @$others) x 10);

    is_deeply([map { $during->{$_}{503} } @keys], [(20) x @keys],
              'nothing is admitted meanwhile');
    is_deeply([map { $during->{$_->[1]}{200} } @$others], [(20) x @$others],
              'other nodes go on');
    is(backend($_, $keys[0]), 'local', 'fail=local decides') for @clients;
    is($clients[0]->ask('GET /open', "X-Key: $keys[1]")->{field}{'x-status'},
       'FAILED_OPEN', 'fail=open admits');

    my $watch = Stopwatch->start;

    $proxy->play('honest');
    await_redis(@keys);

    my $healed = $watch->seconds;

    cmp_ok($healed, '<', SOON, 'well again soon');
    note(sprintf 'after %.3f s', $healed);

    # what was counted for requests that were refused is on its way back

    for my $request (@$there) {
        my ($zone, $key) = ($request->[0] =~ s{^/}{}r, $request->[1]);
        my $left = LIMIT - 2 * USED;

        Gateway::await(sub {
            return $clients[0]->ask("GET /api/zones/$zone/keys/$key")->{body}
                   =~ /"remaining": ?$left\b/;
        }, "refunds of $zone");
    }

    my $after = all_at_once((@$there) x LIMIT);

    is($before->{$_}{200} + $after->{$_}{200}, LIMIT, 'exactly the limit')
        for @keys;
    is($after->{$_}{200} + $after->{$_}{429}, $after->{$_}{sent}, 'none fails')
        for @keys;
}


sub backend {
    my ($clients, $key) = @_;

    return $clients->ask('GET /local', "X-Key: $key")->{field}{'x-backend'};
}


# several requests, so that each worker gets some

sub await_redis {
    my (@keys) = @_;

    @keys = map { rand } 1 .. 9 if !@keys;

    for my $clients (@clients) {
        Gateway::await(sub {
            return !grep { backend($clients, $_) ne 'redis' } (@keys) x 9;
        }, 'Redis');
    }
}


sub is_well {
    for my $gateway (@gateways) {
        is($gateway->complaints, '', 'nothing to complain about');
        unlike($gateway->log, qr/exited on signal/, 'no worker has died');
    }
}


# Sentinels tell the port of a server, the proxies before them that of the proxy
# before it.  No server is taken for dead.

sub sentinels {
    my $fleet = RedisSentinel->start(replicas => 1, down => 60_000);
    my %port = map { ($_->{port} => free_port()) } @{$fleet->{servers}};
    my ($primary, $replica) = map { proxy($_, port => $port{$_->{port}},
                                          parts => { replica => \&replica }) }
                              @{$fleet->{servers}};

    my $told = sub { $_[1] =~ s/\b(\d{5})\b/$port{$1}/r };
    my @sentinels = map { proxy($_, parts => {
        honest => $told,
        stale => sub { $told->(@_) =~ s/$primary->{port}/$replica->{port}/r },
        unknown => sub { "*-1\r\n" },
        strange => sub { "*2\r\n\$3\r\na b\r\n\$5\r\n" . "$replica->{port}\r\n" },
    }) } @{$fleet->{sentinels}};

    # the first one is asked first

    for my $part ('stale', 'unknown', 'strange', 'liar', 'cut_off') {
        $sentinels[0]->play($part);
        start_gateways(join ' ', (map { "redis://127.0.0.1:$_->{port}" }
                                  @sentinels), 'sentinel=mymaster');
        pass("a sentinel that is $part");
        is_well();
    }

    $sentinels[0]->play('honest');

    for my $part ('cut_off', 'hold', 'liar', 'replica') {
        subtest $part => sub {
            trouble($part, $primary,
                    [map { [$path[$_], "$part$_"] } 0, 1], []);
        };
    }

    my @seen = grep { /^EVAL/ } $replica->seen;

    is(scalar @seen, 0, 'the replica is sent nothing');
    is_well();
}


# what the primary says is that it is none

sub replica {
    my ($command) = @_;

    return $command->[0] eq 'CONNECT' ? ()
         : $command->[0] eq 'ROLE' ? "*1\r\n\$5\r\nslave\r\n" : ['close'];
}


# nodes tell the ports of the proxies

sub cluster {
    my $cluster = RedisCluster->start(replicas => 0);
    my @servers = @{$cluster->{servers}};
    my @ports = map { free_port() } @servers;
    my @proxies = map { my $i = $_; proxy($servers[$i], port => $ports[$i],
                                          parts => parts($ports[$i - 1])) }
                  0 .. 2;

    $servers[$_]->call('CONFIG', 'SET', 'cluster-announce-port', $ports[$_])
        for 0 .. 2;

    RedisCluster::await(sub {
        my %maps = map { (RedisCluster::map_of($_) => 1) } @servers;

        return !grep { my $map = $_; grep { $map !~ /:$_\b/ } @ports }
                keys %maps;
    }, 'ports');

    start_gateways(join ' ', (map { "redis://127.0.0.1:$_" } @ports),
                   'cluster');

    my ($there, $others);

    for my $part ('cut_off', 'hold', 'liar', 'astray', 'busy', 'mad') {
        ($there, $others) = keys_of($servers[0], $part);

        subtest $part => sub {
            trouble($part, $proxies[0],
                    [map { [$path[$_], $there->[$_]] } 0, 1],
                    [map { ['/plenty', $_] } @$others]);
        };
    }

    no_storm($there->[0], @proxies);
    is_well();

    for my $gateway (@gateways) {
        unlike($gateway->log, qr/:$_" is marked down/, 'others are not blamed')
            for @ports[1, 2];
        like($gateway->log, qr/could not execute .*: too many redirections/,
             'nodes that do not agree are told');
    }
}


# some on the first node, and some on others

sub keys_of {
    my ($server, $name) = @_;

    my (@there, @others);

    for (my $i = 0; @there < 2 || @others < 4; $i++) {
        my $slot = $server->call('CLUSTER', 'KEYSLOT', "{2:$name$i}");

        push @{$slot < 16_384 / 3 ? \@there : \@others}, "$name$i";
    }

    return (\@there, \@others);
}


# Each command is sent to and fro several times, and each of these replies says
# that the map is wrong.  A gateway asks for it ten times a second at most, one
# node after the other if need be.

sub no_storm {
    my ($key, @proxies) = @_;

    my $start = time;

    $_->play('honest') for @proxies;
    $proxies[0]->play('astray');
    all_at_once((['/plenty', $key]) x 200);

    my @seen = map { $_->seen } @proxies;
    my $moved = grep { /^EVAL/ } @seen;
    my $asked = grep { $_ eq 'CLUSTER' } @seen;

    $proxies[0]->play('honest');

    cmp_ok($moved, '>=', 1000, 'many redirections');
    cmp_ok($asked, '<=', 2 * 3 * (2 + 10 * (time - $start)),
           "$asked questions for the map");
}


# A node that sends all to another one, which sends it back; one that asks to
# come again, and again; one that says that the cluster is down, and has a map
# that is none.

sub parts {
    my ($other) = @_;

    my $part = sub {
        my ($script, $map) = @_;

        return sub {
            my ($command) = @_;

            return $command->[0] =~ /^EVAL/ ? $script
                 : $command->[0] eq 'CLUSTER' ? $map
                 : $command->[0] eq 'CONNECT' ? () : "+OK\r\n";
        };
    };

    return {
        astray => $part->("-MOVED 0 127.0.0.1:$other\r\n", "*0\r\n"),
        busy => $part->("-TRYAGAIN Multiple keys request\r\n", "*1\r\n*0\r\n"),
        mad => $part->("-CLUSTERDOWN The cluster is down\r\n",
                       "*1\r\n*3\r\n:0\r\n:16383\r\n:5\r\n"),
    };
}
