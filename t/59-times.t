#!/usr/bin/perl

# Times in the fields are those of the moment at which the fields are sent, not
# of the decision.  If this fails, a client of a slow upstream waits longer than
# it has to, and clients read different resets of one window.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;

use constant PERIOD => 1000;    # seconds
use constant HELD => 2.1;       # so long an upstream works

my $backend = Clients::backend();
my $gateway = Gateway->start(workers => 1, http => config());
my $clients = Clients->new($gateway->{port});

# all at once: each of them is held

my $begin = time;
my %held = map { ($_ => held("/$_")) }
           qw(delta epoch ietf delayed both refused refused/epoch);

sleep HELD;
finish($_) for values %held;

subtest 'seconds' => \&delta;
subtest 'a time' => \&epoch;
subtest 'the fields of the IETF' => \&ietf;
subtest 'a delay' => \&delayed;
subtest 'two decisions' => \&both;
subtest 'a refusal with a slow page' => \&refused;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    my $slow = $backend->sockport;

    return <<'END' =~ s/SLOW/$slow/gr;
ratelimit_zone $uri zone=log:1m rate=2r/1000s algorithm=sliding_log;
ratelimit_zone $uri zone=user:1m rate=1r/1000s algorithm=sliding_log;
ratelimit_zone $uri zone=leaky:1m rate=1r/s algorithm=leaky_bucket;
ratelimit_zone used zone=used:1m rate=1r/1000s algorithm=sliding_log;

add_header X-Reset "$ratelimit_reset" always;
add_header X-Retry "$ratelimit_retry_after" always;

server {
    listen 127.0.0.1:PORT;

    location / { ratelimit zone=log; proxy_pass http://127.0.0.1:SLOW; }
    location = /epoch { ratelimit zone=log; ratelimit_headers x reset=epoch;
                        proxy_pass http://127.0.0.1:SLOW; }
    location = /ietf { ratelimit zone=log; ratelimit_headers ietf;
                       proxy_pass http://127.0.0.1:SLOW; }
    location = /delayed { ratelimit zone=leaky burst=9; empty_gif; }

    # the first limit has the fewest left, the second is decided later
    location = /both { ratelimit zone=user; ratelimit zone=log after_auth;
                       auth_request /auth; empty_gif; }
    location = /auth { internal; proxy_pass http://127.0.0.1:SLOW; }

    location = /used { ratelimit zone=used; empty_gif; }
    location = /refused { ratelimit zone=used; error_page 429 @slow;
                          empty_gif; }
    location = /refused/epoch { ratelimit zone=used; error_page 429 @slow;
                                ratelimit_headers x ietf reset=epoch;
                                empty_gif; }
    location @slow { proxy_pass http://127.0.0.1:SLOW; }
}
END
}


# a request that has been decided, and waits for the backend

sub held {
    my ($uri) = @_;

    if ($uri eq '/delayed') {
        $clients->ask("GET $uri") if $uri eq '/delayed';

        # the third of them waits for two seconds, and the bucket for more

        return { clients => [map { $clients->send("GET $uri") } 1 .. 2] };
    }

    $clients->ask('GET /used') if $uri eq '/refused';

    my $client = $clients->send("GET $uri");
    my $errand = Clients::errand($backend);

    return { clients => [$client], errand => $errand, at => time };
}


sub finish {
    my ($held) = @_;

    Clients::reply($held->{errand}, 200) if $held->{errand};
    Clients::await_answers(scalar @{$held->{clients}}, @{$held->{clients}});

    $held->{answer} = $held->{clients}[-1]{answers}[0];
    $held->{field} = $held->{answer}{field};
}


# seconds: what is left of the period, of which the upstream has had its time

sub left {
    my ($held, $seconds, $name) = @_;

    cmp_ok($seconds, '<=', PERIOD - int HELD, "$name: not more than is left");
    cmp_ok($seconds, '>=', PERIOD - ($held->{answer}{at} - $begin) - 1,
           "$name: not less");
}


# the end of a period that had begun when the backend was asked

sub ends {
    my ($held, $time, $name) = @_;

    cmp_ok($time, '<=', $held->{at} + PERIOD + 1, "$name: not later");
    cmp_ok($time, '>=', $held->{at} + PERIOD - Clients::PATIENCE,
           "$name: not earlier");
}


sub delta {
    my $held = $held{delta};

    left($held, $held->{field}{'x-ratelimit-reset'}, 'the field');
    left($held, $held->{field}{'x-reset'}, 'the variable');
}


sub epoch {
    ends($held{epoch}, $held{epoch}{field}{'x-ratelimit-reset'}, 'the field');
}


sub ietf {
    my ($t) = $held{ietf}{field}{ratelimit} =~ /;t=(\d+)/;

    left($held{ietf}, $t, 't');
}


# two beyond the first: after two seconds only the last of them is left

sub delayed {
    cmp_ok($held{delayed}{field}{'x-ratelimit-reset'}, '<=', 1,
           'one is left of three');
}


sub both {
    my $held = $held{both};

    is($held->{field}{'x-ratelimit-limit'}, 1, 'the first one speaks');
    left($held, $held->{field}{'x-ratelimit-reset'}, 'the field');
}


sub refused {
    my $held = $held{refused};

    is($held->{answer}{status}, 429, 'is refused');
    left($held, $held->{field}{$_}, $_)
        for qw(retry-after x-ratelimit-retry-after x-ratelimit-reset x-retry);

    my ($t) = $held{'refused/epoch'}{field}{ratelimit} =~ /;t=(\d+)/;

    left($held{'refused/epoch'}, $t, 't');
    ends($held, $held{'refused/epoch'}{field}{'x-ratelimit-reset'}, 'epoch');
}
