#!/usr/bin/perl

# "count=401" with token_bucket and leaky_bucket, where answers take their time:
# what is under way neither drips off nor saves anything up.  If this fails,
# many passwords are guessed at once after a while of good logins, or a good
# login is refused.

use strict;
use warnings;

use File::Temp qw(tempdir);
use IO::Select;
use Test::More;

use lib 't/lib';
use Clients;
use FakeClock;
use Gateway;
use RedisClock;

my $clock = FakeClock->new;
my $redis_clock = RedisClock->new;
my $redis = $redis_clock->start_redis;
my $backend = Clients::backend();
my $gateway = Gateway->start($clock->options, http => config());
my $clients = Clients->new($gateway->{port});

# seconds of a step, so many that those that a busy machine needs for one do not
# matter; what is open for two steps must not be forgotten
use constant STEP => 30;

my @connected;       # clients that do not leave
my $answered = 0;

for my $location (qw(token leaky redis_token redis_leaky)) {
    subtest "$location: a brute force" => sub { brute_force($location) };
    subtest "$location: good and bad ones" => sub { good_and_bad($location) };
    subtest "$location: a retry" => sub { retry($location) };
    @connected = ();
}

subtest 'what is left in Redis' => \&in_redis;
subtest 'a response without a body' => \&no_body;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    my $slow = $backend->sockport;

    # nginx waits longer than the test makes time pass

    my $http = <<"END";
