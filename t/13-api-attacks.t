#!/usr/bin/perl

# Attacks on the API: methods, bodies, paths and keys that make no sense, a
# Redis that does not answer, workers that are killed and reloads, all of it
# under load.  Each request has its answer, no worker crashes or keeps memory,
# and the numbers stay those of what was sent.

use strict;
use warnings;

use IO::Socket::INET;
use JSON::PP ();
use List::Util qw(sum);
use Test::More;
use Time::HiRes qw(time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

use constant KEYS => 8;
use constant LOAD => 6000;
use constant FUZZ => 400;
use constant TIMEOUT => 1;      # seconds, of the Redis that does not answer
use constant SLACK => 10;       # for a machine that has other things to do

# a sanitizer must not keep what workers free, as their memory is measured

$ENV{ASAN_OPTIONS}
    .= ':quarantine_size_mb=0:thread_local_quarantine_size_kb=0'
    if $ENV{ASAN_OPTIONS};

my $seed = $ENV{SEED} || time ^ $$;

srand $seed;
note("SEED=$seed");

my $redis = RedisServer->start;

# takes connections, and never answers

my $mute = Clients::backend();

my $http = http('2m');
my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});

my @RESOURCES = qw(/api /api/ /api/zones /api/zones/ /api/zones/shm
                   /api/zones/shm/ /api/zones/shm/top /api/zones/shm/keys/a
                   /api/zones/shm/keys?key=a /api/zones/far/keys/a
                   /api/zones/plan/keys/a?rate=1r/s /api/zones/client/keys/::1
                   /api/redis /api/metrics /read/zones/shm/keys/a
                   /read/zones/shm);

my @METHODS = qw(GET HEAD OPTIONS DELETE POST PUT PATCH TRACE CONNECT PROPFIND
                 MKCOL LOCK get FOO A_B);

my @BODIES = (
    '', "Content-Length: 5\r\n\r\nhello", "Content-Length: 5\r\n\r\nhello" x 2,
    "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\nnonsense\r\n\r\n",
    "Content-Length: 70000\r\n\r\n" . 'x' x 70_000,
    "Content-Length: -1\r\n\r\n", "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    "Accept: \xff;q=9,,;text/html\r\n\r\n", "Range: bytes=0-3\r\n\r\n",
    "If-None-Match: *\r\nIf-Modified-Since: nonsense\r\n\r\n",
);

my @PATHS = (
    '/api/%', '/api/%0', '/api/%zz', '/api/zones/%', '/api/zones/%00',
    '/api/zones/shm%00', '/api/zones/shm/keys', '/api/zones/shm/keys/',
    '/api/zones/shm/keys/%', '/api/zones/shm/keys/%0g', '/api/zones//keys/a',
    '/api/zones/shm/keys/%00', '/api/zones/shm/keys?key=%00',
    '/api/zones/shm/keys?key=', '/api/zones/shm/keys?name=x&name=y',
    '/api/zones/shm/keys/a?name=nix', '/api/zones/shm/keys/a?name=%',
    '/api/zones/shm/keys/a?rate=1r/s', '/api/zones/plan/keys/a?rate=',
    '/api/zones/plan/keys/a?rate=' . '1r/s%20' x 100,
    '/api/zones/plan/keys/a?rate=99999999999999999999r/s',
    '/api/zones/plan/keys/a?rate=1r/99999999999d',
    '/api/zones?key=%', '/api/zones?key=%00', '/api/zones?key=' . ':' x 1000,
    '/api/zones/client/keys/', '/api/zones/client/keys/1.2.3',
    '/api/zones/client/keys/127.0.0.1/33', '/api/zones/client/keys/::/-1',
    '/api/zones/client/keys/' . ':' x 1000, '/api/../api/zones/../zones/shm',
    '/api/zones/shm/../../zones/shm/top', '/api/zones/shm/keys/../../..',
    '/api//////zones', '/api/zones/' . 'z' x 5000, '/api?' . 'q=' x 5000,
    '/api/zones/shm/top/keys/a', '/api/zones/shm/keys/%c0%80',
    '/api/zones/shm/keys/a#b', '/api/metrics/x', '/api/redis/main', '/apix',
    "/api/zones/\xff", "/api/zones/shm/keys/\xff\xfe", '/api/zones/SHM',
);


