#!/usr/bin/perl

# A key that Redis has refused is refused from shared memory until the time that
# Redis gave.  If this fails, an attack on one key is one on Redis, or a client
# waits for longer than it was told, or for a limit of another client.

use strict;
use warnings;

use IO::Select;
use List::Util qw(min);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

use constant FEW => 5;          # commands: workers may ask at the same time

# for three requests, and no more for hours
my %slow = (
    fixed => ['algorithm=fixed_window rate=3r/366d'],
    sliding => ['rate=3r/d'],
    sliding1 => ['buckets=1 rate=3r/d'],
    sliding60 => ['buckets=60 rate=3r/d'],
    log => ['algorithm=sliding_log rate=3r/d'],
    token => ['algorithm=token_bucket rate=3r/d'],
    leaky => ['algorithm=leaky_bucket rate=3r/d', 'burst=2 nodelay'],
);

# for two requests every two seconds
my %fast = (
    fixed => ['algorithm=fixed_window rate=2r/2s'],
    sliding => ['rate=2r/2s'],
    sliding1 => ['buckets=1 rate=2r/2s'],
    sliding60 => ['buckets=60 rate=2r/2s'],
    log => ['algorithm=sliding_log rate=2r/2s'],
    token => ['algorithm=token_bucket rate=2r/2s'],
    leaky => ['algorithm=leaky_bucket rate=2r/2s', 'burst=1 nodelay'],
);

my $redis = RedisServer->start;
my $backend = Clients::backend();
my $config = config('3r/d');
my $gateway = Gateway->start(workers => 2, http => $config);
my $other = Gateway->start(workers => 1, http => $config);
my $clients = Clients->new($gateway->{port});

subtest 'an attack costs next to nothing' => \&attack;
subtest 'until its time has come' => \&in_time;
subtest 'a bucket that fills fast' => \&fills_fast;
subtest 'what clients are told' => \&told;
subtest 'another limit' => \&another_limit;
subtest 'another plan' => \&another_plan;
subtest 'another cost' => \&another_cost;
subtest 'soft and elastic' => \&soft_and_elastic;
subtest 'another key' => \&another_key;
subtest 'other limits of the decision' => \&others;
subtest 'a longer wait' => \&longer_wait;
subtest 'ends of refusals of several limits' => \&several_ends;
subtest 'beside a limit in shared memory' => \&beside_memory;
subtest 'several rates' => \&several_rates;
subtest 'refunds' => \&given_back;
subtest 'what was refused for a moment' => \&for_a_moment;
subtest 'rejected=count' => \&rejected;
subtest 'another gateway' => \&another_gateway;
subtest 'Redis down' => \&away;
subtest 'another rate after a reload' => \&reloaded;
subtest 'a counter that an operator removes' => \&removed;

is($_->complaints, '', 'nothing to complain about') for $gateway, $other;

done_testing();


