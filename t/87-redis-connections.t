#!/usr/bin/perl

# Connections to Redis that are dead, closed or hung, and workers that have to
# find out.  If this fails, requests are decided without Redis although it is
# well.

use strict;
use warnings;

use POSIX ();
use Socket qw(IPPROTO_TCP);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedDns;
use ScriptedRedis;

my $redis = RedisServer->start;

# a firewall forgets the connections that there are, and lets new ones pass
my %new;
my $scripted = ScriptedRedis->start(
    upstream => $redis,
    parts => {
        forgetful => sub {
            my ($command, $reply, $number) = @_;

            $new{$number} = 1 if $command->[0] eq 'CONNECT';

            return $reply;
        },
        'reset-once' => sub {
            my ($command, $reply, $number) = @_;

            $new{$number} = 1 if $command->[0] eq 'CONNECT';

            return $new{$number} ? $reply : ['reset'];
        },
    },
    deaf => {
        forgetful => sub { !$new{$_[0]} },
        'reset-once' => sub { !$new{$_[0]} },
    },
);

subtest 'answers that are there' => \&answers_there;
subtest 'closed while it was idle' => \&idle_close;
subtest 'reset while it was idle' => \&idle_reset;
subtest 'forgotten by a firewall' => \&forgotten;
subtest 'forgotten while it was in use' => \&forgotten_in_use;
subtest 'kept alive' => \&kept_alive;
subtest 'a hung address of several' => \&hung_address;
subtest 'a replica among several' => \&replica_address;
subtest 'a primary that becomes a replica' => \&demoted;
subtest 'a version that is too old' => \&old_version;
subtest 'a server without scripts' => \&no_scripts;
subtest 'nonsense' => \&nonsense;
subtest 'replies out of step' => \&out_of_step;

done_testing();


sub start {
    my ($url, $parameters, %option) = @_;

    my $before = delete $option{before} // '';

    return Gateway->start(%option, http => <<"END");
$before
ratelimit_redis main $url $parameters;
ratelimit_zone \$arg_k zone=z:1m rate=1000000r/d redis=main;
ratelimit_zone \$arg_k zone=one:1m rate=1r/d redis=main;
add_header X-Backend \$ratelimit_backend always;

server {
    listen 127.0.0.1:PORT reuseport backlog=2048;
    location / { ratelimit zone=z; empty_gif; }
    location /one { ratelimit zone=one; empty_gif; }
    location /free { empty_gif; }
}
END
}


sub url { return "redis://127.0.0.1:$_[0]{port}" }


# by where they were decided

sub tally {
    my %tally;

    $tally{$_->{field}{'x-backend'} // '-'}++ for @_;

    return \%tally;
}


sub well {
    my ($clients) = @_;

    Gateway::await(sub { return tally($clients->ask('GET /?k=p'))->{redis} },
                   'Redis to be well');
}


sub stopped {
    my ($pid) = @_;

    return Gateway::slurp("/proc/$pid/stat") =~ /\) T /;
}


# all of them came while the worker stood still, and none was late

sub answers_there {
    my $gateway = start(url($scripted), 'timeout=6s');
    my $clients = Clients->new($gateway->{port});
    my ($worker) = $gateway->current_workers;

    well($clients);
    $scripted->play('hold');

    my @all = map { $clients->send("GET /?k=$_") } 1 .. 450;

    Gateway::await(sub { (grep { /^EVAL/ } $scripted->seen) >= 450 },
                   'all commands');
    kill 'STOP', $worker;
    Gateway::await(sub { stopped($worker) }, 'a worker that stands still');
    $scripted->play('honest');
    sleep 6.1;
    kill 'CONT', $worker;

    Clients::await_answers(450, @all);
    is_deeply(tally(map { $_->{answers}[0] } @all), { redis => 450 },
              'each gets its answer');
}


sub connections {
    return grep { !/cmd=client/ } split /\n/, $redis->call('CLIENT', 'LIST');
}


# The request is there first, and then Redis closes the connection: the worker
# sees both at once.