proxy_read_timeout 1h;
ratelimit_redis main unix:$redis->{path} timeout=1h;
ratelimit_zone last zone=last:1m rate=1000r/d redis=main;
END
    my $locations = "    location /last { ratelimit zone=last; empty_gif; }\n";

    for my $where ('', 'redis_') {
        my $redis = $where && 'redis=main';

        $http .= <<"END";
ratelimit_zone \$arg_k zone=${where}token:1m rate=60r/30m capacity=10
               algorithm=token_bucket $redis;
ratelimit_zone \$arg_k zone=${where}small_token:1m rate=30r/30m capacity=5
               algorithm=token_bucket $redis;
ratelimit_zone \$arg_k zone=${where}small_leaky:1m rate=30r/30m
               algorithm=leaky_bucket $redis;
ratelimit_zone \$arg_k zone=${where}leaky:1m rate=60r/30m
               algorithm=leaky_bucket $redis;
END
        $locations .= <<"END";
    location /${where}token { ratelimit zone=${where}token count=401;
                              proxy_pass http://127.0.0.1:$slow; }
    location /${where}leaky { ratelimit zone=${where}leaky burst=9 nodelay
                                        count=401;
                              proxy_pass http://127.0.0.1:$slow; }
    location /small/${where}token {
        ratelimit zone=${where}small_token count=401;
        proxy_pass http://127.0.0.1:$slow;
    }
    location /small/${where}leaky {
        ratelimit zone=${where}small_leaky burst=4 nodelay count=401;
        proxy_pass http://127.0.0.1:$slow;
    }
END
    }

    return <<"END";
$http
log_format outcome "\$request_uri \$status \$ratelimit_status";

server {
    listen 127.0.0.1:PORT;
    access_log logs/access.log outcome;
$locations}
END
}


sub forward {
    my ($steps) = @_;

    $_->forward($steps * STEP) for $redis_clock, $clock;
}


# requests, of which some come to the backend; the others are refused

sub send_all {
    my ($n, $uri) = @_;

    my @clients = map { $clients->send("GET $uri") } 1 .. $n;
    my @errands;

    push @connected, @clients;

    Gateway::await(sub {
        push @errands, Clients::errand($backend) until Clients::quiet($backend);

        for my $client (grep { !Clients::done($_) } @clients) {
            my $select = IO::Select->new($client->{socket});

            Clients::get($client) if $select->can_read(0);
        }

        return @errands + grep({ Clients::done($_) } @clients) >= $n;
    }, "$n decisions");

    return @errands;
}


# answers them, and has them settled, in Redis as well: the one connection keeps
# the order

sub answer_all {
    my ($status, @errands) = @_;

    for my $errand (@errands) {
        Clients::reply($errand, $status);
    }

    my $log = "$gateway->{dir}/logs/access.log";
    my $n = $answered += @errands;

    Gateway::await(sub {
        my $lines = () = Gateway::slurp($log) =~ / (200|401) /g;

        return $lines >= $n;
    }, "$n answers");

    $clients->ask('GET /last');
}


# five logins a step, answered after two steps, for 50 steps

sub brute_force {
    my ($location) = @_;

    my $uri = "/$location?k=brute";
    my (@before, @now, $refused);

    for (1 .. 50) {
        answer_all(200, @before);
        @before = @now;
        @now = send_all(5, $uri);
        $refused += 5 - @now;
        forward(1);
    }

    is($refused, 0, 'no good login is refused');

    my @guesses = send_all(30, $uri);

    answer_all(200, @before);
    push @guesses, send_all(30, $uri);
    forward(1);
    answer_all(200, @now);
    push @guesses, send_all(30, $uri);

    cmp_ok(scalar @guesses, '<=', 12, 'guesses that pass within a step');
    cmp_ok(scalar @guesses, '>=', 10, 'and not fewer than promised');

    forward(1);
    push @guesses, send_all(10, $uri);
    is(scalar @guesses, 10, 'open ones do not drip off');

    answer_all(401, @guesses);
    forward(2);
    is(scalar(@guesses = send_all(10, $uri)), 2, 'those that count do');
    answer_all(401, @guesses);
}


# one a step, of which every other is bad, which is the rate; each is answered
# after two steps

sub good_and_bad {
    my ($location) = @_;

    my $uri = "/small/$location?k=mixed";
    my ($refused, @open) = 0;

    for my $i (1 .. 60) {
        answer_all(@{shift @open}) if @open == 2;

        my ($errand) = send_all(1, $uri);

        $refused += !$errand;
        push @open, [$i % 2 ? 200 : 401, $errand // ()];
        forward(1);
    }

    is($refused, 0, 'none is refused');
    answer_all(@$_) for @open;
}


# a client that waits for as long as it was told is admitted

sub retry {
    my ($location) = @_;

    my $uri = "/$location?k=retry";
    my @open = send_all(10, $uri);
    my $answer = $clients->ask("GET $uri");

    is($answer->{status}, 429, 'ten are under way');
    is($answer->{field}{'x-ratelimit-remaining'}, 0, 'none is left');

    answer_all(401, @open);
    forward($answer->{field}{'retry-after'} / STEP);
    is(scalar(@open = send_all(2, $uri)), 1, 'one has room then');
    answer_all(200, @open);
}


# a worker that pauses when it has sent the header, whose client asks another
# gateway

sub no_body {
    my $dir = tempdir(CLEANUP => 1);

    chmod 0755, $dir;
    build_pause($dir);

    my $http = <<"END";
ratelimit_redis main unix:$redis->{path} timeout=20s;
ratelimit_zone \$arg_k zone=login:1m rate=1r/d capacity=1
               algorithm=token_bucket redis=main;

server {
    listen 127.0.0.1:PORT;
    location / { ratelimit zone=login count=401;
                 proxy_pass http://127.0.0.1:${\ $backend->sockport}; }
}
END
    my $slow = Gateway->start(env => { LD_PRELOAD => "$dir/pause.so" },
                              main => 'env LD_PRELOAD;', http => $http);
    my $fast = Gateway->start(http => $http);
    my ($here, $there) = map { Clients->new($_->{port}) } $slow, $fast;

    my $client = $here->send('HEAD /?k=a');

    Clients::reply(Clients::errand($backend), 200);
    Clients::await_answers(1, $client);

    my $next = $there->send('GET /?k=a');
    my $select = IO::Select->new($backend, $next->{socket});

    is(($select->can_read(Gateway::PATIENCE))[0], $backend,
       'the next one is admitted');
}


sub build_pause {
    my ($dir) = @_;

    open my $out, '>', "$dir/pause.c" or die $!;

    print $out <<'END';
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t
writev(int fd, const struct iovec *iov, int n)
{
    ssize_t  rc, (*real)(int, const struct iovec *, int);

    real = dlsym(RTLD_NEXT, "writev");
    rc = real(fd, iov, n);

    if (iov->iov_len > 9 && memcmp(iov->iov_base, "HTTP/1.1 ", 9) == 0) {
        usleep(500000);
    }

    return rc;
}
END

    close $out or die $!;

    system($ENV{CC} || 'gcc', '-shared', '-fPIC', '-O1', '-o', "$dir/pause.so",
           "$dir/pause.c", '-ldl') == 0 or die 'the library does not build';
}


# what is settled either way leaves nothing that is reserved

sub in_redis {
    my @keys = grep { /:redis_/ } $redis->keys;

    cmp_ok(scalar @keys, '>', 0, 'there are counters');

    for my $key (@keys) {
        is($redis->call('STRLEN', $key), 12, 'nothing is reserved any more');
        cmp_ok($redis->call('PTTL', $key), '>', 0, 'the counter will go');
    }
}
