#!/usr/bin/perl

# Write-back: three gateways of two workers each decide in their own memory and
# tell Redis later.  Together they admit as much as the limit says, and hardly
# more; Redis is asked rarely; and what it has counted in the end is what was
# admitted.  A fourth gateway, which asks Redis each time, tells what that is.

use strict;
use warnings;

use List::Util qw(sum0);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use Together;

use constant ROUNDS => 40;

# what the zone and the limit say, for 300 requests at once
my %algorithm = (
    fixed_window => ['algorithm=fixed_window rate=300r/366d'],
    sliding_window => ['rate=300r/1h'],
    sliding_window_1 => ['buckets=1 rate=300r/366d'],
    sliding_window_60 => ['buckets=60 rate=300r/1h'],
    sliding_log => ['algorithm=sliding_log rate=300r/1h'],
    token_bucket => ['algorithm=token_bucket capacity=300 rate=1r/d'],
    leaky_bucket => ['algorithm=leaky_bucket rate=1r/d', 'burst=299 nodelay'],
);

my $redis = RedisServer->start;
my @gateways = map { Gateway->start(workers => 2, http => config('sync=100ms')) }
               1 .. 3;
my $strict = Gateway->start(http => config(''));
my @clients = map { Clients->new($_->{port}) } @gateways;
my $look = Clients->new($strict->{port});

subtest 'two thousand of six thousand' => \&hot;

subtest 'the bound of the page' => \&bound;

for my $name (sort keys %algorithm) {
    subtest $name => sub { exact($name) };
}

subtest 'small limits' => \&small;
subtest 'an unseen key' => \&unseen;
subtest 'an exhausted key' => \&exhausted;
subtest 'costs' => \&costs;
subtest 'soft' => \&soft;
subtest 'two rates' => \&two_rates;
subtest 'plans' => \&plans;
subtest 'count' => \&count;
subtest "refunds, $_" => \&refunds, $_ for 'token_bucket', 'leaky_bucket';
subtest 'settle' => \&settle;
subtest 'rejected' => \&rejected;
subtest 'one in shared memory' => \&one_near;
subtest 'a strict one beside it' => \&one_strict;
subtest 'long keys' => \&long_keys;
subtest 'many keys' => \&many_keys;
subtest "expiries, by $_" => \&expiries, $_ for sort keys %algorithm;

for my $gateway (@gateways, $strict) {
    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/\[(?:error|warn)\] .*redis/, 'nor an error');
}

done_testing();


sub config {
    my ($sync) = @_;

    my $text = <<'END' =~ s/REDIS/$redis->{port}/r =~ s/SYNC/$sync/gr;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=10s connect_timeout=10s;
ratelimit_zone $http_x_key zone=hot:4m rate=2000r/1h redis=main SYNC;
ratelimit_zone $http_x_key zone=few:1m rate=10r/1h redis=main SYNC;
ratelimit_zone $http_x_key zone=soft:1m rate=100r/1h redis=main SYNC;
ratelimit_zone $http_x_key zone=two:1m rate=400r/2h rate=100r/1h redis=main SYNC;
ratelimit_zone $http_x_key zone=plan:1m rate=$plan redis=main SYNC;
ratelimit_zone $http_x_key zone=strict:1m rate=50r/1h redis=main;
ratelimit_zone $http_x_key zone=near:1m rate=50r/1h;
map $http_x_key $plan { default "100r/h"; ~gold "300r/h"; }
add_header X-Backend $ratelimit_backend always;
END
    my %location = (
        '/hot' => 'ratelimit zone=hot;',
        '/few' => 'ratelimit zone=few;',
        '/cost' => 'ratelimit zone=hot cost=$arg_c name=cost;',
        '/soft' => 'ratelimit zone=soft soft=50%;',
        '/two' => 'ratelimit zone=two;',
        '/plan' => 'ratelimit zone=plan;',
        '/count' => 'ratelimit zone=hot rate=50r/1h name=count count=405;',
        '/rejected' => 'ratelimit zone=hot rate=50r/1h name=rejected
                                  rejected=count;',
        '/settle' => 'ratelimit zone=hot name=settle cost=3 settle=$arg_s;',
        '/near' => 'ratelimit zone=near; ratelimit zone=hot name=near;',
        '/only' => 'ratelimit zone=near;',
        '/far' => 'ratelimit zone=few name=far; ratelimit zone=near;',
        '/strict' => 'ratelimit zone=strict; ratelimit zone=hot name=strict;',
    );

    for my $name (sort keys %algorithm) {
        my ($zone, $limit) = @{$algorithm{$name}};

        $text .= "ratelimit_zone \$http_x_key zone=$name:1m $zone redis=main "
                 . "$sync;\n";
        $location{"/$name"} = "ratelimit zone=$name " . ($limit || '') . ';';
    }

    # what Redis has counted

    for my $name (keys %location) {
        next if $name !~ /^\/\w+$/;

        my $zero = $location{$name} =~ s/\bcost=\$arg_c//gr
                                    =~ s/(ratelimit zone=\w+)/$1 cost=0/gr
                                    =~ s/(?:count|rejected|settle)=\S+\b//gr
                                    =~ s/cost=3//gr;

        $location{"/look$name"} = $zero if $sync eq '';
    }

    return $text . Gateway->server(%location);
}


