#!/usr/bin/perl

# Keys in the API: where a key stands, without charging it; its reset, in shared
# memory and in Redis; keys of any bytes and addresses; and the keys that are
# refused most.

use strict;
use warnings;

use Encode ();
use JSON::PP qw(decode_json);
use List::Util qw(sum);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

my $redis = RedisServer->start;

my $http = <<"END";
large_client_header_buffers 4 256k;
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;

ratelimit_zone \$arg_k zone=shm:1m rate=5r/h rate=100r/d;
ratelimit_zone \$arg_k zone=far:1m rate=5r/h rate=100r/d redis=main;
ratelimit_zone \$arg_k zone=plan:1m rate=\$arg_plan;
ratelimit_zone \$arg_k zone=tokens:1m rate=\$arg_plan algorithm=token_bucket;
ratelimit_zone \$arg_k zone=log:1m rate=5r/h algorithm=sliding_log;
ratelimit_zone \$arg_k zone=fixed:1m rate=5r/366d algorithm=fixed_window;
ratelimit_zone \$arg_k zone=leaky:1m rate=1r/h algorithm=leaky_bucket;
ratelimit_zone \$ratelimit_client zone=client:1m rate=5r/h;
ratelimit_zone \$binary_remote_addr zone=address:1m rate=5r/h;
ratelimit_zone \$arg_k zone=mixed:1m rate=5r/h;
ratelimit_zone \$http_x_key zone=field:1m rate=1r/h top=4;
ratelimit_zone \$http_x_key "zone=a/b c:1m" rate=1r/h top=0;

set_real_ip_from 127.0.0.1;
real_ip_header X-Client;

server {
    listen 127.0.0.1:PORT;

    location /shm { ratelimit zone=shm; empty_gif; }
    location /login { ratelimit zone=shm name=login rate=2r/h; empty_gif; }
    location /far { ratelimit zone=far; empty_gif; }
    location /plan { ratelimit zone=plan; empty_gif; }
    location /tokens { ratelimit zone=tokens; empty_gif; }
    location /log { ratelimit zone=log; empty_gif; }
    location /fixed { ratelimit zone=fixed; empty_gif; }
    location /leaky { ratelimit zone=leaky burst=2 nodelay; empty_gif; }
    location /client { ratelimit zone=client; empty_gif; }
    location /address { ratelimit zone=address; empty_gif; }
    location /whole {
        ratelimit_ipv6_prefix 128;
        ratelimit zone=client name=whole rate=1r/h;
        empty_gif;
    }
    location /mixed/address {
        ratelimit zone=mixed key=\$binary_remote_addr name=mixed;
        empty_gif;
    }
    location /mixed/text { ratelimit zone=mixed name=mixed; empty_gif; }
    location /field { ratelimit zone=field; empty_gif; }
    location /odd { ratelimit "zone=a/b c"; empty_gif; }
    location /dry {
        ratelimit zone=field name=dry rate=1r/h;
        ratelimit_dry_run on;
        empty_gif;
    }

    location /api/ { ratelimit_api write=on; }
    location /read/ { ratelimit_api; }
    location /wide { ratelimit_api write=on; ratelimit_ipv6_prefix 48; }
}
END

my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});


subtest 'where a key stands' => sub {
    send_some('/shm?k=a', 2);

    my $key = peek('shm', 'a');

    is($key->{zone}, 'shm', 'zone');
    is($key->{key}, 'a', 'key');
    is_deeply([map { $_->{name} } @{$key->{limits}}], ['', 'login'], 'limits');
    is_deeply(figures($key->{limits}[0]),
              [['5r/h', 5, 3, 0], ['100r/d', 100, 98, 0]], 'figures');
    is_deeply(figures($key->{limits}[1]), [['2r/h', 2, 2, 0]],
              'those of the other limit');

    my $reset = $key->{limits}[0]{rates}[0]{reset};

    ok($reset > 3500 && $reset <= 3960, "reset $reset");
    is($key->{limits}[1]{rates}[0]{reset}, 0, 'nothing to reset');

    peek('shm', 'a') for 1 .. 20;
    is_deeply(figures(peek('shm', 'a')->{limits}[0]),
              [['5r/h', 5, 3, 0], ['100r/d', 100, 98, 0]], 'costs nothing');

    send_some('/shm?k=a', 4);

    $key = peek('shm', 'a');

    my ($hour, $day) = @{$key->{limits}[0]{rates}};

    is($hour->{remaining}, 0, 'nothing left');
    ok($hour->{retry_after} > 3000 && $hour->{retry_after} <= 3960,
       "retry after $hour->{retry_after}");
    is($day->{remaining}, 95, 'a refusal costs nothing');
    is($day->{retry_after}, 0, 'the other rate has some');

    is_deeply([map { $_->{name} } @{peek('shm', 'a', 'name=login')->{limits}}],
              ['login'], 'one of the limits');
    is_deeply([map { $_->{name} } @{peek('shm', 'a', 'name=')->{limits}}],
              [''], 'the own one of the zone');
};


