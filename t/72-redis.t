#!/usr/bin/perl

# Zones in Redis: everything that a limit can say means the same as in shared
# memory, the counters are where docs/redis.md says, and a decision costs one
# round trip.  If this fails, limits of several machines are not those that
# were configured, or a Redis fills up with counters that never go.

use strict;
use warnings;

use File::Temp qw(tempdir);
use IO::Socket::IP;
use MIME::Base64 qw(encode_base64);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

use constant DAY => 86_400;

my $redis = RedisServer->start('--bind' => '127.0.0.1 -::1');
my $backend = Clients::backend();
my $gateway = Gateway->start(workers => 2, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'algorithms' => \&algorithms;
subtest 'several rates' => \&several_rates;
subtest 'two zones' => \&two_zones;
subtest 'with a zone in shared memory' => \&mixed;
subtest 'with a zone of another Redis' => \&two_redises;
subtest 'cost' => \&cost;
subtest 'count' => \&count;
subtest 'soft and elastic' => \&soft_and_elastic;
subtest 'delay' => \&delay;
subtest 'a client that leaves is refunded' => \&leave;
subtest 'plans' => \&plans;
subtest 'dry run' => \&dry_run;
subtest 'where no limit applies' => \&no_limit;
subtest 'rejected=count' => \&rejected;
subtest 'after_auth' => \&after_auth;
subtest 'keys' => \&keys_of_any_kind;
subtest 'names' => \&names;
subtest 'expiry' => \&expiry;
subtest 'one round trip' => \&round_trip;
subtest 'connections' => \&connections;
subtest 'FLUSHALL' => \&flushed;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/\[(?:error|warn)\] .*redis/, 'nor an error');

subtest 'places' => \&places;

done_testing();