# so many requests for each gateway, over a time, all gateways at once

sub load {
    my ($path, $key, $n, $seconds) = @_;

    my $begin = time;

    my @tallies = Together::run(undef, map { my $gateway = $_; sub {
        my @tallies;

        for my $round (1 .. ROUNDS) {
            push @tallies, $gateway->load(connections => 8,
                                          requests => [([$path, $key])
                                                       x ($n / ROUNDS)]);

            my $rest = $begin + $seconds * $round / ROUNDS - time;

            sleep $rest if $rest > 0;
        }

        return { keys => GatewayClient::add_up(@tallies),
                 hang => sum0(map { $_->{hang} } @tallies) };
    } } @gateways);

    is(sum0(map { $_->{hang} } @tallies), 0, 'no hang');

    return GatewayClient::add_up(@tallies)->{$key};
}


# what Redis has counted, as soon as that is so much

sub counted {
    my ($path, $key, $limit, $expected) = @_;

    my $used;

    eval {
        Gateway::await(sub {
            my $answer = $look->ask("GET /look$path", "X-Key: $key");

            $used = $limit - $answer->{field}{'x-ratelimit-remaining'};

            return $used == $expected;
        }, 'reports');
    };

    return $used;
}


# requests to the gateways in turn; how many were admitted, and the answers

sub in_turn {
    my ($path, $key, $n) = @_;

    my @answers = map { $clients[$_ % @clients]->ask("GET $path",
                                                     "X-Key: $key") } 1 .. $n;

    return (scalar(grep { $_->{status} == 200 } @answers), @answers);
}


# as the state of a sliding_window tells it: more than the limit can't be left

sub sum_of_counters {
    my ($name) = @_;

    my $state = $redis->call('GET', $name);
    my @counters = unpack 'x10 v*', $state;

    return sum0(@counters);
}


sub hot {
    $redis->forget_calls;

    my $count = load('/hot', 'hot', 2000, 2.5);
    my $commands = $redis->calls('evalsha') + $redis->calls('eval');

    is(sum0(@$count{qw(200 429)}), 6000, 'all are answered');
    cmp_ok($count->{200}, '>=', 2000, 'none under');
    cmp_ok($count->{200}, '<=', 2100, 'at most 5 % over');
    cmp_ok($commands, '<=', 600, 'at most 10 % of the requests are commands');
    note("$count->{200} of 2000, $commands commands");

    Gateway::await(sub {
        sum_of_counters('ratelimit:{2:hot}:hot::3600w10') == $count->{200}
    }, 'reports');
    pass('Redis has counted what was admitted');
}


# The worst that clients can do: two machines keep their leases while the third
# one uses the limit up, slowly, as the bound is for a rate, and then use them.

sub bound {
    my ($limit, $sync) = (2000, 0.4);
    my @slow = map { Gateway->start(http => config('sync=400ms')) } 1 .. 3;
    my ($first, @others) = map { Clients->new($_->{port}) } @slow;
    my $admitted = 0;
    my $send = sub {
        my ($n, @to) = @_;

        my @answers = map { $_->series((['GET /hot', 'X-Key: bound']) x $n) }
                      @to;
        my $passed = grep { $_->{status} == 200 } @answers;

        $admitted += $passed;

        return $passed;
    };

    my ($begin, $renewed) = (time, 0);

    do {
        if (time - $renewed > 0.8 * $sync) {
            $send->(1, @others);
            $renewed = time;
        }

        sleep 0.05;
    } while ($send->(50, $first));

    my $before = $admitted;

    $send->(200, @others);

    my $rate = $admitted / (time - $begin);
    my $h = 1 / 2 + 1 / 3 + 1 / 4;
    my $most = $h * ($rate * (2.5 * $sync + 0.05 + 2 * 0.01) / 4
                     + $limit / 40);

    cmp_ok($admitted, '>=', $limit, 'none under');
    cmp_ok($admitted, '<=', $limit + $most, 'no more over than the page says');
    note(sprintf '%d over, of which %d by leases; %d allowed',
         $admitted - $limit, $admitted - $before, $most);
    is($_->complaints, '', 'nothing to complain about') for @slow;
}


