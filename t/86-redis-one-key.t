#!/usr/bin/perl

# What is wrong with one counter, or with writing, in a Redis that is well
# otherwise.  If this fails, one bad value takes the whole Redis out of service,
# a counter stays for ever, or the log is filled.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

my %algorithm = (
    fixed_window => 'fixed_window rate=9r/d',
    sliding_window => 'sliding_window rate=9r/d',
    'sliding_window-1' => 'sliding_window buckets=1 rate=9r/d',
    sliding_log => 'sliding_log rate=9r/d',
    'sliding_log-long' => 'sliding_log rate=2000r/d',
    token_bucket => 'token_bucket rate=9r/d',
    leaky_bucket => 'leaky_bucket rate=9r/d',
);

my $redis = RedisServer->start;
my $backend = Clients::backend();
my $gateway = Gateway->start(workers => 2, http => config());
my $clients = Clients->new($gateway->{port});

for my $name (sort keys %algorithm) {
    subtest "$name: a value of another kind" => sub { replaced($name) };
    subtest "$name: no expiry" => sub { expires($name) };
}

subtest 'a long log' => \&long_log;
subtest 'a key that must not be touched' => \&forbidden;
subtest 'a value that is no number of resets' => \&resets;
subtest 'looks, but does not write' => \&no_memory;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');

done_testing();


sub config {
    my %location = (
        '/open' => 'ratelimit zone=open;',
        '/open/look' => 'ratelimit zone=open cost=0;',
        '/probe' => 'ratelimit zone=probe;',
        '/one' => 'ratelimit zone=one;',
        '/api/' => 'ratelimit_api write=on;',
    );
    my $http = <<"END";
add_header X-Status \$ratelimit_status always;
add_header X-Backend \$ratelimit_backend always;
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;
ratelimit_zone \$arg_k zone=open:1m rate=1000r/d redis=main fail=open;
ratelimit_zone \$arg_k zone=probe:1m rate=1000000r/h redis=main;
ratelimit_zone \$arg_k zone=one:1m rate=1r/d redis=main;
END
    my $logins = '';

    for my $name (sort keys %algorithm) {
        $http .= "ratelimit_zone \$arg_k zone=$name:1m redis=main"
                 . " algorithm=$algorithm{$name};\n";

        my $burst = $name eq 'leaky_bucket' ? 'burst=8 nodelay' : '';

        $location{"/$name"} = "ratelimit zone=$name $burst;";
        $logins .= <<"END";
    location /login/$name {
        ratelimit zone=$name $burst count=401;
        proxy_pass http://127.0.0.1:${\ $backend->sockport};
    }
END
    }

    return $http . Gateway->server(%location) =~ s/\}\s*\z//r . "$logins}\n";
}


sub told {
    my (@answers) = @_;

    my %tally;

    $tally{join ' ', $_->{status}, map { $_ // '-' }
                     @{$_->{field}}{qw(x-status x-backend)}}++ for @answers;

    return join ', ', map { "$tally{$_} x $_" } sort keys %tally;
}


# the only counter of a key

sub counter {
    my ($k) = @_;

    my @counters = grep { /\Q$k\E\}/ } $redis->keys;

    is(scalar @counters, 1, 'there is a counter');

    return $counters[0];
}