sub config {
    my $slow = $backend->sockport;

    my $text = <<'END' =~ s/SLOW/$slow/gr =~ s/REDIS/$redis->{port}/gr;
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;
ratelimit_redis other redis://127.0.0.1:REDIS/1 timeout=5s connect_timeout=5s
                connections=4;

ratelimit_zone $arg_k zone=fixed:1m rate=3r/366d algorithm=fixed_window
               redis=main;
ratelimit_zone $arg_k zone=sliding:1m rate=3r/d redis=main;
ratelimit_zone $arg_k zone=sliding1:1m rate=3r/d buckets=1 redis=main;
ratelimit_zone $arg_k zone=sliding60:1m rate=3r/d buckets=60 redis=main;
ratelimit_zone $arg_k zone=log:1m rate=3r/d algorithm=sliding_log redis=main;
ratelimit_zone $arg_k zone=token:1m rate=3r/d algorithm=token_bucket
               redis=main;
ratelimit_zone $arg_k zone=leaky:1m rate=3r/d algorithm=leaky_bucket
               redis=main;
ratelimit_zone $arg_k zone=rates:1m rate=5r/2d rate=2r/d redis=main;
ratelimit_zone $arg_k zone=five:1m rate=5r/d redis=main;
ratelimit_zone $arg_k zone=two:1m rate=2r/d buckets=1 redis=main;
ratelimit_zone $arg_k zone=far:1m rate=2r/d redis=other;
ratelimit_zone $arg_k zone=near:1m rate=5r/d;
ratelimit_zone $arg_k zone=near2:1m rate=2r/d;
ratelimit_zone $arg_k zone=plan:1m rate=$arg_r redis=main;
ratelimit_zone $arg_k zone=pace:1m rate=30r/m algorithm=leaky_bucket redis=main;
ratelimit_zone $arg_k zone=drip:1m rate=30r/m capacity=1
               algorithm=token_bucket redis=main;
ratelimit_zone $arg_k zone=slow:1m rate=1r/h capacity=1
               algorithm=token_bucket redis=main;
ratelimit_zone $http_x_key zone=any:1m rate=2r/d redis=main;
ratelimit_zone $ratelimit_client zone=address:1m rate=2r/d redis=main;
ratelimit_zone $remote_user zone=user:1m rate=2r/d redis=main;
ratelimit_zone $arg_k zone=h%1:1m rate=2r/d redis=main;

ratelimit_zone all zone=budget:1m rate=10r/d redis=main fail=closed;

ratelimit_elastic connections=99% zone=budget:50%;

add_header X-Status $ratelimit_status always;
add_header X-Backend $ratelimit_backend always;
add_header X-Zone $ratelimit_zone always;
large_client_header_buffers 4 64k;

server {
    listen 127.0.0.2:PORT;

    location ~ /200$ { return 200; }
    location ~ /401$ { return 401; }
}

server {
    listen 127.0.0.1:PORT reuseport backlog=2048;

    location /fixed { ratelimit zone=fixed; }
    location /sliding { ratelimit zone=sliding; }
    location /sliding1 { ratelimit zone=sliding1; }
    location /sliding60 { ratelimit zone=sliding60; }
    location /log { ratelimit zone=log; }
    location /token { ratelimit zone=token; }
    location /leaky { ratelimit zone=leaky burst=2 nodelay; }

    location /rates { ratelimit zone=rates; ratelimit_headers x ietf; }

    location /two { ratelimit zone=two; }
    location /five { ratelimit zone=five; }
    location /both { ratelimit zone=five; ratelimit zone=two; }
    location /look5 { ratelimit zone=five cost=0; }
    location /look2 { ratelimit zone=two cost=0; }

    location /near5 { ratelimit zone=near; }
    location /near+two { ratelimit zone=near; ratelimit zone=two; }
    location /near2+five { ratelimit zone=five; ratelimit zone=near2; }
    location /far { ratelimit zone=far; }
    location /five+far { ratelimit zone=five; ratelimit zone=far; }
    location /far+five { ratelimit zone=far; ratelimit zone=five; }

    location /cost { ratelimit zone=five cost=$arg_c; }

    location /login { ratelimit zone=five name=login rate=3r/d count=401;
                      proxy_pass http://127.0.0.2:PORT; }
    location /looklogin { ratelimit zone=five name=login rate=3r/d cost=0; }
    location /slowlogin { ratelimit zone=five name=login rate=3r/d count=401;
                          proxy_pass http://127.0.0.1:SLOW; }

    location /soft { ratelimit zone=two soft=50%; }
    location /elastic { ratelimit zone=two elastic=100%; }
    location /budget { ratelimit zone=budget;
                       ratelimit zone=two name=budget rate=2r/d elastic=200%; }

    location /pace { ratelimit zone=pace burst=2; }
    location /drip { ratelimit zone=drip delay=2400ms; }
    location /slow { ratelimit zone=slow delay=2h; }
    location /looktoken { ratelimit zone=slow cost=0; }

    location /plan { ratelimit zone=plan; }

    location /dry { ratelimit zone=two; ratelimit_dry_run on; }
    location /if { ratelimit zone=two if=$arg_i; }
    location /bypass { ratelimit zone=two; ratelimit_bypass $arg_b; }
    location /off { ratelimit off; }

    location /rejected { ratelimit zone=log name=rej rate=2r/4s
                         rejected=count; }
    location /refused-elsewhere { ratelimit zone=near2;
                       ratelimit zone=five rejected=count; }

    location /auth { ratelimit zone=two; ratelimit zone=user after_auth;
                     auth_basic realm; auth_basic_user_file passwords; }

    location /any { ratelimit zone=any; }
    location /address { ratelimit zone=address;
                        set_real_ip_from 127.0.0.1; real_ip_header X-IP; }

    location /named { ratelimit zone=two "name=a:b{c}%"; }
    location /percent { ratelimit zone=h%1; }

    location /many { ratelimit zone=rates; ratelimit zone=five name=a;
                     ratelimit zone=five name=b rate=100r/h rate=200r/d;
                     ratelimit zone=log name=c; ratelimit zone=token name=d;
                     ratelimit zone=leaky name=e burst=9 nodelay;
                     ratelimit zone=fixed name=f; }
}
END

    return $text =~ s/(location \/\w\S* \{)(?![^}]*_pass)/$1 empty_gif;/gr;
}


sub answers { return $clients->series(map { ref $_ ? $_ : ["GET $_"] } @_) }


# what becomes of requests, one after another: "200 200 429"

sub statuses { return join ' ', map { $_->{status} } answers(@_) }


sub field {
    my ($name, @requests) = @_;

    return join ' ', map { $_->{field}{lc $name} // '-' } answers(@requests);
}


sub remaining { return field('X-RateLimit-Remaining', @_) }


# of exactly these keys, all of it that Redis has

sub bytes_of {
    my (@keys) = @_;

    return join '|', map { $redis->call('GET', $_) // 'none' } @keys;
}


sub algorithms {
    my %tag = (fixed => 366 * DAY . 'f', sliding => DAY . 'w10',
               sliding1 => DAY . 'w1', sliding60 => DAY . 'w60',
               log => DAY . 'l', token => DAY . 't', leaky => DAY . 'k');

    for my $name (sort keys %tag) {
        my @answers = answers(("/$name?k=alice") x 5);

        is(join(' ', map { $_->{status} } @answers), '200 200 200 429 429',
           "$name: three of five");
        is(join(' ', map { $_->{field}{'x-status'} } @answers),
           'PASSED PASSED PASSED REJECTED REJECTED', "$name: statuses");
        is(join(' ', map { $_->{field}{'x-ratelimit-remaining'} } @answers),
           '2 1 0 0 0', "$name: remaining");
        is(join(' ', map { $_->{field}{'x-ratelimit-limit'} } @answers),
           '3 3 3 3 3', "$name: limit");
        is(join(' ', map { $_->{field}{'x-backend'} } @answers),
           'redis redis redis redis redis', "$name: backend");
        is($answers[3]{field}{'x-zone'}, $name, "$name: zone");

        my $wait = $answers[3]{field}{'retry-after'};
        my $reset = $answers[2]{field}{'x-ratelimit-reset'};

        cmp_ok($wait, '>', 0, "$name: a wait");
        cmp_ok($wait, '<=', 366 * DAY, "$name: not too long");
        cmp_ok($reset, '>=', $wait - 1, "$name: a reset after it");
        is($answers[2]{field}{'retry-after'}, undef, "$name: for some only");

        is(statuses("/$name?k=bob"), 200, "$name: another key");
        is_deeply([grep { /:\Q$name\E:/ } $redis->keys],
                  ["ratelimit:{2:alice}:$name\::$tag{$name}",
                   "ratelimit:{2:bob}:$name\::$tag{$name}"],
                  "$name: where its counters are");

        # a gateway of the former version has this one, in its own format

        my $former = "ratelimit:{carol}:$name\::$tag{$name}";

        $redis->call('SET', $former, "\xff" x 12, 'PX', 60_000);
        is(statuses(("/$name?k=carol") x 4), '200 200 200 429',
           "$name: counters of another version are not read");
        is($redis->call('GET', $former), "\xff" x 12, 'nor written');
        $redis->call('DEL', $former);
    }
}


sub several_rates {
    my @answers = answers(('/rates?k=a') x 3);

    is(join(' ', map { $_->{status} } @answers), '200 200 429',
       'the smaller one');
    like($answers[1]{field}{'ratelimit-policy'},
         qr/^"rates";q=5;w=172800, "rates";q=2;w=86400$/, 'both are told');
    like($answers[1]{field}{ratelimit}, qr/^"rates";r=0;t=\d+(?:;|$)/,
         'the tightest speaks');

    is_deeply([grep { /:rates:/ } $redis->keys],
              ['ratelimit:{2:a}:rates::172800w10',
               'ratelimit:{2:a}:rates::86400w10'], 'a counter for each');
}


# what one refuses is charged to none

sub two_zones {
    my ($five, $two) = map { "ratelimit:{2:b}:$_" } 'five::86400w10',
                                                  'two::86400w1';

    is(statuses(('/both?k=b') x 2), '200 200', 'both allow');

    my $before = bytes_of($five, $two);

    unlike($before, qr/none/, 'both have counted');
    is(statuses(('/both?k=b') x 3), '429 429 429', 'one refuses');
    is(bytes_of($five, $two), $before, 'Redis has not changed a bit');
    is(remaining('/look5?k=b'), 3, 'three are left of the other one');
    is(statuses(('/five?k=b') x 4), '200 200 200 429', 'exactly three');

    is(statuses(('/five?k=c') x 4, ('/both?k=c') x 3),
       '200 200 200 200 200 429 429', 'the other way round');
    is(remaining('/look2?k=c'), 1, 'one is left');
    is(field('X-Zone', '/both?k=c'), 'five', 'the violated limit speaks');
}


sub mixed {
    is(statuses(('/near+two?k=m') x 6), '200 200 429 429 429 429',
       'Redis refuses');
    is(statuses(('/near5?k=m') x 4), '200 200 200 429',
       'the charge in shared memory is refunded');
    is(remaining('/look2?k=m'), 0, 'what was admitted counts in Redis');

    $redis->forget_calls;

    my $start = time;

    is(statuses(('/near2+five?k=m') x 4), '200 200 429 429',
       'shared memory refuses');
    cmp_ok($redis->calls('evalsha'), '<=', 3 + int(time - $start),
           'Redis is asked once a second then');
    is(remaining('/look5?k=m'), 3, 'nor charged');
}


# each is asked; the one that admits first refunds when the other one refuses

sub two_redises {
    is(statuses(('/five+far?k=n') x 4), '200 200 429 429', 'one refuses');
    Gateway::await(sub { remaining('/look5?k=n') == 3 },
                   'the other one to get it back');
    is(statuses(('/five?k=n') x 4), '200 200 200 429', 'exactly');
    is(statuses(('/far+five?k=o') x 4), '200 200 429 429', 'in any order');
    Gateway::await(sub { remaining('/look5?k=o') == 3 },
                   'the other one to get it back');
    is_deeply([$redis->keys(1)], ['ratelimit:{2:n}:far::86400w10',
                                  'ratelimit:{2:o}:far::86400w10'],
              'in another database');
}


sub cost {
    is(statuses('/cost?k=d&c=3', '/cost?k=d&c=3', '/cost?k=d&c=2',
                '/cost?k=d&c=1', '/cost?k=d&c=0'),
       '200 429 200 429 200', 'costs add up');
    is(statuses('/cost?k=e&c=6', '/cost?k=e&c=5'), '429 200',
       'more than there ever is');
    is(remaining('/cost?k=f&c=0', '/cost?k=f&c=2', '/cost?k=f&c=0'), '5 3 3',
       'a look costs nothing');
}


sub count {
    is(statuses('/login/200?k=g', '/login/401?k=g', '/login/200?k=g'),
       '200 401 200', 'good and bad ones');
    Gateway::await(sub { remaining('/looklogin?k=g') == 2 },
                   'Redis to get good ones back');
    is(remaining('/looklogin?k=g'), 2, 'a bad one counts');

    for (1 .. 10) {
        is(statuses('/login/200?k=g'), 200, 'a good one');
        Gateway::await(sub { remaining('/looklogin?k=g') == 2 },
                       'Redis to get it back');
    }

    is(statuses(('/login/401?k=g') x 4), '401 401 429 429',
       'three bad ones are all');

    # a hundred at once

    my @all = map { $clients->send('GET /slowlogin?k=h') } 1 .. 100;

    Clients::await_answers(97, @all);

    my @errands = map { Clients::errand($backend) } 1 .. 3;

    ok(Clients::quiet($backend), 'three come to the backend');
    Clients::reply($errands[0], 401);
    Clients::reply($errands[1], 200);
    Clients::reply($errands[2], 200);
    Clients::await_answers(100, @all);

    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 2, 401 => 1, 429 => 97 }, 'all others are refused');
    Gateway::await(sub { remaining('/looklogin?k=h') == 2 },
                   'Redis to get two back');
    is(statuses(('/login/401?k=h') x 3), '401 401 429', 'and two are left');
}


sub soft_and_elastic {
    is(field('X-Status', ('/soft?k=i') x 4), 'PASSED PASSED SOFT REJECTED',
       'soft');
    is(field('X-Status', ('/elastic?k=j') x 5),
       'PASSED PASSED ELASTIC ELASTIC REJECTED', 'elastic');
    is(statuses('/two?k=j'), 429, 'not for others');
    is(field('X-Status', ('/budget?k=j') x 7),
       'PASSED PASSED ELASTIC ELASTIC ELASTIC REJECTED REJECTED',
       'as long as half of the budget is left');
    is(statuses(('/elastic?k=k') x 3), '200 200 429', 'then for no client');
}


sub delay {
    my ($start, @answers) = at_once(4, '/pace?k=l');

    is(join(' ', map { $_->{field}{'x-status'} } @answers),
       'REJECTED PASSED DELAYED DELAYED', 'a leaky bucket');
    in_time($answers[2]{at} - $start, 2);
    in_time($answers[3]{at} - $start, 4);

    ($start, @answers) = at_once(3, '/drip?k=l');

    is(join(' ', map { $_->{field}{'x-status'} } @answers),
       'REJECTED PASSED DELAYED', 'a token bucket');
    in_time($answers[2]{at} - $start, 2);
}


# in the order of their ends, those that were refused first

sub at_once {
    my ($n, $uri) = @_;

    my $start = time;
    my @all = map { $clients->send("GET $uri") } 1 .. $n;

    Clients::await_answers($n, @all);

    return ($start, sort { $b->{status} <=> $a->{status}
                           || $a->{at} <=> $b->{at} }
                    map { $_->{answers}[0] } @all);
}


sub in_time {
    my ($seconds, $expected) = @_;

    cmp_ok($seconds, '>', $expected - 0.05, "not before $expected");
    cmp_ok($seconds, '<', $expected + 5, 'nor much later');
}


# the token that a client waits for is refunded when the client leaves

sub leave {
    is(statuses('/slow?k=l'), 200, 'the only token');

    my $client = $clients->send('GET /slow?k=l');

    Gateway::await(sub {
        return field('X-RateLimit-Reset', '/looktoken?k=l') > 3600;
    }, 'a client that waits');
    Clients::leave($client);
    Gateway::await(sub {
        return field('X-RateLimit-Reset', '/looktoken?k=l') <= 3600;
    }, 'the token to come back');
    pass('it comes back to Redis');
}


sub plans {
    is(statuses(('/plan?k=a&r=1r/d') x 2), '200 429', 'a plan');
    is(statuses(('/plan?k=a&r=3r/d') x 3), '200 200 429',
       'a larger one keeps what was counted');
    is(statuses(('/plan?k=a&r=') x 3), '200 200 200', 'none at all');
    is(statuses(('/plan?k=a&r=1r/h') x 2), '200 429', 'another period');
    is(field('X-Status', '/plan?k=b&r=1r/y'), 'FAILED_OPEN', 'a bad one');

    my $log = $gateway->log;

    like($log, qr/\[error\].*rate "\$arg_r" of zone "plan" is invalid/,
         'which is told');

    # which is all that may be told
    truncate "$gateway->{dir}/logs/error.log", 0;
}


sub dry_run {
    is(field('X-Status', ('/dry?k=p') x 4),
       'PASSED PASSED REJECTED_DRY_RUN REJECTED_DRY_RUN', 'passes');
    is(statuses('/two?k=p'), 429, 'and counts');
}


sub no_limit {
    $redis->forget_calls;

    is(statuses(('/if?k=q') x 3, ('/if?k=q&i=0') x 3, ('/bypass?k=q&b=1') x 3,
                ('/off?k=q') x 3, ('/two') x 3, ('/plan?k=q') x 3),
       join(' ', (200) x 18), 'all pass');
    is(field('X-Status', '/bypass?k=q&b=1'), 'BYPASSED', 'as it says');
    is($redis->calls('evalsha'), 0, 'Redis has not heard of them');
    is(statuses(('/if?k=q&i=1') x 3), '200 200 429', 'where it applies');
    is(statuses(('/bypass?k=r&b=0') x 3), '200 200 429', 'and there');
}


# a client that keeps asking stays refused; in a log, four seconds long

sub rejected {
    is(statuses(('/rejected?k=s') x 2), '200 200', 'two are allowed');

    my $key = 'ratelimit:{2:s}:log:rej:4l';
    my $before = bytes_of($key);

    is(statuses('/rejected?k=s'), 429, 'a third one is not');
    isnt(bytes_of($key), $before, 'but counts');

    my $end = time + 5;
    my @all;

    while (time < $end) {
        push @all, statuses('/rejected?k=s');
        sleep 0.05;
    }

    is(scalar(grep { $_ == 200 } @all), 0, 'for longer than the period');

    # only a client that stops asking is admitted again
    sleep 4.1;

    is(statuses('/rejected?k=s'), 200, 'a client that waits is admitted');

    # refused by shared memory, and charged to Redis nevertheless

    is(statuses(('/refused-elsewhere?k=t') x 4), '200 200 429 429',
        'refused elsewhere');
    Gateway::await(sub { remaining('/look5?k=t') == 1 }, 'all four to count');
    pass('a limit that counts refused requests counts it');
}


sub after_auth {
    my $file = "$gateway->{dir}/passwords";

    open my $out, '>', $file or die $!;
    print $out "ann:{PLAIN}right\n";
    close $out;

    my ($right, $wrong) = map { 'Authorization: Basic '
                                . encode_base64("ann:$_", '') }
                          qw(right wrong);

    is(statuses(['GET /auth?k=u1', $wrong], ['GET /auth?k=u2', $wrong],
                ['GET /auth?k=u3', $wrong], ['GET /auth?k=u4', $right],
                ['GET /auth?k=u5', $right], ['GET /auth?k=u6', $right]),
       '401 401 401 200 200 429', 'a wrong password costs the user nothing');

    Gateway::await(sub { remaining('/look2?k=u6') == 2 },
                   'a refund of what was refused later');
    is(remaining('/look2?k=u1', '/look2?k=u4', '/look2?k=u6'), '1 1 2',
       'all or nothing');
}


sub keys_of_any_kind {
    my @keys = ('}', '{', '{}', '}:any::86400w10', 'a}:any:', 'a}:any', ':',
                '%', '%7D', "\x01\x02\x7f", join('', map { chr } 128 .. 255),
                '*', '$5', '"', "'", '\\', 'a b', 'x' x 10_000,
                'x' x 10_000 . 'y', "\xff" x 3000);

    for my $key (@keys) {
        is(statuses((['GET /any', "X-Key: $key"]) x 3), '200 200 429',
           'a key of ' . length($key) . ' bytes: '
           . substr($key, 0, 20) =~ s/[^ -~]/?/gr);
    }

    my @expected = sort map { "ratelimit:{2:$_}:any::86400w10" } @keys;

    is_deeply([grep { /:any::86400w10$/ } $redis->keys], \@expected,
              'all of them are as they are');

    # what a cluster chooses the slot by

    is(scalar(grep { !/^ratelimit:\{[^}]+\}/ } $redis->keys), 0,
       'all have a hash tag that is not empty');

    # 192.0.2.0 to 192.0.2.255: all last bytes there are

    my @bytes = (0, 10, 13, 36, 37, 42, 58, 123, 125, 255);

    for my $byte (@bytes) {
        is(statuses((['GET /address', "X-IP: 192.0.2.$byte"]) x 3),
           '200 200 429', "the byte $byte");
    }

    is_deeply([grep { /:address:/ } $redis->keys],
              [sort map { "ratelimit:{2:\xc0\x00\x02" . chr($_)
                          . '}:address::86400w10' } @bytes],
              'binary addresses');
}


sub names {
    is(statuses(('/named?k=v') x 3), '200 200 429', 'a name');
    is(statuses(('/percent?k=v') x 3), '200 200 429', 'a zone');
    is_deeply([grep { /%/ && !/any/ && !/address/ } $redis->keys],
              ['ratelimit:{2:v}:h%251::86400w10',
               'ratelimit:{2:v}:two:a%3Ab%7Bc%7D%25:86400w1'],
              'no two of them can be the same');
}


# all that was counted so far goes by itself, and not too late

sub expiry {
    for my $db (0, 1) {
        my @keys = $redis->keys($db);
        my (undef, @left) = $redis->pipe(['SELECT', $db],
                                         map { ['PTTL', $_] } @keys);

        $redis->call('SELECT', 0);
        cmp_ok(scalar @keys, '>', 1, 'there are keys');

        my @wrong = grep { !expires($keys[$_], $left[$_]) } 0 .. $#keys;

        is(join('', map { "$keys[$_]: $left[$_]\n" } @wrong), '',
           'all of them expire in time');
    }
}


# -1 is never, -2 was just now

sub expires {
    my ($key, $left) = @_;

    my ($period) = $key =~ /:(\d+)[a-z]\d*$/ or return 0;

    return $left == -2 || $left > 0 && $left <= 2000 * $period + 5000;
}


sub round_trip {
    is(statuses(('/many?k=w') x 2), '200 200', 'nine counters');
    is(scalar(grep { /\{2:w\}/ } $redis->keys), 9, 'as many keys');

    $redis->forget_calls;

    is(statuses(map { "/many?k=w$_" } 1 .. 20), join(' ', (200) x 20), 'pass');
    is($redis->calls('evalsha'), 20, 'one command for each request');
    is($redis->calls('eval'), 0, 'none with the text of a script');
    is($redis->calls('script|load'), 0, 'nor before it');

    $redis->call('SCRIPT', 'FLUSH');
    $redis->forget_calls;

    is(statuses(map { "/many?k=w$_" } 21 .. 40), join(' ', (200) x 20),
       'pass without scripts');
    is($redis->calls('evalsha'), 20, 'scripts are named');
    cmp_ok($redis->calls('eval') + $redis->calls('script|load'), '==', 1,
           'and told once');
    is_deeply([map { remaining("/look5?k=w$_") } 1 .. 2], [5, 5],
              'other names count apart');
}


# the other Redis has four for each worker, the first one has one

sub connections {
    my @uris = map { ("/far?k=y$_", "/two?k=y$_") } 1 .. 50;
    my @all = map { $clients->send("GET $_") } @uris;

    Clients::await_answers(scalar @all, @all);

    my %db;
    $db{$_}++ for $redis->call('CLIENT', 'LIST') =~ /\bdb=(\d+)/g;

    is($db{1}, 8, 'four connections of each worker');
    is($db{0}, 2 + 1, 'one of each, and ours');
}


sub flushed {
    is(statuses('/two?k=z'), '200', 'used');
    $redis->call('FLUSHALL');
    is(field('X-Backend', '/look2?k=z'), 'redis', 'Redis is there');
    is(remaining('/look2?k=z'), 2, 'and starts from zero');
    is(statuses(('/two?k=z') x 3), '200 200 429', 'without an error');
}


# where a Redis is, and which user it lets in

sub places {
    my $locked = RedisServer->start(password => 'open sesame');
    my $dir = tempdir(CLEANUP => 1);

    $locked->call('ACL', 'SETUSER', 'gate', 'on', '>p@ss:w/d%', '~gate:*',
                  '+@all', '-@dangerous');

    write_file("$dir/sesame", "open sesame\n");
    write_file("$dir/gate", 'p@ss:w/d%');

    my ($open, $secret) = map { $_->{port} } $redis, $locked;

    # a URL, parameters, the server, database and key that are expected

    my @places = (
        ["redis://127.0.0.1:$open", '', $redis, 0],
        ["redis://127.0.0.1:$open/", '', $redis, 0],
        ["redis://127.0.0.1:$open/3", '', $redis, 3],
        ["redis://127.0.0.1:$open/15", '', $redis, 15],
        ["redis://localhost:$open/4", '', $redis, 4],
        ["unix:$redis->{path}", '', $redis, 0],
        ["unix:$redis->{path}?db=5", '', $redis, 5],
        ["redis://127.0.0.1:$open", 'prefix=my:', $redis, 0, 'my:'],
        ["redis://127.0.0.1:$open", 'prefix=', $redis, 0, ''],
        ["redis://127.0.0.1:$open", 'connections=4', $redis, 0],
        ["redis://:open%20sesame\@127.0.0.1:$secret/1", '', $locked, 1],
        ["redis://default:open%20sesame\@127.0.0.1:$secret/2", '', $locked, 2],
        ["redis://127.0.0.1:$secret/3", "password_file=$dir/sesame", $locked,
         3],
        ["unix:$locked->{path}?db=4", "password_file=$dir/sesame", $locked, 4],
        ["redis://gate:p%40ss%3Aw%2Fd%25\@127.0.0.1:$secret/5", 'prefix=gate:',
         $locked, 5, 'gate:'],
        ["redis://gate\@127.0.0.1:$secret/6",
         "password_file=$dir/gate prefix=gate:", $locked, 6, 'gate:'],
    );

    if (has_ipv6()) {
        push @places, ["redis://[::1]:$open/7", '', $redis, 7];

    } else {
        diag('this machine has no IPv6, and it is not tested');
    }

    my ($http, %location) = ('');

    for my $i (0 .. $#places) {
        my ($url, $parameters) = @{$places[$i]};

        $http .= "ratelimit_redis r$i $url $parameters timeout=5s"
                 . " connect_timeout=5s;\n"
                 . "ratelimit_zone \$arg_k zone=z$i:1m rate=2r/d redis=r$i;\n";
        $location{"/$i"} = "ratelimit zone=z$i;";
    }

    $gateway->reload('add_header X-Backend $ratelimit_backend always;'
                     . $http . Gateway->server(%location));

    for my $i (0 .. $#places) {
        my ($url, $parameters, $server, $db, $prefix) = @{$places[$i]};
        my @answers = answers(("/$i?k=k") x 3);

        is(join(' ', map { "$_->{status} $_->{field}{'x-backend'}" } @answers),
           '200 redis 200 redis 429 redis', "$url $parameters");

        $prefix //= 'ratelimit:';

        is_deeply([grep { /:z$i:/ } $server->keys($db)],
                  ["$prefix\{2:k}:z$i\::86400w10"], "the key of $url");
    }

    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/sesame|p\@ss|p%40ss/, 'no password is told');
}


sub write_file {
    my ($file, $text) = @_;

    open my $out, '>', $file or die "$file: $!";
    print $out $text;
    close $out or die $!;
}


# whether a server could listen there, not whether Redis does

sub has_ipv6 {
    return IO::Socket::IP->new(LocalHost => '::1', Listen => 1);
}
