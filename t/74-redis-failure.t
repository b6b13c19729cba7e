#!/usr/bin/perl

# Redis down, slow, or talking nonsense: requests are answered as fail= says,
# soon, and exactly as many are admitted as it says; when Redis is well again,
# so is everything else.  If this fails, a Redis that is in trouble takes the
# gateway with it.

use strict;
use warnings;

use List::Util qw(max);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedRedis;

use constant LIMIT => 10;       # of each key
use constant TIMEOUT => 1;      # seconds
use constant SLACK => 5;        # this machine has other things to do

my $redis = RedisServer->start('--busy-reply-threshold' => 20);
my $spare = RedisServer->start;
my $secret = RedisServer->start(password => 'quite-another');
my $absent = Gateway::free_port();
my $backend = Clients::backend();

# what a scripted server says, to scripts only
my %parts = (
    garbage => "what do you want?\r\n",
    zeros => "\0" x 200,
    nothing => "\r\n",
    'no-number' => "\$x\r\n",
    'bulk-too-long' => '$100000' . "\r\n" . 'x' x 100_000 . "\r\n",
    'huge-bulk' => "\$9223372036854775807\r\nx",
    'larger-than-any' => "\$99999999999999999999999\r\nx",
    'negative-bulk' => "\$-2\r\nx\r\n",
    'huge-array' => "*2147483647\r\n",
    'larger-array' => "*9223372036854775807\r\n",
    'negative-array' => "*-5\r\n",
    nested => "*1\r\n" x 20 . ":1\r\n",
    'nested-little' => "*1\r\n*1\r\n:1\r\n",
    array => "*2\r\n\$2\r\nab\r\n:7\r\n",
    'empty-array' => "*0\r\n",
    'nil-array' => "*-1\r\n",
    nil => "\$-1\r\n",
    integer => ":1\r\n",
    'huge-integer' => ":99999999999999999999\r\n",
    ok => "+OK\r\n",
    'empty-status' => "+\r\n",
    'empty-bulk' => "\$0\r\n\r\n",
    'empty-error' => "-\r\n",
    'long-error' => '-ERR ' . 'x' x 5000 . "\r\n",
    'error-with-bytes' => "-ERR \x01\x1b[31m\xff\r\n",
    resp3 => "_\r\n",
    'resp3-map' => "%1\r\n+a\r\n:1\r\n",
    'resp3-push' => ">2\r\n+a\r\n+b\r\n",
    loading => "-LOADING Redis is loading the dataset in memory\r\n",
    'master-down' => "-MASTERDOWN Link with MASTER is down\r\n",
    moved => "-MOVED 1 127.0.0.1:1\r\n",
    clusterdown => "-CLUSTERDOWN The cluster is down\r\n",
    tryagain => "-TRYAGAIN later\r\n",
    noscript => "-NOSCRIPT No matching script\r\n",
);

