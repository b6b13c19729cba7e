#!/usr/bin/perl

# Write-back when something fails: workers that are killed, answers that are
# lost, a Redis that can't be reached, reloads, the end of nginx.  What Redis has
# counted in the end is what was admitted, neither more nor less.

use strict;
use warnings;

use JSON::PP qw(decode_json);
use List::Util qw(sum0);
use POSIX qw(:sys_wait_h);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedRedis;

use constant LIMIT => 60_000;

my $redis = RedisServer->start;

# Redis does what it is told, but its answers are lost
my $between = ScriptedRedis->start(upstream => $redis, parts => {
    lost => sub { my ($command, $reply) = @_;
                  return $command->[0] =~ /^EVAL/ ? ['close'] : $reply },
    unreachable => sub { return ['close'] },
    slow => sub { my ($command, $reply) = @_;
                  return ['wait', $command->[0] =~ /^EVAL/ ? 0.03 : 0],
                         $reply },
}, deaf => { unreachable => sub { 1 } });

subtest 'killed workers' => \&killed;
subtest 'lost answers' => \&lost;
subtest 'lost answers to questions' => \&lost_questions;
subtest 'late answers to questions' => \&late_questions;
subtest 'lost answers and killed workers' => \&lost_and_killed;
subtest 'a Redis that is down' => \&away;
subtest 'a Redis that restarts without its counters' => \&restarted;
subtest 'more times than memory' => \&times;
subtest 'more keys than memory' => \&full;
subtest 'late reports' => \&late;
subtest 'reports in time' => \&in_time;
subtest 'more keys than an interval has time for' => \&slow;
subtest 'what must be asked' => \&must_be_asked;
subtest 'reload' => \&reload;
subtest 'another size' => \&resize;
subtest 'another interval' => \&interval;
subtest 'quit' => \&quit;
subtest 'requests that outlast the last report' => \&outlasting;
subtest 'quit while Redis is down' => \&quit_away;
subtest 'upgrade' => \&upgrade;
subtest 'a counter that can not be written' => \&forbidden;

done_testing();


sub gateway {
    my (%option) = @_;

    my %conf = (sync => '100ms', size => '1m', zone => '', limit => '',
                port => $redis->{port}, timeout => '1s',
                rate => LIMIT . 'r/1h', redis => '', %option);

    return Gateway->start(workers => $conf{workers} || 2,
                          http => config(%conf));
}


sub config {
    my (%conf) = @_;

    my $text = <<'END';
ratelimit_redis main redis://127.0.0.1:PORT_OF_REDIS timeout=TIMEOUT REDIS;
ratelimit_zone $http_x_key zone=z:SIZE rate=RATE redis=main sync=SYNC ZONE;
add_header X-Backend $ratelimit_backend always;
add_header X-Status $ratelimit_status always;
END

    $text =~ s/PORT_OF_REDIS/$conf{port}/;
    $text =~ s/\b\U$_\E\b/$conf{$_}/ for qw(timeout redis size rate sync zone);

    return $text . Gateway->server('/' => "ratelimit zone=z $conf{limit};",
                                   '/api/' => 'ratelimit_api;');
}


# what is seen of each Redis

sub servers {
    my ($gateway) = @_;

    my $answer = Clients->new($gateway->{port})->ask('GET /api/redis');

    return @{decode_json($answer->{body})->{redis}};
}


# of write-back to the first one, without the first letters of the names

sub figures {
    my ($gateway) = @_;

    my ($server) = servers($gateway);

    return { map { /^sync_(.*)/ ? ($1 => $server->{$_}) : () } keys %$server };
}


# what Redis has counted in a sliding_window, of counters of two bytes

sub counted {
    my ($key, $name) = @_;

    my $state = $redis->call('GET', "ratelimit:{2:$key}:z::3600w10");

    return defined $state ? sum0(unpack 'x10 v*', $state) : 0;
}


sub await_counted {
    my ($key, $n, $what) = @_;

    eval { Gateway::await(sub { counted($key) == $n }, 'reports') };

    return is(counted($key), $n, $what);
}


# the same where Redis has charged for questions that become void, one after
# another: on its way it may have the right number before all is reported

