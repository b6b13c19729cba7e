#!/usr/bin/perl

# Redis goes on with what it was sent, though the requests were answered long
# ago: what it charges for a request that was refused, or that must not count,
# is refunded, whatever became of the connection.  If this fails, a pause of
# Redis spends the quota of clients that got nothing for it.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

use constant QUOTA => 20;
use constant LOGINS => 3;
use constant ENOUGH => 20;      # seconds for what should take no time

my $redis = RedisServer->start;
my $backend = Clients::backend();
my $gateway = Gateway->start(workers => 1, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'refused by fail=closed' => \&refused;
subtest 'good logins' => \&logins;
subtest 'a login that ends while Redis is down' => \&late_login;
subtest 'again and again' => \&again;
subtest 'a reload in between' => \&reload;
subtest 'what a user must not do' => \&denied;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');

done_testing();


sub config {
    my $user = join ' ', map { "ratelimit zone=$_;" } qw(first once last);
    my $server = Gateway->server(
        '/closed' => 'ratelimit zone=closed;',
        '/closed/look' => 'ratelimit zone=closed cost=0;',
        '/good' => 'ratelimit zone=login count=401;',
        '/login/look' => 'ratelimit zone=login cost=0;',
        '/probe' => 'ratelimit zone=probe;',
        '/user' => $user,
        '/both' => "$user ratelimit zone=closed cost=${\ (QUOTA + 1)};",
        '/first/look' => 'ratelimit zone=first cost=0;',
        '/last/look' => 'ratelimit zone=last cost=0;',
    );

    $server =~ s/\}\s*\z//;

    return <<"END";
add_header X-Backend \$ratelimit_backend always;
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=100ms;
ratelimit_zone \$arg_k zone=closed:1m rate=${\ QUOTA}r/d redis=main fail=closed;
ratelimit_zone \$arg_k zone=login:1m rate=${\ LOGINS}r/d redis=main;
ratelimit_zone \$arg_k zone=probe:1m rate=1000000r/h redis=main;
ratelimit_redis user redis://user:secret\@127.0.0.1:$redis->{port} timeout=100ms;
ratelimit_zone \$arg_k zone=first:1m rate=${\ QUOTA}r/d redis=user;
ratelimit_zone \$arg_once zone=once:1m rate=${\ QUOTA}r/d redis=user;
ratelimit_zone \$arg_k zone=last:1m rate=${\ QUOTA}r/d redis=user;
$server
    location /login {
        ratelimit zone=login count=401;
        proxy_pass http://127.0.0.1:${\ $backend->sockport};
    }
}
END
}


sub field {
    my ($answer, $name) = @_;

    return $answer->{field}{$name} // '-';
}


# the next request is asked of Redis

sub well {
    Gateway::await(sub {
        return field($clients->ask('GET /probe?k=p'), 'x-backend') eq 'redis';
    }, 'Redis to be well');
}


# what Redis says is left, as soon as that is what is expected, or in the end

sub left {
    my ($uri, $expected) = @_;

    my $end = time + ENOUGH;
    my $left;

    while (1) {
        my $answer = $clients->ask("GET $uri");

        $left = field($answer, 'x-ratelimit-remaining')
            if field($answer, 'x-backend') eq 'redis';

        return $left if defined $left && $left == $expected;
        return $left if time > $end;

        sleep 0.02;
    }
}


sub refuse_all {
    my ($k, $n) = @_;

    my @all = map { $clients->send("GET /closed?k=$k") } 1 .. $n;

    Clients::await_answers($n, @all);

    return Clients::tally(map { $_->{answers}[0] } @all);
}


sub refused {
    well();
    $redis->pause;
    is_deeply(refuse_all('a', 3 * QUOTA), { 503 => 3 * QUOTA },
              'all are refused while Redis is paused');
    $redis->resume;
    well();
    is(left('/closed/look?k=a', QUOTA), QUOTA, 'and nothing is spent');
}


sub logins {
    well();
    $redis->pause;

    my @answers = $clients->series((['GET /good?k=b']) x 8);

    is_deeply(Clients::tally(@answers), { 200 => 8 }, 'eight good logins');
    $redis->resume;
    well();
    is(left('/login/look?k=b', LOGINS), LOGINS, 'cost nothing');
}


# Redis has charged it, and can't be told that it was good

sub late_login {
    well();

    my $client = $clients->send('GET /login?k=c');
    my $errand = Clients::errand($backend);

    $redis->pause;
    refuse_all('other', 10);
    like($gateway->log, qr/redis "main" is .*no (?:answer|reply)/,
         'Redis is marked down');
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    is($client->{answers}[0]{status}, 200, 'a good login');
    $redis->resume;
    well();
    is(left('/login/look?k=c', LOGINS), LOGINS, 'costs nothing');
}


# each probe may be charged

sub again {
    well();
    $redis->pause;

    my $end = time + 1.5;
    my $n = 0;

    while (time < $end || $n < 10) {
        is($clients->ask('GET /closed?k=d')->{status}, 503, 'refused')
            or last;
        $n++;
        sleep 0.01;
    }

    $redis->resume;
    well();
    is(left('/closed/look?k=d', QUOTA), QUOTA, 'and nothing is spent');
}


# the worker that has asked ends, but not before it has heard

sub reload {
    well();
    $redis->pause;
    refuse_all('e', QUOTA);
    $gateway->reload(config());
    $redis->resume;
    well();
    is(left('/closed/look?k=e', QUOTA), QUOTA, 'nothing is spent');
    Gateway::await(sub { $gateway->settled }, 'the former worker to end');
}


# of a refund that Redis ends in the middle nothing is done twice

sub denied {
    $redis->call(qw(ACL SETUSER user on >secret ~* +@all -del));
    well();

    is($clients->ask('GET /user?k=g&once=a')->{status}, 200, 'admitted')
        for 1 .. 8;
    is($clients->ask('GET /both?k=g&once=b')->{status}, 429, 'refused by main');
    sleep 1;

    is(left('/first/look?k=g', QUOTA - 8), QUOTA - 8, 'refunded, once');
    is(left('/last/look?k=g', QUOTA - 9), QUOTA - 9, 'what was to follow');
}
