#!/usr/bin/perl

# The API as programs read it: each resource, and the numbers in it, against
# what was sent.

use strict;
use warnings;

use JSON::PP qw(decode_json);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;

my $http = <<'END';
ratelimit_zone $http_x_key zone=ip:1m rate=5r/h rate=100r/d;
ratelimit_zone $http_x_key zone=plan:1m rate=$arg_plan algorithm=token_bucket;

server {
    listen 127.0.0.1:PORT;

    location /ip {
        ratelimit zone=ip;
        empty_gif;
    }

    location /both {
        ratelimit zone=plan;
        ratelimit zone=ip rate=2r/h "name=log\"in";
        empty_gif;
    }

    location /api {
        ratelimit_api;

        if ($arg_if) {
            set $unused 1;
        }
    }
}
END

my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});

$clients->series((['GET /ip', 'X-Key: a']) x 7);
$clients->series((['GET /both?plan=3r/d', 'X-Key: a']) x 4);


subtest 'the root' => sub {
    my $all = get('/api/');

    is_deeply([map { $_->{zone} } @{$all->{zones}}], [qw(ip plan)], 'zones');
    is_deeply($all->{redis}, [], 'no Redis');
    like($all->{version}, qr/^\d+\.\d+\.\d+$/, 'version');
    is_deeply(get('/api'), $all, 'with or without a slash');
    is_deeply(get('/api?if=1'), $all, 'by a condition of the location');
    is_deeply(get('/api/zones')->{zones}, $all->{zones}, '/zones');
    is_deeply(get('/api/zones/ip'), $all->{zones}[0], '/zones/ZONE');
    is_deeply(get('/api/redis'), { redis => [] }, '/redis');
};


subtest 'requests by status' => sub {
    my $zone = get('/api/zones/ip');
    my ($own, $login) = @{$zone->{limits}};

    is($own->{name}, '', 'the own limit of the zone');
    is_deeply($own->{rates}, ['5r/h', '100r/d'], 'its rates');
    is_deeply(some($own), { passed => 5, rejected => 2 }, 'its requests');

    is($login->{name}, 'log"in', 'a limit with a name');
    is_deeply($login->{rates}, ['2r/h'], 'its rates');
    is_deeply(some($login), { passed => 2, rejected => 2 }, 'its requests');

    is_deeply(some($zone), { passed => 7, rejected => 4 }, 'those of the zone');
    is(keys %{$zone->{requests}}, 10, 'all statuses are there');
    is($zone->{delayed_seconds}, 0, 'no delay');
    is($zone->{size}, 1 << 20, 'size');
    is($zone->{entries}, 3, 'entries: one for each rate and key');
    is($zone->{evictions}, 0, 'no evictions');
    ok($zone->{bytes_used} > 3 * 40 && $zone->{bytes_used} < 1 << 17,
       "bytes in use: $zone->{bytes_used}");
    is($zone->{algorithm}, 'sliding_window', 'algorithm');
    is($zone->{backend}, 'shm', 'backend');

    my ($plan) = @{get('/api/zones/plan')->{limits}};

    is_deeply($plan->{rates}, ['$arg_plan'], 'a rate that varies');
    is_deeply(some($plan), { passed => 4 }, 'what another one refuses');
};


subtest 'what is not there' => sub {
    my $answer = $clients->ask('GET /api/zones/nix');

    is($answer->{status}, 404, 'a zone');
    is_deeply(decode_json($answer->{body}),
              { error => 'there is no such zone', zones => [qw(ip plan)] },
              'zones that are');

    is($clients->ask("GET /api$_")->{status}, 404, $_)
        for qw(zones x /x /zones/ip/x /redis/x);

    for my $method (qw(POST PUT DELETE PATCH)) {
        my $answer = $clients->ask("$method /api/zones");

        is($answer->{status}, 405, $method);
        is($answer->{field}{allow}, 'GET, HEAD, OPTIONS', 'what is');
    }

    my $options = $clients->ask('OPTIONS /api/');

    is($options->{status}, 204, 'OPTIONS');
    is($options->{field}{allow}, 'GET, HEAD, OPTIONS', 'methods');
};


# there are no versions that a condition could be about

for my $condition ('If-None-Match: *', 'If-Match: "x"') {
    is($clients->ask('GET /api/zones', $condition)->{status}, 200, $condition);
}

is($gateway->complaints, '', 'no complaints');

done_testing();


sub get {
    my ($path) = @_;

    my $answer = $clients->ask("GET $path");

    is($answer->{status}, 200, $path);
    is($answer->{field}{'content-type'}, 'application/json', 'type');
    is($answer->{field}{'cache-control'}, 'no-store', 'is not cached');

    return decode_json($answer->{body});
}


# the statuses that are not 0

sub some {
    my ($figures) = @_;

    my %requests = %{$figures->{requests}};

    return { map { $_ => $requests{$_} } grep { $requests{$_} }
             keys %requests };
}