sub await_settled {
    my ($gateway, $key, $n, $what) = @_;

    my $counted;

    eval {
        Gateway::await(sub {
            return 0 if figures($gateway)->{pending};

            $counted = counted($key);

            return $counted == $n;
        }, 'reports');
    };

    return is($counted, $n, $what);
}


# answers of so many requests, one after another

sub ask {
    my ($gateway, $key, $n) = @_;

    my $clients = Clients->new($gateway->{port});

    return $clients->series((['GET /', "X-Key: $key"]) x $n);
}


sub admitted {
    my (@answers) = @_;

    return scalar grep { $_->{status} == 200 } @answers;
}


sub backends {
    my (@answers) = @_;

    my %seen;

    $seen{$_->{field}{'x-backend'} // ''}++ for @answers;

    return join ' ', map { "$seen{$_}x$_" } sort keys %seen;
}


# a load during which something happens; the answers, and what was sent

sub load {
    my ($gateway, $key, $n, $tick) = @_;

    my $tally = $gateway->load(connections => 16, tick => $tick || sub { },
                               requests => [(['/', $key]) x $n]);

    is($tally->{hang}, 0, 'no hang');

    return @{$tally->{keys}{$key}}{qw(200 sent)};
}


sub killer {
    my ($gateway, $times, $every) = @_;

    my $next = $every;

    return sub {
        my ($answers) = @_;

        if ($answers >= $next && $times-- > 0) {
            my @workers = $gateway->current_workers;

            kill 'KILL', $workers[rand @workers] if @workers;
            $next = $answers + $every;
        }
    };
}


sub killed {
    my $gateway = gateway(sync => '20ms');
    my ($answered, $sent) = load($gateway, 'killed', 8000,
                                 killer($gateway, 12, 500));

    Gateway::await(sub { counted('killed') >= $answered }, 'reports');
    sleep 0.2;

    my $counted = counted('killed');

    cmp_ok($counted, '>=', $answered, 'nothing that was answered is lost');
    cmp_ok($counted, '<=', $sent, 'nothing counts twice');
    note("$sent sent, $answered answered, $counted counted");
    is($gateway->complaints(qr/exited on signal 9/), '',
       'nothing else to complain about');
}


# the batches are counted, and sent again and again

sub lost {
    my $gateway = gateway(port => $between->{port});
    my $n = admitted(ask($gateway, 'lost', 5));

    await_counted('lost', 5, 'five');
    $between->play('lost');

    for (1 .. 6) {
        $n += admitted(ask($gateway, 'lost', 50));
        sleep 0.15;
    }

    is($n, 305, 'requests go on');
    Gateway::await(sub { grep { /^EVAL/ } $between->seen }, 'a report');

    $between->play('honest');
    $n += admitted(ask($gateway, 'lost', 20));

    await_counted('lost', 325, 'each is counted once');
    sleep 0.4;
    is(counted('lost'), 325, 'and stays so');
    cmp_ok(figures($gateway)->{repeated}, '>', 0, 'some were sent again');
}


# what Redis has charged for a question is void when the answer is lost, and
# what is admitted instead is reported: also of a key that must be asked about
# each time, and where nothing is admitted then

sub lost_questions {
    my $gateway = gateway(port => $between->{port});
    my $few = gateway(port => $between->{port}, rate => '7r/1h');
    my $closed = gateway(port => $between->{port}, zone => 'fail=closed');

    $between->play('lost');

    for my $i (1 .. 5) {
        is(admitted(ask($gateway, "question-$i", 3)), 3, "question-$i");
        is(admitted(ask($few, "few-$i", 2)), 2, "few-$i");
        is(admitted(ask($closed, "closed-$i", 2)), 0, "closed-$i");
    }

    Gateway::await(sub { sum0(map { counted("closed-$_") } 1 .. 5) },
                   'Redis to charge');
    $between->play('honest');

    for my $i (1 .. 5) {
        await_settled($gateway, "question-$i", 3, "question-$i: counted once");
        await_settled($few, "few-$i", 2, "few-$i: counted once");
        await_settled($closed, "closed-$i", 0, "closed-$i: not counted");
    }

    is($_->complaints(qr/is marked down/), '', 'nothing to complain about')
        for $gateway, $few, $closed;
}


# Redis answers after the time is over

sub late_questions {
    my $gateway = gateway(port => $between->{port}, timeout => '50ms');

    # each worker has a connection by which it got an answer

    my ($n, %connected) = 0;

    Gateway::await(sub {
        my ($answer) = ask($gateway, 'before-' . $n++, 1);

        $connected{$answer->{field}{'x-worker'}} = 1
            if $answer->{field}{'x-backend'} eq 'sync';

        return keys %connected == 2;
    }, 'connections');

    $between->play('hold');
    is(admitted(ask($gateway, "late-$_", 2)), 2, "late-$_") for 1 .. 3;
    Gateway::await(sub { sum0(map { counted("late-$_") } 1 .. 3) },
                   'Redis to charge');
    $between->play('honest');
    await_settled($gateway, "late-$_", 2, "late-$_: counted once") for 1 .. 3;
}


sub lost_and_killed {
    my $gateway = gateway(port => $between->{port}, sync => '20ms');
    my $n = admitted(ask($gateway, 'both', 10));

    await_counted('both', 10, 'ten');
    $between->play('lost');

    my $kill = killer($gateway, 6, 50);
    my ($answered, $sent) = (10, 10);

    for (1 .. 6) {
        my ($more, $all) = load($gateway, 'both', 100, $kill);

        $answered += $more;
        $sent += $all;
        Gateway::await(sub { $gateway->current_workers == 2 }, 'workers');
        sleep 0.05;
    }

    $between->play('honest');
    Gateway::await(sub { counted('both') >= $answered }, 'reports');
    sleep 0.3;

    cmp_ok(counted('both'), '>=', $answered, 'nothing is lost');
    cmp_ok(counted('both'), '<=', $sent, 'nothing counts twice');
}


# seconds without Redis: its counters know all of it afterwards

sub away {
    my $gateway = gateway(port => $between->{port});
    my $n = admitted(ask($gateway, 'away', 50));

    await_counted('away', 50, 'fifty');
    Gateway::await(sub { !figures($gateway)->{pending} }, 'nothing pending');
    is(figures($gateway)->{age_seconds}, 0, 'and so nothing has an age');

    my $before = figures($gateway);

    cmp_ok($before->{batches}, '>', 0, 'batches are counted');
    cmp_ok($before->{deltas}, '>=', $before->{batches}, 'with their deltas');
    is($before->{dropped}, 0, 'none is dropped');
    $between->play('unreachable');

    my @answers = map { sleep 0.1; ask($gateway, 'away', 100) } 1 .. 15;

    $n += admitted(@answers);
    is($n, 1550, 'all are admitted');
    like(backends(@answers), qr/^1500xsync$/, 'by the share of the machine');

    # a key that is not known is counted here, and reported, too

    @answers = ask($gateway, 'new', 30);
    is(backends(@answers), '30xlocal', 'an unseen key');

    my $during = figures($gateway);

    is($during->{batches}, $before->{batches}, 'no batch is counted');
    cmp_ok($during->{pending}, '>=', 2, 'deltas of both keys are pending');
    cmp_ok($during->{age_seconds}, '>=', 1.4, 'for as long as Redis is down');

    $between->play('honest');
    await_counted('away', 1550, 'all are counted');
    await_counted('new', 30, 'those of the new key, too');
    Gateway::await(sub { !figures($gateway)->{pending} }, 'nothing pending');
    cmp_ok(figures($gateway)->{batches}, '>', $before->{batches}, 'batches');
}


sub restarted {
    my $own = RedisServer->start;
    my $gateway = gateway(port => $own->{port});

    ask($gateway, 'gone', 40);
    $own->kill;

    my @answers = ask($gateway, 'gone', 40);

    is(admitted(@answers), 40, 'admitted meanwhile');
    $own->restart;

    Gateway::await(sub {
        my $state = $own->call('GET', 'ratelimit:{2:gone}:z::3600w10');

        return $state && sum0(unpack 'x10 v*', $state) >= 40;
    }, 'what was not reported');
    pass('Redis is told what it can not know');
}


# A log has room for so many times that wait for Redis, and for any number of
# requests.

sub times {
    my %conf = (zone => 'algorithm=sliding_log', rate => '1000r/1h');
    my ($gateway, $other) = map { gateway(%conf) } 1 .. 2;
    my $n = admitted(ask($gateway, 'times', 5));
    my $time = 0;

    Gateway::await(sub { !figures($gateway)->{pending} }, 'reports');
    $redis->pause;

    for (1 .. 150) {
        Gateway::await(sub { int(time * 1000) > $time }, 'another millisecond');
        $time = int(time * 1000);
        $n += admitted(ask($gateway, 'times', 1));
    }

    $redis->resume;
    Gateway::await(sub { !figures($gateway)->{pending} }, 'reports');

    my ($answer) = ask($other, 'times', 1);

    is($answer->{field}{'x-ratelimit-remaining'}, 1000 - $n - 1,
       "$n are counted");
    is(figures($gateway)->{dropped}, 0, 'none is dropped');
}


# The ledger of a zone of 1m has room for some hundred keys that wait for Redis.
# Requests go on without it; what found no room is counted here only, and told.

sub full {
    my $gateway = gateway(port => $between->{port});
    my $n = 3000;

    $between->play('unreachable');

    my $tally = $gateway->load(connections => 16, requests => [
        map { ['/', "full-$_"] } 1 .. $n ]);

    is($tally->{hang}, 0, 'no hang');
    is(sum0(map { $_->{200} || 0 } values %{$tally->{keys}}), $n,
       'all are admitted');

    my $during = figures($gateway);

    cmp_ok($during->{pending}, '>', 300, 'some hundred wait');
    is($during->{pending} + $during->{dropped}, $n, 'the others are told of');

    $between->play('honest');
    Gateway::await(sub { !figures($gateway)->{pending} }, 'reports');
    is(sum0(map { counted("full-$_") } 1 .. $n), $n - $during->{dropped},
       'what found room is counted');
}


# what belongs to a window that has ended counts in no other

sub late {
    my $gateway = gateway(port => $between->{port}, sync => '50ms',
                          zone => 'algorithm=fixed_window',
                          rate => LIMIT . 'r/5s');
    my $name = 'ratelimit:{2:late}:z::5f';

    # at the begin of a window

    Gateway::await(sub { time - 5 * int(time / 5) < 0.5 }, 'a window');
    ask($gateway, 'late', 10);

    Gateway::await(sub {
        my $state = $redis->call('GET', $name);
        return $state && unpack('x7 V', $state) == 10;
    }, 'reports');

    $between->play('unreachable');
    is(admitted(ask($gateway, 'late', 200)), 200, 'in a window');

    Gateway::await(sub { !defined $redis->call('GET', $name) }, 'its end');
    sleep 0.1;

    $between->play('honest');
    Gateway::await(sub {
        (ask($gateway, 'late', 1))[0]{field}{'x-ratelimit-remaining'}
            >= LIMIT - 100
    }, 'a new window');
    sleep 0.3;

    my @answers = ask($gateway, 'late', 1);

    cmp_ok($answers[0]{field}{'x-ratelimit-remaining'}, '>', LIMIT - 150,
           'they do not count in the next one');
}


# a worker does not look less often than it has to report

sub in_time {
    my $http = join '', map { <<"END" } 500, 501;
ratelimit_redis r$_ redis://127.0.0.1:$redis->{port} prefix=$_: timeout=1s;
ratelimit_zone \$http_x_key zone=z$_:1m rate=60000r/1h redis=r$_ sync=${_}ms;
END

    my $gateway = Gateway->start(http => $http . Gateway->server(
        '/' => 'ratelimit zone=z500; ratelimit zone=z501;',
        '/api/' => 'ratelimit_api;'));
    my ($n, $m);

    Gateway::await(sub {
        ask($gateway, 'time', 1);
        sleep 0.02;

        ($n, $m) = map { $_->{sync_batches} } servers($gateway);

        return $n >= 8;
    }, 'reports');
    cmp_ok($m, '>=', $n - 2, 'a report every 501ms');
}


# keys that are used all the time are reported, wherever in memory they are

sub slow {
    my $gateway = gateway(port => $between->{port}, sync => '10ms',
                          workers => 1, size => '4m', timeout => '10s');
    my @keys = map { "slow-$_" } 1 .. 500;
    my %all = (connections => 16, requests => [map { ['/', $_] } @keys]);

    $gateway->load(%all);
    Gateway::await(sub { !figures($gateway)->{pending} }, 'reports');
    is(sum0(map { counted($_) } @keys), 500, 'each is known');
    $between->play('slow');

    my ($rounds, @others) = (0, @keys);

    while (@others && $rounds < 200) {
        $rounds++;
        $gateway->load(%all);
        @others = grep { counted($_) == 1 } @others;
    }

    is(scalar @others, 0, 'and is reported while all are used');
    $between->play('honest');
    Gateway::await(sub { !figures($gateway)->{pending} }, 'reports');
    is(sum0(map { counted($_) } @keys), 500 * ($rounds + 1), 'all is counted');
}


sub must_be_asked {
    my $gateway = gateway(port => $between->{port}, zone => 'fail=closed',
                          timeout => '5s');

    ask($gateway, 'known', 10);
    await_counted('known', 10, 'ten');
    $between->play('unreachable');

    my @answers = ask($gateway, 'known', 100);

    is(admitted(@answers), 100, 'a known key is not asked about');

    @answers = ask($gateway, 'unknown', 5);
    is(join(' ', map { $_->{status} } @answers), '503 503 503 503 503',
       'an unknown one is refused');
    is($answers[0]{field}{'x-status'}, 'FAILED_CLOSED', 'as fail= says');

    $between->play('honest');
    await_counted('known', 110, 'all are counted');

    # the end of a limit

    $gateway = gateway(port => $between->{port}, zone => 'fail=closed',
                       timeout => '5s', rate => '100r/1h');
    ask($gateway, 'end', 10);
    $between->play('unreachable');
    @answers = ask($gateway, 'end', 120);

    my $n = admitted(@answers);

    cmp_ok($n, '>', 10, 'some more are admitted');
    cmp_ok($n, '<=', 90, 'as far as the limit goes');
    is($answers[-1]{status}, 503, 'then it has to be asked');

    $between->play('honest');
    Gateway::await(sub { counted('end') == $n + 10 }, 'reports');
    pass('these are counted');
}


# under load, again and again: the memory goes on

sub reload {
    my $gateway = gateway();
    my ($answered, $reloads, $loads) = (0, 0, 0);

    while ($reloads < 3) {
        my ($more) = load($gateway, 'reload', 300, sub {
            if (!$reloads || $gateway->settled) {
                $gateway->hup($gateway->{http}) if $loads % 2;
                $reloads += $loads++ % 2;
            }
        });

        $answered += $more;
    }

    await_counted('reload', $answered, 'all are counted');
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/could not report/, 'nothing was given up');
}