sub config {
    my ($rate) = @_;

    my ($http, %location) = <<'END' =~ s/REDIS/$redis->{port}/r =~ s/RATE/$rate/r;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;

ratelimit_zone $http_x_key zone=attack:1m rate=3r/d redis=main;
ratelimit_zone $arg_k zone=main:1m rate=RATE redis=main;
ratelimit_zone $arg_k zone=plan:1m rate=$arg_r redis=main;
ratelimit_zone $arg_k zone=pace:1m rate=$arg_r capacity=2
               algorithm=token_bucket redis=main;
ratelimit_zone $arg_k zone=large:1m rate=100r/d redis=main;
ratelimit_zone $arg_k zone=near:1m rate=100r/d;
ratelimit_zone $arg_k zone=rates:1m rate=2r/4s rate=4r/d
               algorithm=sliding_log redis=main;
ratelimit_zone $arg_h zone=hour:1m rate=1r/h algorithm=sliding_log redis=main;
ratelimit_zone $arg_d zone=day:1m rate=10r/d algorithm=sliding_log redis=main;
ratelimit_zone $arg_k zone=memory:1m rate=1r/h algorithm=sliding_log;
ratelimit_zone $arg_k zone=told:1m rate=1r/12s algorithm=token_bucket
               redis=main;
ratelimit_zone $arg_k zone=tokens:1m rate=10r/h algorithm=token_bucket
               redis=main;
ratelimit_zone $arg_k zone=fills:1m rate=10r/s algorithm=token_bucket
               redis=main;
ratelimit_zone $arg_k zone=filled:1m rate=10r/s algorithm=token_bucket
               redis=main sync=100ms;
ratelimit_zone $arg_k zone=written:1m rate=10r/h algorithm=token_bucket
               redis=main sync=100ms;

ratelimit_elastic connections=99% zone=told:99%;

add_header X-Status $ratelimit_status always;
add_header X-Backend $ratelimit_backend always;
END

    for my $name (sort keys %slow) {
        my ($zone, $limit) = (@{$slow{$name}}, '');

        $http .= "ratelimit_zone \$http_x_key zone=slow-$name:1m $zone"
                 . " redis=main;\n";
        $location{"/slow/$name"} = "ratelimit zone=slow-$name $limit;";

        ($zone, $limit) = (@{$fast{$name}}, '');

        $http .= "ratelimit_zone \$arg_k zone=fast-$name:1m $zone"
                 . " redis=main;\n";
        $location{"/fast/$name"} = "ratelimit zone=fast-$name $limit;";
        $location{"/look/$name"} = "ratelimit zone=fast-$name cost=0 $limit;";
    }

    %location = (
        %location,
        '/main' => 'ratelimit zone=main;',
        '/named' => 'ratelimit zone=main name=other;',
        '/rate' => 'ratelimit zone=main name=other rate=4r/d;',
        '/plan' => 'ratelimit zone=plan;',
        '/pace' => 'ratelimit zone=pace;',
        '/slower' => 'ratelimit zone=told name=pace rate=2r/h;',
        '/faster' => 'ratelimit zone=told name=pace rate=7200r/h;',
        '/cost' => 'ratelimit zone=main cost=$arg_c;',
        '/fills' => 'ratelimit zone=fills;',
        '/filled' => 'ratelimit zone=filled;',
        '/tokens' => 'ratelimit zone=tokens cost=$arg_c;',
        '/written' => 'ratelimit zone=written cost=$arg_c;',
        '/soft' => 'ratelimit zone=main soft=100%;',
        '/elastic' => 'ratelimit zone=main elastic=100%;',
        '/both' => 'ratelimit zone=near; ratelimit zone=large;
                    ratelimit zone=main;',
        '/large' => 'ratelimit zone=large cost=0;',
        '/near' => 'ratelimit zone=near cost=0;',
        '/rates' => 'ratelimit zone=rates;',
        '/long' => 'ratelimit zone=hour; ratelimit zone=day cost=$arg_c;',
        '/hour' => 'ratelimit zone=hour;',
        '/day' => 'ratelimit zone=day cost=$arg_c;',
        '/mixed' => 'ratelimit zone=memory;
                     ratelimit zone=day name=mixed rate=1r/d;',
        '/told' => 'ratelimit zone=told;',
        '/rejected' => 'ratelimit zone=main name=rejected rate=3r/d
                        rejected=count;',
        '/beside' => 'ratelimit zone=main;
                    ratelimit zone=large rejected=count;',
        '/dry' => 'ratelimit zone=main; ratelimit_dry_run on;',
    );

    return $http . Gateway->server(%location) =~ s/\}\s*\z//r
           . 'location /login { ratelimit zone=main name=login rate=3r/d'
           . ' count=401; proxy_pass http://127.0.0.1:'
           . $backend->sockport . "; }\n}\n";
}


sub answers { return $clients->series(map { ["GET $_"] } @_) }

sub statuses { return join ' ', map { $_->{status} } answers(@_) }


sub field {
    my ($name, $uri) = @_;

    return (answers($uri))[0]{field}{lc $name};
}