subtest 'each algorithm' => sub {
    my %left = (log => 5, fixed => 5, leaky => 3);

    for my $zone (sort keys %left) {
        send_some("/$zone?k=a", 2);
        is(peek($zone, 'a')->{limits}[0]{rates}[0]{remaining},
           $left{$zone} - 2, "$zone: left");

        send_some("/$zone?k=a", 5);

        my ($rate) = @{peek($zone, 'a')->{limits}[0]{rates}};

        is($rate->{remaining}, 0, "$zone: nothing left");
        cmp_ok($rate->{retry_after}, '>', 0, "$zone: retry");

        delete_key($zone, 'a');
        is(peek($zone, 'a')->{limits}[0]{rates}[0]{remaining}, $left{$zone},
           "$zone: all left");
        is_deeply([send_some("/$zone?k=a", 1)], [200], "$zone: admitted");
    }
};


subtest 'reset' => sub {
    send_some('/login?k=a', 3);
    is_deeply([send_some('/shm?k=a', 1), send_some('/login?k=a', 1)],
              [429, 429], 'refused');

    delete_key('shm', 'a', 'name=login');
    is_deeply([send_some('/shm?k=a', 1), send_some('/login?k=a', 1)],
              [429, 200], 'the other limit is reset');

    delete_key('shm', 'a');
    is_deeply([send_some('/shm?k=a', 1), send_some('/login?k=a', 1)],
              [200, 200], 'both are');
    is_deeply(figures(peek('shm', 'a')->{limits}[0]),
              [['5r/h', 5, 4, 0], ['100r/d', 100, 99, 0]], 'all rates were');

    my ($line) = $gateway->log =~ /^(.*is reset by client.*)$/m;

    like($line, qr/ratelimit:\ a\ key\ of\ zone\ "\w+"\ is\ reset\ by
                   \ client\ 127\.0\.0\.1,\ hash\ of\ the\ key:
                   \ [0-9a-f]{16}$/x, 'it is logged');
    unlike($line, qr/keys/, 'without the key');

    is($clients->ask('DELETE /read/zones/shm/keys/a')->{status}, 405,
       'not without "write=on"');
};


# keys move to the new memory when they are seen

subtest 'in a zone of another size' => sub {
    my @zones = qw(shm log fixed);

    send_some("/$_?k=moved", 7) for @zones;
    $gateway->hup($http =~ s/(zone=(?:shm|log|fixed):)1m/${1}2m/gr);
    Gateway::await(sub { $gateway->settled }, 'old workers to exit');

    for my $zone (@zones) {
        Gateway::await(sub { get("/api/zones/$zone")->{size} == 2 << 20 },
                       "$zone: the new size");
        is(left($zone, 'moved'), 0, 'a key is found before it moves');
        delete_key($zone, 'moved');
        is(left($zone, 'moved'), 5, 'and reset');
        is_deeply([send_some("/$zone?k=moved", 6)], [(200) x 5, 429],
                  'it has its whole limit');
    }
};


subtest 'in Redis' => sub {
    send_some('/far?k=a', 3);
    is_deeply(figures(peek('far', 'a')->{limits}[0]),
              [['5r/h', 5, 2, 0], ['100r/d', 100, 97, 0]], 'figures');

    send_some('/far?k=a', 5);

    my ($rate) = @{peek('far', 'a')->{limits}[0]{rates}};

    is($rate->{remaining}, 0, 'nothing left');
    cmp_ok($rate->{retry_after}, '>', 3000, 'retry');

    delete_key('far', 'a');
    is_deeply(figures(peek('far', 'a')->{limits}[0]),
              [['5r/h', 5, 5, 0], ['100r/d', 100, 100, 0]], 'all left');
    is_deeply([send_some('/far?k=a', 6)], [(200) x 5, 429],
              'admitted, the deny cache has forgotten it');

    # what this machine counts for Redis is reset as well

    delete_key('far', 'a');
    send_some('/far?k=a', 1);
    $redis->kill;

    is($clients->ask('GET /api/zones/far/keys/a')->{status}, 503,
       'no answer: 503');
    is($clients->ask('DELETE /api/zones/far/keys/a')->{status}, 503,
       'no reset: 503');
    is($clients->ask('GET /api/zones/shm/keys/a')->{status}, 200,
       'other zones answer');
    is_deeply([send_some('/far?k=a', 1)], [200], 'without Redis');

    $redis->restart;
};


