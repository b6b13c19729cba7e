#!/usr/bin/perl

# What docs/redis.md and the pages beside it say is so: their commands are run
# against a real Redis and a real nginx and print what a page shows; the rule of
# access control has what is needed and nothing else; the tables of failures and
# of bytes per key are what is measured.  If this fails, a page misleads
# operators.

use strict;
use warnings;

use File::Temp qw(tempdir);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Page;
use RedisClock;
use RedisServer;

my @sections = map { @{Page->new("docs/$_.md")->{sections}} }
                   qw(redis redis-inside redis-servers redis-counters);
my %section = map { $_->{title} => $_ } @sections;
my $recipes = Page->new('docs/recipes.md');
my ($service) = Page::blocks($recipes->{intro}, 'nginx');
my ($words) = Page::blocks($recipes->{intro}, 'sh');
our $redis = RedisServer->start;

my @missing = grep { !$section{$_} }
              ('Set-up', 'The server', 'When Redis does not answer',
               'Sentinel', 'TLS', 'Names of counters', 'Sizing');

BAIL_OUT("the pages have no section \"@missing\"") if @missing;

subtest 'the checks can fail' => \&self_test;
subtest 'commands' => \&commands;
subtest 'a log' => \&ages;
subtest 'one bucket' => \&one_bucket;
subtest 'a user' => \&user;
subtest 'settings of the server' => \&settings;
subtest 'TLS' => \&tls;
subtest 'names' => \&names;
subtest 'a refusal is remembered' => \&refusal;
subtest 'failures' => \&failures;
subtest 'clock' => \&clock;
subtest 'bytes per key' => \&bytes_per_key;
subtest 'bytes of a command' => \&bytes_of_command;

done_testing();


sub self_test {
    my $same = sub {
        my ($shown, $got) = @_;

        return (Page::near([$shown], [$got]))[0] eq $shown;
    };

    my $now = time;
    my $time = $now . '000000';

    ok($same->('2) (integer) 1700000000000000', "2) (integer) $time"), 'now');
    ok(!$same->('2) (integer) 1700000000000000', "1) (integer) $time"),
       'another number');
    ok(!$same->('1700000000000000', ($now - 3600) . '000000'), 'an hour ago');
    ok($same->('1700000000000000', ($now + 3600) . '000000'), 'in an hour');
    ok(!$same->('1700000000000000', $now), 'seconds');
    ok($same->('1) (integer) 4700000', '1) (integer) ' . int($now / 360)),
       'a sub-window');
    ok(!$same->('1) (integer) 4700000', '1) (integer) ' . int($now / 360 - 9)),
       'a sub-window long ago');
    ok($same->('(integer) 63150', '(integer) 60100'), 'milliseconds');
    ok(!$same->('(integer) 63150', '(integer) 3600000'), 'other ones');
    ok($same->('(integer) 3', '(integer) 3'), 'a count');
    ok(!$same->('(integer) 3', '(integer) 4'), 'another count');

    is_deeply([table("x\n\n| a | `b` |\n|---|---|\n| | 1 |\n\n| d |\n")],
              [['a', '`b`'], ['', '1']], 'a table');
}


# rows of the first table of a text