subtest 'methods and bodies' => sub {
    my @wrong;

    for my $path (@RESOURCES) {
        for my $method (@METHODS) {
            push @wrong, nonsense("$method $path", "\r\n");
        }

        for my $body (@BODIES) {
            push @wrong, nonsense("$_ $path", $body || "\r\n")
                for qw(GET DELETE POST);
        }
    }

    is_deeply(\@wrong, [], 'each has its answer');
    alive();
};


subtest 'paths' => sub {
    my @wrong = map { nonsense("GET $_", "\r\n"), nonsense("DELETE $_", "\r\n") }
                @PATHS;

    is_deeply(\@wrong, [], 'each has its answer');

    @wrong = map { nonsense(mutant(), "\r\n") } 1 .. FUZZ;
    is_deeply(\@wrong, [], FUZZ . ' random ones, too');
    alive();
};


subtest 'keys of any length' => sub {
    for my $size (0 .. 3, 127, 128, 129, 1023, 4096, 21_845, 65_535, 65_536) {
        for my $kind ('bytes', 'text') {
            my $key = join '', map { chr($kind eq 'bytes' ? rand 256
                                                          : 97 + rand 26) }
                               1 .. $size;
            my $path = join '', map { sprintf '%%%02x', ord } split //, $key;

            for my $zone (qw(shm far)) {
                my $peek = $clients->ask("GET /api/zones/$zone/keys?key=$path");
                my $reset =
                    $clients->ask("DELETE /api/zones/$zone/keys?key=$path");

                is_deeply([$peek->{status}, $reset->{status}],
                          $size ? [200, 204] : [400, 400],
                          "$zone: $size bytes, $kind");

                next if !$size;

                my $shown = json($peek->{body});

                is(decoded($shown->{key}, $key), $key, 'the key is shown');
                is($shown->{limits}[0]{rates}[0]{remaining}, 5, 'its limit');
            }
        }
    }

    # the same as a key of requests, which is then in the list

    my $key = 'k' x 65_000;

    $clients->series((['GET /field', "X-Key: $key"]) x 8);

    my $top = json($clients->ask('GET /api/zones/field/top')->{body});

    is_deeply($top->{top}, [{ key => substr($key, 0, 128), cut => JSON::PP::true,
                              name => '', refused => 3, error => 0 }],
              'a long key that is refused');
    alive();
};


