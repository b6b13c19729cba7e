#!/usr/bin/perl

# A cluster of three primaries and three replicas, and two gateways with two
# workers each: limits are exact on whatever nodes they are, and when a primary
# fails, gateways follow the cluster, under load, while the keys of other nodes
# notice nothing.  The second gateway uses TLS, and is a user that has no more
# rights than docs/redis.md names.

use strict;
use warnings;

use File::Temp qw(tempdir);
use IO::Select;
use List::Util qw(shuffle sum0);
use Test::More;
use Time::HiRes qw(sleep);

use lib 't/lib';
use Certificates;
use Clients;
use Gateway;
use Ports qw(free_port);
use RedisCluster;
use RedisServer;
use ScriptedRedis;
use Stopwatch;
use Together;

use constant LIMIT => 300;
use constant SENT => 220;       # to each of the gateways
use constant TIMEOUT => 4;      # seconds
use constant SLACK => 4;        # seconds that a busy machine may add

# seconds to follow: Stopwatch.pm leaves out what the machine adds
use constant SOON => 5;

# what the zone and the limit say, for LIMIT requests at once
my %algorithm = (
    fixed_window => ['algorithm=fixed_window rate=300r/366d'],
    sliding_window => ['rate=300r/1h'],
    sliding_window_1 => ['buckets=1 rate=300r/366d'],
    sliding_log => ['algorithm=sliding_log rate=300r/1h'],
    token_bucket => ['algorithm=token_bucket capacity=300 rate=1r/d'],
    leaky_bucket => ['algorithm=leaky_bucket rate=1r/d', 'burst=299 nodelay'],
);

my $dir = tempdir('ratelimit-cluster-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $made = Certificates->new;

$made->issue('node', names => 'IP:127.0.0.1');

my $cluster = RedisCluster->start(tls => "$made->{dir}/node", conf => user(),
                                  '--tls-cluster' => 'yes',
                                  '--tls-replication' => 'yes');
my $config = config($cluster->urls);
my @gateways = map { Gateway->start(workers => 2, http => $_) }
               $config, config(secure_urls());
my @clients = map { Clients->new($_->{port}) } @gateways;
my $former;                     # a primary that was

for my $name (sort keys %algorithm) {
    subtest $name => sub { exact($name) };
}

subtest 'all nodes have a share' => \&shares;
subtest 'the interface' => \&interface;
subtest 'a common limit' => \&common;
subtest 'an open reservation' => \&reservation;
subtest 'a node without scripts' => \&no_scripts;
subtest 'a hash slot that is on its way' => \&on_its_way;
subtest 'hash slots are moved' => \&reshard;
subtest 'a hash slot that is not served' => \&not_served;
subtest 'a primary is killed' => sub {
    fail_over('killed', sub { $_[0]->kill });
};
subtest 'it comes back' => \&comes_back;
subtest 'a primary is stopped' => sub {
    fail_over('stopped', sub { $_[0]->pause; $_[0]{paused} = 1 });
};

for my $gateway (@gateways) {
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/exited on signal/, 'no worker has died');
}

subtest 'seeds' => \&seeds;
subtest 'not a cluster' => \&no_cluster;
subtest 'a worker that exits' => \&last_question;

done_testing();


# with the rights that the page names, to reset keys, too

