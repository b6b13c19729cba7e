#!/usr/bin/perl

# A key that one gateway resets: another one, which remembers its refusals,
# admits it within a second, and asks Redis next to nothing until then.  One that
# counts by itself and reports now and then admits it within that time and a
# second.

use strict;
use warnings;

use JSON::PP qw(decode_json);
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
ratelimit_zone \$arg_k zone=open:1m rate=2r/h redis=main fail=open;
ratelimit_zone \$arg_k zone=closed:1m rate=2r/h redis=main fail=closed;
ratelimit_zone \$arg_k zone=sync:1m rate=2r/h redis=main sync=500ms;
ratelimit_zone \$arg_k zone=plan:1m rate=\$plan redis=main;
ratelimit_zone \$arg_k zone=tokens:1m rate=\$plan redis=main
               algorithm=token_bucket;
map \$arg_k \$plan { default 2r/h; }

server {
    listen 127.0.0.1:PORT;

    location /far { ratelimit zone=far; empty_gif; }
    location /open { ratelimit zone=open; empty_gif; }
    location /closed { ratelimit zone=closed; empty_gif; }
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


# from then on no gateway can learn of a reset, nor reset a key: it is known that
# there was none if the gateway has refused the key until then

subtest 'Redis goes down' => sub {
    my $status;

    for my $round (1 .. 10) {
        my $uri = "/open?k=$round";

        $one->series((["GET $uri"]) x 2);
        Gateway::await(sub {
            $one->ask("GET $uri");
            $one->ask("GET $uri");
            figures()->{denied} > $round;
        }, 'a known refusal');
        down();
        $status = $one->ask("GET $uri")->{status};
        $redis->restart;
        Gateway::await(sub { figures()->{up} }, 'Redis');

        last if $status == 429;
    }

    is($status, 429, 'a known refusal holds');
};


subtest 'Redis goes down after a reset' => sub {
    my %reset = map { $_ => reset_key($_) } qw(open closed);

    Gateway::await(sub { time - $reset{closed} > SECOND }, 'a second');
    $one->series((['GET /far?k=b']) x 3);
    down();
    ends('open', $reset{open}, SECOND, 200);
    ends('closed', $reset{closed}, SECOND, 503);
    is($one->ask('GET /far?k=b')->{status}, 429, 'what is counted here, too');
    is($two->ask('DELETE /api/zones/open/keys/a')->{status}, 503, 'no reset');
};

# a failure before the reset does not make what was known then true

subtest 'Redis fails, a key is reset, and Redis goes down' => sub {
    $redis->restart;

    my $hasty = Gateway->start(http => $http =~ s/ timeout=5s/ timeout=300ms/r);
    my $client = Clients->new($hasty->{port});
    my $status = sub { $client->ask('GET /open?k=c')->{status} };

    $status->() for 1, 2;
    Gateway::await(sub { $status->() == 429 }, 'a refusal');
    $redis->pause;
    Gateway::await(sub { $status->() == 200 }, 'a failure');
    $redis->resume;
    Gateway::await(sub { $status->() == 429 }, 'a refusal');
    Gateway::await(sub {
        $two->ask('DELETE /api/zones/open/keys/c')->{status} == 204;
    }, 'a reset');

    my $reset = time;

    Gateway::await(sub { time - $reset > SECOND }, 'a second');
    down($client);
    is($status->(), 200, 'not refused');
    is($hasty->complaints, '', 'no complaints');
};

subtest 'Redis is back, and there are no requests' => sub {
    $redis->restart;

    ok(Gateway::await(sub {
        $one->ask('GET /api/metrics')->{body} =~ /_redis_up\{.*\} 1$/m;
    }, 'a server that is up'), 'looks find out');
};

is($_->complaints, '', 'no complaints') for @gateways;

done_testing();


sub resets {
    my ($zone, $within) = @_;

    ends($zone, reset_key($zone), $within, 200) for 1 .. 3;
}


sub down {
    my ($client) = (@_, $one);

    $redis->kill;

    Gateway::await(sub {
        $client->ask('GET /open?k=other');
        return !figures($client)->{up};
    }, 'a server that is marked down');
}


sub figures {
    my ($client) = (@_, $one);

    return decode_json($client->ask('GET /api/redis')->{body})->{redis}[0];
}


# by one gateway, of a key that the other one refuses; returns when

sub reset_key {
    my ($zone) = @_;

    Gateway::await(sub { $one->ask("GET /$zone?k=a")->{status} == 429 },
                   'a refusal');

    is($two->ask("DELETE /api/zones/$zone/keys/a")->{status}, 204, 'reset');

    return time;
}


# the refusal; each request whose time has come must be answered otherwise

sub ends {
    my ($zone, $reset, $within, $expected) = @_;

    my ($late, $status) = (0, 429);

    while ($status == 429 && !$late) {
        my $now = time;

        $status = $one->ask("GET /$zone?k=a")->{status};
        $late++ if $status == 429 && $now - $reset > $within;
    }

    is($status, $expected, "$zone: not refused after $within seconds");
}


# that Redis was sent for this

sub commands {
    my $sum = 0;
    my $stats = $redis->call('INFO', 'commandstats');

    $sum += $_ for $stats =~ /^cmdstat_(?:evalsha|get):calls=(\d+)/mg;

    return $sum;
}