subtest 'parts of a page' => sub {
    my ($head, $body) = split /\r\n\r\n/, exchange('GET /page', "\r\n"), 2;
    my $page = '';

    like($head, qr/^Transfer-Encoding: chunked\r$/mi, 'in chunks');
    $page .= substr $body, 0, hex $1, ''
        while $body =~ s/\A(?:\r\n)?([1-9a-f][0-9a-f]*)\r\n//;

    is($body, "\r\n0\r\n\r\n", 'one of them is the last');
    like($page, qr/^1\{"zone":"far".*2\{"zone":"shm".*3\{"error".*
                   4\#\ HELP.*5$/xs, 'all parts are there');
    alive();
};


subtest 'Redis does not answer' => sub {
    my $began = time;
    my @waiting = map { $clients->send("$_ /api/zones/mute/keys/a") }
                  ('GET', 'DELETE', 'HEAD') x 10;
    my @left = map { $clients->send('GET /api/zones/mute/keys/b') } 1 .. 10;

    Clients::leave($_) for @left;

    # others are served meanwhile

    is($clients->ask("GET $_")->{status}, 200, $_)
        for '/api/zones', '/api/zones/shm/keys/a', '/api/zones/far/keys/a',
            '/api/redis', '/api/metrics';

    # a HEAD has no body, whatever its length is said to be

    my @heads = @waiting[map { 3 * $_ + 2 } 0 .. 9];
    my @others = @waiting[map { (3 * $_, 3 * $_ + 1) } 0 .. 9];

    Clients::await_answers(scalar @others, @others);

    my @answers = map { $_->{answers}[0] } @others;

    is_deeply(Clients::tally(@answers), { 503 => 20 }, 'all have a 503');
    cmp_ok((sort { $b <=> $a } map { $_->{at} - $began } @answers)[0], '<',
           TIMEOUT + SLACK, 'in time');
    ok(json($answers[0]{body})->{error}, 'and a reason');

    Clients::leave($_) for @heads;
    alive();
};


subtest 'no memory is kept' => sub {
    my $round = sub {
        nonsense($_->[0], $_->[1]) for map { ["GET $_", "\r\n"] } @PATHS,
                                           @RESOURCES;

        for my $zone (qw(shm far client plan)) {
            $clients->series((["GET /api/zones/$zone/keys/192.0.2.1"],
                              ["DELETE /api/zones/$zone/keys/192.0.2.1"]) x 25);
        }

        $clients->series((['GET /api/zones/shm/keys/' . 'k' x 60_000]) x 20);
        $clients->series((['GET /api/'], ['GET /api/metrics']) x 50);
    };

    # at first each worker takes what such requests need

    my ($blocks, $before, $after) = (0, 0, memory());

    while ($after != $before && $blocks++ < 10) {
        $round->() for 1 .. 4;
        ($before, $after) = ($after, memory());
    }

    is($after, $before, "no more after $blocks times");
};


subtest 'under load, with reloads and killed workers' => sub {
    $clients->ask("DELETE /api/zones/$_") for qw(shm far);

    my ($kills, $reloads, $asked, @wrong) = (0, 0, 0);

    my $tally = $gateway->load(
        connections => 16,
        requests => [map { [$_ % 4 ? '/load' : '/redis', 'key ' . $_ % KEYS] }
                     1 .. LOAD],
        tick => sub {
            my ($answers) = @_;

            if ($answers > 10 * $asked) {
                $asked++;
                push @wrong, nonsense(mutant(), "\r\n", 1);
            }

            if ($answers > 1000 + 400 * $kills && $kills < 8) {
                my @workers = $gateway->current_workers or return;

                $kills += kill 'KILL', $workers[rand @workers];
            }

            if ($answers > 1200 + 1000 * $reloads && $reloads < 4) {
                $gateway->hup(http($reloads++ % 2 ? '2m' : '3m'));
            }
        },
    );

    my %count;

    for my $key (values %{$tally->{keys}}) {
        $count{$_} += $key->{$_} for keys %$key;
    }

    is($tally->{hang}, 0, 'no hang');
    is($count{sent}, LOAD, 'all were sent');
    is_deeply([$kills, $reloads], [8, 4], 'killed and reloaded');
    cmp_ok($asked, '>', 100, "$asked requests to the API meanwhile");
    is_deeply(\@wrong, [], 'each has its answer, or its worker was killed');

    Gateway::await(sub { $gateway->settled }, 'old workers to exit');

    # one that was under way in a worker that is killed may count, or not

    my %counted = (200 => requests('passed'), 429 => requests('rejected'));

    for my $status (sort keys %counted) {
        cmp_ok($counted{$status}, '>=', $count{$status},
               "$status: what was answered is counted");
    }

    cmp_ok(sum(values %counted), '<=', LOAD, 'nothing is counted twice');
    is(requests('failed_open') + requests('failed_closed'), 0, 'none failed');

    # a worker that was killed may have been about to change the list

    my @top = map { @{json($clients->ask("GET /api/zones/$_/top")->{body})
                          ->{top}} } qw(shm far);
    my %listed = map { $_->{key} => 1 } @top;

    is(scalar keys %listed, KEYS, 'all keys are listed');
    is_deeply([grep { $_->{refused} - $_->{error}
                      > $tally->{keys}{$_->{key}}{sent} } @top], [],
              'none of them more often than it was sent');

    # and it goes on

    my ($before) = grep { $_->{key} eq 'key 1' } @top;

    $gateway->load(requests => [(['/load', 'key 1']) x 50]);

    my ($after) = grep { $_->{key} eq 'key 1' }
                  @{json($clients->ask('GET /api/zones/shm/top')->{body})
                        ->{top}};

    cmp_ok($after->{refused}, '>=', $before->{refused} * 0.9 + 50,
           'further refusals are listed');
};

is($gateway->complaints(qr/exited on signal 9/), '', 'no complaints');

done_testing();


sub http {
    my ($size) = @_;

    my $port = $mute->sockport;
    my $timeout = TIMEOUT;

    return <<"END";
large_client_header_buffers 4 256k;
client_max_body_size 64k;

ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=10s;
ratelimit_redis mute redis://127.0.0.1:$port timeout=${timeout}s;

ratelimit_zone \$http_x_key zone=shm:$size rate=5r/h;
ratelimit_zone \$http_x_key zone=far:1m rate=5r/h redis=main;
ratelimit_zone \$http_x_key zone=mute:1m rate=5r/h redis=mute;
ratelimit_zone \$http_x_key zone=plan:1m rate=\$arg_plan;
ratelimit_zone \$http_x_key zone=field:1m rate=5r/h;
ratelimit_zone \$ratelimit_client zone=client:1m rate=5r/h;

server {
    listen 127.0.0.1:PORT;

    location = /load { ratelimit zone=shm; empty_gif; }
    location = /redis { ratelimit zone=far; empty_gif; }
    location = /mute { ratelimit zone=mute; empty_gif; }
    location = /plan { ratelimit zone=plan; empty_gif; }
    location = /field { ratelimit zone=field; empty_gif; }
    location = /client { ratelimit zone=client; empty_gif; }

    location / { return 404; }
    location /api { ratelimit_api write=on; }
    location /read/ { ratelimit_api; }

    location /page {
        ssi on;
        default_type text/html;
        return 200 '1<!--# include virtual="/api/zones/far/keys/a" -->
                    2<!--# include virtual="/api/zones/shm/keys/a" -->
                    3<!--# include virtual="/api/nix" -->
                    4<!--# include virtual="/api/metrics" -->5';
    }
}
END
}


# what is wrong with the answer to a request, or nothing.  Those of nginx itself
# are pages; it may close the connection of what is no HTTP.

sub nonsense {
    my ($line, $rest, $killed) = @_;

    my $in = exchange($line, $rest);
    my $shown = substr($line, 0, 80) =~ s/[^ -~]/?/gr;
    my ($head, $body) = $in =~ /\A(HTTP\/1\.1 .*?\r\n\r\n)(.*)\z/s
        or return $killed ? () : "$shown: no answer";

    # "100 Continue" comes before

    ($head, $body) = $body =~ /\A(.*?\r\n\r\n)(.*)\z/s if $head =~ / 100 /;

    my ($status) = $head =~ /\AHTTP\/1\.1 (\d+)/;

    return "$shown: $status"
        if $status !~ /^(?:200|204|400|404|405|413|414)$/;
    if ($head =~ /^Content-Type: application\/json/mi) {
        return "$shown: ETag" if $head =~ /^(?:ETag|Last-Modified):/mi;
        return "$shown: may be cached"
            if $head !~ /^Cache-Control: no-store\r$/mi;
        return "$shown: no JSON" if $line !~ /^HEAD / && !json($body);
        return "$shown: Allow" if $status == 405 && $head !~ /^Allow: GET, /mi;
    }

    return;
}


# all that is answered to a request

sub exchange {
    my ($line, $rest) = @_;

    my $client = $clients->connect;
    my $text = "$line HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    my $in = '';

    local $SIG{PIPE} = 'IGNORE';

    # the other side may have had enough before all is sent

    syswrite $client->{socket}, $text . $rest . "\r\n";

    my $select = IO::Select->new($client->{socket});

    while ($select->can_read(20)) {
        last if !sysread $client->{socket}, $in, 65_536, length $in;
    }

    return $in;
}


# a request to the API with something changed

sub mutant {
    my $path = (@RESOURCES, @PATHS)[rand @RESOURCES + @PATHS];

    for (1 .. 1 + rand 3) {
        my $at = int rand length $path;
        my $byte = (map { chr } 33 .. 126, 128 .. 255)[rand 222];
        my $way = int rand 4;

        if ($way == 0) {
            substr $path, $at, 1, $byte;

        } elsif ($way == 1) {
            substr $path, $at, 0, sprintf '%%%02x', rand 256;

        } elsif ($way == 2) {
            substr $path, $at, rand 5, '';

        } else {
            substr $path, $at, 0, substr $path, rand length $path;
        }
    }

    # whatever was changed, neither statistics are reset nor is Redis awaited

    $path = "/$path" if $path !~ m{^/};
    $path =~ s/mute/shm/g;

    return ('GET', 'HEAD', 'OPTIONS', 'POST')[rand 4] . " $path";
}


sub alive {
    is($gateway->complaints, '', 'no complaints');
    is($clients->ask('GET /api/zones')->{status}, 200, 'it goes on');
}


sub json {
    my ($text) = @_;

    return eval { JSON::PP->new->utf8->decode($text) };
}


# the bytes of a key that is shown as text, or percent-encoded

sub decoded {
    my ($shown, $key) = @_;

    my $text = $shown;

    utf8::encode($text);

    return $text if $text eq $key;
    return $text =~ s/%([0-9A-F]{2})/chr hex $1/ger;
}


# of the workers' own, in KB

sub memory {
    return sum(map { Gateway::slurp("/proc/$_/status") =~ /^RssAnon:\s+(\d+)/m
                     ? $1 : 0 } $gateway->current_workers);
}


# of both zones that have a load

sub requests {
    my ($status) = @_;

    return sum(map { json($clients->ask("GET /api/zones/$_")->{body})
                         ->{requests}{$status} } qw(shm far));
}