sub well {
    Gateway::await(sub {
        my $answer = $clients->ask('GET /probe?k=p');

        return ($answer->{field}{'x-backend'} // '') eq 'redis';
    }, 'Redis to be well');
}


sub replaced {
    my ($name) = @_;

    well();

    my $log = length $gateway->log;

    is(told($clients->ask("GET /$name?k=bad-$name")), '1 x 200 PASSED redis',
       'Redis counts');

    my $counter = counter("bad-$name");

    $redis->call('DEL', $counter);
    $redis->call('RPUSH', $counter, 1 .. 20);

    is(told($clients->series((["GET /$name?k=bad-$name"]) x 8)),
       '8 x 200 PASSED redis', 'it is as if it had never been seen');
    is($redis->call('TYPE', $counter), 'string', 'and it is replaced');
    cmp_ok($redis->call('PTTL', $counter), '>', 0, 'by one that expires');
    unlike(substr($gateway->log, $log), qr/redis "main"/,
           'the log does not speak of Redis');
}


# whatever is written, by a charge or when it is refunded

sub expires {
    my ($name) = @_;

    well();
    is(told($clients->series((["GET /$name?k=ttl-$name"]) x 2)),
       '2 x 200 PASSED redis', 'Redis counts');

    my $counter = counter("ttl-$name");

    $redis->call('PERSIST', $counter);
    is(told($clients->ask("GET /$name?k=ttl-$name")), '1 x 200 PASSED redis',
       'and goes on');
    cmp_ok($redis->call('PTTL', $counter), '>', 0, 'a charge sets the expiry');

    my $client = $clients->send("GET /login/$name?k=ttl-$name");
    my $errand = Clients::errand($backend);
    my $charged = $redis->call('GET', $counter);

    $redis->call('PERSIST', $counter);
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    Gateway::await(sub { $redis->call('GET', $counter) ne $charged },
                   'a login to be refunded');
    cmp_ok($redis->call('PTTL', $counter), '>', 0, 'so does a refund');
}


# neither a charge nor a refund reads or writes all of it

sub long_log {
    well();
    $clients->series((['GET /sliding_log-long?k=long']) x 50);

    my $client = $clients->send('GET /login/sliding_log-long?k=long');
    my $errand = Clients::errand($backend);

    $redis->forget_calls;
    Clients::reply($errand, 200);
    Clients::await_answers(1, $client);
    Gateway::await(sub { $redis->calls('evalsha') }, 'a refund');
    is($redis->calls('get'), 0, 'it is not read');
    is($redis->calls('set'), 0, 'nor written');
    is($clients->ask('GET /sliding_log-long?k=long')
       ->{field}{'x-ratelimit-remaining'}, 1949, 'the refund counts');
}


# one client asks for it as often as it likes

sub forbidden {
    well();

    my $log = length $gateway->log;

    $redis->call('ACL', 'SETUSER', 'default', 'resetkeys', '~*good*',
                 '~*probe*');

    my @answers = $clients->series(
        map { (["GET /open?k=bad"], ["GET /open?k=good"]) } 1 .. 100);

    $redis->call('ACL', 'SETUSER', 'default', '~*');

    is(told(@answers[map { 2 * $_ + 1 } 0 .. 99]), '100 x 200 PASSED redis',
       'others are counted');
    is(told(@answers[map { 2 * $_ } 0 .. 99]), '100 x 200 FAILED_OPEN -',
       'that one is not');

    my @lines = grep { /redis "main"/ } split /\n/,
                substr $gateway->log, $log;

    like($lines[0] // '', qr/"NOPERM/, 'the log says why');
    cmp_ok(scalar @lines, '<', 20, 'but not each time');
    is(scalar(grep { /marked down/ } @lines), 0, 'Redis is not down');
}


# a machine that refuses from memory asks for it, again and again

sub resets {
    for my $write (['SET', 'ratelimit:{resets}', 'nonsense'],
                   ['RPUSH', 'ratelimit:{resets}', 1 .. 20])
    {
        my $connected = sub {
            return $redis->call('INFO', 'stats')
                   =~ /^total_connections_received:(\d+)/m ? $1 : 0;
        };

        well();
        $clients->series((['GET /one?k=known']) x 2);
        $redis->call('DEL', 'ratelimit:{resets}');
        $redis->call(@$write);

        my $before = $connected->();
        my $end = time + 1;

        while (time < $end) {
            my @answers = $clients->series(['GET /probe?k=counted'],
                                           ['GET /one?k=known']);
            my $told = told(@answers);

            next if $told eq '1 x 200 PASSED redis, 1 x 429 REJECTED redis';
            fail($told);
            last;
        }

        is($connected->(), $before, "$write->[0]: no connection is closed");
        is($clients->ask('DELETE /api/zones/one/keys/known')->{status}, 204,
           'a key can be reset');
        is($redis->call('TYPE', 'ratelimit:{resets}'), 'string',
           'and the value is replaced');
        is(told($clients->ask('GET /one?k=known')), '1 x 200 PASSED redis',
           'so that it is');
    }
}


# some look, some write: all that is said of it is one line

# a refusal that is remembered asks for the number of resets, which is read

sub no_memory {
    well();
    $clients->series((['GET /one?k=refused']) x 2);

    my $log = length $gateway->log;

    $redis->call('CONFIG', 'SET', 'maxmemory', 1);

    # what is looked at in between is no reason to go on

    $clients->series((['GET /open?k=write'], ['GET /open/look?k=look']) x 6);
    like(substr($gateway->log, $log), qr/"main" is marked down/,
         'it is marked down');

    my $end = time + 1;

    $clients->series((['GET /one?k=refused']) x 10) while time < $end;

    $end = time + 2;

    while (time < $end) {
        $clients->series((['GET /open?k=write']) x 10,
                         (['GET /open/look?k=look']) x 10);
    }

    my @lines = grep { /redis "main"/ } split /\n/, substr $gateway->log, $log;

    is(scalar @lines, 1, 'one line says that it does not write')
        or diag(join "\n", @lines);
    like($lines[0] // '', qr/"OOM/, 'and why');

    $redis->call('CONFIG', 'SET', 'maxmemory', 0);
    well();
    is(scalar(grep { /redis "main"/ } split /\n/, substr $gateway->log, $log),
       2, 'one says that it is well again');
}