subtest 'rates that vary' => sub {
    send_some('/plan?k=a&plan=10r/h%2020r/d', 1);
    send_some('/plan?k=b&plan=7r/2h', 1);

    # a "$arg_" is not decoded

    is_deeply(peek('plan', 'a')->{limits}[0]{rates}, [], 'no such counters');

    send_some('/plan?k=a&plan=10r/h', 3);
    send_some('/tokens?k=a&plan=10r/h', 3);

    my ($met) = @{peek('plan', 'a')->{limits}[0]{rates}};

    is($met->{period}, 'h', 'a period that it has a counter for');
    is($met->{used}, 3, 'used');
    cmp_ok($met->{reset}, '>', 3000, 'reset');

    is_deeply(figures(peek('plan', 'a', 'rate=50r/h%20100r/d')->{limits}[0]),
              [['50r/h', 50, 47, 0], ['100r/d', 100, 100, 0]], 'a plan');
    is_deeply(figures(peek('tokens', 'a')->{limits}[0]), [['10r/h', 10, 7, 0]],
              'tokens have rates');

    delete_key('plan', 'a');
    is_deeply(peek('plan', 'a')->{limits}[0]{rates}, [], 'reset');
    is(scalar @{peek('plan', 'b')->{limits}[0]{rates}}, 1,
       'but not the other key');

    my $bad = $clients->ask('GET /api/zones/plan/keys/a?rate=50r');

    is($bad->{status}, 400, 'a bad rate');
    is(decode_json($bad->{body})->{error}, 'must be NUMBERr/PERIOD', 'why');
};


subtest 'addresses' => sub {
    for my $zone (qw(client address)) {
        send_some("/$zone", 2, 'X-Client: 192.0.2.7');
        send_some("/$zone", 3, 'X-Client: 2001:db8:1:2:3:4:5:6');

        is(left($zone, '192.0.2.7'), 3, "$zone: IPv4");
        is(left($zone, '192.0.2.7/32'), 3, "$zone: the same");
        is(left($zone, '2001:DB8:1:2:3:4:5:6'), 2, "$zone: IPv6");
        is($clients->ask("GET /api/zones/$zone/keys/$_")->{status}, 400, $_)
            for qw(192.0.2 192.0.2. 192..2.7 127.0.00.1 ... 192.0.2.0/24
                   192.0.2.300 x 1:2 ::/129 ::/x %00);
    }

    is(left('client', '2001:db8:1:2::'), 2, 'any address of the network');
    is(left('client', '2001:db8:1:2:9::1%2F64'), 2, 'as a prefix');
    is(left('client', '2001:db8:1:3::'), 5, 'another network');
    is(left('client', '::ffff:192.0.2.7'), 3, 'a mapped address');
    is(left('address', '2001:db8:1:2::'), 5, 'a whole address is meant');

    my $wide = get("/wide/zones/client/keys/2001:db8:1:2:3::");

    is($wide->{limits}[0]{rates}[0]{remaining}, 5,
       'cut as the location has it');

    send_some('/client', 9, 'X-Client: 192.0.2.7');
    send_some('/client', 9, 'X-Client: 2001:db8:1:2:3:4:5:6');

    is_deeply([sort map { $_->{key} } @{get('/api/zones/client/top')->{top}}],
              ['192.0.2.7', '2001:db8:1:2::'], 'as people write them');

    delete_key('client', '2001:db8:1:2::77');
    is(left('client', '2001:db8:1:2::'), 5, 'reset');
};


subtest 'zones that can have a key' => sub {
    my $zones = sub {
        my ($key) = @_;

        return join ' ', map { $_->{zone} }
                         @{get("/api/zones?key=$key")->{zones}};
    };
    my $text = 'shm far plan tokens log fixed leaky mixed field a/b c';

    is($zones->('192.0.2.7'), $text =~ s/leaky/leaky client address/r,
       'an address: all');
    is($zones->('2001:db8::/48'), $text =~ s/leaky/leaky client/r, 'a prefix');
    is($zones->('a%00%2Fb'), $text, 'text: not those of addresses');
    is($zones->(''), $zones->('192.0.2.7'), 'no key: all');
    is($clients->ask('GET /api/zones?key=%zz')->{status}, 400, 'malformed');
};