sub idle_close {
    my $gateway = start(url($redis), 'timeout=5s');
    my $clients = Clients->new($gateway->{port});
    my ($worker) = $gateway->current_workers;
    my $free = $clients->connect;
    my $client = $clients->connect;

    well($clients);

    # the worker has accepted it

    Clients::put($client, $clients->text('GET /?k=idle'));
    Clients::await_answers(1, $client);
    is_deeply(tally($client->{answers}[0]), { redis => 1 }, 'Redis counts');

    my @before = connections();

    kill 'STOP', $worker;
    Gateway::await(sub { stopped($worker) }, 'a worker that stands still');
    $client->{expected}++;
    Clients::put($client, $clients->text('GET /?k=idle'));
    $redis->call('CONFIG', 'SET', 'timeout', 1);
    Gateway::await(sub { connections() < @before }, 'Redis to close it');
    $redis->call('CONFIG', 'SET', 'timeout', 0);
    kill 'CONT', $worker;

    Clients::await_answers(1, $client);
    is_deeply(tally($client->{answers}[1]), { redis => 1 },
              'Redis is asked on another connection');
    like($client->{answers}[1]{field}{'x-ratelimit-remaining'}, qr/^999998$/,
         'once');
}


sub idle_reset {
    my $gateway = start(url($scripted), 'timeout=5s');
    my $clients = Clients->new($gateway->{port});

    well($clients);
    sleep 1.1;
    $scripted->play('reset-once');

    my $answer = $clients->ask('GET /?k=reset');

    is_deeply(tally($answer), { redis => 1 },
              'Redis is asked on another connection');
    is($answer->{field}{'x-ratelimit-remaining'}, 999_999, 'once');
    $scripted->play('honest');
}


# said once, at the first connection

sub old_version {
    my $old = ScriptedRedis->start(upstream => $redis, part => 'old', parts => {
        old => sub {
            my ($command, $reply) = @_;

            return $reply if $command->[0] ne 'INFO';

            $reply =~ s/\A.*?\r\n//;
            $reply =~ s/\r\n\z//;
            $reply =~ s/^redis_version:\S+/redis_version:6.0.16/m;

            return '$' . length($reply) . "\r\n$reply\r\n";
        },
    });
    my $gateway = start(url($old), 'timeout=5s', workers => 4);
    my $clients = Clients->new($gateway->{port});

    client_of_each($clients, 4);

    my @lines = $gateway->log =~ /^.* is version .*$/mg;

    is(scalar @lines, 1, 'one line');
    like($lines[0] // '', qr/\[error\] .* version 6\.0\.16, at least 6\.2 is/,
         'that says what is needed');

    $gateway = start(url($redis), 'timeout=5s');
    well(Clients->new($gateway->{port}));
    unlike($gateway->log, qr/is version/, 'nothing is said of a newer one');
}


# it can't do what the scripts need, in the words of Redis 6.2 and others

sub no_scripts {
    my %reply = (
        'unknown command' => "-ERR unknown command 'EVALSHA', with args"
                             . " beginning with: 'secret-key'\r\n",
        OOM => '-ERR Error running script (call to f_0123): @user_script:14:'
               . " \@user_script: 14: -OOM command not allowed\r\n",
    );

    for my $name (sort keys %reply) {
        my $reply = $reply{$name};
        my $server = ScriptedRedis->start(part => 'error', parts => {
            error => sub { return $_[0][0] eq 'CONNECT' ? () : $reply },
        });
        my $gateway = start(url($server), 'timeout=5s');
        my $clients = Clients->new($gateway->{port});

        is_deeply(tally($clients->series((['GET /?k=a']) x 20)),
                  { local => 20 }, "$name: limits hold");
        like($gateway->log, qr/marked down: error reply "ERR .*\b$name\b/,
             'the log says why');
        unlike($gateway->log, qr/secret-key/, 'without the key');
    }
}


# what is no reply to the command may be followed by replies of no command

sub nonsense {
    my $server = ScriptedRedis->start(upstream => $redis, parts => {
        nonsense => sub {
            return $_[0][0] =~ /^EVAL/ ? "\$3\r\nwhy\r\n" : $_[1];
        },
    });
    my $gateway = start(url($server), 'timeout=5s');
    my $clients = Clients->new($gateway->{port});

    well($clients);
    $server->play('nonsense');
    is_deeply(tally($clients->ask('GET /?k=a')), { local => 1 },
              'a reply is nonsense');
    $server->play('honest');
    is_deeply(tally($clients->ask('GET /?k=a')), { redis => 1 },
              'the next one is not');
    is(scalar(grep { $_ eq 'CONNECT' } $server->seen), 1,
       'and comes on another connection');
}


# Replies that are those of other commands: one more than there are commands,
# though each of them came after a command; and one that is in the place of
# another.  The limit of "used" has ten requests less left than that of "new".

