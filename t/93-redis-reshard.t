#!/usr/bin/perl

# Hash slots move from node to node of a cluster, under load from two gateways
# with two workers each: limits stay exact, each request is answered, and no
# gateway needs to be told.  Nodes are added and removed.

use strict;
use warnings;

use File::Temp qw(tempdir);
use List::Util qw(shuffle sum0);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisCluster;
use ScriptedDns;
use Together;

use constant LIMIT => 1000;
use constant KEYS => 6;
use constant SLACK => 4;        # seconds that a busy machine may add

my $dir = tempdir('ratelimit-reshard-XXXXXX', TMPDIR => 1, CLEANUP => 1);

my $cluster = RedisCluster->start(replicas => 0);
my $config = config();
my @gateways = map { Gateway->start(workers => 2, http => $config) } 1 .. 2;
my @clients = map { Clients->new($_->{port}) } @gateways;
my $new;                        # a node that is added, and removed

subtest 'a hash slot that is on its way' => \&on_its_way;
subtest 'two counters in it' => \&two_counters;
subtest 'a refund for it' => \&refund;
subtest 'hash slots are moved' => \&reshard;
subtest 'a node is added' => \&added;
subtest 'a node is removed' => \&removed;
subtest 'nodes without addresses' => \&nameless;
subtest 'nodes with names' => \&names;
subtest 'a name without an address' => \&unknown;

for my $gateway (@gateways) {
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/exited on signal/, 'no worker has died');
    unlike($gateway->log, qr/is marked down/, 'no node was marked down');
}

done_testing();


sub config {
    my $urls = $cluster->urls;

    return <<"END" . Gateway->server(
add_header X-Backend \$ratelimit_backend always;
ratelimit_redis main $urls cluster timeout=5s connect_timeout=5s;
ratelimit_zone \$http_x_key zone=log:1m algorithm=sliding_log
               rate=1000r/1h redis=main fail=closed;
ratelimit_zone \$http_x_key zone=fixed:1m algorithm=fixed_window
               rate=1000r/366d redis=main fail=closed;
ratelimit_zone \$http_x_key zone=two:1m rate=100r/1h rate=150r/2h
               redis=main fail=closed;
ratelimit_zone \$http_x_key zone=more:1m rate=100r/1h redis=main fail=closed;
ratelimit_zone \$http_x_key zone=count:1m rate=10r/1h redis=main fail=closed;
END
        '/log' => 'ratelimit zone=log;',
        '/fixed' => 'ratelimit zone=fixed;',
        '/two' => 'ratelimit zone=two;',
        '/more' => 'ratelimit zone=two; ratelimit zone=more;',
        '/count' => 'ratelimit zone=count count=404;',
    );
}


# a new counter is made where the hash slot goes, an old one is used where it is

sub on_its_way {
    my @old = $clients[0]->series((['GET /log', 'X-Key: old']) x 10);
    my $from = $cluster->primary_of('{2:old}');
    my ($to) = grep { $_ != $from } $cluster->primaries;
    my $end = $cluster->move('{2:old}', $to);

    push @old, $clients[1]->series((['GET /log', 'X-Key: old']) x 10);
    is_deeply([remaining(@old)], [reverse LIMIT - 20 .. LIMIT - 1],
              'an old counter');

    my $asked = $to->calls('asking');
    my ($new) = same_slot('old');
    my @new = map { $_->series((['GET /fixed', "X-Key: $new"]) x 10) } @clients;

    is_deeply([remaining(@new)], [reverse LIMIT - 20 .. LIMIT - 1],
              'a new counter');
    cmp_ok($to->calls('asking') - $asked, '>=', 20, 'where the hash slot goes');

    $end->();

    push @old, map { $_->series((['GET /log', 'X-Key: old']) x 10) } @clients;
    push @new, map { $_->series((['GET /fixed', "X-Key: $new"]) x 10) }
               @clients;

    is_deeply([remaining(@old)], [reverse LIMIT - 40 .. LIMIT - 1],
              'the old counter goes on');
    is_deeply([remaining(@new)], [reverse LIMIT - 40 .. LIMIT - 1],
              'so does the new one');
}


