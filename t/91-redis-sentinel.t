#!/usr/bin/perl

# Sentinels: two gateways with two workers each find the primary, and follow
# when another server becomes the primary, under load.  If this fails, limits
# are switched off after a fail-over, or requests are counted by a server that
# is not the primary.

use strict;
use warnings;

use File::Temp qw(tempdir);
use List::Util qw(max sum0);
use Test::More;
use Time::HiRes qw(sleep);

use lib 't/lib';
use Clients;
use Gateway;
use RedisSentinel;
use Stopwatch;
use Together;

use constant LIMIT => 600;
use constant TIMEOUT => 2;      # seconds
use constant SLACK => 4;        # seconds that a busy machine may add

# seconds to follow: Stopwatch.pm leaves out what the machine adds
use constant SOON => 5;

my $dir = tempdir('ratelimit-sentinel-XXXXXX', TMPDIR => 1, CLEANUP => 1);
my $fleet = RedisSentinel->start;
my $config = config($fleet->urls);
my @gateways = map { Gateway->start(workers => 2, http => $config) } 1 .. 2;
my @clients = map { Clients->new($_->{port}) } @gateways;

my $former;                     # a primary that was
my $back;                       # one that was killed, and is there again

subtest 'one limit' => \&one_limit;
subtest 'a planned fail-over' => \&planned;
subtest 'the primary is killed' => sub {
    fail_over('killed', 2, sub { $_[0]->kill });
};
subtest 'it comes back' => \&comes_back;
subtest 'the primary is stopped' => sub {
    fail_over('stopped', 1, sub { $_[0]->pause });
};
subtest 'what came back' => \&unused;
subtest 'sentinels in trouble' => \&sentinels;

for my $gateway (@gateways) {
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/exited on signal/, 'no worker has died');
}

subtest 'a name that is not known' => \&unknown;
subtest 'passwords' => \&passwords;
subtest 'no sentinel at first' => \&cold;

done_testing();


sub config {
    my ($urls) = @_;

    my $timeout = TIMEOUT . 's';

    return <<"END" . Gateway->server(
add_header X-Status \$ratelimit_status always;
add_header X-Backend \$ratelimit_backend always;
ratelimit_redis main $urls sentinel=mymaster timeout=$timeout
                connect_timeout=$timeout;
ratelimit_zone \$http_x_key zone=fixed:1m algorithm=fixed_window
               rate=600r/366d redis=main fail=closed;
ratelimit_zone \$http_x_key zone=log:1m algorithm=sliding_log
               rate=600r/1h redis=main fail=closed;
ratelimit_zone \$http_x_key zone=local:1m rate=100000r/h redis=main;
END
        '/fixed' => 'ratelimit zone=fixed;',
        '/log' => 'ratelimit zone=log;',
        '/local' => 'ratelimit zone=local;',
    );
}


# so many requests of each path to each gateway, at the same time

sub all_at_once {
    my ($n, $key) = @_;

    my @all = map { my $gateway = $_; sub {
        return $gateway->load(depth => 4, connections => 16, requests => [
            map { (['/fixed', "$key fixed"], ['/log', "$key log"]) } 1 .. $n
        ]);
    } } @gateways;

    return GatewayClient::add_up(Together::run(undef, @all));
}


sub one_limit {
    my $keys = all_at_once(400, 'one');

    for my $name ('fixed', 'log') {
        is_deeply($keys->{"one $name"}, { sent => 800, 200 => LIMIT,
                                          429 => 800 - LIMIT },
                  "$name: exactly as many as the limit says");
    }

    is(scalar(() = $gateways[0]->log =~ /is a primary now/g), 1,
       'one line says which it is');
}


# A part of the limits is used before, and is on the replicas.  The rest is
# asked for as soon as the primary is in trouble, until nothing is left.