# other memory: what is in the former one is reported by workers that exit

sub resize {
    my $gateway = gateway(sync => '30s');
    my %conf = (sync => '30s', limit => '', zone => '', redis => '',
                port => $redis->{port}, timeout => '1s',
                rate => LIMIT . 'r/1h');

    ask($gateway, 'size', 33);
    $gateway->reload(config(%conf, size => '2m'));
    await_counted('size', 33, 'reported though it is not time yet');
}


# what waited for the former time does not go on waiting

sub interval {
    my $gateway = gateway(sync => '60s');

    is(admitted(ask($gateway, 'interval', 50)), 50, 'admitted');
    $gateway->reload($gateway->{http} =~ s/sync=60s/sync=100ms/r);
    ask($gateway, 'interval', 1);
    is(admitted(ask($gateway, 'interval', 49)), 49, 'and after a reload');

    my $begin = time;

    await_counted('interval', 100, 'all are counted');
    cmp_ok(time - $begin, '<', 30, 'long before that');
}


sub quit {
    my $gateway = gateway(sync => '60s');

    is(admitted(ask($gateway, 'quit', 77)), 77, 'admitted');
    cmp_ok(counted('quit'), '<', 77, 'not reported yet');
    end($gateway);
    is(counted('quit'), 77, 'reported before the end');
}


