#!/usr/bin/perl

# Limits are elastic while there are resources to spare, and hard from the next
# request on when there are none.  The pressure is real: connections are
# opened, a budget is spent by others, processors are kept busy.
#
# Where the machine allows it, nginx runs in a cgroup with a quota of its own,
# so that what else the machine does is no pressure; a user needs sudo for it.

use strict;
use warnings;

use POSIX ();
use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Gateway;

use constant CONNECTIONS => 2048;    # worker_connections of a gateway
use constant PERIOD => 100_000;      # microseconds, of a cgroup's quota

my $probes = 0;
my @burners;
my @groups;

subtest 'connections' => \&connections;
subtest 'connections of all workers' => \&all_connections;
subtest 'budget' => \&budget;
subtest 'budget of each key' => \&budget_of_key;
subtest 'hysteresis' => \&hysteresis;
subtest 'cpu' => \&cpu;
subtest 'cpu of the machine' => \&machine;

done_testing();


END {
    local $?;

    calm();
    leave();
}


# one worker: nothing has to be awaited

sub connections {
    my $gateway = gateway('connections=10%', workers => 1);
    my $mark = CONNECTIONS / 10;

    is(spare($gateway), 'ELASTIC', 'there are connections to spare');

    my @idle = map { $gateway->connect } 1 .. $mark - 20;

    is(spare($gateway), 'ELASTIC', 'still below the mark');

    push @idle, map { $gateway->connect } 1 .. 20;

    my ($status, $head) = spare($gateway);

    is($status, 'REJECTED', 'above it the next request is refused');
    like($head, qr/^Retry-After: \d+\r$/m, 'with a time');
    like($head, qr/^X-RateLimit-Remaining: 0\r$/m, 'and nothing left');

    close pop @idle for 1 .. 50;
    noticed($gateway, scalar @idle);

    is(spare($gateway), 'REJECTED', 'a little below the mark is not enough');

    close pop @idle while @idle > $mark / 2 - 20;
    noticed($gateway, scalar @idle);

    is(spare($gateway), 'ELASTIC', 'when they are gone, limits are elastic');

    push @idle, map { $gateway->connect } 1 .. $mark / 2;

    is(spare($gateway), 'ELASTIC', 'and stay so up to the mark');

    my @lines = $gateway->log =~ /ratelimit pressure of "connections" (.*)/g;

    is(scalar @lines, 2, 'the log has a line for each change');
    like($lines[0], qr/^begins: 1\d\.\d% in use$/, 'when it begins');
    like($lines[1], qr/^ends: 4\.\d% in use$/, 'and when it ends');

    fine($gateway);
}


# none of the workers has too many, all together have; a dead one's are gone

sub all_connections {
    my $gateway = gateway('connections=20%', workers => 2);
    my @idle = map { $gateway->connect } 1 .. 0.25 * 2 * CONNECTIONS;

    noticed($gateway, scalar @idle);

    becomes($gateway, $_, 'REJECTED', 'a worker knows of all connections')
        for $gateway->current_workers;

    my ($victim) = $gateway->current_workers;

    kill 'KILL', $victim;

    Gateway::await(sub {
        my @workers = $gateway->current_workers;
        return @workers == 2 && !grep { $_ == $victim } @workers;
    }, 'another worker');

    becomes($gateway, $_, 'ELASTIC', 'a killed worker has no connections')
        for $gateway->current_workers;

    fine($gateway, qr/exited on signal 9/);
}


sub budget {
    my $gateway = gateway('zone=budget:50%');

    is(spare($gateway), 'ELASTIC', 'nothing is spent');

    spend($gateway, 9);
    is(spare($gateway), 'ELASTIC', 'less than the mark is spent');

    spend($gateway, 1);
    is(spare($gateway), 'REJECTED', 'at the mark the next request is refused');
    is(spare($gateway), 'REJECTED', 'and further ones');

    is(remaining($gateway), 10, 'looking at the budget costs nothing');

    # a window of ten seconds

    Gateway::await(sub { spare($gateway) eq 'ELASTIC' }, 'an elastic limit');
    cmp_ok(remaining($gateway), '>', 10, 'when others spend less, it is back');

    my $other = gateway('zone=hours:100% zone=budget:100%');

    spend($other, 19);
    is(spare($other), 'ELASTIC', 'all but the last is spent');

    spend($other, 1);
    is(spare($other), 'REJECTED', 'all is spent');

    my $fullest = gateway('zone=rates:50%');

    is(spare($fullest), 'ELASTIC', 'several rates');

    get($fullest, '/rates') for 1 .. 5;
    is(spare($fullest), 'REJECTED', 'the fullest of them counts');

    fine($_) for $gateway, $other, $fullest;
}