sub fail_over {
    my ($how, $replicas, $trouble) = @_;

    my $keys = all_at_once(100, $how);
    my %logged = map { ($_ => length $_->log) } @gateways;

    is(sum0(map { $_->{200} } values %$keys), 400, 'a part is used');
    $fleet->await_replicas($replicas);
    $former = $fleet->primary;

    my ($begun, $found, $healed);
    my @tallies = Together::run(sub {
        if (!$begun) {
            $trouble->($former);
            $begun = touch("$dir/go");

        } elsif (!$found) {
            $found = Stopwatch->start if $fleet->primary != $former;

        } elsif (!$healed && !grep { !by_redis($_) } @clients) {
            $healed = $found->seconds;
            unlink "$dir/go";
        }
    }, map { my $gateway = $_; sub { load($gateway, $how) } } @gateways);

    is_answered($_) for @tallies;
    cmp_ok($healed, '<', SOON, 'gateways follow soon');
    note(sprintf 'after %.3f s', $healed);

    my $sum = GatewayClient::add_up(@tallies);
    my $rest = all_at_once(LIMIT, $how);

    for my $name ('fixed', 'log') {
        is(sum0(map { $_->{"$how $name"}{200} || 0 } $keys, $sum, $rest), LIMIT,
           "$name: exactly as many as the limit says");
    }

    for my $gateway (@gateways) {
        my $log = substr $gateway->log, $logged{$gateway};

        like($log, qr/:$former->{port}" is no primary any more/,
             'the former primary is told');
        is(scalar(() = $log =~ /is a primary now/g), 1, 'and the new one, once');
    }
}


sub touch {
    my ($path) = @_;

    open my $file, '>', $path or die "$path: $!";

    return close $file;
}


# until the file is gone; what is left of the limits is asked for meanwhile

sub load {
    my ($gateway, $how) = @_;

    Gateway::await(sub { -e "$dir/go" }, 'the trouble');

    my $n = 0;

    return $gateway->load(depth => 2, connections => 8, requests => sub {
        return if !-e "$dir/go";

        sleep 0.0005;

        return $n++ % 4 == 0 ? ['/fixed', "$how fixed"]
             : $n % 4 == 1 ? ['/log', "$how log"]
             : ['/local', 'local ' . int rand 20];
    });
}


sub is_answered {
    my ($tally) = @_;

    my %all;

    for my $count (values %{$tally->{keys}}) {
        $all{$_} += $count->{$_} for keys %$count;
    }

    note(join ' ', map { "$_: $all{$_}" } sort keys %all);
    is($tally->{hang}, 0, 'no hang');
    is($all{unanswered} || 0, 0, 'all are answered');
    is(sum0(map { $all{$_} || 0 } 200, 429, 503), $all{sent}, 'as they should');
    cmp_ok($tally->{slowest}, '<', TIMEOUT + SLACK, 'in time');
    note(sprintf 'after %.3f s', $tally->{slowest});
}