sub attack {
    for my $name (sort keys %slow) {
        my $key = "attacked $name";

        $redis->forget_calls;

        my $tally = $gateway->load(depth => 8, requests =>
                                   [(["/slow/$name", $key]) x 1000]);

        is_deeply($tally->{keys}{$key}, { sent => 1000, 200 => 3, 429 => 997 },
                  "$name: three of a thousand");
        cmp_ok($redis->calls('evalsha'), '<', 3 + 32 * 8, "$name: at first");

        $redis->forget_calls;
        $gateway->load(depth => 8, requests =>
                       [(["/slow/$name", $key]) x 1000]);

        is($redis->calls('evalsha'), 0, "$name: Redis is at peace");
    }

    is(statuses(('/dry?k=dry') x 10), join(' ', (200) x 10), 'a dry run');

    $redis->forget_calls;
    statuses(('/dry?k=dry') x 100);
    is($redis->calls('evalsha'), 0, 'is no attack either');
}


# whenever Redis would admit, as a look tells, nginx admits; all algorithms at
# once, since time passes for all

sub in_time {
    my %admitted = map { $_ => 0 } keys %fast;
    my ($rounds, %wrong, %last) = 0;
    my $start = time;

    for (; time < $start + 9; $rounds++) {
        for my $name (sort keys %fast) {
            my $left = field('X-RateLimit-Remaining', "/look/$name?k=k");
            my $status = statuses("/fast/$name?k=k");

            $wrong{$name}++ if $left > 0 && $status != 200;

            if ($status == 200) {
                $admitted{$name}++;
                $last{$name} = time;
            }
        }

        sleep 0.02;
    }

    my $seconds = time - $start;

    for my $name (sort keys %fast) {
        is($wrong{$name} || 0, 0, "$name: none is refused that Redis admits");
        cmp_ok($admitted{$name}, '>=', min(6, $rounds / 2),
               "$name: some are admitted");
        cmp_ok($admitted{$name}, '<=', 2 * (2 + int($seconds / 2)),
               "$name: not too many");
        cmp_ok($last{$name} || 0, '>', $start + 4, "$name: to the end");
    }
}


# Each token is asked for when it comes, and next to nothing before.

sub fills_fast {
    for my $uri ('/fills', '/filled') {
        my $admitted = 0;

        statuses(("$uri?k=k") x 30);
        $redis->forget_calls;

        while ($admitted < 10) {
            $admitted += grep { $_->{status} == 200 }
                         answers(("$uri?k=k") x 100);
        }

        cmp_ok($redis->calls('evalsha'), '<', 4 * $admitted + 2 * FEW,
               "$uri: $admitted tokens");
    }
}


# what is left of the time, not what it was

sub told {
    is(statuses('/told?k=k', '/told?k=k'), '200 429', 'refused');

    my $start = time;
    my ($first) = answers('/told?k=k');

    cmp_ok($first->{field}{'retry-after'}, '>=', 8, 'for twelve seconds');
    is($first->{field}{'x-status'}, 'REJECTED', 'as any other');
    is($first->{field}{'x-ratelimit-limit'}, 1, 'of one');
    is($first->{field}{'x-ratelimit-remaining'}, 0, 'none left');
    like($first->{body}, qr/"violated-policies":\["told"\]/, 'with a body');

    $redis->forget_calls;
    Gateway::await(sub { field('Retry-After', '/told?k=k') <= 7 },
                   'a shorter time');
    Gateway::await(sub { field('X-RateLimit-Reset', '/told?k=k') <= 7 },
                   'the reset, too');

    # but for one that comes a second after the last one

    cmp_ok($redis->calls('evalsha'), '<', FEW, 'without Redis');
    cmp_ok(time - $start, '<', 10, 'as time passes');

    Gateway::await(sub { statuses('/told?k=k') == 200 }, 'its end');
    cmp_ok(time - $start, '<', 17, 'and not later');
    cmp_ok(time - $start, '>', 8, 'nor before');
}


# what is refused for one limit says nothing of another one

sub used_up {
    my ($k) = @_;

    is(statuses(("/main?k=$k") x 5), '200 200 200 429 429', 'used up');
}


sub another_limit {
    used_up('limit');
    is(statuses(('/named?k=limit') x 4), '200 200 200 429',
       'another name is asked for');
    is(statuses(('/rate?k=limit') x 2), '200 429',
       'the same counter under another rate, too');
    is(statuses('/main?k=limit', '/named?k=limit'), '429 429', 'still');
}


