#!/usr/bin/perl

# A key that one gateway resets: another one, which remembers its refusals,
# admits it within a second, and asks Redis next to nothing until then.  One that
# counts by itself and reports now and then admits it within that time and a
# second.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

use constant SECOND => 1;
use constant SYNC => 0.5;
use constant OTHERS => 20;

my $redis = RedisServer->start;

my $http = <<"END";
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;
ratelimit_zone \$arg_k zone=far:1m rate=2r/h redis=main;
ratelimit_zone \$arg_k zone=sync:1m rate=2r/h redis=main sync=500ms;
ratelimit_zone \$arg_k zone=plan:1m rate=\$plan redis=main;
ratelimit_zone \$arg_k zone=tokens:1m rate=\$plan redis=main
               algorithm=token_bucket;
map \$arg_k \$plan { default 2r/h; }

server {
    listen 127.0.0.1:PORT;

    location /far { ratelimit zone=far; empty_gif; }
    location /sync { ratelimit zone=sync; empty_gif; }
    location /plan { ratelimit zone=plan; empty_gif; }
    location /tokens { ratelimit zone=tokens; empty_gif; }
    location /api/ { ratelimit_api write=on; }
}
END

my @gateways = map { Gateway->start(workers => 2, http => $http) } 1 .. 2;
my ($one, $two) = map { Clients->new($_->{port}) } @gateways;


subtest 'refusals are remembered' => sub {
    $one->series((['GET /far?k=a']) x 3);

    my $end = time + 1.5;
    my ($refused, $admitted) = (0, 0);
    my $before = commands();

    while (time < $end) {
        my ($answer) = $one->ask('GET /far?k=a');

        $answer->{status} == 429 ? $refused++ : $admitted++;
    }

    my $asked = commands() - $before;

    is($admitted, 0, 'none is admitted');
    cmp_ok($refused, '>=', OTHERS, "$refused refusals");
    cmp_ok($asked, '<=', OTHERS, "cost Redis $asked commands");
};


subtest 'another gateway resets the key' => sub {
    resets('far', SECOND);
};


subtest 'a gateway that has never met the rate resets the key' => sub {
    $one->series((['GET /plan?k=a']) x 2);
    like($two->ask('GET /api/zones/plan/keys/a')->{body},
         qr/"period":"h","used":2,/, 'it finds the counter');
    resets($_, SECOND) for qw(plan tokens);
};


subtest 'a gateway that counts by itself' => sub {
    resets('sync', SYNC + SECOND);
};


# its number of resets begins again, and must not become the one that is known

subtest 'Redis has lost its memory' => sub {
    for my $round (1 .. 2) {
        Gateway::await(sub { $one->ask('GET /far?k=a')->{status} == 429 },
                       'a refusal');
        sleep SECOND;
        is($one->ask('GET /far?k=a')->{status}, 429, 'remembered');

        $redis->call('FLUSHALL');
        is($two->ask('DELETE /api/zones/far/keys/a')->{status}, 204, 'reset');
        sleep SECOND;
        is_deeply([map { $_->{status} } $one->series((['GET /far?k=a']) x 3)],
                  [200, 200, 429], "round $round: its whole limit");
    }
};


subtest 'the gateway itself' => sub {
    is($one->ask('DELETE /api/zones/far/keys/a')->{status}, 204, 'reset');
    is($one->ask('GET /far?k=a')->{status}, 200, 'at once');
};


subtest 'Redis is down' => sub {
    $one->series((['GET /far?k=b']) x 4);
    is($one->ask('GET /far?k=b')->{status}, 429, 'refused');

    $redis->kill;

    my $end = time + 1.5;
    my $admitted = 0;

    while (time < $end) {
        $admitted++ if $one->ask('GET /far?k=b')->{status} == 200;
        sleep 0.05;
    }

    is($admitted, 0, 'a known refusal holds');
    is($two->ask('DELETE /api/zones/far/keys/b')->{status}, 503, 'no reset');
};

subtest 'Redis is back, and there are no requests' => sub {
    $redis->restart;

    ok(Gateway::await(sub {
        $one->ask('GET /api/metrics')->{body} =~ /_redis_up\{.*\} 1$/m;
    }, 'a server that is up'), 'looks find out');
};

is($_->complaints, '', 'no complaints') for @gateways;

done_testing();


# by one gateway, of a key that the other one refuses

sub resets {
    my ($zone, $within) = @_;

    for my $round (1 .. 3) {
        Gateway::await(sub { $one->ask("GET /$zone?k=a")->{status} == 429 },
                       'a refusal');

        is($two->ask("DELETE /api/zones/$zone/keys/a")->{status}, 204, 'reset');

        my $reset = time;
        my ($late, $status) = (0, 0);

        # each request whose time has come must be admitted

        while ($status != 200) {
            my $now = time;

            $status = $one->ask("GET /$zone?k=a")->{status};
            $late++ if $status == 429 && $now - $reset > $within;

            last if $late;
        }

        is($late, 0, "round $round: not refused after $within seconds");
    }
}


# that Redis was sent for this

sub commands {
    my $sum = 0;
    my $stats = $redis->call('INFO', 'commandstats');

    $sum += $_ for $stats =~ /^cmdstat_(?:evalsha|get):calls=(\d+)/mg;

    return $sum;
}