sub by_redis {
    my ($clients) = @_;

    my $answer = $clients->ask('GET /local', 'X-Key: ' . rand);

    return ($answer->{field}{'x-backend'} // '') eq 'redis';
}


# without its data; for some time it takes itself for the primary, and then it
# is a replica, which never becomes the primary again

sub comes_back {
    $back = $former;
    $back->restart('--replica-priority' => 0);

    is(RedisSentinel::role($back), 'master', 'a primary, it says');

    for my $clients (@clients) {
        ok(!(grep { !by_redis($clients) } 1 .. 50), 'another server decides');
    }

    unused();
}


sub unused {
    is($back->calls('evalsha') + $back->calls('eval'), 0, 'is sent nothing');
}


# no connection is in use: the next request finds the new primary

sub planned {
    $former = $fleet->primary;

    $fleet->fail_over;

    RedisSentinel::await(sub { RedisSentinel::role($former) eq 'slave' },
                         'the former one to be a replica');

    my $before = $former->calls('evalsha') + $former->calls('eval');
    my $watch = Stopwatch->start;

    for my $clients (@clients) {
        Gateway::await(sub { by_redis($clients) }, 'the new primary');
    }

    cmp_ok($watch->seconds, '<', SOON, 'the new primary is used soon');

    is($former->calls('evalsha') + $former->calls('eval'), $before,
       'the former one is sent nothing more');

    RedisSentinel::await(sub { RedisSentinel::synced($former) },
                         'the former one to have all');
}


# as long as one of them answers, all is well; and without any, as long as
# nothing changes

sub sentinels {
    my ($one, $two, $three) = @{$fleet->{sentinels}};
    my $primary = $fleet->primary;

    $one->pause;
    $two->pause;
    $primary->ask('CLIENT', 'KILL', 'TYPE', 'normal');

    for my $clients (@clients) {
        Gateway::await(sub { !grep { !by_redis($clients) } 1 .. 20 },
                       'the primary');
    }

    pass('one sentinel is enough');

    $three->pause;
    sleep 1.5;
    ok(by_redis($_), 'none is needed while nothing happens') for @clients;

    Gateway::await(sub {
        $gateways[0]->log =~ /"main" could not be looked up: .*no reply within 500/;
    }, 'a line in the log');
    pass('the log tells it');

    $_->resume for $one, $two, $three;

    Gateway::await(sub {
        $gateways[0]->log =~ /redis "main" is looked up again/;
    }, 'a line in the log');
    pass('and its end');
}


sub unknown {
    my $gateway = Gateway->start(http => $config =~ s/=mymaster/=nobody/r);
    my $clients = Clients->new($gateway->{port});

    is($clients->ask('GET /fixed', 'X-Key: a')->{status}, 503, 'fail=closed');
    is($clients->ask('GET /local', 'X-Key: a')->{status}, 200, 'fail=local');

    Gateway::await(sub {
        $clients->ask('GET /fixed', 'X-Key: a');

        return $gateway->log =~ /is marked down/;
    }, 'the breaker');

    my @lines = $gateway->log =~ /could not be looked up: .*/g;

    is(scalar @lines, 1, 'one line');
    like($lines[0], qr/^could not be looked up: \S+: no such primary "nobody"/,
         'which tells the name');
    like($gateway->log, qr/redis "main" is marked down: no primary is known/,
         'so does the breaker');
}


# of the sentinels and of the servers

sub passwords {
    my $fleet = RedisSentinel->start(
        password => 'ofservers', replicas => 1, sentinels => 1,
        sentinel => { password => 'ofsentinels' });
    my ($sentinel) = @{$fleet->{sentinels}};

    $sentinel->call('ACL', 'SETUSER', 'gateway', 'on', '>ofgateways', '-@all',
                    '+sentinel|get-master-addr-by-name');

    write_file("$dir/servers", "ofservers\n");
    write_file("$dir/sentinels", "ofsentinels\n");
    write_file("$dir/gateways", "ofgateways\n");

    my $urls = $fleet->urls;
    my $of_servers = "password_file=$dir/servers";

    for my $good ("sentinel_password_file=$dir/sentinels",
                  "sentinel_user=gateway sentinel_password_file=$dir/gateways")
    {
        my $gateway = Gateway->start(
            http => config("$urls $of_servers $good"));

        ok(by_redis(Clients->new($gateway->{port})), $good);
        is($gateway->complaints, '', 'nothing to complain about');
    }

    for my $bad (['', 'error reply "NOAUTH Authentication required."'],
                 ["sentinel_password_file=$dir/gateways",
                  'error reply "WRONGPASS invalid username-password pair '
                  . 'or user is disabled."'],
                 ["sentinel_user=other sentinel_password_file=$dir/gateways",
                  'error reply "WRONGPASS'])
    {
        my ($text, $reason) = @$bad;
        my $gateway;

        # the log has the first reason: another one if the sentinel is late

        Gateway::await(sub {
            $gateway = Gateway->start(
                http => config("$urls $of_servers $text"));

            my $clients = Clients->new($gateway->{port});

            is($clients->ask('GET /fixed', 'X-Key: a')->{status}, 503,
               "not \"$text\"");

            return $gateway->log !~ /looked up: \S+ no reply within/;
        }, 'a sentinel that answers in time');

        like($gateway->log, qr/"main" could not be looked up: \S+ \Q$reason\E/,
             'the log says why');
    }

    my $gateway = Gateway->start(
        http => config("$urls sentinel_password_file=$dir/sentinels"));
    my $clients = Clients->new($gateway->{port});

    Gateway::await(sub {
        $clients->ask('GET /fixed', 'X-Key: a');

        return $gateway->log =~ /is marked down: error reply "NOAUTH/;
    }, 'a line in the log');
    pass('nor without the password of the servers');
}


sub write_file {
    my ($path, $text) = @_;

    open my $file, '>', $path or die "$path: $!";
    print $file $text;
    close $file or die "$path: $!";
}


# nginx starts, and finds them later

sub cold {
    my ($one, $two, $three) = @{$fleet->{sentinels}};

    $_->pause for $one, $two, $three;

    my $gateway = Gateway->start(workers => 2, http => $config);
    my $clients = Clients->new($gateway->{port});
    my $answer = $clients->ask('GET /local', 'X-Key: a');

    is($answer->{status}, 200, 'fail=local');
    is($answer->{field}{'x-backend'}, 'local', 'decides');

    $_->resume for $one, $two, $three;

    my $watch = Stopwatch->start;

    Gateway::await(sub { by_redis($clients) }, 'the primary');
    cmp_ok($watch->seconds, '<', SOON, 'the primary is found soon');

    $gateway->reload($config);
    ok(by_redis($clients), 'and is known after a reload');
    is($gateway->complaints, '', 'nothing to complain about');
}