# each worker has reported already when the backend answers

sub outlasting {
    my $backend = Clients::backend();
    my $pass = 'proxy_pass http://127.0.0.1:' . $backend->sockport;

    for my $case (['settle=7', 7], ['count=405', 0]) {
        my ($parameter, $n) = @$case;

        my $key = $parameter =~ s/=.*//r;
        my $gateway = gateway(limit => "$parameter; $pass");
        my $clients = Clients->new($gateway->{port});
        my $client = $clients->send('GET /', "X-Key: $key");
        my $errand = Clients::errand($backend);

        await_counted($key, 1, 'counted when it begins');
        kill 'QUIT', $gateway->{pid};
        Gateway::await(sub { !$gateway->current_workers }, 'the quit');
        sleep 1.5;

        Clients::reply($errand, 200);
        Clients::await_answers(1, $client);
        end($gateway);
        is(counted($key), $n, "$parameter is reported");
    }
}


sub end {
    my ($gateway) = @_;

    my $pid = delete $gateway->{pid};

    kill 'QUIT', $pid;
    Gateway::await(sub { waitpid($pid, WNOHANG) == $pid }, 'the end');
}


sub quit_away {
    my $gateway = gateway(port => $between->{port}, sync => '60s');

    ask($gateway, 'gone', 1);
    $between->play('unreachable');
    ask($gateway, 'gone', 20);

    my $begin = time;

    end($gateway);
    cmp_ok(time - $begin, '<', 10, 'nginx ends in spite of it');
    like($gateway->log, qr/zone "z" could not report \d+ charges to redis "main"/,
         'and says what is lost');
    $between->play('honest');
}