subtest 'addresses of several kinds' => sub {
    my $top = sub {
        my ($zone, $name) = @_;

        return map { $_->{key} } grep { $_->{name} eq $name }
                                 @{get("/api/zones/$zone/top")->{top}};
    };

    send_some('/whole', 2, 'X-Client: 2001:db8:5::1');

    my ($whole) = $top->('client', 'whole');

    is($whole, '2001:db8:5::1/128', 'one that the location would cut');
    is(peek('client', $whole, 'name=whole')->{limits}[0]{rates}[0]{remaining},
       0, 'is found as it is shown');

    send_some('/mixed/address', 6, 'X-Client: 192.0.2.7');
    send_some('/mixed/text?k=user', 7);
    is(left('mixed', '192.0.2.7'), 0, 'an address among other keys');
    is(left('mixed', 'user'), 0, 'and one of these');

    for my $key ($top->('mixed', 'mixed')) {
        my $path = '?key=' . encode($key =~ s/%(..)/chr hex $1/ger);

        is(left('mixed', $path), 0, "$path is found");
        delete_key('mixed', $path);
    }

    is_deeply([map { left('mixed', $_) } qw(192.0.2.7 user)], [5, 5],
              'both are reset');
};


subtest 'keys of any bytes' => sub {
    my @keys = (
        'a/b', 'a//b', '..', '.', './../x', '/', '//', 'a b', 'a+b', 'a?b#c',
        'a%b', '%41', '%E9', "\xe9", '5%', '%zz%4', '"', '\\', "\x7f",
        "\xc3\xa4", "\xff", "\xff/\x80",
        "\xed\xa0\x80", "\xf0\x9f\x98\x80", 'keys/x', 'zones', '&name=x',
        'x' x 129, 'y' x 60_000, "\t", '<script>alert(1)</script>',
    );

    my %keys;

    for my $key (@keys) {
        my $path = join '', map { sprintf '%%%02X', ord } split //, $key;
        my $shown = length $key > 40 ? length($key) . ' bytes'
                                     : $key =~ s/[^ -~]/?/gr;

        send_some('/field', 1, "X-Key: $key");
        is(left('field', $path), 0, "$shown: found");

        my $answer = $clients->ask("GET /api/zones/field/keys/$path");
        my $json = eval { JSON::PP->new->utf8->decode($answer->{body}) };
        my $bytes = $key;
        my $text = eval { Encode::decode('UTF-8', $bytes, Encode::FB_CROAK) };

        $text = encode($key) if !defined $text || $key =~ /%[0-9a-f]{2}/i;

        is($json->{key}, $text, "$shown: shown");
        ok(!$keys{$json->{key}}++, "$shown: as no other one");

        delete_key('field', $path);
        is(left('field', $path), 1, "$shown: reset");
    }

    # as a client may write it itself

    send_some('/field', 1, 'X-Key: p/q//r');
    is(left('field', 'p/q//r'), 0, 'slashes as they are');
    is(left('field', 'p/q/r'), 1, 'and each counts');
    is(get('/api/zones/field/keys?key=p%2Fq//r')
           ->{limits}[0]{rates}[0]{remaining}, 0, 'as an argument');

    is($clients->ask("GET /api/zones/field/keys/$_")->{status}, 400,
       "\"$_\" is no key") for '', '?key=', '?key=%', '?key=%0', '?key=%0x';
};


subtest 'paths that are not what they seem' => sub {
    my $requests = sub { sum(values %{get('/api/zones/field')->{requests}}) };

    send_some('/field', 2, 'X-Key: refused');

    my $before = $requests->();

    cmp_ok($before, '>', 0, 'there are statistics');

    # none of these means the statistics of the zone

    for my $path ('/api/zones/field/keys/..', '/api/zones/field/keys/%2e%2e',
                  '/api/zones/field/keys/a/../..',
                  '/api/zones/x/../field', '/api//zones/field',
                  '/api/zones/shm/keys/../../field',
                  '/%61pi/zones/field/keys/..', '/x/..%2Fapi/zones/field')
    {
        my $status = $clients->ask("DELETE $path")->{status};

        ok($status == 204 || $status == 400, "$path: $status");
        is($requests->(), $before, 'they stay');
    }

    cmp_ok(scalar @{get('/api/zones/field/top')->{top}}, '>', 0, 'a list');
    is($clients->ask('DELETE /api/zones/field')->{status}, 204, 'this does');
    is($requests->(), 0, 'they begin again');
    is_deeply(get('/api/zones/field/top')->{top}, [], 'so does the list');

    send_some('/field', 3, 'X-Key: again');
    is($requests->(), 3, 'and count');
    is($clients->ask('DELETE /read/zones/field')->{status}, 405,
       'not without "write=on"');

    is(get('/api/zones/a%2Fb%20c')->{zone}, 'a/b c', 'a zone with a slash');
    send_some('/odd', 1, 'X-Key: a/b');
    is(get('/api/zones/a%2Fb%20c/keys/a%2Fb')
           ->{limits}[0]{rates}[0]{remaining}, 0, 'and its keys');
    is_deeply(get('/api/zones/a%2Fb%20c/top')->{top}, [], 'top=0');
};