sub user {
    open my $page, '<', 'docs/redis.md' or die "docs/redis.md: $!";

    my $text = do { local $/; <$page> };
    my ($rule) = $text =~ /^redis-cli ACL SETUSER (gateway .*?)\n```/ms
        or die 'the page has no rule';

    $rule =~ s/'|\\\n//g;

    return "user $rule +cluster|slots +asking\n";
}


sub secure_urls {
    return join ' ', (map { "rediss://gateway:secret\@127.0.0.1:$_->{tls_port}" }
                      @{$cluster->{servers}}), "ssl_ca=$made->{dir}/ca.pem";
}


sub config {
    my ($urls) = @_;

    my $timeout = TIMEOUT . 's';
    my $zones = <<"END";
add_header X-Status \$ratelimit_status always;
add_header X-Backend \$ratelimit_backend always;
ratelimit_redis main $urls cluster timeout=$timeout connect_timeout=$timeout;
ratelimit_zone \$http_x_key zone=one:1m rate=100r/1h redis=main fail=closed;
ratelimit_zone all zone=all:1m rate=150r/1h redis=main fail=closed;
ratelimit_zone \$http_x_key zone=a:1m rate=1r/1h redis=main fail=closed;
ratelimit_zone \$http_x_other zone=b:1m rate=1r/1h redis=main fail=closed;
ratelimit_zone \$http_x_key zone=local:1m rate=100000r/h redis=main;
ratelimit_zone \$http_x_key zone=plenty:1m rate=100000r/h redis=main
               fail=closed;
END
    my %location = (
        '/common' => 'ratelimit zone=one; ratelimit zone=all;',
        '/one' => 'ratelimit zone=one;',
        '/ab' => 'ratelimit zone=a; ratelimit zone=b;',
        '/a' => 'ratelimit zone=a;',
        '/b' => 'ratelimit zone=b;',
        '/local' => 'ratelimit zone=local;',
        '/plenty' => 'ratelimit zone=plenty;',
        '/api/' => 'ratelimit_api write=on;',
    );

    for my $name (sort keys %algorithm) {
        my ($zone, $limit) = @{$algorithm{$name}};

        $zones .= "ratelimit_zone \$http_x_key zone=$name:1m $zone"
                  . " redis=main fail=closed;\n";
        $location{"/$name"} = "ratelimit zone=$name " . ($limit || '') . ';';
    }

    return $zones . Gateway->server(%location);
}


# the same load on all gateways at once: what became of each key

sub all_at_once {
    my ($while, @requests) = @_;

    my @tallies = Together::run($while, map { my $gateway = $_; sub {
        return $gateway->load(depth => 4, connections => 24,
                              requests => [shuffle(@requests)]);
    } } @gateways);

    is($_->{hang}, 0, 'no hang') for @tallies;

    return GatewayClient::add_up(@tallies);
}


# keys that are on different nodes

sub exact {
    my ($name, $while) = @_;

    my @keys = map { "$name $_" . ($while ? ' again' : '') } 1 .. 4;
    my $keys = all_at_once($while, map { (["/$name", $_]) x SENT } @keys);

    for my $key (@keys) {
        is_deeply($keys->{$key}, { sent => 2 * SENT, 200 => LIMIT,
                                   429 => 2 * SENT - LIMIT },
                  "$key: exactly as many as the limit says");
    }
}


sub shares {
    my @primaries = $cluster->primaries;

    is(scalar @primaries, 3, 'three primaries');
    cmp_ok($_->calls('evalsha'), '>', 0, "port $_->{port}") for @primaries;

    # others never, so none is redirected more than once

    for my $server ($cluster->alive) {
        is($server->calls('evalsha') + $server->calls('eval'), 0,
           "not the replica $server->{port}")
            if RedisCluster::role($server) ne 'master';
    }

    my $body = $clients[0]->ask('GET /api/redis')->{body};

    like($body, qr/"address":\s*"127.0.0.1:$_->{port}"/,
         "$_->{port} has figures of its own") for @primaries;

    like($gateways[1]->log, qr/:$_->{tls_port}" is a primary now/,
         'the second gateway has its port of TLS') for @primaries;
    unlike($_->log, qr/\[error\]/, 'no error') for @gateways;
}


# keys are found, and reset, wherever they are

sub interface {
    for my $key (map { "looked$_" } 1 .. 6) {
        my $path = "/api/zones/one/keys/$key";

        $clients[0]->ask('GET /one', "X-Key: $key") for 1 .. 3;
        like($clients[1]->ask("GET $path")->{body}, qr/"remaining": ?97\b/,
             "$key is found");
        is($clients[1]->ask("DELETE $path")->{status}, 204, 'and reset');
        like($clients[0]->ask("GET $path")->{body}, qr/"remaining": ?100\b/,
             'it has nothing used');
    }

    my @request = ('GET /fixed_window', 'X-Key: refused');

    $clients[0]->series(([@request]) x LIMIT);
    is($clients[0]->ask(@request)->{status}, 429, 'one is refused');
    is($clients[1]->ask('DELETE /api/zones/fixed_window/keys/refused')
           ->{status}, 204, 'it is reset by the other gateway');

    for (1 .. 2) {
        sleep 1;
        is($clients[0]->ask(@request)->{status}, 200, 'and admitted') for 1 .. 9;
    }
}


# two keys in one decision, on different nodes

sub common {
    my @keys = map { "one of $_" } 1 .. 4;
    my $keys = all_at_once(undef, map { (['/common', $_]) x 60 } @keys);

    is(sum0(map { $_->{200} || 0 } @$keys{@keys}), 150,
       'the common limit holds');

    # refunds need a moment

    for my $key (@keys) {
        my $used = $keys->{$key}{200} || 0;

        Gateway::await(sub {
            my $answer = $clients[0]->ask('GET /one', "X-Key: $key");

            $used++ if $answer->{status} == 200;

            return ($answer->{field}{'x-ratelimit-remaining'} // '')
                   eq 100 - $used;
        }, 'refunds');

        my $rest = all_at_once(undef, (['/one', $key]) x 60)->{$key};

        is(($rest->{200} || 0) + $used, 100,
           "$key: what was refused costs nothing");
    }
}


# of two keys that are on different nodes, the second is slow and refuses

sub reservation {
    my ($a, $b) = on_other_nodes('a', 'b');
    my $name = "ratelimit:{2:$a}:a::3600w10";
    my $fast = $cluster->primary_of($name);
    my $slow = $cluster->primary_of("{2:$b}");

    is($clients[0]->ask('GET /b', "X-Other: $b")->{status}, 200, 'b is used');

    # what this gateway knows of b would refuse at once

    $gateways[0]->reload($config);
    $slow->pause;

    my $waiting = $clients[0]->send('GET /ab', "X-Key: $a", "X-Other: $b");

    Gateway::await(sub { $fast->call('EXISTS', $name) }, 'a charge');

    for my $clients (@clients) {
        my $asked = $fast->calls('evalsha');

        is($clients->ask('GET /a', "X-Key: $a")->{status}, 429,
           'a is reserved') for 1 .. 3;
        is($fast->calls('evalsha') - $asked, 3,
           'which is not remembered: Redis is asked each time');
    }

    $slow->resume;
    Clients::await_answers(1, $waiting);
    is($waiting->{answers}[0]{status}, 429, 'b refuses');

    # the refund is on its way

    Gateway::await(sub {
        $clients[1]->ask('GET /a', "X-Key: $a")->{status} == 200;
    }, 'a to be free');
    is($clients[0]->ask('GET /a', "X-Key: $a")->{status}, 429,
       'a was free once');
}


sub on_other_nodes {
    my ($one, $two) = @_;

    for my $i (1 .. 100) {
        return ("$one$i", "$two$i")
            if $cluster->primary_of("{2:$one$i}")
               != $cluster->primary_of("{2:$two$i}");
    }

    die 'all keys are on one node';
}


# one of them forgets them again and again

sub no_scripts {
    my ($node) = $cluster->primaries;
    my $before = $node->calls('eval');

    exact('sliding_log', sub { $node->call('SCRIPT', 'FLUSH') });
    cmp_ok($node->calls('eval'), '>', $before, 'scripts were told again');
}


# an old counter is used where it is, a new one is made where the hash slot goes

sub on_its_way {
    for my $i (0, 1) {
        my ($old, $new) = map { ["GET /$_", "X-Key: moved$i"] } 'one', 'plenty';

        my @old = $clients[$i]->series(($old) x 5);
        my $end = $cluster->move("{2:moved$i}");

        push @old, $clients[$i]->series(($old) x 5);

        my @new = $clients[$i]->series(($new) x 5);

        $end->();
        push @old, $clients[$i]->series(($old) x 5);
        push @new, $clients[$i]->series(($new) x 5);

        is_deeply([remaining(@old)], [reverse 85 .. 99], 'the old counter');
        is_deeply([remaining(@new)], [reverse 99_990 .. 99_999], 'the new one');
    }
}


sub remaining {
    my (@answers) = @_;

    return map { $_->{field}{'x-ratelimit-remaining'} // $_->{status} }
           @answers;
}


# under load, by redis-cli, which takes the first ones; t/93-redis-reshard.t does
# more of this, but without TLS, users and replicas

sub reshard {
    my ($from, $to) = @{$cluster->{servers}};
    my @path = ('/fixed_window', '/sliding_log');
    my @requests;

    for (my $i = 0; @requests < 4; $i++) {
        my $slot = $from->call('CLUSTER', 'KEYSLOT', "{2:reshard $i}");

        push @requests, [$path[@requests % 2], "reshard $i"]
            if $slot < 250 && $cluster->primary_of("{2:reshard $i}") == $from;
    }

    my @tallies = Together::run(undef, sub {
        touch("$dir/go");

        my $done = eval { $cluster->cli(
            'reshard', "127.0.0.1:$from->{tls_port}",
            '--cluster-from', $from->call('CLUSTER', 'MYID'),
            '--cluster-to', $to->call('CLUSTER', 'MYID'),
            '--cluster-slots', 300, '--cluster-yes') };

        my $error = $@;

        unlink "$dir/go";

        return { hang => 0, error => $done ? '' : $error };
    }, map { my $gateway = $_; sub { load($gateway, @requests) } } @gateways);

    is((shift @tallies)->{error}, '', 'moved');
    is_answered($_, TIMEOUT + SLACK) for @tallies;

    my $sum = GatewayClient::add_up(@tallies);
    my $rest = all_at_once(undef, (@requests) x LIMIT);

    for my $key (map { $_->[1] } @requests) {
        is($cluster->primary_of("{2:$key}"), $to, "$key: has moved");
        is($sum->{$key}{503} || 0, 0, 'none fails');
        is(sum0(map { $_->{$key}{200} || 0 } $sum, $rest), LIMIT,
           'exactly as many as the limit says');
    }
}


# without all hash slots, a cluster serves none

sub not_served {
    my $primary = $cluster->primary_of('{2:x}');
    my $slot = $primary->call('CLUSTER', 'KEYSLOT', '{2:x}');

    # a node may learn once more of it by what the primary said before

    $primary->call('CLUSTER', 'DELSLOTS', $slot);

    RedisCluster::await(sub {
        my @served = grep { RedisCluster::info($_) =~ /^cluster_state:ok/m }
                     $cluster->alive;

        $_->pipe(['CLUSTER', 'DELSLOTS', $slot]) for @served;

        return !@served;
    }, 'a cluster that is down');

    my @answers = map { $clients[0]->ask('GET /one', "X-Key: down $_") } 1 .. 9;

    is(join(' ', map { $_->{status} } @answers), join(' ', (503) x 9),
       'fail=closed');

    my $down = sub {
        return $clients[0]->ask('GET /api/redis')->{body} =~ /"up":\s*false/;
    };

    Gateway::await(sub {
        $clients[0]->ask('GET /one', 'X-Key: ' . rand);
        return $down->();
    }, 'a node that is marked down');

    $primary->call('CLUSTER', 'ADDSLOTS', $slot);
    $cluster->await_ok;

    ok(Gateway::await(sub { !$down->() }, 'nodes that are up'),
       'looks find out that it is well, without requests');

    my $watch = Stopwatch->start;

    for my $clients (@clients) {
        Gateway::await(sub { !grep { !by_redis($clients) } 1 .. 20 },
                       'the cluster');
    }

    my $healed = $watch->seconds;

    cmp_ok($healed, '<', SOON, 'healed soon');
    note(sprintf 'after %.3f s', $healed);
}


# Some keys are on the node that fails, and a part of their limits is used; the
# rest is asked for as soon as it is in trouble.  Others are on other nodes, and
# some of them never end.

sub fail_over {
    my ($how, $trouble) = @_;

    $cluster->set('cluster-node-timeout', RedisCluster::IMPATIENT);
    $cluster->set('cluster-require-full-coverage', 'no');

    $former = $cluster->primary_of("{2:$how}");

    my (@there, @others);

    for (my $i = 0; @there < 2 || @others < 2; $i++) {
        my $key = "$how $i";

        push @{$cluster->primary_of("{2:$key}") == $former ? \@there
                                                            : \@others}, $key;
    }

    splice @there, 2;
    splice @others, 2;

    my @path = ('/fixed_window', '/sliding_log');
    my @there_requests = map { [$path[$_], $there[$_]] } 0, 1;
    my @other_requests = map { [$path[$_], $others[$_]] } 0, 1;
    my @plenty = map { ['/plenty', "plenty $_"] }
                 grep { $cluster->primary_of("{2:plenty $_}") != $former }
                 1 .. 9;
    my $keys = all_at_once(undef, (@there_requests, @other_requests) x 50);

    is(sum0(map { $_->{200} } values %$keys), 400, 'a part is used');
    RedisCluster::await_replicas($former);

    my ($begun, $found, $healed);
    my @tallies = Together::run(sub {
        if (!$begun) {
            $trouble->($former);
            $begun = touch("$dir/go");

        } elsif (!$found) {
            my $primary = $cluster->primary_of("{2:$how}");

            $found = Stopwatch->start if $primary != $former && $cluster->ok;

        } elsif (!$healed
                 && !grep { !by_redis($_, $there[0]) } @clients, @clients)
        {
            $healed = $found->seconds;
            unlink "$dir/go";
        }
    }, map { my $gateway = $_;
             (sub { load($gateway, @there_requests) },
              sub { load($gateway, @other_requests, @plenty) }) } @gateways);

    cmp_ok($healed, '<', SOON, 'gateways follow soon');
    note(sprintf 'after %.3f s', $healed);

    is_answered($_, TIMEOUT + SLACK) for @tallies[0, 2];
    is_answered($_, TIMEOUT * 0.9) for @tallies[1, 3];

    my $untouched = GatewayClient::add_up(@tallies[1, 3]);
    my $sum = GatewayClient::add_up(@tallies);

    is_deeply([grep { $untouched->{$_}{503} } sort keys %$untouched], [],
              'other nodes go on');
    is_deeply([map { $untouched->{$_->[1]}{200} } @plenty],
              [map { $untouched->{$_->[1]}{sent} } @plenty],
              'and admit');

    my $rest = all_at_once(undef, (@there_requests, @other_requests) x LIMIT);

    for my $key (@there, @others) {
        is(sum0(map { $_->{$key}{200} || 0 } $keys, $sum, $rest), LIMIT,
           "$key: exactly as many as the limit says");
    }

    $cluster->set('cluster-node-timeout', RedisCluster::NODE_TIMEOUT);
}


# one after the other, until the file is gone

sub load {
    my ($gateway, @requests) = @_;

    Gateway::await(sub { -e "$dir/go" }, 'the trouble');

    my $n = 0;

    return $gateway->load(connections => 4, requests => sub {
        return if !-e "$dir/go";

        sleep 0.002;

        return $requests[$n++ % @requests];
    });
}


sub touch {
    my ($path) = @_;

    open my $file, '>', $path or die "$path: $!";

    return close $file;
}


sub is_answered {
    my ($tally, $limit) = @_;

    my %all;

    for my $count (values %{$tally->{keys}}) {
        $all{$_} += $count->{$_} for keys %$count;
    }

    note(join ' ', map { "$_: $all{$_}" } sort keys %all);
    is($tally->{hang}, 0, 'no hang');
    is(sum0(map { $all{$_} || 0 } 200, 429, 503), $all{sent},
       'all are answered as they should');
    cmp_ok($tally->{slowest}, '<', $limit, 'in time');
    note(sprintf 'after %.3f s', $tally->{slowest});
}


sub by_redis {
    my ($clients, $key) = @_;

    my $client = $clients->send('GET /local', 'X-Key: ' . ($key // rand));

    # one that waits for a node that is gone says nothing of the next one

    if (!IO::Select->new($client->{socket})->can_read(1)) {
        Clients::leave($client);
        return 0;
    }

    Clients::await_answers(1, $client);

    return ($client->{answers}[0]{field}{'x-backend'} // '') eq 'redis';
}


# as a replica of the one that took its place

sub comes_back {
    $former->restart;
    RedisCluster::await(sub { RedisCluster::role($former) eq 'slave' },
                        'a replica');
    RedisCluster::await(sub { RedisCluster::synced($former) }, 'all data');
    $cluster->await_ok;

    for my $clients (@clients) {
        ok(!(grep { !by_redis($clients) } 1 .. 20), 'Redis decides');
    }

    is($former->calls('evalsha') + $former->calls('eval'), 0,
       'but it is sent nothing');
}


# one of them that is a part of the cluster is enough

sub seeds {
    $former->resume;
    $former->{paused} = 0;

    my ($node) = $cluster->primaries;
    my $silent = RedisServer->start;
    my $gone = RedisServer::free_port();

    $silent->pause;

    my $gateway = Gateway->start(http => config(
        "redis://127.0.0.1:$gone redis://127.0.0.1:$silent->{port} "
        . $cluster->urls($node)) =~ s/connect_timeout=\d+s//r);
    my $clients = Clients->new($gateway->{port});

    Gateway::await(sub { !grep { !by_redis($clients) } 1 .. 20 },
                   'the cluster');
    pass('a seed that answers is found');

    # and none is needed any more

    $gateway->reload(config("redis://127.0.0.1:$gone redis://127.0.0.1:"
                            . "$silent->{port}"));
    Gateway::await(sub { $gateway->log =~ /could not be looked up/ },
                   'a line in the log');
    pass('other seeds are another cluster');

    is($gateway->complaints, '', 'nothing to complain about');
}


sub no_cluster {
    my $redis = RedisServer->start;
    my $gateway = Gateway->start(
        http => config("redis://127.0.0.1:$redis->{port}"));
    my $clients = Clients->new($gateway->{port});

    is($clients->ask('GET /one', 'X-Key: a')->{status}, 503, 'fail=closed');

    my @lines = $gateway->log =~ /could not be looked up: (.*)/g;

    is(scalar @lines, 1, 'one line in the log');
    like($lines[0], qr/^127.0.0.1:$redis->{port}: error reply "ERR This/,
         'says why');
}


# A redirection that comes after the worker was told to exit: it asks for the
# map, and exits without an answer.

sub last_question {
    my $redis = RedisServer->start;
    my $port = free_port();
    my $map = "*1\r\n*3\r\n:0\r\n:16383\r\n"
              . "*2\r\n\$9\r\n127.0.0.1\r\n:$port\r\n";
    my $part = sub {
        my ($answer, @script) = @_;

        return sub {
            my ($command, $reply) = @_;

            return $command->[0] eq 'CLUSTER' ? $answer
                 : $command->[0] =~ /^EVAL/ ? (@script, $reply)
                 : $reply // ();
        };
    };
    my $scripted = ScriptedRedis->start(upstream => $redis, port => $port,
                                        parts => {
        map => $part->($map),
        moved => $part->($map, ['hold'], "-MOVED 0 127.0.0.1:$port\r\n"),
        late => $part->('', ['hold']),
        mute => $part->(''),
    }, deaf => { moved => sub { 1 } });

    $scripted->play('map');

    my $gateway = Gateway->start(
        workers => 1, http => config("redis://127.0.0.1:$port"));
    my $clients = Clients->new($gateway->{port});
    my $seen = sub {
        my ($command) = @_;

        Gateway::await(sub { grep { /^$command/ } $scripted->seen }, $command);
    };

    is($clients->ask('GET /one', 'X-Key: a')->{status}, 200, 'a map');

    $scripted->play('moved');

    my $client = $clients->send('GET /one', 'X-Key: b');

    $seen->('EVAL');
    kill 'QUIT', $gateway->{pid};
    Gateway::await(sub { !$gateway->current_workers }, 'the end');

    $scripted->play('late');
    $seen->($_) for 'EVAL', 'CLUSTER';
    $scripted->play('mute');

    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'is answered');

    waitpid delete $gateway->{pid}, 0;
    is($gateway->complaints, '', 'nothing is left open');
}