sub budget_of_key {
    my $gateway = gateway('zone=tenant:50%');

    get($gateway, '/tenant?t=a') for 1 .. 10;
    get($gateway, '/tenant?t=b') for 1 .. 9;

    is(spare($gateway, 't=a'), 'REJECTED', 'the budget of one is spent');
    is(spare($gateway, 't=b'), 'ELASTIC', 'that of another is not');
    is(spare($gateway, 't=a'), 'REJECTED', 'a request meanwhile');
    is(spare($gateway), 'ELASTIC', 'an empty key has none');

    fine($gateway);
}


# a bucket of 100 that refills slowly: pressure from 50 on, until below 45

sub hysteresis {
    my $gateway = gateway('zone=bucket:50%');
    my ($between, $wrong) = (0, 0);

    get($gateway, '/bucket?n=50');
    is(spare($gateway), 'REJECTED', 'the mark is reached');

    Gateway::await(sub {
        my $before = remaining($gateway, '/bucket?n=0');
        my $status = spare($gateway);
        my $after = remaining($gateway, '/bucket?n=0');

        $between++ if $before > 50 && $after < 55 && $status eq 'REJECTED';
        $wrong++ if $after < 55 && $status ne 'REJECTED';

        return $before > 56 && $status eq 'ELASTIC';
    }, 'an elastic limit');

    cmp_ok($between, '>', 0, 'a little below the mark is not enough');
    is($wrong, 0, 'ever');

    get($gateway, '/bucket?n=' . (remaining($gateway, '/bucket?n=0') - 53));
    is(spare($gateway), 'ELASTIC', 'on the way up it is');

    fine($gateway);
}


sub cpu {
    my $gateway = gateway('cpu=50%', workers => 2);
    my @nginx = ($gateway->{pid}, $gateway->all_workers);
    my $quota = PERIOD / 5;

    if (!group($quota, @nginx)) {
        diag('there is no cgroup to be had: the machine alone is tried');
        return fine($gateway);
    }

    becomes($gateway, $_, 'ELASTIC', 'there is time to spare')
        for $gateway->current_workers;

    burn(1);
    enter(@burners);

    becomes($gateway, $_, 'REJECTED', 'there is none')
        for $gateway->current_workers;

    calm();

    becomes($gateway, $_, 'ELASTIC', 'there is again')
        for $gateway->current_workers;

    outside($gateway);

    fine($gateway);

    undef $gateway;
    leave();
}


# processes outside of a cgroup with a quota are not its pressure