subtest 'a location that is percent-encoded' => sub {
    for my $api ('/%61pi/', '/ap%69%2f', '/wide/', '/w%69de%2F') {
        send_some('/shm?k=coded', 2);
        is(get("${api}zones/shm/keys/coded")->{limits}[0]{rates}[0]{remaining},
           3, "$api: a key is found");
        is_deeply([map { $clients->ask("DELETE ${api}zones/shm$_")->{status} }
                   '/keys/coded', '/', ''], [204, 204, 204],
                  'and reset, and statistics');
        is(left('shm', 'coded'), 5, 'it has its whole limit');
    }

    is($clients->ask('DELETE /%72ead%2Fzones/shm')->{status}, 405,
       'not without "write=on"');
};


subtest 'refused most' => sub {
    my %refused = (first => 40, second => 20, third => 5);

    for my $key (sort keys %refused) {
        send_some('/field', 1 + $refused{$key}, "X-Key: $key");
    }

    send_some('/dry', 31, 'X-Key: dry');
    send_some('/field', 1, 'X-Key: never');

    my @top = @{get('/api/zones/field/top')->{top}};

    is(scalar @top, 4, 'as many as top= says');
    is_deeply([map { [@$_{qw(key name)}] } @top[0 .. 2]],
              [['first', ''], ['dry', 'dry'], ['second', '']],
              'most first, dry runs as well');

    for my $entry (@top[0 .. 2]) {
        my $true = $refused{$entry->{key}} // 30;

        cmp_ok($entry->{refused}, '>=', $true, "$entry->{key}: no less");
        cmp_ok($entry->{refused} - $entry->{error}, '<=', $true,
               "$entry->{key}: no more, but for the error");
    }

    my $long = 'z' x 200;

    send_some('/field', 100, "X-Key: $long");

    my ($first) = @{get('/api/zones/field/top')->{top}};

    is($first->{key}, 'z' x 128, 'a long key is cut');
    ok($first->{cut}, 'and says so');

    $gateway->reload($http);
    is(get('/api/zones/field/top')->{top}[0]{key}, 'z' x 128,
       'remembered over a reload');

    send_some('/field', 300, 'X-Key: z' . "\xc3\xa4" x 100);
    is(get('/api/zones/field/top')->{top}[0]{key}, 'z' . "\xe4" x 63,
       'not in the midst of a character');
};

is($gateway->complaints, '', 'no complaints');

done_testing();


sub send_some {
    my ($path, $n, @fields) = @_;

    return map { $_->{status} }
           $clients->series((["GET $path", @fields]) x $n);
}


sub get {
    my ($path) = @_;

    my $answer = $clients->ask("GET $path");

    is($answer->{status}, 200, length $path > 70 ? 'status' : $path)
        or diag($answer->{body});

    return eval { decode_json($answer->{body}) } || {};
}


sub peek {
    my ($zone, $key, $args) = @_;

    return get("/api/zones/$zone/keys/$key" . ($args ? "?$args" : ''));
}


sub left {
    my ($zone, $key) = @_;

    return peek($zone, $key)->{limits}[0]{rates}[0]{remaining};
}


sub delete_key {
    my ($zone, $key, $args) = @_;

    my $answer = $clients->ask("DELETE /api/zones/$zone/keys/$key"
                               . ($args ? "?$args" : ''));

    is($answer->{status}, 204, 'reset');
    is($answer->{body}, '', 'no body');
}


# rate, limit, remaining, retry_after of each rate

sub figures {
    my ($limit) = @_;

    return [map { [@$_{qw(rate limit remaining retry_after)}] }
            @{$limit->{rates}}];
}


# what is no text, or looks like this

sub encode {
    my ($bytes) = @_;

    return join '', map { /[-\w.~]/a ? $_ : sprintf '%%%02X', ord }
                    split //, $bytes;
}