sub exact {
    my ($name) = @_;

    my $count = load("/$name", $name, 280, 0.5);

    is(sum0(@$count{qw(200 429)}), 3 * 280, 'all are answered');
    cmp_ok($count->{200}, '>=', 300, 'none under');
    cmp_ok($count->{200}, '<=', 315, 'at most 5 % over');
    is(counted("/$name", $name, 300, 300), 300, 'Redis knows that');
}


# there is next to nothing to lease

sub small {
    my ($n, @answers) = in_turn('/few', 'small', 25);

    is($n, 10, 'ten of ten');
    is($answers[0]{field}{'x-backend'}, 'sync', 'decided by write-back');
    is($answers[-1]{field}{'x-backend'}, 'sync', 'and so was the last');
    cmp_ok($answers[-1]{field}{'retry-after'}, '>', 3000, 'a true wait');
}


# what others have admitted is known at once

sub unseen {
    my @answers = map { $clients[0]->ask('GET /hot', 'X-Key: unseen') } 1 .. 70;

    is(counted('/hot', 'unseen', 2000, 70), 70, 'reported');

    for my $i (1, 2) {
        my $answer = $clients[$i]->ask('GET /hot', 'X-Key: unseen');

        is($answer->{field}{'x-ratelimit-remaining'}, 2000 - 70 - $i,
           'a gateway that has not seen the key');
    }

    is(scalar(grep { $_->{field}{'x-backend'} eq 'sync' } @answers), 70,
       'decided by write-back');
}


sub exhausted {
    in_turn('/few', 'exhausted', 16);
    $redis->forget_calls;

    my ($n) = in_turn('/few', 'exhausted', 90);

    is($n, 0, 'nothing is left');
    cmp_ok($redis->calls('evalsha'), '<=', 3, 'and Redis is not asked');
}


sub costs {
    my $n = () = grep { $_->{status} == 200 }
            map { $clients[$_ % 3]->ask('GET /cost?c=7', 'X-Key: seven') }
            1 .. 400;

    cmp_ok($n, '>=', 285, '285 x 7 of 2000');
    cmp_ok($n, '<=', 300, 'and not more');
    is($clients[0]->ask('GET /cost?c=0', 'X-Key: seven')->{status}, 200,
       'a look costs nothing');
    is(counted('/cost', 'eight', 2000, 0), 0, 'another key');
}


sub soft {
    my ($n, @answers) = in_turn('/soft', 'soft', 200);

    cmp_ok($n, '>=', 150, 'up to the ceiling');
    cmp_ok($n, '<=', 155, 'hardly more');
    is($answers[140]{field}{'x-ratelimit-remaining'}, 0, 'nothing is left');
}


sub two_rates {
    my ($n) = in_turn('/two', 'rates', 150);

    cmp_ok($n, '>=', 100, 'the tighter one');
    cmp_ok($n, '<=', 105, 'refuses');
    is(counted('/two', 'rates', 100, 100), 100, 'counted');

    my @keys = grep { /:two:.*(?:w10)$/ && /rates/ } $redis->keys;

    is(scalar @keys, 2, 'two counters');
}


sub plans {
    my ($n) = in_turn('/plan', 'iron', 130);

    cmp_ok($n, '>=', 100, 'a hundred');
    cmp_ok($n, '<=', 105, 'of one plan');

    ($n) = in_turn('/plan', 'gold', 350);

    cmp_ok($n, '>=', 300, 'three hundred');
    cmp_ok($n, '<=', 315, 'of another');
}


# what does not count is refunded, also after it was reported

sub count {
    my ($n) = in_turn('/count', 'good', 200);

    is($n, 200, 'what does not count is refunded');
    is(counted('/count', 'good', 50, 0), 0, 'in Redis, too');

    my @answers = map { $clients[$_ % 3]->ask('POST /count', 'X-Key: bad') }
                  1 .. 100;
    my $found = grep { $_->{status} == 405 } @answers;

    cmp_ok($found, '>=', 50, 'what counts is counted');
    cmp_ok($found, '<=', 53, 'and refused then');
}


# of two requests that are reported together the first one is refunded first