sub outside {
    my ($gateway) = @_;

    burn(cpus());

    my $busy = busy();

    Gateway::await(sub { ($busy->(1.2) // 0) >= 0.95 }, 'a busy machine');

    is(spare($gateway), 'ELASTIC', 'what others use is not of the quota');

    calm();
}


# without a quota the machine counts: nginx says what /proc/stat does

sub machine {
    my $gateway = gateway('cpu=90%', workers => 1);

    burn(cpus());
    becomes($gateway, undef, 'REJECTED', 'all processors are busy');
    calm();

    my $busy = busy();

    Gateway::await(sub {
        my $share = $busy->(1) // return 0;
        my $status = spare($gateway);

        return ($share < 0.8 && $status eq 'ELASTIC')
               || ($share > 0.95 && $status eq 'REJECTED');
    }, 'what the kernel says', 60);

    pass('limits are elastic if the machine is calm');

    fine($gateway);
}


# a limit of one request in an hour that is elastic

sub gateway {
    my ($signals, %option) = @_;

    return Gateway->start(workers => 2, %option, http => <<"ZONES"
ratelimit_elastic $signals;
ratelimit_zone \$arg_key zone=limit:1m rate=1r/h;
ratelimit_zone all zone=budget:1m rate=20r/10s;
ratelimit_zone all zone=hours:1m rate=20r/h;
ratelimit_zone all zone=rates:1m rate=1000r/m rate=10r/h rate=2000r/d;
ratelimit_zone \$arg_t zone=tenant:1m rate=20r/h;
ratelimit_zone all zone=bucket:1m rate=100r/m algorithm=token_bucket;
add_header X-Status \$ratelimit_status always;
add_header X-Active \$connections_active always;
ZONES
        . Gateway->server(
            '/' => 'ratelimit zone=limit elastic=100%;',
            '/spend' => 'ratelimit zone=budget; ratelimit zone=hours;',
            '/look' => 'ratelimit zone=budget cost=0;',
            '/rates' => 'ratelimit zone=rates;',
            '/tenant' => 'ratelimit zone=tenant;',
            '/bucket' => 'ratelimit zone=bucket cost=$arg_n;',
        ));
}


sub get {
    my ($gateway, $path) = @_;

    my $socket = $gateway->connect or die "connect: $!";

    print $socket "GET $path HTTP/1.0\r\n\r\n";
    local $/;

    return <$socket> // '';
}


sub field {
    my ($head, $name) = @_;

    return $head =~ /^\Q$name\E: (.*?)\r$/m ? $1 : undef;
}


# what becomes of the second request of a client

sub spare {
    my ($gateway, $args) = @_;

    my $path = '/?key=' . ++$probes . '&' . ($args // '');
    my $first = field(get($gateway, $path), 'X-Status') // '';

    die "the first request is $first" if $first ne 'PASSED';

    my $head = get($gateway, $path);
    my $status = field($head, 'X-Status');

    return wantarray ? ($status, $head, field($head, 'X-Worker')) : $status;
}


# soon; and if that worker is asked

sub becomes {
    my ($gateway, $worker, $expected, $name) = @_;

    Gateway::await(sub {
        my ($status, undef, $by) = spare($gateway);

        return $status eq $expected && (!$worker || $worker == $by);
    }, $name);

    pass($name);
}


sub spend {
    my ($gateway, $n) = @_;

    for (1 .. $n) {
        my $status = field(get($gateway, '/spend'), 'X-Status');

        die "spending is $status" if $status ne 'PASSED';
    }
}


sub remaining {
    my ($gateway, $path) = @_;

    return field(get($gateway, $path || '/look'), 'X-RateLimit-Remaining');
}


# so many connections are left, and the one that asks

sub noticed {
    my ($gateway, $n) = @_;

    Gateway::await(sub {
        return field(get($gateway, '/look'), 'X-Active') == $n + 1;
    }, "$n connections");
}


sub fine {
    my ($gateway, $expected) = @_;

    is($gateway->complaints($expected), '', 'nothing to complain about');
}


# processors

sub cpus { return scalar(() = Gateway::slurp('/proc/stat') =~ /^cpu\d/mg) }


sub burn {
    my ($n) = @_;

    for (1 .. $n) {
        my $pid = fork() // die "fork: $!";

        if ($pid == 0) {
            $SIG{ALRM} = 'DEFAULT';
            alarm 30;
            1 while 1;
        }

        push @burners, $pid;
    }
}


sub calm {
    while (my $pid = shift @burners) {
        kill 'KILL', $pid;
        waitpid $pid, 0;
    }
}


# a function: the share that all processors were busy, over so many seconds

sub busy {
    my ($time, @then) = (time, ticks());

    return sub {
        my ($seconds) = @_;

        return if time < $time + $seconds;

        my @now = ticks();
        my $share = ($now[0] - $then[0]) / ($now[1] - $then[1] || 1);

        ($time, @then) = (time, @now);

        return $share;
    };
}


sub ticks {
    my (undef, @field) = split ' ', Gateway::slurp('/proc/stat');
    my $all = 0;

    $all += $_ for @field[0 .. 7];

    return ($all - $field[3] - $field[4], $all);
}


# cgroups, of version 2 or 1

sub group {
    my ($quota, @pids) = @_;

    my $root = '/sys/fs/cgroup';
    my $name = "ratelimit-$$";

    if (create("$root/$name") && put("$root/$name/cpu.max",
                                     "$quota " . PERIOD))
    {
        return enter(@pids);
    }

    leave();

    if (create("$root/cpu/$name")
        && (-d "$root/cpuacct/$name" || create("$root/cpuacct/$name"))
        && put("$root/cpu/$name/cpu.cfs_period_us", PERIOD)
        && put("$root/cpu/$name/cpu.cfs_quota_us", $quota))
    {
        return enter(@pids);
    }

    leave();

    return 0;
}


sub create {
    my ($group) = @_;

    root('mkdir', $group) or return 0;
    push @groups, $group;

    return 1;
}


sub enter {
    my (@pids) = @_;

    for my $group (@groups) {
        put("$group/cgroup.procs", $_) || return 0 for @pids;
    }

    return 1;
}


sub leave {
    root('rmdir', pop @groups) while @groups;
}


sub put {
    my ($file, $text) = @_;

    return root('sh', '-c', '[ -f "$0" ] && printf %s "$1" > "$0"', $file,
                $text);
}


# runs a command as root, if this user may

sub root {
    my (@command) = @_;

    unshift @command, 'sudo', '-n' if $> != 0;

    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        open STDERR, '>', '/dev/null';
        exec @command or POSIX::_exit(1);
    }

    waitpid $pid, 0;

    return $? == 0;
}