sub another_plan {
    is(statuses(('/plan?k=p&r=2r/d') x 4), '200 200 429 429', 'a plan');
    is(statuses(('/plan?k=p&r=4r/d') x 4), '200 200 429 429', 'a larger one');
    is(statuses(('/plan?k=p&r=1r/h') x 2), '200 429', 'another period');
    is(statuses(('/plan?k=p&r=5r/d') x 2), '200 429', 'a still larger one');
    is(statuses('/plan?k=p&r='), 200, 'none');

    # as much at once, but sooner again

    is(statuses(('/pace?k=p&r=2r/h') x 3), '200 200 429', 'a slow one');
    Gateway::await(sub { statuses('/pace?k=p&r=7200r/h') == 200 },
                   'a faster one');
    pass('a faster one');

    # which leaves more in the bucket than the slow one had said

    is(statuses(('/pace?k=q&r=2r/h') x 3), '200 200 429', 'slow again');
    Gateway::await(sub { statuses('/pace?k=q&r=7200r/h') == 200 },
                   'a faster one');
    Gateway::await(sub { statuses('/pace?k=q&r=2r/h') == 200 },
                   'the slow one');
    pass('the slow one has what the faster one left');

    is(statuses(('/slower?k=q') x 3), '200 200 429', 'the same, written down');
    Gateway::await(sub { statuses('/faster?k=q') == 200 }, 'a faster one');
    Gateway::await(sub { statuses('/slower?k=q') == 200 }, 'the slow one');
    pass('the slow one has what the faster one left');
}


sub another_cost {
    is(statuses('/cost?k=c&c=2', '/cost?k=c&c=2', '/cost?k=c&c=2'),
       '200 429 429', 'too much');
    is(statuses('/cost?k=c&c=1', '/cost?k=c&c=1'), '200 429', 'a smaller one');
    is(statuses('/cost?k=c&c=0'), 200, 'a look');
    is(statuses('/cost?k=c&c=7', '/cost?k=d&c=7', '/cost?k=d&c=3'),
       '429 429 200', 'more than ever fits');

    # of 10 tokens two are left, and then none

    for my $uri ('/tokens', '/written') {
        is(statuses(map { "$uri?k=e&c=$_" } 8, 5, 5, 1, 1),
           '200 429 429 200 200', "$uri: smaller ones in between");

        my $told = (answers("$uri?k=e&c=5"))[0]{field};

        is($told->{'x-ratelimit-remaining'}, 0, 'are not forgotten');
        cmp_ok($told->{'retry-after'}, '>', 4 * 360, 'nor is how long to wait');
    }
}


sub soft_and_elastic {
    used_up('soft');
    is(statuses(('/soft?k=soft') x 4), '200 200 200 429', 'where it is soft');
    is(statuses('/main?k=soft'), 429, 'where it is not');

    used_up('elastic');
    is(statuses(('/elastic?k=elastic') x 4), '200 200 200 429',
       'where it is elastic');
}


sub another_key {
    used_up('one');
    is(statuses('/main?k=two', '/main?k=on', '/main?k=onee'), '200 200 200',
       'others are not refused');
}


# a refusal from the cache charges no other limit

sub others {
    used_up('others');
    is(statuses(('/both?k=others') x 5), '429 429 429 429 429', 'refused');
    is(field('X-RateLimit-Remaining', '/large?k=others'), 100, 'for nothing');
    is(field('X-RateLimit-Remaining', '/near?k=others'), 100, 'here, too');

    $redis->forget_calls;
    statuses(('/both?k=others') x 100);
    cmp_ok($redis->calls('evalsha'), '<', FEW, 'without Redis');
}


# What is known of one limit is not all that a client has to wait for: here it
# is an hour by one limit, and most of a day by another one.

sub longer_wait {
    at_peace('/hour?h=peace');

    is(statuses('/long?h=1&d=1&c=10'), 200, 'both are used up, for a cost');
    whole_wait('/long?h=1&d=1&c=1', 'another cost');

    is(statuses('/day?d=2&c=10', '/long?h=2&d=3&c=1'), '200 200',
       'each beside another one');
    whole_wait('/long?h=2&d=2&c=1', 'both');

    is(statuses('/hour?h=4'), 200, 'one is used up');
    is(statuses('/long?h=4&d=4&c=1'), 429, 'the other one is not');
    $redis->forget_calls;
    statuses(('/long?h=4&d=4&c=1') x 100);
    cmp_ok($redis->calls('evalsha'), '<', FEW, 'which is asked once');
}