sub refunds {
    my ($name) = @_;

    my $backend = Clients::backend();
    my ($zone, $limit) = (@{$algorithm{$name}}, '');
    my $gateway = Gateway->start(http => <<"END" . Gateway->server(
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=10s;
ratelimit_zone \$http_x_key zone=held:1m $zone redis=main sync=500ms;
END
        '/' => "ratelimit zone=held count=401 $limit;
                proxy_pass http://127.0.0.1:${\ $backend->sockport};",
        '/api/' => 'ratelimit_api;'));
    my $here = Clients->new($gateway->{port});
    my @keys = map { "$name-$_" } 1 .. 5;
    my $send = sub {
        return map { [$here->send('GET /', "X-Key: $_"),
                      Clients::errand($backend)] } @keys;
    };
    my $end = sub {
        my (@pairs) = @_;

        Clients::reply($_->[1], 200) for @pairs;
        Clients::await_answers(scalar @pairs, map { $_->[0] } @pairs);
    };
    my $report = sub {
        Gateway::await(sub {
            return $here->ask('GET /api/redis')->{body}
                   =~ /"sync_pending": ?0\b/;
        }, 'reports');
    };

    $end->($send->());
    $report->();

    my @first = $send->();

    sleep 0.01;

    my @second = $send->();

    $report->();
    $end->(@first);
    $report->();
    $end->(@second);
    $report->();

    is(join(' ', grep { /{2:$name-\d}:held:[^m]*$/ } $redis->keys), '',
       'all is refunded');
    is($gateway->complaints, '', 'nothing to complain about');
}


# what a request has cost in the end counts, above what was reserved or below

sub settle {
    for my $each (7, 0, 3) {
        my $n = () = grep { $_->{status} == 200 }
                map { $clients[$_ % 3]->ask("GET /settle?s=$each",
                                            "X-Key: settle-$each") } 1 .. 30;

        is($n, 30, "$each for each");
        is(counted('/settle', "settle-$each", 2000, 30 * $each), 30 * $each,
           'is counted');
    }
}


sub rejected {
    my ($n) = in_turn('/rejected', 'rejected', 90);

    cmp_ok($n, '>=', 50, 'fifty');
    cmp_ok($n, '<=', 53, 'and not more');
    Gateway::await(sub {
        sum_of_counters('ratelimit:{2:rejected}:hot:rejected:3600w10') >= 80
    }, 'reports');
    pass('refused ones count');
}


# what one limit refuses costs the other nothing

sub one_near {
    my $n = () = grep { $_->{status} == 200 }
            map { $clients[0]->ask('GET /near', 'X-Key: near') } 1 .. 80;

    is($n, 50, 'that in shared memory refuses');
    Gateway::await(sub {
        sum_of_counters('ratelimit:{2:near}:hot:near:3600w10') == 50
    }, 'reports');
    pass('nothing else is counted in Redis');

    in_turn('/far', 'far', 40);
    is(counted('/far', 'far', 10, 10), 10, 'that of write-back refuses');

    my $left = $clients[0]->ask('GET /only', 'X-Key: far')->{field}
               {'x-ratelimit-remaining'};

    cmp_ok($left, '>=', 38, 'the other one has charged admitted ones alone');
}


sub one_strict {
    my ($n) = in_turn('/strict', 'strict', 80);

    is($n, 50, 'a limit that is decided by Redis itself refuses');
    Gateway::await(sub {
        sum_of_counters('ratelimit:{2:strict}:hot:strict:3600w10') == 50
    }, 'refunds');
    pass('what was charged for refused ones is refunded');
}


sub long_keys {
    my $key = 'k' x 3000;
    my ($n, @answers) = in_turn('/hot', $key, 60);

    is($n, 60, 'a key of 3000 bytes');
    is(counted('/hot', $key, 2000, 60), 60, 'is reported');
}


# each its own counter, reported by few commands

sub many_keys {
    my @requests = map { ['/hot', "many-$_"] } (1 .. 300) x 10;

    $redis->forget_calls;

    my @tallies = Together::run(undef, map { my $gateway = $_; sub {
        return $gateway->load(connections => 16, requests => [@requests]);
    } } @gateways);

    my $count = GatewayClient::add_up(@tallies);
    my $commands = $redis->calls('evalsha') + $redis->calls('eval');

    is(sum0(map { $_->{200} } values %$count), 9000, 'all are admitted');
    cmp_ok($commands, '<', 3000, 'Redis is asked for a few');
    note("$commands commands");

    for my $key (map { "many-$_" } 1, 150, 300) {
        is(counted('/hot', $key, 2000, 30), 30, $key);
    }
}


# whatever the keys in Redis are, each report sets when they expire

sub expiries {
    my ($name) = @_;

    in_turn("/$name", "$name-lasting", 3);

    my @keys = sort @{$redis->call('KEYS', "*$name-lasting*")};

    is(scalar @keys, 2, 'a counter and its record') or diag("@keys");

    # a request that is asked about writes both, too, and reports come until
    # there is nothing to be reported

    $redis->call('PERSIST', $_) for @keys;
    in_turn("/$name", "$name-lasting", 3);

    for my $key (@keys) {
        Gateway::await(sub { $redis->call('PTTL', $key) > 0 }, "$key expires");
        pass($key);
    }
}