# the new binary has memory of its own; the old workers report

sub upgrade {
    my $gateway = gateway(sync => '60s');
    my $dir = $gateway->{dir};
    my $conf = Gateway::slurp("$dir/nginx.conf") =~ s/daemon off;//r;

    $gateway->stop;

    open my $file, '>', "$dir/nginx.conf" or die $!;
    print $file $conf;
    close $file or die $!;

    # nginx changes its binary only if it is a daemon

    my $binary = Gateway->binary;

    system("PATH=\$PATH:/usr/sbin; exec \$(command -v $binary) -p $dir/ "
           . "-c $dir/nginx.conf >> $dir/logs/stderr 2>&1");

    my $old = await_pid("$dir/nginx.pid");

    ask($gateway, 'upgrade', 30);
    kill 'USR2', $old;

    my $new = await_pid("$dir/nginx.pid", $old);

    kill 'QUIT', $old;
    Gateway::await(sub { !kill 0, $old }, 'the end of the old one');
    is(counted('upgrade'), 30, 'the old ones have reported');

    my @answers = ask($gateway, 'upgrade', 1);

    is($answers[0]{field}{'x-ratelimit-remaining'}, LIMIT - 31,
       'the new ones know');

    kill 'QUIT', $new;
    Gateway::await(sub { !kill 0, $new }, 'its end');
    is(counted('upgrade'), 31, 'and report as well');
}


