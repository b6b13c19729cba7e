#!/usr/bin/perl

# One decision over several stores: two Redis of which one is in trouble, and
# shared memory beside Redis.  If this fails, trouble of one Redis switches off
# limits of another one, or clients are told to come back too early.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use Registry;
use ScriptedRedis;

my @algorithms = Registry::algorithms();
my %burst = (map({ $_ => '' } @algorithms), leaky_bucket => 'burst=2 nodelay');
my $left = RedisServer->start;
my $right = RedisServer->start;
my $slow = ScriptedRedis->start(upstream => $left, parts => {
    slow => sub { return ['wait', 0.5], $_[1] },
});
my $gateway = Gateway->start(workers => 1, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'a hung Redis and a healthy one' => \&hung;
subtest 'a slow Redis and a dead one' => \&slow_and_dead;
subtest 'one refuses, the other gets back' => \&refunded;
subtest 'Retry-After of shared memory and Redis' => \&mixed;
subtest 'what an admission leaves is known' => \&known;
subtest 'a look is rare' => \&rare;
subtest 'rejected=count beside another limit' => \&rejected;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');

done_testing();


sub config {
    my %url = (left => $left, right => $right, early => $slow);
    my $http = <<'END';
add_header X-Status $ratelimit_status always;
add_header X-Backend $ratelimit_backend always;
add_header X-Time $request_time always;
ratelimit_zone $arg_k zone=ip:1m rate=1r/m;
ratelimit_zone $arg_k zone=shm:1m rate=1r/m;
END

    for my $name (sort keys %url) {
        $http .= "ratelimit_redis $name redis://127.0.0.1:$url{$name}{port}"
                 . " timeout=1500ms;\n"
                 . "ratelimit_zone \$arg_k zone=$name:1m rate=20r/d"
                 . " redis=$name fail=open;\n"
                 . "ratelimit_zone \$arg_k zone=$name-probe:1m"
                 . " rate=1000000r/h redis=$name;\n";
    }

    $http .= <<'END';
ratelimit_zone $arg_k zone=user:1m rate=1r/h redis=left;
ratelimit_zone $arg_k zone=many:1m rate=1000r/d redis=left;
END

    for my $name (@algorithms) {
        $http .= "ratelimit_zone \$arg_k zone=$name:1m algorithm=$name"
                 . " rate=3r/366d redis=left;\n";
    }

    return $http . Gateway->server(
        '/two' => 'ratelimit zone=left; ratelimit zone=right;',
        '/slow' => 'ratelimit zone=early; ratelimit zone=right;',
        '/left' => 'ratelimit zone=left cost=0;',
        '/right' => 'ratelimit zone=right cost=0;',
        '/only/right' => 'ratelimit zone=right cost=20;',
        '/mixed' => 'ratelimit zone=ip; ratelimit zone=user;',
        '/rare' => 'ratelimit zone=ip; ratelimit zone=many;',
        '/rejected/shm' => 'ratelimit zone=shm;
                            ratelimit zone=shm name=r rate=3r/h
                                      rejected=count;',
        '/rejected/redis' => 'ratelimit zone=user name=q rate=1r/m;
                              ratelimit zone=user name=r rate=3r/h
                                        rejected=count;',
        '/rejected/mixed' => 'ratelimit zone=shm;
                              ratelimit zone=user name=s rate=3r/h
                                        rejected=count;',
        '/rejected/two' => 'ratelimit zone=right name=q rate=3r/m cost=$arg_c;
                            ratelimit zone=user name=t rate=2r/h
                                      rejected=count;',
        (map { ("/known/$_" => "ratelimit zone=ip;
                                ratelimit zone=$_ cost=2 $burst{$_};",
                "/left/$_" => "ratelimit zone=$_ cost=\$arg_c $burst{$_};") }
             @algorithms),
        map { ("/probe/$_" => "ratelimit zone=$_-probe;") } keys %url,
    );
}


sub well {
    for my $name (@_) {
        Gateway::await(sub {
            my $answer = $clients->ask("GET /probe/$name?k=p");

            return ($answer->{field}{'x-backend'} // '') eq 'redis';
        }, "$name to be well");
    }
}


sub field {
    my ($name, @answers) = @_;

    return join ' ', map { $_->{field}{$name} // '-' } @answers;
}


# limits of the one hold, whatever the other one does

sub hung {
    well(qw(left right));
    $left->pause;

    my @all = map { $clients->send('GET /two?k=a') } 1 .. 60;

    Clients::await_answers(60, @all);
    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 20, 429 => 40 }, 'exactly as many as the limit says');

    @all = $clients->series((['GET /two?k=b']) x 40);
    is_deeply(Clients::tally(@all), { 200 => 20, 429 => 20 },
              'one after the other, too');
    unlike($gateway->log, qr/redis "right" is/, 'the other one is not blamed');
    $left->resume;
}


sub slow_and_dead {
    well(qw(early right));
    $slow->play('slow');
    $right->pause;

    my $log = length $gateway->log;
    my @all = $clients->series((['GET /slow?k=c']) x 8);

    is_deeply(Clients::tally(@all), { 200 => 8 }, 'all pass');
    like(substr($gateway->log, $log), qr/redis "right" is .*no (?:reply|answer)/,
         'the dead one is marked down');
    unlike(substr($gateway->log, $log), qr/redis "early" is/,
           'the slow one is not');
    $right->resume;
    $slow->play('honest');
}


sub refunded {
    well(qw(left right));

    is($clients->ask('GET /only/right?k=d')->{status}, 200,
       'one limit is used up, which a request of another cost does not know');

    my @all = map { $clients->send('GET /two?k=d') } 1 .. 10;

    Clients::await_answers(10, @all);
    is_deeply(Clients::tally(map { $_->{answers}[0] } @all), { 429 => 10 },
              'it refuses');
    Gateway::await(sub {
        my $answer = $clients->ask('GET /left?k=d');

        return field('x-ratelimit-remaining', $answer) eq '20';
    }, 'the other one to be whole');
    pass('the other one has nothing charged');
}


sub mixed {
    well('left');

    my @answers = $clients->series((['GET /mixed?k=e']) x 3);

    is_deeply([map { $_->{status} } @answers], [200, 429, 429],
              'one is admitted');

    for my $answer (@answers[1, 2]) {
        cmp_ok(field('retry-after', $answer), '>', 100,
               'the longest wait is told');
        like($answer->{body}, qr/"ip".*"user"/, 'and both that refuse');
    }

    # Redis alone would admit

    @answers = $clients->series((['GET /rare?k=e2']) x 3);
    cmp_ok(field('retry-after', $answers[2]), '<=', 100,
           'a limit that would admit is not waited for');
    unlike($answers[2]{body}, qr/"many"/, 'nor named');
}


# Redis is not asked for what an admission has said

sub known {
    well('left');

    for my $name (@algorithms) {
        is($clients->ask("GET /known/$name?k=$name")->{status}, 200,
           "$name: the last of its cost that is admitted");

        my $calls = $left->calls('evalsha');
        my @answers = $clients->series((["GET /known/$name?k=$name"]) x 3,
                                       ["GET /left/$name?k=$name&c=2"]);

        is_deeply([map { $_->{status} } @answers], [(429) x 4], 'refused');
        is($left->calls('evalsha'), $calls, 'without a question');
        cmp_ok(field('retry-after', $_), '>', 100, 'the longest wait is told')
            for @answers;
        like($_->{body}, qr/"ip".*"$name"/, 'and both that refuse')
            for @answers[0 .. 2];

        @answers = $clients->series((["GET /left/$name?k=$name&c=1"]) x 2);
        is_deeply([map { $_->{status} } @answers], [200, 429],
                  'a smaller cost is another question');
        is($left->calls('evalsha'), $calls + 1, 'that is asked once');
    }
}


# whatever the number of refusals by shared memory

sub rare {
    well('left');

    for my $uri ('/rare?k=f', '/mixed?k=f2') {
        $clients->ask("GET $uri");

        for my $look ('first', 'second') {
            my $calls = $left->calls('evalsha');
            my $start = time;

            $clients->series((["GET $uri"]) x 1000);

            my $seconds = time - $start;

            cmp_ok($left->calls('evalsha') - $calls, '<=', 2 + $seconds,
                   "$uri: Redis is asked once a second, at its $look look");
            Gateway::await(sub { time - $start > 1 }, 'a second');
        }
    }
}


# the third refusal uses up what the second limit has

sub rejected {
    well(qw(left right));

    for my $where (qw(shm redis mixed)) {
        my @answers = $clients->series((["GET /rejected/$where?k=g-$where"])
                                       x 3);

        is_deeply([map { $_->{status} } @answers], [200, 429, 429],
                  "$where: one is admitted");
        cmp_ok(field('retry-after', $answers[1]), '<=', 100,
               'the first refusal leaves one');
        cmp_ok(field('retry-after', $answers[2]), '>', 100,
               'the second leaves none');
    }

    # one is charged before it is known that the other one refuses

    my @answers = $clients->series(map { ["GET /rejected/two?k=g&c=$_"] } 1, 3);

    is_deeply([map { $_->{status} } @answers], [200, 429],
              'two Redis: one is admitted');
    cmp_ok(field('retry-after', $answers[1]), '>', 100,
           'the refusal leaves none');
}
