#!/usr/bin/perl

# A bad day: under load, all that can happen to a Redis, its connections, its
# scripts, nginx's workers and clients happens at random, again and again.
# Nothing crashes or hangs, and in the evening everything is as it was.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use ScriptedRedis;

use constant SECONDS => 10;
use constant PAUSE => 0.03;     # between two events
use constant MANY => 100;       # events

my $seed = $ENV{RATELIMIT_SEED} || 80;
note("RATELIMIT_SEED=$seed");
srand $seed;

my $redis = RedisServer->start;
my $scripted = ScriptedRedis->start(upstream => $redis,
                                    parts => { mad => \&mad });
my $config = config();
my $gateway = Gateway->start(workers => 2, http => $config);
my $clients = Clients->new($gateway->{port});
my @paths = qw(/a /ab /abc /d /e /p);
my ($events, $last, $paused, @waiting) = (0, 0, 0);

my @events = (
    sub { $redis->pause; $paused = 1 },
    sub { $redis->kill; $redis->restart },
    sub { eval { $redis->call('CLIENT', 'KILL', 'TYPE', 'normal') } },
    sub { eval { $redis->call('SCRIPT', 'FLUSH') } },
    sub { eval { $redis->call('FLUSHALL') } },
    sub { $gateway->hup($config) if $gateway->all_workers < 8 },
    sub { $scripted->play('mad') },
    sub { $scripted->play('mad') },
    sub { $scripted->play('honest') },
    sub { $scripted->play('silent') },
    sub { push @waiting, map { $clients->send("GET $paths[rand @paths]",
                                              'X-Key: k1') } 1 .. 20 },
    sub { Clients::leave(shift @waiting) while @waiting },
    sub { my ($worker) = $gateway->current_workers;
          kill 'KILL', $worker if $worker && rand() < 0.2 },
);

subtest 'the day' => \&day;
subtest 'the evening' => \&evening;
subtest 'the end' => \&end;

done_testing();


sub config {
    return <<'END' =~ s/REDIS/$redis->{port}/r =~ s/SCRIPTED/$scripted->{port}/r
ratelimit_redis main redis://127.0.0.1:REDIS timeout=60ms connect_timeout=60ms
                connections=2;
ratelimit_redis mad redis://127.0.0.1:SCRIPTED timeout=60ms
                connect_timeout=60ms;

ratelimit_zone $http_x_key zone=a:1m rate=100r/2s redis=main;
ratelimit_zone $http_x_key zone=b:1m rate=1000r/d algorithm=sliding_log
               redis=mad fail=open;
ratelimit_zone $http_x_key zone=c:1m rate=1000r/d algorithm=token_bucket
               redis=mad fail=closed;
ratelimit_zone $http_x_key zone=d:1m rate=20r/s algorithm=leaky_bucket
               redis=main;
ratelimit_zone $http_x_key zone=e:1m rate=50r/s capacity=1
               algorithm=token_bucket redis=mad;
ratelimit_zone $http_x_key zone=near:1m rate=1000r/d;
ratelimit_zone $http_x_key zone=even:1m rate=100r/d redis=main;
ratelimit_zone $http_x_key zone=odd:1m rate=100r/d redis=mad;

add_header X-Backend $ratelimit_backend always;
END
    . Gateway->server(
        '/a' => 'ratelimit zone=a;',
        '/ab' => 'ratelimit zone=a; ratelimit zone=b; ratelimit zone=near;',
        '/abc' => 'ratelimit zone=a rejected=count; ratelimit zone=b;
                   ratelimit zone=c count=404;
                   ratelimit zone=d after_auth burst=5;',
        '/d' => 'ratelimit zone=d burst=10;',
        '/e' => 'ratelimit zone=e delay=500ms; ratelimit zone=a after_auth;',
        '/p' => 'ratelimit zone=a; ratelimit zone=b count=401;
                 error_page 404 /a; root /nonexistent; try_files /x =404;',
        '/even' => 'ratelimit zone=even;',
        '/odd' => 'ratelimit zone=odd;',
    );
}


# right more often than not

sub mad {
    my ($command, $reply) = @_;

    my $dice = rand;

    return $dice < 0.70 ? $reply
         : $dice < 0.75 ? (substr($reply, 0, length($reply) / 2), ['close'])
         : $dice < 0.80 ? ['reset']
         : $dice < 0.85 ? "\$99\r\n"
         : $dice < 0.90 ? (['wait', rand 0.3], $reply)
         : $dice < 0.93 ? "-NOSCRIPT what?\r\n"
         : $dice < 0.96 ? "-OOM alas\r\n"
         :                $reply . $reply;
}


sub day {
    my $end = time + SECONDS;
    my $tally = $gateway->load(
        depth => 2, connections => 40, tick => \&happen,
        requests => sub {
            return if time > $end && $events > MANY;
            return [$paths[rand @paths], 'k' . int rand 6];
        },
    );
    my %all;

    for my $count (values %{$tally->{keys}}) {
        $all{$_} += $count->{$_} for keys %$count;
    }

    note(explain(\%all));
    is($tally->{hang}, 0, 'no hang');
    cmp_ok($all{$_} || 0, '>', 0, "answers: $_") for 200, 404, 429, 503;
    is(join(' ', grep { !/^(?:200|404|429|503|sent|unanswered)$/ }
                 sort keys %all), '', 'and no others');
    cmp_ok($tally->{answers}, '>', $all{sent} * 0.8, 'for most');
}


sub happen {
    return if time - $last < PAUSE;

    $last = time;
    $events++;

    if (!$paused) {
        $events[rand @events]->();

    } elsif (rand() < 0.5) {
        $redis->resume;
        $paused = 0;
    }
}


sub evening {
    $redis->resume;
    $scripted->play('honest');
    Clients::leave($_) for @waiting;

    for my $path ('/even', '/odd') {
        Gateway::await(sub {
            my $answer = $clients->ask("GET $path", 'X-Key: ' . rand);

            return $answer->{field}{'x-backend'} eq 'redis';
        }, 'Redis');
    }

    # with time enough for a busy machine

    $gateway->reload($config =~ s/=60ms/=5s/gr);
    Gateway::await(sub { $gateway->settled }, 'old workers');

    for my $path ('/even', '/odd') {
        my @answers = $clients->series(([("GET $path", 'X-Key: last')]) x 150);

        is(scalar(grep { $_->{status} == 200 } @answers), 100,
           "$path: exactly as many as there should be");
    }
}


sub end {
    my $start = time;

    kill 'QUIT', $gateway->{pid};
    waitpid delete $gateway->{pid}, 0;

    cmp_ok(time - $start, '<', 20, 'nginx ends soon');
    is($gateway->complaints(qr/exited on signal 9/), '',
       'nothing to complain about');
    unlike($gateway->log, qr/exited on signal (?!9)/, 'no worker has died');
}