# until what is remembered is refused without Redis

sub at_peace {
    my ($uri) = @_;

    Gateway::await(sub {
        $redis->forget_calls;

        return statuses($uri) == 429 && $redis->calls('evalsha') == 0;
    }, 'a known refusal');
}


sub whole_wait {
    my ($uri, $name) = @_;
    my ($answer) = answers($uri);

    is($answer->{status}, 429, "$name: refused");
    cmp_ok($answer->{field}{'retry-after'}, '>', 2 * 3600, "$name: for the longer");
    like($answer->{body}, qr/"violated-policies":\["hour","day"\]/,
         "$name: by both");
}


# each refusal that is believed for a moment has an end of its own

sub several_ends {
    my $brief = Gateway->start(workers => 2, http => brief());
    my $via = Clients->new($brief->{port});
    my ($start, $told);

    for my $uri ('/day?d=ends&c=10', '/hour?h=ends') {
        is($via->ask("GET $uri")->{status}, 200, 'used up');
        sleep 0.4;
    }

    for ($start = time; time < $start + 4; sleep 0.05) {
        $told = $via->ask('GET /long?h=ends&d=ends&c=1');
        last if $told->{field}{'retry-after'} <= 2 * 3600;
    }

    cmp_ok($told->{field}{'retry-after'}, '>', 2 * 3600,
           'always the longer wait');
    is($brief->complaints, '', 'nothing to complain about');
}


sub brief {
    return $config =~ s/\}\s*\z//r
           . "location /late { ratelimit zone=day after_auth; }\n}\n";
}


# A refusal of shared memory is told with the wait for Redis, whenever that was
# asked, and whether or not what it said can still be believed.

sub beside_memory {
    my $brief = Gateway->start(workers => 2, http => brief());
    my $via = Clients->new($brief->{port});

    for my $round (1 .. 3) {
        my ($status, @short) = $via->ask("GET /mixed?k=$round&d=$round")->{status};

        for my $pause (0, 0.93, (0.04) x 20) {
            sleep $pause;

            my $answer = $via->ask("GET /mixed?k=$round&d=$round");

            push @short, $answer->{field}{'retry-after'}
                if $answer->{field}{'retry-after'} <= 2 * 3600;
        }

        is($status, 200, 'used up');
        is("@short", '', 'the longer wait each time');
        sleep 0.9;
    }

    is($brief->complaints, '', 'nothing to complain about');
}


# the one that lets in first does not let in what the other one refuses

sub several_rates {
    is(statuses(('/rates?k=r') x 4), '200 200 429 429', 'the short one');
    Gateway::await(sub { statuses('/rates?k=r') == 200 }, 'the next one')
        for 1 .. 2;
    is(statuses(('/rates?k=r') x 2), '429 429', 'then the long one');
    cmp_ok(field('Retry-After', '/rates?k=r'), '>', 1000, 'for long');

    # but for one question a second about the short one

    $redis->forget_calls;
    statuses(('/rates?k=r') x 50);
    cmp_ok($redis->calls('evalsha'), '<', FEW, 'without Redis');
}


# A client that logs in well is not locked out by doing so several times at
# once, but one that tries all passwords does not make Redis work.

sub given_back {
    my @other = (Clients->new($other->{port}), $clients);

    for my $via (@other) {
        my @all = map { $clients->send('GET /login?k=back') } 1 .. 3;
        my @errands = map { Clients::errand($backend) } 1 .. 3;

        is($via->ask('GET /login?k=back')->{status}, 429, 'three are under way')
            for 1 .. 3;
        Clients::reply($_, 200) for @errands;
        Clients::await_answers(3, @all);

        my $client = Gateway::await(sub { admitted($via, '/login?k=back') },
                                    'a refund');

        Clients::reply(Clients::errand($backend), 200);
        Clients::await_answers(1, $client);
        is($client->{answers}[0]{status}, 200, 'they are let in again');
    }

    my @all = map { $clients->send('GET /login?k=guess') } 1 .. 3;

    Clients::reply(Clients::errand($backend), 401) for @all;
    Clients::await_answers(3, @all);
    is(statuses('/login?k=guess'), 429, 'three were wrong');

    $redis->forget_calls;
    statuses(('/login?k=guess') x 200);
    cmp_ok($redis->calls('evalsha'), '<', FEW, 'the others cost nothing');
}