sub await_pid {
    my ($path, $other) = @_;

    return Gateway::await(sub {
        my ($pid) = Gateway::slurp($path) =~ /^(\d+)$/;

        return $pid && $pid != ($other || 0) && kill(0, $pid) && $pid;
    }, 'nginx');
}


# an error that speaks of one counter does not keep others from being counted

sub forbidden {
    $redis->call('ACL', 'SETUSER', 'some', 'on', '>p', '~*', '+@all');

    my $gateway = gateway(timeout => '1s');

    $gateway->reload($gateway->{http} =~ s/redis:\/\//redis:\/\/some:p@/r);

    ask($gateway, "may-$_", 3) for 1 .. 10;
    ask($gateway, 'not', 3);
    await_counted($_, 3, $_) for 'may-1', 'may-10', 'not';

    $redis->call('ACL', 'SETUSER', 'some', 'resetkeys',
                 '~ratelimit:{2:may*', '~ratelimit:probe');

    ask($gateway, "may-$_", 2) for 1 .. 10;
    ask($gateway, 'not', 2);
    await_counted("may-$_", 5, "may-$_") for 1 .. 10;
    is(counted('not'), 3, 'the other one is not');
    Gateway::await(sub { figures($gateway)->{dropped} }, 'dropped ones');
    pass('and that is told');
}