sub out_of_step {
    my (@kept, $last);

    my $server = ScriptedRedis->start(upstream => $redis, parts => {
        note => sub {
            $last = $_[1] if $_[0][0] =~ /^EVAL/;
            return $_[1];
        },
        again => sub {
            return $_[0][0] =~ /^EVAL/ ? ($last, $_[1]) : $_[1];
        },
        error => sub {
            return $_[1] if $_[0][0] !~ /^EVAL/;
            push @kept, $_[1];
            return if @kept < 3;
            return "-ERR alas\r\n", splice @kept;
        },
    });
    my $gateway = start(url($server), 'timeout=5s');
    my $clients = Clients->new($gateway->{port});
    my $connected = sub {
        return scalar grep { $_ eq 'CONNECT' } $server->seen;
    };

    well($clients);
    $clients->series((['GET /?k=used']) x 10);

    for my $round (1 .. 3) {
        $server->play('note');
        $clients->ask('GET /?k=used');
        $server->play('again');

        my ($answer) = $clients->ask("GET /?k=new-$round");

        is($answer->{field}{'x-ratelimit-remaining'}, 999_999,
           'the reply to another command is none to this one');
        $server->play('honest');
        is_deeply(tally($clients->ask('GET /?k=new')), { redis => 1 },
                  'the next one is well');
        is($connected->(), 1, 'on another connection');
    }

    $server->play('error');

    my @clients;

    for my $key (qw(used late-1 late-2)) {
        push @clients, $clients->send("GET /?k=$key");
        Gateway::await(sub { $server->asked($key) }, 'a command');
    }

    Clients::await_answers(3, @clients);
    shift @clients;

    is_deeply([map { $_->{answers}[0]{field}{'x-ratelimit-remaining'} }
               @clients], [(999_999) x 2],
              'nor is one that an error has put off');
}


# a client of each worker

sub client_of_each {
    my ($clients, $workers) = @_;

    my %client;
    my $end = time + 20;

    while (keys %client < $workers) {
        die 'some worker has no client' if time > $end;

        my $client = $clients->connect;

        Clients::put($client, $clients->text('GET /?k=each'));
        Clients::await_answers(1, $client);

        $client{$client->{answers}[0]{field}{'x-worker'}} //= $client;
    }

    return map { $client{$_} } sort keys %client;
}


sub again {
    my ($clients, $client, $uri) = @_;

    $client->{expected}++;
    Clients::put($client, $clients->text("GET $uri"));
    Clients::await_answers(1, $client);

    return $client->{answers}[-1];
}