# a client whose request has come to the backend, unless it is refused

sub admitted {
    my ($via, $uri) = @_;

    my $client = $via->send("GET $uri");
    my @ready = IO::Select->new($backend, $client->{socket})
                          ->can_read(Gateway::PATIENCE);

    return (grep { $_ == $backend } @ready) && $client;
}


# Many at once that are refused late: the limit before is used up until it gets
# all of it back.  A key that it refuses meanwhile is not refused for a day.  In
# a gateway that has after_auth no refusal lasts, so this is one of its own.

sub for_a_moment {
    my $late = Gateway->start(workers => 2, http => late());
    my $clients = Clients->new($late->{port});
    my @all = map { $clients->send('GET /late?k=moment') } 1 .. 300;

    Clients::await_answers(300, @all);
    is(Clients::tally(map { $_->{answers}[0] } @all)->{200}, 1,
       'one is admitted');

    Gateway::await(sub {
        return $clients->ask('GET /early?k=moment')->{status} == 200;
    }, 'the limit that has enough left');
    pass('a limit that has enough left admits');
    is($late->complaints, '', 'nothing to complain about');
}


sub late {
    my $early = 'ratelimit zone=early;';
    my $http = <<'END' =~ s/REDIS/$redis->{port}/r;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;

ratelimit_zone $arg_k zone=early:1m rate=20r/d redis=main;
ratelimit_zone $arg_k zone=late:1m rate=1r/d redis=main;
END

    return $http . Gateway->server(
        '/early' => $early,
        '/late' => "$early ratelimit zone=late after_auth;",
    );
}


sub rejected {
    is(statuses(('/rejected?k=r') x 4), '200 200 200 429', 'used up');
    $redis->forget_calls;
    statuses(('/rejected?k=r') x 50);
    is($redis->calls('evalsha'), 50, 'each refusal counts, so Redis is asked');

    used_up('rejected');
    is(statuses(('/beside?k=rejected') x 5), '429 429 429 429 429',
       'refused by another one');
    is(field('X-RateLimit-Remaining', '/large?k=rejected'), 95, 'counts, too');
}


sub another_gateway {
    used_up('there');

    my $there = Clients->new($other->{port});

    $redis->forget_calls;
    is(join(' ', map { $_->{status} }
                 $there->series((['GET /main?k=there']) x 50)),
       join(' ', (429) x 50), 'refused there, too');
    cmp_ok($redis->calls('evalsha'), '>=', 1, 'because Redis says so');
    cmp_ok($redis->calls('evalsha'), '<', FEW, 'once');
}


# what is known is known; what is not is counted here

sub away {
    used_up('away');
    $redis->pause;
    is(statuses(('/main?k=away') x 3), '429 429 429', 'still refused');
    $redis->resume;
    is(field('X-Backend', '/main?k=back'), 'redis', 'well');
}


sub reloaded {
    used_up('reload');
    $gateway->reload(config('5r/d'));
    is(statuses(('/main?k=reload') x 3), '200 200 429',
       'a larger rate holds at once');
    $gateway->reload($config);
    is(statuses('/main?k=reload'), 429, 'and a smaller one');

    Gateway::await(sub { $gateway->settled }, 'old workers');
}


# a reload forgets what was remembered, and asks

sub removed {
    used_up('removed');
    is($redis->call('DEL', 'ratelimit:{2:removed}:main::86400w10'), 1, 'removed');
    is(statuses(('/main?k=removed') x 3), '429 429 429',
       'what was said is held for as long as it was said to');

    $gateway->reload($config);
    is(statuses(('/main?k=removed') x 4), '200 200 200 429',
       'but no longer than to a reload');
}