sub table {
    my ($text) = @_;

    my ($table) = $text =~ /((?:^\|.*\n)+)/m;
    my @rows = grep { !/^\|-/ } split /\n/, $table;

    return map { [map { s/^ +| +$//gr } /\|([^|]*)(?=\|)/g] } @rows;
}


# with its service, and with a Redis that has time to answer

sub gateway {
    my ($conf) = @_;

    $conf .= $service if $conf !~ /listen +127\.0\.0\.2:/;
    $conf .= "upstream backend {\nserver 127.0.0.2:8080;\n}\n"
        if $conf =~ m{//backend};
    $conf =~ s/:8080\b/:PORT/g;
    $conf =~ s{(redis://\S*127\.0\.0\.1):6379([^\s;]*)}
              {$1:$redis->{port}$2 timeout=5s connect_timeout=5s}g;

    $redis->call('FLUSHALL', 'SYNC');

    return Gateway->start(http => $conf);
}


sub shell {
    my ($gateway, @words) = @_;

    return Page->shell(dir => $gateway->{dir}, words => join('', @words),
                       ports => {8080 => $gateway->{port},
                                 6379 => $redis->{port}});
}


# a section that shows no configuration has the first one of the page

sub commands {
    my $n = 0;

    for my $section (grep { @{$_->{console}} } @sections) {
        my $conf = $section->{conf}[0] // $section{'Set-up'}{conf}[0];
        my $gateway = gateway($conf);
        my @words = grep { /^\w+\(\) \{$/m } @{$section->{sh}};
        my $shell = shell($gateway, $words, @words);

        for my $step (map { Page::commands($_) } @{$section->{console}}) {
            my @lines = $shell->result($step->{command}, $step->{lines});

            is_deeply([Page::near($step->{lines}, \@lines)], $step->{lines},
                      $step->{command} =~ s/\n/ /gr);
            $n++;
        }

        is($gateway->complaints, '', 'nothing is wrong with nginx');
    }

    cmp_ok($n, '>=', 10, 'there are some');
}


# a log whose newest times are before older ones, and one that nginx makes

sub ages {
    my $section = $section{'Looking at a counter'};
    my $gateway = gateway($section->{conf}[0]);
    my $shell = shell($gateway, grep { /^log\(\)/m } @{$section->{sh}});

    my @times = (5_000_000, 2_000_000, 3_000_000, 4_000_000);

    $redis->call('SET', 'a', join '', pack('Q<', $times[0]) =~ s/.\z//sr,
                 pack('L<L<', 1, 4), map { pack('Q<', $_) =~ s/...\z//sr }
                 @times);
    is(join(' ', $shell->output('log a | cat')), '0 1000000 2000000 3000000',
       'ages');

    my $clients = Clients->new($gateway->{port});
    my $before = time;

    $clients->ask('GET /', 'X-API-Key: 4712') for 1 .. 20;

    my @ages = $shell->output("log 'ratelimit:{2:bob}:log::60l' | cat");

    is(scalar @ages, 20, 'of requests');
    is_deeply(\@ages, [sort { $a <=> $b } @ages], 'in their order');
    cmp_ok($ages[-1], '<=', (time - $before + 1) * 1e6, 'and in microseconds');
    cmp_ok($ages[-1], '>=', 20, 'not of another unit');
}


# is to be read in another way

sub one_bucket {
    my $section = $section{'Looking at a counter'};
    my ($format) = $section->{body} =~ /to be read as `('\S+')`/;
    my $gateway = gateway("ratelimit_redis main redis://127.0.0.1:6379;\n"
        . "ratelimit_zone \$arg_k zone=key:1m redis=main buckets=1 rate=9r/d;\n"
        . Gateway->server('/' => 'ratelimit zone=key;'));
    my $shell = shell($gateway, grep { /^counter\(\)/m } @{$section->{sh}});
    my $day = int(time / 86_400);

    backends($gateway, ('/?k=a') x 3);

    is(join(' ', $shell->output("counter 'ratelimit:{2:a}:key::86400w1' $format"
                                . ' | cat')),
       "$day 3 0", 'number and counters');
}


# each command that the rule allows is needed, and no other one is

sub user {
    my ($rule) = grep { /ACL SETUSER/ } @{$section{'Set-up'}{sh}};
    my %zone = (fixed => 'algorithm=fixed_window rate=50r/h',
                sliding => 'rate=50r/h',
                log => 'algorithm=sliding_log rate=50r/h',
                long => 'algorithm=sliding_log rate=5000r/h',
                token => 'algorithm=token_bucket rate=50r/h',
                leaky => 'algorithm=leaky_bucket rate=50r/h');

    # by write-back, too; a log must not be that long then

    $zone{"${_}_sync"} = "$zone{$_} sync=10ms" for grep { $_ ne 'long' }
                                                   keys %zone;

    my $gateway = gateway(user_conf('', %zone));
    my @uris = map { ("/back/$_", "/$_", "/$_", "/back/$_") } sort keys %zone;

    is_deeply([shell($gateway)->output($rule)], ['OK'], 'the rule');
    is(denials($gateway, '', @uris), 0, 'is enough');

    for my $word ($rule =~ /\+(\w+)/g) {
        isnt(denials($gateway, $word, @uris), 0, "$word is needed");
    }

    $redis->call('ACL', 'SETUSER', 'gateway', '+select');

    my $other = gateway(user_conf('/1', %zone));

    is(denials($other, '', @uris), 0, 'another database, with +select');
    isnt(join(' ', $redis->keys(1)), '', 'is used');
}


sub user_conf {
    my ($db, %zone) = @_;

    my $conf = <<"END";
ratelimit_redis main redis://gateway:secret\@127.0.0.1:6379$db;
add_header X-Backend \$ratelimit_backend always;
END

    my %location;

    for my $name (sort keys %zone) {
        $conf .= "ratelimit_zone \$arg_k zone=$name:1m redis=main "
                 . "$zone{$name};\n";
        $location{"/$name"} = "ratelimit zone=$name;";
        $location{"/back/$name"} = "ratelimit zone=$name count=500;";
    }

    return $conf . Gateway->server(%location);
}


# How often something was denied to a new client's requests without one of the
# commands.  The last request is the last one that Redis hears of.

sub denials {
    my ($gateway, $without, @uris) = @_;

    our $client++;

    Gateway::await(sub { backends($gateway, "/fixed?k=x$client") eq 'redis' },
                   'Redis to be asked');

    $redis->call('ACL', 'LOG', 'RESET');
    $redis->call('SCRIPT', 'FLUSH');
    $redis->call('ACL', 'SETUSER', 'gateway', "-$without") if $without;

    backends($gateway, (map { "$_?k=$client" } @uris), "/fixed?k=y$client");

    my $denied = $redis->call('ACL', 'LOG');

    $redis->call('ACL', 'SETUSER', 'gateway', "+$without") if $without;

    return scalar @$denied;
}


sub backends {
    my ($gateway, @uris) = @_;

    return join ' ', map { $_->{field}{'x-backend'} // '-' }
           Clients->new($gateway->{port})->series(map { ["GET $_"] } @uris);
}


sub settings {
    my ($text) = Page::blocks($section{'The server'}{body}, 'text');
    my ($bound) = grep { /^min-replicas/ }
                  Page::blocks($section{Sentinel}{body}, 'text');

    for (split /\n/, $text . $bound) {
        my ($name, $value) = split ' ', s/""//r, 2;

        is($redis->call('CONFIG', 'SET', $name, $value // ''), 'OK', $_);
    }

    $redis->call('CONFIG', 'SET', 'maxmemory', 0);
    $redis->call('CONFIG', 'SET', 'min-replicas-to-write', 0);
}


# certificates are made, Redis is started and nginx is configured as it is told

sub tls {
    my $section = $section{TLS};
    my $dir = tempdir(CLEANUP => 1);
    my ($make) = grep { /^cert\(\)/m } @{$section->{sh}};
    my ($text) = Page::blocks($section->{body}, 'text');

    chmod 0755, $dir;
    open my $shell, '|-', "cd $dir && exec bash -e > log 2>&1" or die $!;
    print $shell $make;
    ok(close $shell, 'certificates') or diag(Gateway::slurp("$dir/log"));
    chmod 0644, glob "$dir/*.key";

    my %option = map { /^(tls-\S+-file) +(\S+)$/ ? ("--$1" => "$dir/$2") : () }
                 split /\n/, $text;
    my $port = Gateway::free_port();
    my $times = 'timeout=5s connect_timeout=5s';

    local $redis = RedisServer->start(%option, '--tls-port' => $port);

    my $limit = "ratelimit_zone \$arg_k zone=k:1m rate=5r/h redis=NAME;\n"
                . "add_header X-Backend \$ratelimit_backend always;\n"
                . Gateway->server('/' => 'ratelimit zone=k;');

    open my $file, '>', "$dir/secret" or die $!;
    print $file "secret\n";
    close $file or die $!;

    my ($plain, $mutual) = map { s{=(\S+\.(?:pem|key))}{=$dir/$1}gr
                                 =~ s{=\w+\.pw}{=$dir/secret}gr }
                           @{$section->{conf}};

    my $gateway = gateway($mutual =~ s{:6379}{:$port $times}r
                          . $limit =~ s/NAME/main/r);

    is(backends($gateway, '/?k=a'), 'redis', 'with a certificate');

    $redis->call('CONFIG', 'SET', 'tls-auth-clients', 'no');
    $redis->call('CONFIG', 'SET', 'requirepass', 'secret');

    $gateway = gateway($plain =~ s{:6380}{:$port $times}r
                       . $limit =~ s/NAME/other/r);
    is(backends($gateway, '/?k=a'), 'redis', 'with a password');
}


# the names that the section has as examples, and how it asks for a binary one

sub names {
    my $body = $section{'Names of counters'}{body};
    my $gateway = gateway(<<'END');
ratelimit_redis main redis://127.0.0.1:6379;
ratelimit_zone $arg_k zone=account:1m rate=50r/m redis=main;
ratelimit_zone $ratelimit_client zone=ip:1m rate=50r/m redis=main;
server {
    listen 127.0.0.1:8080;
    location / { ratelimit zone=account; ratelimit zone=ip; empty_gif; }
    location /login { ratelimit zone=account rate=5r/m; empty_gif; }
    location /odd { ratelimit zone=account rate=5r/m "name=:%{}"; empty_gif; }
}
END

    my @examples = $body =~ /`(ratelimit:\{\S+)`/g;

    is(scalar @examples, 2, 'two examples');
    backends($gateway, '/?k=alice', '/login?k=alice', '/odd?k=alice');
    is($redis->call('EXISTS', $_), 1, $_) for @examples;

    my $escaped = join '', $body =~ /`(%[0-9A-F]{2})`/g;

    is($escaped, '%3A%25%7B%7D', 'escapes');
    is($redis->call('EXISTS', "ratelimit:{2:alice}:account:$escaped:60w10"),
       1,
       'are so');

    my ($command) = grep { /PTTL/ } @{$section{'Names of counters'}{sh}};
    my ($line) = shell($gateway)->output($command);

    like($line, qr/^(?:\(integer\) )?[56]\d{4}$/, 'the address of a client');
}


sub refusal {
    my $gateway = gateway($section{'Set-up'}{conf}[0]);
    my $clients = Clients->new($gateway->{port});
    my @request = ('GET /api/', 'X-API-Key: 4711');

    my ($status, $name) = (0, 'ratelimit:{2:alice}:account::60w10');

    # a memory that is older than a second is not believed without a question

    for (1 .. 20) {
        $clients->series((\@request) x 50);
        $status = $clients->ask(@request)->{status};
        last if $status != 429 || !$redis->call('DEL', $name);
        $status = $clients->ask(@request)->{status};
        last if $status == 429;
    }

    is($status, 429, 'remembered though Redis does not know it any more');

    $gateway->reload($gateway->{http});
    is($clients->ask(@request)->{status}, 200, 'until a reload');
}


# the table says what is seen

sub failures {
    my ($head, @rows) = table($section{'When Redis does not answer'}{body});
    my %shown = map { $_->[0] => $_ } @rows;

    my $conf = "ratelimit_redis main redis://127.0.0.1:1 timeout=5s;\n"
               . "add_header X-Status \$ratelimit_status always;\n"
               . "add_header X-Backend \$ratelimit_backend always;\n";
    my %location;

    for my $fail (qw(local open closed)) {
        $conf .= "ratelimit_zone k zone=$fail:1m rate=5r/h redis=main"
                 . " fail=$fail;\n";
        $location{"/$fail"} = "ratelimit zone=$fail;";
    }

    my $gateway = gateway($conf . Gateway->server(%location));
    my $clients = Clients->new($gateway->{port});

    for my $column (1 .. 3) {
        my $name = $head->[$column] =~ s/`//gr;
        my $answer = $clients->ask('GET /' . $name =~ s/fail=//r);
        my $field = $answer->{field};

        my $told = defined $field->{'x-ratelimit-limit'} ? 'as always' : 'none';
        my $status = $field->{'x-status'};

        is($told, $shown{'header fields'}[$column], "$name, fields");
        is($status eq 'PASSED' ? 'as always' : "`$status`",
           $shown{'`$ratelimit_status`'}[$column], "$name, status");
        is($field->{'x-backend'} ? "`$field->{'x-backend'}`" : 'empty',
           $shown{'`$ratelimit_backend`'}[$column], "$name, backend");
        is($answer->{status} == 503,
           scalar($shown{users}[$column] =~ /503/), "$name, users");
    }
}


# what becomes of limits that were used up when the clock of Redis is set

sub clock {
    my $clock = RedisClock->new;

    local $redis = $clock->start_redis;

    my %zone = (fixed => 'algorithm=fixed_window rate=3r/h',
                sliding => 'rate=3r/h',
                log => 'algorithm=sliding_log rate=3r/h',
                token => 'algorithm=token_bucket rate=3r/h',
                leaky => 'algorithm=leaky_bucket rate=3r/h');
    my ($conf, %location) = "ratelimit_redis main redis://127.0.0.1:6379;\n";

    for my $name (sort keys %zone) {
        $conf .= "ratelimit_zone \$arg_k zone=$name:1m redis=main "
                 . "$zone{$name};\n";
        $location{"/$name"} = "ratelimit zone=$name cost=\$arg_c"
                              . ($name eq 'leaky' ? ' burst=2 nodelay;' : ';');
    }

    my $gateway = gateway($conf . Gateway->server(%location));
    my $clients = Clients->new($gateway->{port});

    # of another cost, Redis is asked again

    for my $uri (map { ("/$_?k=back", "/$_?k=forward") } sort keys %zone) {
        is($clients->ask("GET $uri&c=3")->{status}, 200, $uri);
    }

    $clock->set(-1800);

    for my $name (sort keys %zone) {
        my $answer = $clients->ask("GET /$name?k=back&c=1");

        is($answer->{status}, 429, "$name, set back: used up");
        cmp_ok($answer->{field}{'retry-after'} // 9999, '<=', 3960,
               "$name, set back: not for longer than if used now");
    }

    $clock->set(7200);

    is($clients->ask("GET /$_?k=forward&c=1")->{status}, 200, "$_, set forward")
        for sort keys %zone;
}


# each state as nginx makes it, copied to as many keys

sub bytes_per_key {
    my (undef, @rows) = table($section{Sizing}{body});
    my ($name) = $section{Sizing}{body} =~ /`(ratelimit:\{\S+)`/;
    my ($key) = $name =~ /\{2:(.*)\}/;

    my ($keys) = $section{Sizing}{body} =~ /Measured over (\d+) keys/;

    is(length $key, 16, 'a key of 16 bytes');
    cmp_ok($keys, '>=', 100_000, 'many of them');

    my ($less) = $section{Sizing}{body} =~ /Valkey.* takes (\d+) bytes less/;
    my ($short) = $section{Sizing}{body}
                  =~ /a name in 16 bytes it is (\d+) bytes\s+less/;

    $less = 0 if $redis->call('INFO', 'server') !~ /^valkey_version:8\./m;

    for my $row (@rows) {
        my ($what, $bytes) = @$row;
        my ($number) = $what =~ /, (\d+) /;

        for my $algorithm ($what =~ /`(\w+)`/g) {
            my @got = measure($key, $algorithm, $number // 50, $keys);

            cmp_ok(abs($got[0] - $bytes + $less), '<=', 1, "$algorithm, $what")
                or diag("measured: $got[0]");
            cmp_ok(abs($got[1] - $bytes + $less + $short), '<=', 1,
                   "$algorithm, $what, and a short name")
                or diag("measured: $got[1]");
        }
    }

    my ($more) = $section{Sizing}{body} =~ /up to (\d+) bytes\s+more for each/;
    my ($full, $double) = map { (measure($key, 'fixed_window', 50, $_))[0] }
                              131_000, 131_200;

    cmp_ok(abs($double - $full - $more), '<=', 1, 'as tables have doubled')
        or diag("measured: $full, $double");
}


sub measure {
    my ($key, $algorithm, $n, $keys) = @_;

    my $params = "algorithm=$algorithm rate=${n}r/d";

    $params = "buckets=$n rate=50r/d" if $algorithm eq 'sliding_window';

    my $gateway = gateway("ratelimit_redis main redis://127.0.0.1:6379;\n"
        . "ratelimit_zone \$arg_k zone=key:1m redis=main $params;\n"
        . Gateway->server('/' => 'ratelimit zone=key;'));

    backends($gateway, ("/?k=$key") x ($algorithm =~ /log/ ? $n : 1));

    my ($made) = $redis->keys;

    return map { copies($made, $_, $keys) } $made =~ s/\{.*\}/{%016d}/r,
                                            '%016d';
}


# the memory of a copy of a counter, in a database that was empty

sub copies {
    my ($made, $names, $n) = @_;

    # on a connection whose replies may take minutes

    my $client = $redis->client(patience => 600);
    my (undef, $copied) = $client->pipe(['SELECT', 1],
                                        ['EVAL', <<'END', 1, $made, $names, $n],
-- since Redis 8, memory of scripts is a part of it

local function used()
    collectgarbage()
    return redis.call('INFO', 'memory'):match('used_memory:(%d+)')
end

redis.call('SELECT', 0)
redis.call('COPY', KEYS[1], KEYS[1], 'DB', 1, 'REPLACE')
redis.call('FLUSHDB', 'SYNC')
redis.call('SELECT', 1)

local before = used()

for i = 1, ARGV[2] do
    redis.call('COPY', KEYS[1], string.format(ARGV[1], i), 'DB', 0)
end

redis.call('SELECT', 0)

-- each makes the table of keys, that has grown, a bit tidier

for i = 1, ARGV[2] do
    redis.call('PTTL', string.format(ARGV[1], i))
end

local bytes = math.floor((used() - before) / ARGV[2] + 0.5)

redis.call('SELECT', 1)
redis.call('COPY', KEYS[1], KEYS[1], 'DB', 0, 'REPLACE')

return bytes
END
                                        ['SELECT', 0]);

    return $copied;
}


sub bytes_of_command {
    my ($there, $back) = $section{Sizing}{body}
                         =~ /some (\d+) bytes\s+there and (\d+) back/;
    my $gateway = gateway("ratelimit_redis main redis://127.0.0.1:6379;\n"
        . "ratelimit_zone \$arg_k zone=key:1m redis=main rate=500r/m;\n"
        . Gateway->server('/' => 'ratelimit zone=key;'));

    backends($gateway, '/?k=0123456789abcdef');

    # what is asked about is a part of what is told

    my @before = traffic();
    my @idle = traffic();

    backends($gateway, ('/?k=0123456789abcdef') x 100);

    my @after = traffic();
    my @got = map { ($after[$_] - $idle[$_] - ($idle[$_] - $before[$_])) / 100 }
                  0, 1;

    cmp_ok(abs($got[0] - $there), '<=', 5, "$there there") or diag($got[0]);
    cmp_ok(abs($got[1] - $back), '<=', 2, "$back back") or diag($got[1]);

    my ($command) = grep { /commandstats/ } @{$section{Sizing}{sh}};
    my ($line) = shell($gateway)->output($command);

    like($line, qr/^cmdstat_evalsha:calls=\d+,.*\busec_per_call=\d/,
         'how long scripts take');
}


sub traffic {
    return $redis->call('INFO', 'stats')
           =~ /^total_net_(?:in|out)put_bytes:(\d+)/mg;
}