sub forgotten {
    my $gateway = start(url($scripted), 'timeout=2s', workers => 8);
    my $clients = Clients->new($gateway->{port});

    well($clients);

    my @clients = client_of_each($clients, 8);

    sleep 1.1;
    $scripted->play('forgetful');

    my @answers = map { again($clients, $_, '/?k=forgotten') }
                  @clients, @clients;
    my $tally = tally(@answers);

    cmp_ok($tally->{local} // 0, '<=', 1, 'one request finds out for all');
    cmp_ok($tally->{redis} // 0, '>=', 15, 'Redis decides the others');
    $scripted->play('honest');
}


# One worker waits in vain until Redis is marked down.  The other one, whose
# connection is dead, too, need not.

sub forgotten_in_use {
    my $gateway = start(url($scripted), 'timeout=2s', workers => 2);
    my $clients = Clients->new($gateway->{port});
    my %of;

    well($clients);

    Gateway::await(sub {
        my $client = $clients->connect;

        Clients::put($client, $clients->text('GET /?k=each'));
        Clients::await_answers(1, $client);
        push @{$of{$client->{answers}[0]{field}{'x-worker'}}}, $client;

        return keys %of == 2 && grep { @$_ >= 5 } values %of;
    }, 'two workers, and five clients of one');

    my ($one, $other) = sort { @{$of{$b}} <=> @{$of{$a}} } keys %of;
    my @clients = @{$of{$one}}[0 .. 4];

    $scripted->play('forgetful');

    for my $client (@clients) {
        $client->{expected}++;
        Clients::put($client, $clients->text('GET /?k=a'));
    }

    Clients::await_answers(5, @clients);
    is_deeply(tally(map { $_->{answers}[-1] } @clients), { local => 5 },
              'a worker finds out');
    Gateway::await(sub {
        return tally(again($clients, $clients[0], '/?k=a'))->{redis};
    }, 'Redis to be up again');
    is_deeply(tally(again($clients, $of{$other}[0], '/?k=a')), { redis => 1 },
              'the other one knows');
    $scripted->play('honest');
}


# the kernel asks by itself, after half a minute, and does not wait for long

sub kept_alive {
    my $gateway = start(url($redis), 'timeout=5s');
    my $clients = Clients->new($gateway->{port});

    well($clients);

    my $port = sprintf '%04X', $redis->{port};
    my @timers = map { /^\s*\d+: 0100007F:\w+ 0100007F:$port 01 \S+ 02:(\w+)/
                       ? hex $1 : () }
                 split /\n/, Gateway::slurp('/proc/net/tcp');

    cmp_ok(scalar @timers, '>=', 1, 'it has a timer');
    cmp_ok($timers[0] // 0, '<=', 3000, 'of 30 seconds at most');

    my ($worker) = $gateway->current_workers;
    my @timeouts = grep { $_ } map { user_timeout($worker, $_) }
                   map { m{(\d+)\z} } glob "/proc/$worker/fd/*";

    is_deeply(\@timeouts, [15000], 'what is not acknowledged has an end');
}


# TCP_USER_TIMEOUT of a worker's socket, in milliseconds; 0 if it has none

sub user_timeout {
    my ($pid, $fd) = @_;

    my $process = syscall 434, $pid + 0, 0;    # pidfd_open()
    my $copy = syscall 438, $process, $fd + 0, 0;    # pidfd_getfd()

    die "pidfd: $!" if $process < 0 || $copy < 0;

    POSIX::close($process);
    open(my $socket, '+<&=', $copy) or die "fd $fd: $!";

    my $value = getsockopt $socket, IPPROTO_TCP, 18;

    return defined $value ? unpack 'i', $value : 0;
}


# A name that has two addresses, of which one is not what it should be: each
# worker finds the other one.

sub other_address {
    my ($bad) = @_;

    my $dns = ScriptedDns->start;

    $dns->tell('redis.test', $bad, '127.0.0.1');

    my $gateway = start('redis://redis.test:' . $redis->{port},
                        'timeout=1s connect_timeout=1s', workers => 4,
                        before => "resolver 127.0.0.1:$dns->{port} ipv6=off;");
    my $clients = Clients->new($gateway->{port});
    my @clients = client_of_each($clients, 4);

    for my $client (@clients) {
        my $end = time + 30;
        my $tally;

        do {
            $tally = tally(again($clients, $client, '/?k=a'));
        } until $tally->{redis} || time > $end;

        is_deeply($tally, { redis => 1 }, 'a worker has found it');
    }

    is_deeply(tally(map { again($clients, $_, '/?k=a') } (@clients) x 5),
              { redis => 20 }, 'and all stay there');
}


sub hung_address {
    my $hung = RedisServer->start(host => '127.0.0.2', port => $redis->{port});

    $hung->pause;
    other_address('127.0.0.2');
    $hung->resume;
}


sub replica_address {
    my $replica = RedisServer->start(host => '127.0.0.2',
                                     port => $redis->{port});

    replicate($replica, $redis);
    other_address('127.0.0.2');
}


sub replicate {
    my ($replica, $primary) = @_;

    $replica->call('REPLICAOF', '127.0.0.1', $primary->{port});
    Gateway::await(sub {
        return $replica->call('INFO', 'replication')
               =~ /^master_link_status:up/m;
    }, 'a replica');
}


# it says so to the first command that writes

sub demoted {
    my $first = RedisServer->start;
    my $second = RedisServer->start(host => '127.0.0.2',
                                    port => $first->{port});
    my $dns = ScriptedDns->start;

    $dns->tell('redis.test', '127.0.0.1', '127.0.0.2');

    my $gateway = start("redis://redis.test:$first->{port}", 'timeout=5s',
                        before => "resolver 127.0.0.1:$dns->{port} ipv6=off;");
    my $clients = Clients->new($gateway->{port});
    my ($client) = client_of_each($clients, 1);

    replicate($second, $first);
    Gateway::await(sub {
        return tally(again($clients, $client, '/?k=p'))->{redis};
    }, 'the primary');
    $second->call('REPLICAOF', 'NO', 'ONE');
    $first->call('REPLICAOF', '127.0.0.2', $first->{port});

    is_deeply(tally(map { again($clients, $client, '/?k=a') } 1 .. 10),
              { local => 1, redis => 9 }, 'the other one is used at once')
        or diag($gateway->log);
}
