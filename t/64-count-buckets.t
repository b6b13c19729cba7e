#!/usr/bin/perl

# "count=401" with token_bucket and leaky_bucket, where answers take their time:
# what is under way neither drips off nor saves anything up.  If this fails,
# many passwords are guessed at once after a while of good logins, or a good
# login is refused.

use strict;
use warnings;

use IO::Select;
use Test::More;

use lib 't/lib';
use Clients;
use FakeClock;
use Gateway;
use RedisServer;

my $redis = RedisServer->start;
my $clock = FakeClock->new;
my $backend = Clients::backend();
my $gateway = Gateway->start($clock->options, http => config());
my $clients = Clients->new($gateway->{port});

my @connected;       # clients that do not leave
my $answered = 0;

for my $location (qw(token leaky)) {
    subtest "$location: a brute force" => sub { brute_force($location) };
    subtest "$location: good and bad ones" => sub { good_and_bad($location) };
    subtest "$location: a retry" => sub { retry($location) };
    @connected = ();
}

for my $location (qw(far_token far_leaky)) {
    subtest "$location: in Redis" => sub { in_redis($location) };
}

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    my $slow = $backend->sockport;

    return <<'END' =~ s/SLOW/$slow/gr =~ s/REDIS/$redis->{path}/gr;
ratelimit_zone $arg_k zone=token:1m rate=60r/m capacity=10
               algorithm=token_bucket;
ratelimit_zone $arg_k zone=leaky:1m rate=60r/m algorithm=leaky_bucket;

ratelimit_redis main unix:REDIS timeout=5s;
ratelimit_zone $arg_k zone=far_token:1m rate=3r/d algorithm=token_bucket
               redis=main;
ratelimit_zone $arg_k zone=far_leaky:1m rate=3r/d algorithm=leaky_bucket
               redis=main;

log_format outcome "$request_uri $status $ratelimit_status";

server {
    listen 127.0.0.1:PORT;
    access_log logs/access.log outcome;

    location /token { ratelimit zone=token count=401;
                      proxy_pass http://127.0.0.1:SLOW; }
    location /far_token { ratelimit zone=far_token count=401;
                          proxy_pass http://127.0.0.1:SLOW; }
    location /far_leaky { ratelimit zone=far_leaky burst=2 nodelay count=401;
                          proxy_pass http://127.0.0.1:SLOW; }
    location /leaky { ratelimit zone=leaky burst=9 nodelay count=401;
                      proxy_pass http://127.0.0.1:SLOW; }
}
END
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


# answers them, and has them settled

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
}


# five logins a second, answered after two seconds, for 50 seconds

sub brute_force {
    my ($location) = @_;

    my $uri = "/$location?k=brute";
    my (@before, @now, $refused);

    for (1 .. 50) {
        answer_all(200, @before);
        @before = @now;
        @now = send_all(5, $uri);
        $refused += 5 - @now;
        $clock->forward(1);
    }

    is($refused, 0, 'no good login is refused');

    my @guesses = send_all(30, $uri);

    answer_all(200, @before);
    push @guesses, send_all(30, $uri);
    $clock->forward(1);
    answer_all(200, @now);
    push @guesses, send_all(30, $uri);

    cmp_ok(scalar @guesses, '<=', 12, 'guesses that pass within a second');
    cmp_ok(scalar @guesses, '>=', 10, 'and not fewer than promised');

    $clock->forward(1);
    push @guesses, send_all(10, $uri);
    is(scalar @guesses, 10, 'open ones do not drip off');

    answer_all(401, @guesses);
    $clock->forward(2);
    is(scalar(@guesses = send_all(10, $uri)), 2, 'those that count do');
    answer_all(401, @guesses);
}


# two a second, of which one is bad: that is the rate, and none is refused

sub good_and_bad {
    my ($location) = @_;

    my $uri = "/$location?k=mixed";
    my (@good, @bad, $refused);

    for (1 .. 40) {
        answer_all(200, splice @good, 0, @good - 1) if @good > 1;
        answer_all(401, splice @bad, 0, @bad - 1) if @bad > 1;

        my @now = send_all(2, $uri);

        $refused += 2 - @now;
        push @good, shift @now if @now;
        push @bad, @now;
        $clock->forward(1);
    }

    is($refused, 0, 'none is refused');
    answer_all(200, @good, @bad);
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
    $clock->forward($answer->{field}{'retry-after'});
    is(scalar(@open = send_all(2, $uri)), 1, 'one has room then');
    answer_all(200, @open);
}


# by Redis' own clock: what is open takes room, and is settled either way

sub in_redis {
    my ($location) = @_;

    my $uri = "/$location?k=far";
    my @open = send_all(5, $uri);

    is(scalar @open, 3, 'three of five are open');
    answer_all(200, shift @open);
    push @open, send_all(2, $uri);
    is(scalar @open, 3, 'a good one makes room for another');
    answer_all(401, @open);
    is(scalar(send_all(2, $uri)), 0, 'bad ones stay counted');

    my ($key) = grep { /:$location:/ } $redis->keys;

    is($redis->call('STRLEN', $key), 12, 'nothing is reserved any more');
    cmp_ok($redis->call('PTTL', $key), '>', 0, 'the counter will go');
}