# and of what the real one says
my %changes = (
    'one-byte-less' => sub { bulk(substr $_[0], 1) },
    'one-byte-more' => sub { bulk("$_[0]x") },
    twice => sub { bulk($_[0] x 2) },
    'only-ones' => sub { bulk("\xff" x length $_[0]) },
    'all-the-same' => sub { bulk('z' x length $_[0]) },
    'as-an-array' => sub { "*1\r\n" . bulk($_[0]) },
    'as-a-status' => sub { '+' . 'x' x length($_[0]) . "\r\n" },
    'cut-in-the-head' => sub { '$', ['close'] },
    'cut-in-the-number' => sub { '$5', ['close'] },
    'cut-in-the-bulk' => sub { substr(bulk($_[0]), 0, 20), ['close'] },
    'cut-before-the-end' => sub { substr(bulk($_[0]), 0, -2), ['close'] },
    'reset-in-the-bulk' => sub { substr(bulk($_[0]), 0, 20), ['reset'] },
    'closed-at-once' => sub { ['close'] },
    'reset-at-once' => sub { ['reset'] },
    'stuck-in-the-bulk' => sub { substr bulk($_[0]), 0, 20 },
    'too-slow' => sub { map { ($_, ['wait', 0.02]) }
                        split //, bulk($_[0]) },
    late => sub { (['wait', 4 * TIMEOUT], bulk($_[0])) },
);

my $scripted = ScriptedRedis->start(upstream => $redis, parts => parts());
my $hole = black_hole();
my $gateway = Gateway->start(workers => 2, http => config());
my $clients = Clients->new($gateway->{port});
my $keys = 0;

subtest 'killed' => sub {
    fails('main', sub { $redis->kill }, sub { $redis->restart });
};

subtest 'hung' => sub {
    fails('main', sub { $redis->pause }, sub { $redis->resume });
};

subtest 'NOAUTH' => sub {
    fails('main', sub { $redis->call('CONFIG', 'SET', 'requirepass', 'x');
                        $redis->call('CLIENT', 'KILL', 'TYPE', 'normal') },
                  sub { $redis->call('CONFIG', 'SET', 'requirepass', '') });
};

subtest 'NOPERM' => sub {
    fails('main', sub { $redis->call('ACL', 'SETUSER', 'default', '-evalsha',
                                     '-eval') },
                  sub { $redis->call('ACL', 'SETUSER', 'default', '+@all') });
};

subtest 'NOPERM of keys' => sub {
    well('main');

    my $log = length $gateway->log;

    $redis->call('ACL', 'SETUSER', 'default', 'resetkeys', '~other:*');
    broken('main', 'forbidden', LIMIT);
    $redis->call('ACL', 'SETUSER', 'default', '~*');
    is(told(answers('/main/local?k=forbidden-again', LIMIT + 1)),
       '10 x 200 PASSED redis, 1 x 429 REJECTED redis',
       'Redis counts again at once');
    unlike(substr($gateway->log, $log), qr/marked down/,
           'it was never marked down');
};

subtest 'NOPERM of commands' => sub {
    fails('main', sub { $redis->call('ACL', 'SETUSER', 'default', '-@write',
                                     '+evalsha', '+eval') },
                  sub { $redis->call('ACL', 'SETUSER', 'default', '+@all') });
};

subtest 'READONLY' => sub {
    fails('main', \&become_replica,
                  sub { $redis->call('REPLICAOF', 'NO', 'ONE') });
};

subtest 'NOREPLICAS' => sub {
    my $least = sub { $redis->call('CONFIG', 'SET', 'min-replicas-to-write',
                                   $_[0]) };

    fails('main', sub { $least->(1) }, sub { $least->(0) });
};

subtest 'OOM' => sub {
    fails('main', sub { $redis->call('CONFIG', 'SET', 'maxmemory', 1) },
                  sub { $redis->call('CONFIG', 'SET', 'maxmemory', 0) });
};

subtest 'BUSY' => sub {
    my $busy = $redis->client;

    fails('main', sub { $busy->send(['EVAL', 'while true do end', 0]);
                        await_error('BUSY') },
                  sub { $redis->call('SCRIPT', 'KILL') });
};

subtest 'LOADING' => sub {
    $redis->call('DEBUG', 'POPULATE', 20_000);
    $redis->call('SAVE');

    fails('main', sub { $redis->restart('--key-load-delay' => 500, '--loading'
                        . '-process-events-interval-bytes' => 1024,
                        loading => 1);
                        await_error('LOADING') },
                  sub { unlink "$redis->{dir}/dump.rdb";
                        $redis->restart('--key-load-delay' => 0) });
};

subtest 'too many clients' => sub {
    fails('main', sub { $redis->call('CONFIG', 'SET', 'maxclients', 1);
                        $redis->call('CLIENT', 'KILL', 'TYPE', 'normal') },
                  sub { $redis->call('CONFIG', 'SET', 'maxclients', 100) });
};

subtest 'no server' => sub {
    fails('absent', undef,
          sub { $absent = RedisServer->start(port => $absent) });
};

subtest 'a wrong password' => sub {
    fails('wrong', undef, sub {
        $secret->call('CONFIG', 'SET', 'requirepass', 'wrong-password');
    });
};

subtest 'a wrong database' => sub {
    fails('base', undef, undef);
    is_deeply([grep { /base/ } $spare->keys], [], 'nothing in another one');
};

subtest 'a black hole' => sub { fails('hole', undef, undef) };

subtest 'no socket' => sub { fails('unknown', undef, undef) };

for my $part (sort keys %parts, keys %changes) {
    subtest "scripted: $part" => sub { scripted($part) };
}

subtest 'scripted: whatever it is asked' => \&always;
subtest 'scripted: more than was asked for' => \&too_much;
subtest 'slow, but in time' => \&in_time;
subtest 'late replies' => \&late_replies;
subtest 'nothing is asked twice' => \&not_twice;
subtest 'several at once are lost' => \&many_lost;
subtest 'in the middle of a load' => \&killed_under_load;
subtest 'with other limits' => \&others;
subtest 'several policies' => \&policies;
subtest 'refunded in shared memory' => \&given_back;
subtest 'FLUSHALL' => \&flushed;
subtest 'no server when nginx starts' => \&absent_at_start;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');
unlike($gateway->log, qr/wrong-password/, 'no password is told');

done_testing();


sub bulk {
    my ($text) = @_;

    return '$' . length($text) . "\r\n$text\r\n";
}


sub parts {
    my %all = map { my $text = $parts{$_}; ($_ => sub { return $text }) }
              keys %parts;

    for my $name (keys %changes) {
        my $change = $changes{$name};

        $all{$name} = sub {
            my ($command, $reply) = @_;

            my ($text) = $reply =~ /\A\$\d+\r\n(.*)\r\n\z/s;

            return defined $text ? $change->($text) : $reply;
        };
    }

    # connections are what they should be; to all but scripts, too

    for my $name (keys %all) {
        my $part = $all{$name};

        $all{$name} = sub {
            my ($command, $reply) = @_;

            return $command->[0] =~ /^EVAL/i ? $part->($command, $reply)
                                             : $reply;
        };
    }

    for my $name (keys %changes) {
        my $part = $all{$name};

        $all{"once-$name"} = sub {
            my ($command, $reply) = @_;

            return (grep { /\bonce-/ } @$command) ? $part->($command, $reply)
                                                  : $reply;
        };
    }

    # a reply to what was not asked would be taken for that of the first command

    my $asked = sub { return $_[0][0] eq 'CONNECT' ? () : $_[1] };

    return {
        %all,
        'garbage-first' => sub { return "hello\r\n" },
        'garbage-always' => sub { return "+OK\r\n+OK\r\n" },
        'errors-always' => sub { return $asked->($_[0], "-ERR no\r\n") },
        'one-too-many' => sub { return $_[1] && "$_[1]+OK\r\n" },
        'the-same-again' => sub { return $_[1] x 2 },
        'slow' => sub { my ($first, $rest) = $_[1] =~ /\A(.{0,30})(.*)\z/s;
                        return map({ ($_, ['wait', 0.0005]) }
                                   split //, $first), $rest },
    };
}


# SYNs without a reply

sub black_hole {
    my $listen = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
        or die "listen: $!";
    my @full = map {
        IO::Socket::INET->new(PeerAddr => '127.0.0.1', Blocking => 0,
                              PeerPort => $listen->sockport);
    } 1 .. 4;

    return { listen => $listen, full => \@full, port => $listen->sockport };
}


sub config {
    my %url = (
        main => "redis://127.0.0.1:$redis->{port}",
        scripted => "redis://127.0.0.1:$scripted->{port}",
        patient => "redis://127.0.0.1:$scripted->{port}",
        absent => "redis://127.0.0.1:$absent",
        wrong => "redis://:wrong-password\@127.0.0.1:$secret->{port}",
        base => "redis://127.0.0.1:$spare->{port}/99",
        hole => "redis://127.0.0.1:$hole->{port}",
        unknown => "unix:$redis->{dir}/nothing",
    );
    my ($http, %location) = <<'END';
add_header X-Status $ratelimit_status always;
add_header X-Backend $ratelimit_backend always;
add_header X-Time $request_time always;
ratelimit_zone $arg_k zone=near:1m rate=5r/d;
END

    for my $name (sort keys %url) {
        my $timeout = ($name eq 'patient') ? '20s' : TIMEOUT * 1000 . 'ms';

        $http .= "ratelimit_redis $name $url{$name} timeout=$timeout"
                 . " connect_timeout=$timeout;\n";

        for my $fail (qw(local open closed)) {
            $http .= "ratelimit_zone \$arg_k zone=$name-$fail:1m rate=10r/d"
                     . " redis=$name fail=$fail;\n";
            $location{"/$name/$fail"} = "ratelimit zone=$name-$fail;";
        }

        $location{"/$name/probe"} = "ratelimit zone=$name-local name=probe"
                                    . ' rate=1000000r/h;';
        $location{"/$name/look"} = "ratelimit zone=$name-local cost=0;";
        $location{"/$name/closed/look"} = "ratelimit zone=$name-closed"
                                          . ' cost=0;';
    }

    %location = (
        %location,
        '/load' => 'ratelimit zone=main-local name=load key=$http_x_key'
                   . ' rate=1000r/d;',
        '/near' => 'ratelimit zone=near;',
        '/near/open' => 'ratelimit zone=near; ratelimit zone=main-open;',
        '/near/closed' => 'ratelimit zone=near; ratelimit zone=main-closed;',
        '/near/local' => 'ratelimit zone=near; ratelimit zone=main-local;',
        '/local+open' => 'ratelimit zone=main-open; ratelimit zone=main-local;',
        '/local+closed' => 'ratelimit zone=main-local;
                            ratelimit zone=main-closed;',
        '/three/local' => 'ratelimit zone=main-local name=three rate=3r/d
                           count=401;',
        '/three/look' => 'ratelimit zone=main-local name=three rate=3r/d
                          cost=0;',
        '/two/closed' => 'ratelimit zone=main-local;
                          ratelimit zone=absent-closed;',
        '/login/look' => 'ratelimit zone=main-local name=login rate=3r/d
                          cost=0;',
        '/dry' => 'ratelimit zone=main-closed; ratelimit_dry_run on;',
    );

    return $http . Gateway->server(%location) =~ s/\}\s*\z//r
           . 'location /login { ratelimit zone=main-local name=login rate=3r/d'
           . ' count=401; proxy_pass http://127.0.0.1:'
           . $backend->sockport . "; }\n}\n";
}


# what becomes of requests of one key, one after another, and when

sub answers {
    my ($uri, $n) = @_;

    return $clients->series((["GET $uri"]) x $n);
}


sub told {
    my (@answers) = @_;

    my @runs;

    for my $answer (@answers) {
        my $text = join ' ', $answer->{status},
                             map { $answer->{field}{$_} // '-' }
                             qw(x-status x-backend);

        if (@runs && $runs[-1][1] eq $text) {
            $runs[-1][0]++;

        } else {
            push @runs, [1, $text];
        }
    }

    return join ', ', map { "$_->[0] x $_->[1]" } @runs;
}


sub well {
    my ($name) = @_;

    Gateway::await(sub {
        return (answers("/$name/probe?k=p", 1))[0]{field}{'x-backend'}
               eq 'redis';
    }, "$name to be well");
}


sub soon {
    my ($name, @answers) = @_;

    cmp_ok(max(map { $_->{field}{'x-time'} } @answers), '<', TIMEOUT + SLACK,
           "$name: none waits for long");
}


# A Redis that is well, breaks, and heals.  Where there is no way to break it,
# it is broken already; where there is none to heal it, it stays so.

sub fails {
    my ($name, $break, $heal) = @_;

    my $k = 'k' . ++$keys;
    my $before = $break ? 6 : 0;

    if ($break) {
        well($name);

        is(told(answers("/$name/$_?k=$k", $before)), '6 x 200 PASSED redis',
           "$_: Redis counts") for qw(local open closed);
        $break->();
    }

    my $log = length $gateway->log;

    broken($name, $k, LIMIT - $before);
    stays_broken($name);

    my $said = substr $gateway->log, $log;

    if ($heal) {
        $heal->();
        well($name);
        is(told(answers("/$name/$_?k=$k-again", LIMIT + 1)),
           '10 x 200 PASSED redis, 1 x 429 REJECTED redis',
           "$_: Redis counts again") for qw(local open closed);
    }

    told_once($name, $said, substr($gateway->log, $log + length $said), $heal);
}


sub broken {
    my ($name, $k, $left) = @_;

    my @local = answers("/$name/local?k=$k", $left + 3);
    my @open = answers("/$name/open?k=$k", LIMIT + 2);
    my @closed = answers("/$name/closed?k=$k", LIMIT + 2);

    is(told(@local), "$left x 200 PASSED local, 3 x 429 REJECTED local",
       "local: $left are left");
    is(told(@open), '12 x 200 FAILED_OPEN -', 'open: all pass');
    is(told(@closed), '12 x 503 FAILED_CLOSED -', 'closed: none does');
    soon('at first', @local, @open, @closed);

    my $start = time;
    my @bulk = map { answers("/$name/$_?k=$k-bulk", 70) }
               qw(local open closed);

    cmp_ok(time - $start, '<', 20, 'no request waits any more');
    is(told(@bulk), '10 x 200 PASSED local, 60 x 429 REJECTED local, '
                    . '70 x 200 FAILED_OPEN -, 70 x 503 FAILED_CLOSED -',
       'all of them are answered');
    soon('then', @bulk);
}


# for longer than some pauses of the breaker, of which the first are short

sub stays_broken {
    my ($name) = @_;

    my $end = time + 0.5;
    my $by_redis = 0;

    until (time > $end) {
        my ($answer) = answers("/$name/probe?k=p", 1);

        $by_redis += $answer->{field}{'x-backend'} eq 'redis';
    }

    is($by_redis, 0, 'it stays so');
}


# a line for each change of state, whatever the number of requests

sub told_once {
    my ($name, $broken, $healed, $heals) = @_;

    my @broken = grep { /redis "$name"/ } split /\n/, $broken;
    my @healed = grep { /redis "$name"/ } split /\n/, $healed;

    is(scalar @broken, 1, 'one line says that it is broken')
        or diag(join "\n", @broken);
    like($broken[0], qr/\[error\] .*: redis "$name" is marked down: /,
         'as an error');
    is(scalar @healed, $heals ? 1 : 0, 'one line says that it is well')
        or diag(join "\n", @healed);
    like($healed[0], qr/\[notice\] .*: redis "$name" is up again$/, 'a notice')
        if $heals;
}


sub await_error {
    my ($error) = @_;

    Gateway::await(sub {
        my ($reply) = $redis->client->pipe(['GET', 'x']);

        return ($reply // '') =~ /^\Q$error/;
    }, $error);
}


sub become_replica {
    $redis->call('REPLICAOF', '127.0.0.1', $spare->{port});

    Gateway::await(sub {
        my ($info) = $redis->pipe(['INFO', 'replication']);

        return $info =~ /^master_link_status:up/m;
    }, 'a replica');
}


sub scripted {
    my ($part) = @_;

    my $k = "scripted-$part";

    $scripted->play('honest');
    well('scripted');
    is(told(answers("/scripted/local?k=$k", 6)), '6 x 200 PASSED redis',
       'Redis counts');

    $scripted->play($part);

    my @local = answers("/scripted/local?k=$k", LIMIT);
    my @open = answers("/scripted/open?k=$k", LIMIT);
    my @closed = answers("/scripted/closed?k=$k", LIMIT);

    is(told(@local), '4 x 200 PASSED local, 6 x 429 REJECTED local',
       'local: exactly as many');
    is(told(@open), '10 x 200 FAILED_OPEN -', 'open: all pass');
    is(told(@closed), '10 x 503 FAILED_CLOSED -', 'closed: none does');
    soon($part, @local, @open, @closed);

    $scripted->play('honest');
    well('scripted');
    is(told(answers("/scripted/local?k=$k-again", LIMIT + 1)),
       '10 x 200 PASSED redis, 1 x 429 REJECTED redis', 'Redis counts again');
    unlike($gateway->log, qr/exited on signal/, 'no worker has died');
}


# to a new connection, too, and whatever is said on it

sub always {
    for my $part (qw(garbage-first garbage-always errors-always refuse
                     silent))
    {
        $scripted->play('honest');
        well('scripted');

        # all connections end

        $scripted->play('closed-at-once');
        is(told(answers("/scripted/open?k=$part", 1)),
           '1 x 200 FAILED_OPEN -', 'a connection ends');
        $scripted->play($part);

        my $k = "always-$part";
        my @local = answers("/scripted/local?k=$k", LIMIT + 2);

        is(told(@local), '10 x 200 PASSED local, 2 x 429 REJECTED local',
           "$part: exactly as many");
        is(told(answers("/scripted/open?k=$k", LIMIT)),
           '10 x 200 FAILED_OPEN -', "$part: all pass");
        is(told(answers("/scripted/closed?k=$k", LIMIT)),
           '10 x 503 FAILED_CLOSED -', "$part: none does");
        soon($part, @local);
    }

    $scripted->play('honest');
    well('scripted');
    unlike($gateway->log, qr/exited on signal/, 'no worker has died');
}


# what comes in place of the answer is right, what follows is not

sub too_much {
    for my $part (qw(one-too-many the-same-again)) {
        $scripted->play($part);
        is(told(answers("/scripted/local?k=$part", LIMIT + 1)),
           '10 x 200 PASSED redis, 1 x 429 REJECTED redis',
           "$part: the answers are taken");
    }

    unlike($gateway->log, qr/exited on signal/, 'no worker has died');
}


sub in_time {
    $scripted->play('honest');
    well('patient');
    $scripted->play('slow');
    is(told(answers('/patient/local?k=slow', LIMIT + 1)),
       '10 x 200 PASSED redis, 1 x 429 REJECTED redis',
       'a byte at a time is fine');
    $scripted->play('honest');
}


# how many are left in Redis, by a worker that knows that it is well

sub look {
    my ($name, $k) = @_;

    my $answer = Gateway::await(sub {
        my ($answer) = answers("/$name/look?k=$k", 1);

        return ($answer->{field}{'x-backend'} // '') eq 'redis' && $answer;
    }, "a look at $k");

    return $answer->{field}{'x-ratelimit-remaining'};
}


# A reply that comes too late is ignored: it is neither that of the request,
# which was decided otherwise, nor that of the next one.

sub late_replies {
    $scripted->play('honest');
    well('scripted');
    is(told(answers('/scripted/closed?k=full', LIMIT)),
       '10 x 200 PASSED redis', 'one key is used up');
    $scripted->play('late');

    is(told(answers('/scripted/closed?k=late', 3)),
       '3 x 503 FAILED_CLOSED -', 'three replies are late');
    $scripted->play('honest');

    my @others = map { (answers("/scripted/closed?k=$_", 1))[0] }
                 qw(full other full other);
    my @wrong = grep { $_->{status} == 200 } @others[0, 2];

    is(scalar @wrong, 0, 'what is used up is not admitted by them');
    is(look('scripted/closed', 'full'), 0, 'nor afterwards');
    cmp_ok(look('scripted/closed', 'late'), '>=', LIMIT - 3,
           'and none was charged twice');

    # Redis itself, which does what it was told when it wakes up

    well('main');
    is(told(answers('/main/local?k=woken', 3)), '3 x 200 PASSED redis',
       'three are counted');
    $redis->pause;
    is(told(answers('/main/local?k=woken', 4)), '4 x 200 PASSED local',
       'four are not');
    $redis->resume;
    well('main');
    cmp_ok(look('main', 'woken'), '>=', LIMIT - 7, 'each at most once');
    cmp_ok(look('main', 'woken'), '<=', LIMIT - 3, 'none is lost');
}


# what may have been done is not done again

sub not_twice {
    for my $part (qw(cut-in-the-bulk closed-at-once reset-at-once
                     cut-in-the-head late))
    {
        $scripted->play('honest');
        well('scripted');

        # on a connection that works and was not idle: Redis may have closed
        # such a one before, and what is answered by a reset then was not done

        my ($k, $probe, $answer);

        Gateway::await(sub {
            $scripted->play("once-$part");
            $k = "once-$part-" . ++$keys;
            ($probe, $answer) =
                $clients->series(['GET /scripted/probe?k=p'],
                                 ["GET /scripted/local?k=$k"]);

            return ($probe->{field}{'x-backend'} // '') eq 'redis';
        }, 'a connection');

        is(told($answer), '1 x 200 PASSED local', "$part: a reply is lost");
        is($scripted->asked($k), 1, "$part: asked once");

        $scripted->play('honest');
        well('scripted');
        is(look('scripted', $k), LIMIT - 1, "$part: charged once");
    }
}


sub many_lost {
    $scripted->play('honest');
    well('patient');
    $scripted->play('hold');

    my @all = map { $clients->send("GET /patient/local?k=many$_") } 1 .. 100;

    Gateway::await(sub { (grep { /^EVAL/ } $scripted->seen) >= 100 },
                   'a hundred commands');

    # all of them at once, without an answer
    $scripted->stop;

    Clients::await_answers(100, @all);
    is(told(map { $_->{answers}[0] } @all), '100 x 200 PASSED local',
       'all are answered');

    $scripted = ScriptedRedis->start(upstream => $redis, parts => parts(),
                                     port => $scripted->{port});
    well('patient');

    my @left = map { look('patient', "many$_") } 1 .. 100;

    is(scalar(grep { $_ == LIMIT - 1 } @left), 100, 'each was charged once');
}


# not one too many or too few, though the counter changes in between

sub killed_under_load {
    well('main');

    my $killed = 0;
    my $tally = $gateway->load(
        depth => 4, requests => [(['/load', 'hot']) x 3000],
        tick => sub {
            my ($answers) = @_;

            $killed ||= $redis->kill || 1 if $answers > 300;
        },
    );

    is_deeply($tally->{keys}{hot}, { sent => 3000, 200 => 1000, 429 => 2000 },
              'exactly as many by Redis and here');
    $redis->restart;
    well('main');

    $tally = $gateway->load(
        depth => 4, requests => [(['/load', 'stopped']) x 3000],
        tick => sub {
            my ($answers) = @_;

            $redis->pause if $answers > 300;
        },
    );
    $redis->resume;

    is_deeply($tally->{keys}{stopped},
              { sent => 3000, 200 => 1000, 429 => 2000 }, 'when hung, too');
    well('main');
}


sub others {
    well('main');
    $redis->kill;

    is(told(answers('/near/closed?k=a', 7)), '7 x 503 FAILED_CLOSED -',
       'what is refused here');
    is(told(answers('/near?k=a', 6)),
       '5 x 200 PASSED shm, 1 x 429 REJECTED shm', 'costs nothing elsewhere');
    is(told(answers('/near/open?k=b', 7)),
       '5 x 200 FAILED_OPEN shm, 2 x 429 REJECTED shm',
       'what passes here is limited elsewhere');

    my @local = answers('/near/local?k=c', 7);

    is(join(' ', map { $_->{status} } @local), '200 200 200 200 200 429 429',
       'what is counted here, too');
    is(told(answers('/dry?k=d', 2)), '2 x 200 FAILED_OPEN -',
       'a dry run refuses no request');

    # what should be refunded by a Redis that is down

    $redis->restart;
    well('main');

    my $client = $clients->send('GET /login?k=e');
    my $errand = Clients::errand($backend);

    $redis->kill;
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'an answer without a Redis');

    $redis->restart;
    well('main');

    # one Redis charges, another one is down

    is(told(answers('/two/closed?k=f', 2)), '2 x 503 FAILED_CLOSED -',
       'the other one is down') if !ref $absent;
}


# the strictest one holds, and nothing is charged then

sub policies {
    well('main');
    $redis->kill;

    is(told(answers('/local+open?k=a', LIMIT + 2)),
       '10 x 200 FAILED_OPEN local, 2 x 429 REJECTED local',
       'local and open');
    is(told(answers('/main/local?k=a', 1)), '1 x 429 REJECTED local',
       'was counted');
    is(told(answers('/local+closed?k=b', LIMIT + 2)),
       '12 x 503 FAILED_CLOSED -', 'local and closed');
    is(told(answers('/main/local?k=b', LIMIT + 1)),
       '10 x 200 PASSED local, 1 x 429 REJECTED local', 'was not');

    $redis->restart;
    well('main');
}


# what was reserved in shared memory is refunded there, and not in Redis

sub given_back {
    well('main');
    $redis->kill;

    is(told(answers('/three/local?k=g', 20)), '20 x 200 PASSED local',
       'good ones cost nothing');

    my @all = map { $clients->send('GET /login?k=g') } 1 .. 4;

    Clients::await_answers(1, @all);

    my @errands = map { Clients::errand($backend) } 1 .. 3;

    $redis->restart;
    well('main');
    Clients::reply($_, 200) for @errands;
    Clients::await_answers(4, @all);
    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 3, 429 => 1 }, 'three at a time');

    is(told(answers('/login/look?k=g', 3)), '3 x 200 PASSED redis', 'a look');
    is(look('login', 'g'), 3, 'Redis has nothing to refund');

    # and the other way round

    @all = map { $clients->send('GET /login?k=h') } 1 .. 4;
    Clients::await_answers(1, @all);
    @errands = map { Clients::errand($backend) } 1 .. 3;
    $redis->kill;
    Clients::reply($_, 200) for @errands;
    Clients::await_answers(4, @all);

    Gateway::await(sub {
        my ($look) = answers('/login/look?k=h', 1);

        return $look->{field}{'x-backend'} eq 'local'
               && $look->{field}{'x-ratelimit-remaining'} == 3;
    }, 'the warm counter');
    pass('the warm counter gets it back, too');

    $redis->restart;
    well('main');
}


sub flushed {
    well('main');
    is(told(answers('/main/local?k=flush', 6)), '6 x 200 PASSED redis',
       'counted');
    $redis->call('FLUSHALL');
    is(told(answers('/main/local?k=flush', LIMIT + 1)),
       '10 x 200 PASSED redis, 1 x 429 REJECTED redis', 'and again');
}


# "nginx -t", a start and a reload with no server there; then it comes

sub absent_at_start {
    my $port = Gateway::free_port();
    my $http = <<"END" . Gateway->server('/' => 'ratelimit zone=z;');
add_header X-Status \$ratelimit_status always;
add_header X-Backend \$ratelimit_backend always;
add_header X-Time \$request_time always;
ratelimit_redis late redis://127.0.0.1:$port timeout=5s connect_timeout=5s;
ratelimit_zone \$arg_k zone=z:1m rate=10r/d redis=late;
END
    my $start = time;
    my $gateway = Gateway->start(workers => 2, http => $http);

    cmp_ok(time - $start, '<', 10, 'starts at once');

    my $test = Gateway::binary() . " -t -p $gateway->{dir}/"
               . " -c $gateway->{dir}/nginx.conf 2>&1";

    local $ENV{PATH} = "$ENV{PATH}:/usr/sbin:/sbin";

    like(scalar `$test`, qr/test is successful/, 'nginx -t');

    my $clients = Clients->new($gateway->{port});

    is(told($clients->series((['GET /?k=a']) x 6)), '6 x 200 PASSED local',
       'limits');
    $gateway->reload($http);
    is(told($clients->series((['GET /?k=a']) x 6)),
       '4 x 200 PASSED local, 2 x 429 REJECTED local',
       'and goes on after a reload');

    my $late = RedisServer->start(port => $port);

    Gateway::await(sub {
        my ($answer) = $clients->series(['GET /?k=p' . rand]);

        return $answer->{field}{'x-backend'} eq 'redis';
    }, 'Redis to be found');
    is(told($clients->series((['GET /?k=b']) x 11)),
       '10 x 200 PASSED redis, 1 x 429 REJECTED redis', 'Redis counts');
    is($gateway->complaints, '', 'nothing to complain about');
}