sub remaining {
    my (@answers) = @_;

    return map { $_->{field}{'x-ratelimit-remaining'} // $_->{status} }
           @answers;
}


# keys whose hash slot is that of another one

sub same_slot {
    my ($key) = @_;

    my ($node) = $cluster->primaries;
    my $slot = $node->call('CLUSTER', 'KEYSLOT', "{2:$key}");
    my $i = 0;

    while (1) {
        my @names = map { "{2:same" . $i++ . '}' } 1 .. 1000;
        my @slots = $node->pipe(map { ['CLUSTER', 'KEYSLOT', $_] } @names);

        for my $k (0 .. $#names) {
            return $names[$k] =~ /\{2:(.*)\}/ if $slots[$k] == $slot;
        }
    }
}


# of which one has moved: a node can't tell, and asks to try again

sub two_counters {
    is(($clients[0]->ask('GET /two', 'X-Key: pair'))->{status}, 200, 'counted');

    my $end = $cluster->move('{2:pair}');

    $end->(qr/:3600w/);

    my @waiting = map { $_->send('GET /two', 'X-Key: pair') } @clients;

    sleep 0.3;
    is(scalar(grep { Clients::done($_) } @waiting), 0, 'requests wait');

    $end->();
    Clients::await_answers(2, @waiting);

    is_deeply([sort { $a <=> $b } remaining(map { $_->{answers}[0] } @waiting)],
              [97, 98], 'and are decided when all is there');
}


# the reservation is made before the hash slot begins to move

sub refund {
    my @answers = $clients[0]->series((['GET /count', 'X-Key: back']) x 3);

    is_deeply([map { $_->{status} } @answers], [200, 200, 200], 'admitted');

    my $end = $cluster->move('{2:back}');

    push @answers, $clients[0]->series((['GET /count', 'X-Key: back']) x 3);
    $end->();

    my $answer;

    Gateway::await(sub {
        ($answer) = remaining($clients[1]->ask('GET /count', 'X-Key: back'));

        return $answer == 9;
    }, 'refunds');
    is($answer, 9, 'nothing stays counted');
}


# keys of which half have one of these hash slots

sub keys_in {
    my ($name, $first, $last) = @_;

    my ($node) = $cluster->primaries;
    my (@in, @out);

    for (my $i = 0; @in < KEYS / 2 || @out < KEYS / 2; $i++) {
        my $slot = $node->call('CLUSTER', 'KEYSLOT', "{2:$name $i}");

        push @{$slot >= $first && $slot <= $last ? \@in : \@out}, "$name $i";
    }

    return (@in[0 .. KEYS / 2 - 1], @out[0 .. KEYS / 2 - 1]);
}


# all keys are asked for more than they have, while something happens

sub exact {
    my ($name, $slots, $happens) = @_;

    my @keys = keys_in($name, @$slots);
    my @before = map { $cluster->primary_of("{2:$_}") } @keys;
    my $end = "$dir/$name";
    my @tallies = Together::run(undef, sub {
        return touch_after($end, $happens);
    }, map { my $gateway = $_; sub { load($gateway, $end, @keys) } } @gateways);

    shift @tallies;

    my @moved = grep { $cluster->primary_of("{2:$keys[$_]}") != $before[$_] }
                0 .. $#keys;

    cmp_ok(scalar @moved, '>=', KEYS / 2, 'keys that are in use have moved');

    for my $tally (@tallies) {
        is($tally->{hang}, 0, 'no hang');
        cmp_ok($tally->{slowest}, '<', 5 + SLACK, 'in time');
        note(sprintf 'after %.3f s', $tally->{slowest});
    }

    my $sum = GatewayClient::add_up(@tallies);
    my $rest = GatewayClient::add_up(Together::run(undef,
        map { my $gateway = $_; sub {
            return $gateway->load(depth => 4, requests => [
                shuffle(map { request($_) } (@keys) x (LIMIT / 2 + 10)) ]);
        } } @gateways));

    for my $key (@keys) {
        my ($one, $two) = ($sum->{$key}, $rest->{$key});

        is(($one->{200} || 0) + ($two->{200} || 0), LIMIT,
           "$key: exactly as many as the limit says");
        is(sum0(map { $one->{$_} || 0 } 200, 429), $one->{sent},
           'all others are refused, none fails');
        note("$one->{sent} requests meanwhile");
    }
}


sub request {
    my ($key) = @_;

    return [$key =~ /[02468]$/ ? '/log' : '/fixed', $key];
}


# slow enough that something is left at the end

sub load {
    my ($gateway, $end, @keys) = @_;

    my $n = 0;

    return $gateway->load(connections => 8, requests => sub {
        return if -e $end;

        sleep 0.004;

        return request($keys[$n++ % @keys]);
    });
}


sub touch_after {
    my ($path, $happens) = @_;

    my $done = eval { $happens->(); 1 };
    my $error = $@;

    open my $file, '>', $path or die "$path: $!";
    close $file;

    die $error if !$done;

    return { done => 1 };
}


# redis-cli takes the first ones of a node: some move twice

sub reshard {
    my @primaries = @{$cluster->{servers}};
    my @id = map { $_->call('CLUSTER', 'MYID') } @primaries;

    exact('moved', [50, 550], sub {
        for my $move ([0, 1], [2, 0], [1, 2]) {
            my ($from, $to) = @id[@$move];

            $cluster->cli('reshard', "127.0.0.1:$primaries[0]{port}",
                          '--cluster-from', $from, '--cluster-to', $to,
                          '--cluster-slots', 600, '--cluster-yes');
        }
    });
}


# at first without hash slots, then with some of all others

sub added {
    my ($old) = $cluster->primaries;

    $new = $cluster->grow;

    exact('added', [620, 780], sub {
        $cluster->cli('reshard', "127.0.0.1:$old->{port}", '--cluster-from',
                      'all', '--cluster-to', $new->call('CLUSTER', 'MYID'),
                      '--cluster-slots', 600, '--cluster-yes');
    });

    for my $gateway (@gateways) {
        like($gateway->log, qr/:$new->{port}" is a primary now/, 'it is told');
    }
}


# its hash slots go elsewhere, then it goes itself

sub removed {
    my ($old) = grep { $_ != $new } $cluster->primaries;
    my $id = $new->call('CLUSTER', 'MYID');

    exact('removed', [620, 780], sub {
        $cluster->cli('reshard', "127.0.0.1:$old->{port}", '--cluster-from',
                      $id, '--cluster-to', $old->call('CLUSTER', 'MYID'),
                      '--cluster-slots', 600, '--cluster-yes');
        $cluster->cli('del-node', "127.0.0.1:$old->{port}", $id);
    });

    $new->kill;
    @{$cluster->{servers}} = grep { $_ != $new } @{$cluster->{servers}};

    for my $gateway (@gateways) {
        Gateway::await(sub {
            $gateway->log =~ /:$new->{port}" is no primary any more/;
        }, 'a line in the log');
        pass('it is told');
    }
}


# counts where the hash slot is, and follows it to another node, or a new one;
# a new counter is made where it goes

sub follows {
    my ($how, $http, $new) = @_;

    my $gateway = Gateway->start(workers => 2, http => $http);
    my $clients = Clients->new($gateway->{port});
    my @answers = $clients->series((['GET /log', "X-Key: $how"]) x 10);

    my ($fresh) = same_slot($how);

    for my $to (undef, $new || ()) {
        my $end = $cluster->move("{2:$how}", $to);

        is_deeply([remaining($clients->series((['GET /fixed',
                                                "X-Key: $fresh"]) x 5))],
                  [reverse LIMIT - 5 .. LIMIT - 1], "$how, on its way") if !$to;
        $end->();
        push @answers, $clients->series((['GET /log', "X-Key: $how"]) x 10);
    }

    is_deeply([remaining(@answers)],
              [reverse LIMIT - @answers .. LIMIT - 1], "$how, all are counted");
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/is marked down/, 'no node was marked down');

    return $gateway;
}


# what is said without a host is about the host that was asked

sub nameless {
    $cluster->set('cluster-preferred-endpoint-type', 'unknown-endpoint');

    my ($node) = $cluster->alive;

    is($node->call('CLUSTER', 'SLOTS')->[0][2][0], undef, 'no host');

    my $gateway = follows('nameless', $config);

    like($gateway->log, qr{main/127.0.0.1:$_->{port}" is a primary now},
         'found') for $cluster->primaries;
}


# addresses are told by the map, or by a resolver

sub names {
    my $dns = ScriptedDns->start;

    for my $how ('unresolved', 'resolved') {
        $cluster->grow;
        $cluster->set('cluster-preferred-endpoint-type', 'hostname');
        $cluster->set('cluster-node-timeout', RedisCluster::IMPATIENT);

        my @servers = $cluster->alive;

        for my $i (0 .. $#servers) {
            $servers[$i]->call('CONFIG', 'SET', 'cluster-announce-hostname',
                               "node$i.test");
            $dns->tell("node$i.test", '127.0.0.1');
        }

        RedisCluster::await(sub {
            return !grep { @servers != (() = $_->ask('CLUSTER', 'NODES')
                                            =~ /\@\d+,node\d\.test/g) }
                    @servers;
        }, 'names');

        $cluster->set('cluster-node-timeout', RedisCluster::NODE_TIMEOUT);
        $cluster->await_ok;

        my $resolver = $how eq 'resolved' ? "resolver 127.0.0.1:$dns->{port};\n"
                                          : '';
        my $gateway = follows($how, $resolver . $config, $servers[-1]);

        for my $i (0 .. $#servers) {
            Gateway::await(sub {
                $gateway->log =~ m{main/node$i.test:\d+" is a primary now};
            }, 'a line in the log');
            pass("node$i is called so");
        }

        cmp_ok($dns->asked('node0.test'), $resolver ? '>' : '==', 0,
               'the resolver is asked if there is one');
    }
}


# the map tells no address of a node that has no hash slots yet

sub unknown {
    my $new = $cluster->grow;

    $cluster->set('cluster-preferred-endpoint-type', 'hostname');
    $new->call('CONFIG', 'SET', 'cluster-announce-hostname', 'new.test');

    RedisCluster::await(sub {
        return !grep { $_->ask('CLUSTER', 'NODES') !~ /,new\.test/ }
                $cluster->alive;
    }, 'its name');

    my $gateway = Gateway->start(workers => 1,
                                 http => $config =~ s/ timeout=5s//r);
    my $clients = Clients->new($gateway->{port});
    my $end = $cluster->move('{2:unknown}', $new);
    my $status = sub { ($clients->series(['GET /log',
                                          'X-Key: unknown']))[0]{status} };

    Gateway::await(sub {
        $status->();
        return $gateway->log =~ /"main" asks "new\.test" about some keys, /;
    }, 'a line in the log');

    is($status->(), 503, 'a decision that needs it fails');
    $end->();
    Gateway::await(sub { $status->() != 503 }, 'an address');
    pass('it does not when the hash slot has moved');
}
