#!/usr/bin/perl

# Counters survive a reload under load, whatever of rates, soft, burst and size
# changed: not one admission too many or too few, also while old workers go on
# counting.  Another key or algorithm resets the zone, which is logged.

use strict;
use warnings;

use List::Util qw(max shuffle sum);
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Gateway;

use constant WORKERS => 2;
use constant KEYS => 20;

# far from the end of a window that the wall clock opens
my ($minutes) = map { $_ / 60 } grep { $_ - time % $_ > 300 } 3600, 3660, 4020;

# what the zone says besides its size, and the limit, for n requests; of each
# kind of state one, and one for each parameter that may change
my %kind = (
    fixed_window => sub { "algorithm=fixed_window rate=$_[0]r/${minutes}m" },
    sliding_window_1 => sub { "buckets=1 rate=$_[0]r/366d" },
    sliding_window => sub { "rate=$_[0]r/1h rate=$_[0]r/2h" },
    sliding_log => sub { "algorithm=sliding_log rate=$_[0]r/1h" },
    token_bucket => sub { "algorithm=token_bucket capacity=$_[0] rate=1r/d" },
    leaky_bucket => sub {
        ('algorithm=leaky_bucket rate=1r/d', 'nodelay burst=' . ($_[0] - 1));
    },
);

subtest "$_ under load" => sub { under_load($_) } for sort keys %kind;
subtest "$_ and an old worker" => sub { old_worker($_) }
    for qw(fixed_window sliding_window sliding_log);
subtest 'soft' => \&soft;
subtest 'two zones' => \&two_zones;
subtest 'fewer' => \&fewer;
subtest 'the new size' => \&new_size;
subtest 'resized again and again' => \&resized_often;
subtest 'memory at each moment' => \&memory_in_use;
subtest 'no room' => \&no_room;
subtest "$_, resized faster than old workers go" => sub { resized_fast($_) }
    for qw(fixed_window sliding_window sliding_log);
subtest 'reset' => \&reset_zones;
subtest 'without any zone and back' => \&off_and_on;
subtest 'a reload that fails' => \&fails;

done_testing();


sub zone {
    my ($kind, $n, $size) = @_;

    my ($zone, $limit) = $kind{$kind}->($n);

    return "ratelimit_zone \$http_x_key zone=z:$size $zone;\n"
           . Gateway->server('/' => "ratelimit zone=z " . ($limit || '') . ';');
}


sub start {
    my ($http) = @_;

    return Gateway->start(workers => WORKERS, http => $http);
}


# requests of all keys, so many of each

sub of_each {
    my ($n) = @_;

    return shuffle(map { (['/', "key $_"]) x $n } 1 .. KEYS);
}


# Random requests, n at least, while nginx reloads with these configurations:
# all in a row, or each when the former is in force.

sub load_and_reload {
    my ($gateway, $n, $in_a_row, @configs) = @_;

    return $gateway->load(
        requests => sub {
            return if $n-- <= 0 && !@configs;
            return ['/', 'key ' . int(1 + rand KEYS)];
        },
        tick => sub {
            my ($answers) = @_;

            return if !@configs || $answers < 500;
            return if !$in_a_row && !$gateway->reloaded;

            $gateway->hup(shift @configs);
        },
    );
}


# exactly n of each key were admitted, and others refused

sub exactly {
    my ($n, $name, @tallies) = @_;

    my $sum = GatewayClient::add_up(@tallies);
    my @wrong = grep { ($sum->{$_}{200} || 0) != $n || !$sum->{$_}{429} }
                sort keys %$sum;

    is(keys %$sum, KEYS, 'all keys were used');

    ok(!@wrong, $name)
        or diag(map { ($_, explain($sum->{$_})) } @wrong);

    is(scalar(grep { $_->{hang} } @tallies), 0, 'no hang');
}


sub settle {
    my ($gateway) = @_;

    Gateway::await(sub { $gateway->settled }, 'old workers to go');
}


sub quiet {
    my ($gateway) = @_;

    is($gateway->complaints, '', 'nothing to complain about');
    unlike($gateway->log, qr/is reset/, 'nothing was reset');
}


# sizes and rates change again and again; the last rate is the one that holds

sub under_load {
    my ($kind) = @_;

    my @steps = ([300, '1m'], [300, '1m'], [300, '4m'], [400, '4m'],
                 [400, '512k'], [500, '1m'], [900, '2m'], [900, '512k']);

    for my $in_a_row (0, 1) {
        my @configs = map { zone($kind, @$_) } @steps;
        my $gateway = start(shift @configs);
        my @tallies = load_and_reload($gateway, 8000, $in_a_row, @configs);

        Gateway::await(sub { $gateway->reloaded }, 'the last reload');

        push @tallies, $gateway->load(requests => [of_each(910)]);

        settle($gateway);

        # until now a log was no longer than the oldest worker knew it

        push @tallies, $gateway->load(requests => [of_each(910)]);

        exactly(900, $in_a_row ? 'in a row' : 'one by one', @tallies);
        quiet($gateway);
    }
}


# A request that has begun keeps its worker alive through reloads, and is
# decided there when it ends, by the limit that its worker knows.

sub old_worker {
    my ($kind) = @_;

    my $gateway = start(zone($kind, 40, '256k'));
    my @oldest = map { [map { begin($gateway, "key $_") } 1 .. KEYS] } 1 .. 25;
    my @tallies = $gateway->load(requests => [of_each(10)]);
    my @oldest_workers = $gateway->current_workers;

    $gateway->reload(zone($kind, 50, '1m'));

    my @middle = map { begin($gateway, "key $_") } (1 .. KEYS) x 5;

    push @tallies, $gateway->load(requests => [of_each(4)]);

    my @middle_workers = $gateway->current_workers;

    $gateway->reload(zone($kind, 50, '1m'));
    $gateway->reload(zone($kind, 50, '128k'));

    $gateway->load(requests => [(['/', 'probe']) x 40]);

    for (1 .. 4) {
        push @tallies, finish(\@oldest_workers,
                              map { @$_ } splice @oldest, 0, 5);
        push @tallies, $gateway->load(requests => [of_each(1)]);
    }

    all_admitted(38, '38 of 40 by old and new workers', @tallies);

    push @tallies, finish(\@oldest_workers, map { @$_ } @oldest);

    all_admitted(40, 'not more than 40 by old ones', @tallies);

    # while the oldest workers exist, no worker counts further than they can

    Gateway::await(sub { gone($gateway, @oldest_workers) }, 'old workers');
    Gateway::await(sub {
        my $probe = $gateway->load(requests => [['/', 'probe']]);

        return $probe->{keys}{probe}{200};
    }, 'another table');

    push @tallies, finish(\@middle_workers, @middle);

    all_admitted(45, 'then more by younger ones', @tallies);

    settle($gateway);

    push @tallies, $gateway->load(requests => [of_each(100)]);

    exactly(50, 'all of them have one count', @tallies);
    quiet($gateway);
}


sub begin {
    my ($gateway, $key) = @_;

    my $socket = $gateway->connect or die "connect: $!";

    syswrite $socket, "GET / HTTP/1.1\r\nHost: a\r\nX-Key: $key\r\n";

    return [$socket, $key];
}


# ends requests that were begun, which these workers must answer

sub finish {
    my ($workers, @begun) = @_;

    my %expected = map { $_ => 1 } @$workers;
    my (%keys, @others);

    for my $begun (@begun) {
        my ($socket, $key) = @$begun;

        syswrite $socket, "\r\n";

        local $SIG{ALRM} = sub { die "no answer to a request that was begun" };
        alarm 20;

        my $answer = do { local $/; <$socket> } // '';

        alarm 0;

        my ($status) = $answer =~ m{^HTTP/1\.1 (\d+)};
        my ($worker) = $answer =~ /^X-Worker: (\d+)/m;

        $keys{$key}{$status // 'unanswered'}++;
        push @others, $worker // 'none' if !$expected{$worker // 0};
    }

    is("@others", '', 'by old workers');

    return { keys => \%keys };
}


sub all_admitted {
    my ($n, $name, @tallies) = @_;

    my $sum = GatewayClient::add_up(@tallies);

    is(join(' ', map { $sum->{"key $_"}{200} // 0 } 1 .. KEYS),
       join(' ', ($n) x KEYS), $name);
}


sub gone {
    my ($gateway, @workers) = @_;

    my %there = map { $_ => 1 } $gateway->all_workers;

    return !grep { $there{$_} } @workers;
}


sub soft {
    my ($off, $on) = map { 'ratelimit_zone $http_x_key zone=z:1m rate=100r/1h;'
                           . Gateway->server('/' => "ratelimit zone=z $_;") }
                     '', 'soft=50%';
    my $gateway = start($off);
    my @tallies = load_and_reload($gateway, 2500, 0, $off, $on, $on);

    Gateway::await(sub { $gateway->reloaded }, 'the last reload');

    push @tallies, $gateway->load(requests => [of_each(151)]);

    exactly(150, 'what is soft counts', @tallies);

    $gateway->reload($off);

    push @tallies, $gateway->load(requests => [of_each(10)]);

    exactly(150, 'and when it is hard again none is admitted', @tallies);
    quiet($gateway);
}


# all or nothing, where one of two tables is replaced, or both

sub two_zones {
    my @sizes = (['1m', '1m'], ['2m', '1m'], ['2m', '512k'], ['1m', '1m'],
                 ['4m', '1m'], ['1m', '2m'], ['2m', '2m'], ['512k', '1m']);
    my @configs = map { two($_->[0], $_->[1]) } @sizes;
    my $gateway = Gateway->start(workers => 4, http => shift @configs);

    my $tally = load_and_reload($gateway, 20000, 0, @configs);

    settle($gateway);

    exactly(400, 'the smaller limit', $tally,
            $gateway->load(requests => [of_each(401)]));

    my $rest = $gateway->load(requests => [
        shuffle(map { (['/large', "key $_"]) x 150 } 1 .. KEYS)
    ]);

    exactly(100, 'what is left of the larger one', $rest);
    quiet($gateway);
}


sub two {
    my ($a, $b) = @_;

    return "ratelimit_zone \$http_x_key zone=a:$a rate=400r/366d buckets=1;\n"
           . "ratelimit_zone \$http_x_key zone=b:$b rate=500r/1h;\n"
           . Gateway->server('/' => 'ratelimit zone=a; ratelimit zone=b;',
                             '/large' => 'ratelimit zone=b;');
}


# a rate that is lowered holds at once: what was used is not forgotten

sub fewer {
    for my $kind (qw(fixed_window sliding_window sliding_log)) {
        my $gateway = start(zone($kind, 300, '1m'));
        my @tallies = load_up_to($gateway, 100, zone($kind, 300, '2m'),
                                 zone($kind, 200, '2m'),
                                 zone($kind, 150, '1m'));

        is_deeply([grep { $_->{429} } values %{GatewayClient::add_up(@tallies)}], [],
                  "$kind: none was refused");

        push @tallies, $gateway->load(requests => [of_each(200)]);

        exactly(150, "$kind: then the new limit holds", @tallies);

        $gateway->reload(zone($kind, 50, '1m'));

        push @tallies, $gateway->load(requests => [of_each(10)]);

        exactly(150, "$kind: and one below what was used", @tallies);
        quiet($gateway);
    }
}


# n requests of each key; those of the first half while nginx reloads

sub load_up_to {
    my ($gateway, $n, @configs) = @_;

    my @tallies;

    for my $config (@configs) {
        my $due = 1;

        push @tallies, $gateway->load(
            requests => [of_each($n / @configs / 2)],
            tick => sub { $gateway->hup($config) if $due; $due = 0; },
        );

        Gateway::await(sub { $gateway->reloaded }, 'a reload');
    }

    my $sent = @configs * int($n / @configs / 2);

    return @tallies, $gateway->load(requests => [of_each($n - $sent)]);
}


# as many keys are remembered as fit into the new size

sub new_size {
    for my $kind (qw(fixed_window sliding_window)) {
        my $gateway = start(zone($kind, 1, '64k'));

        cmp_ok(remembered($gateway, 'small'), '<', 5000, "$kind: a small zone");

        $gateway->reload(zone($kind, 1, '4m'));

        my $try = 0;

        is(Gateway::await(sub {
            my $keys = remembered($gateway, 'large ' . $try++);

            return $keys == 5000 && $keys;
        }, 'the larger zone'), 5000, "$kind: a larger one");

        $gateway->reload(zone($kind, 1, '64k'));

        ok(Gateway::await(sub {
            return remembered($gateway, 'small ' . $try++) < 5000;
        }, 'the smaller zone'), "$kind: a smaller one");

        is($gateway->complaints, '', 'nothing to complain about');
    }
}


# each key is allowed one request: a refusal is remembered

sub remembered {
    my ($gateway, $prefix) = @_;

    my @requests = map { ['/', "$prefix $_"] } 1 .. 5000;

    $gateway->load(depth => 8, requests => [@requests]);

    my $tally = $gateway->load(depth => 8, requests => [@requests]);

    return scalar grep { $_->{429} } values %{$tally->{keys}};
}


# all tables together take at most three times the larger size; what is in use
# moves along

sub resized_often {
    my $gateway = start(zone('fixed_window', 2, '4m'));
    my @refused;

    $gateway->load(requests => [(['/', 'often']) x 2]);

    for my $i (1 .. 8) {
        my $tally = $gateway->load(requests => [['/', 'often'], ['/', "k$i"]]);

        push @refused, $tally->{keys}{often}{429} || 0;
        $gateway->reload(zone('fixed_window', 2, $i % 2 ? '5m' : '4m'));
        settle($gateway);
    }

    is("@refused", join(' ', (1) x 8), 'a client in use stays refused');

    # tables are given up when they are sealed, a moment after old workers went

    ok(Gateway::await(sub {
        $gateway->reload(zone('fixed_window', 2, '4m'));
        settle($gateway);

        return mapped(($gateway->current_workers)[0]) <= 15 << 20;
    }, 'older tables to be given up'), 'all tables take 15 MB at most');

    quiet($gateway);
}


# Each table is filled before the next resize, so that four would be more than
# three times the largest: they never are, and all keys have their counts.

sub memory_in_use {
    my @sizes = map { 2048 + 8 * $_ } 0 .. 5;
    my $gateway = start(zone('fixed_window', 2, "$sizes[0]k"));
    my (@keys, @exceeds);

    for my $size (@sizes) {
        my $look = sub {
            my %in_use = in_use($gateway);

            # a table may be freed, and another one used, while it is read

            push @exceeds, "${size}k" if sum(values %in_use) > 3 * $size << 10
                && sum(values %{{in_use($gateway)}}) > 3 * $size << 10;

            return $in_use{$size << 10} / ($size << 10);
        };

        $gateway->reload(zone('fixed_window', 2, "${size}k"))
            if $size != $sizes[0];

        # a few keys until it is in use, then many, which touch its pages

        Gateway::await(sub {
            my $part = $look->();
            my @new = map { "key $_" }
                      @keys + 1 .. @keys + ($part < 0.1 ? 20 : 1000);
            my $due = 0;

            push @keys, @new;

            $gateway->load(
                depth => 8,
                requests => [map { ['/', $_] } @new],
                tick => sub { $look->() if $_[0] >= $due && ($due += 50) },
            );

            return $part > 0.9;
        }, "most of ${size}k");
    }

    is("@exceeds", '', 'never more than three times the larger size');

    for my $status (200, 429) {
        my $tally = $gateway->load(depth => 8,
                                   requests => [map { ['/', $_] } @keys]);

        is(scalar(grep { $_->{$status} } values %{$tally->{keys}}), @keys,
           "then each of @{[scalar @keys]} keys gets $status");
    }

    quiet($gateway);
}


# Tables so full that counters of the oldest find no room: these are dropped,
# which the log says, and not those of the table that was used last.

sub no_room {
    my ($first, @sizes) = (64, 72, 80, 88);
    my $gateway = start(no_room_config($first));
    my @last;

    no_room_fill($gateway, $first);

    for my $size (@sizes) {
        $gateway->reload(no_room_config($size));

        Gateway::await(sub {
            my $socket = $gateway->connect or return 0;

            print $socket "GET /api/zones/z HTTP/1.0\r\n\r\n";

            return join('', <$socket>) =~ /"size":@{[$size << 10]},/;
        }, 'the new size');

        @last = no_room_fill($gateway, $size) if $size != $sizes[-1];
    }

    my $tally = $gateway->load(depth => 8, requests => [@last]);

    cmp_ok(scalar(grep { $_->{429} } values %{$tally->{keys}}), '>',
           0.98 * @last, 'those of the last table are there');

    Gateway::await(sub {
        return sum(0, $gateway->log =~ /full: (\d+) counters were dropped/g)
               > 0.4 * @last;
    }, 'a line about those that were dropped');

    quiet($gateway);
}


sub no_room_config {
    my ($size) = @_;

    return "ratelimit_zone \$http_x_key zone=z:${size}k rate=1r/366d"
           . " buckets=1;\n" . Gateway->server('/' => 'ratelimit zone=z;',
                                              '/api/' => 'ratelimit_api;');
}


# most of what there is room for: a slot takes 16 bytes

sub no_room_fill {
    my ($gateway, $size) = @_;

    my @requests = map { ['/', "$size $_"] } 1 .. $size * 64 * 0.7;

    $gateway->load(depth => 8, requests => [@requests]);

    return @requests;
}


# Bytes of memory that tables have, by their size: what the worker has touched
# that has touched most of it.  A key that is new is looked for in all tables.

sub in_use {
    my ($gateway) = @_;

    my %in_use;

    for my $pid ($gateway->all_workers) {
        my $size = 0;

        for (split /\n/, Gateway::slurp("/proc/$pid/smaps")) {
            $size = m{ /dev/zero \(} ? -1 : 0 if /^[0-9a-f]+-/;
            $size = $1 << 10 if $size && /^Size: +(\d+)/;

            $in_use{$size} = max($in_use{$size} || 0, $1 << 10)
                if $size > 1 << 20 && /^Rss: +(\d+)/;
        }
    }

    return %in_use;
}


# Five resizes a round while old workers are kept busy, and each round has keys
# of its own, which are not used again until the end: all have one count.

sub resized_fast {
    my ($kind) = @_;

    my @sizes = ('2m', '4m', '1m', '3m');
    my $next = sub { push @sizes, shift @sizes; zone($kind, 40, $sizes[0]) };
    my $gateway = start($next->());
    my @tallies;

    for my $round (0 .. 5) {
        my @workers = $gateway->current_workers;
        my @keys = map { "key $_" } 1, grep { $_ % 6 == $round } 1 .. KEYS;
        my @begun = map { begin($gateway, $_) } (@keys) x 3;
        my @requests = map { (['/', $_]) x 2 } @keys;

        # workers that have accepted them answer them

        push @tallies, $gateway->load(requests => [@requests]);

        for (1 .. 5) {
            $gateway->reload($next->());
        }

        push @tallies, $gateway->load(requests => [@requests]);
        push @tallies, finish(\@workers, @begun);

        settle($gateway);

        # so that tables are mostly sealed; nothing else depends on it

        sleep 0.3;
    }

    push @tallies, $gateway->load(requests => [of_each(60)]);

    exactly(40, 'all of them have one count', @tallies);

    ok(Gateway::await(sub {
        $gateway->reload(zone($kind, 40, $sizes[0]));
        settle($gateway);

        return mapped(($gateway->current_workers)[0]) <= 12 << 20;
    }, 'older tables to be freed'), 'all tables take 12 MB at most');

    quiet($gateway);
}


# bytes of shared memory that a worker has mapped, of zones of some size

sub mapped {
    my ($pid) = @_;

    no warnings 'portable';    # addresses have 64 bits

    my $sum = 0;

    for (split /\n/, Gateway::slurp("/proc/$pid/maps")) {
        my ($from, $to) = m{^([0-9a-f]+)-([0-9a-f]+) .*/dev/zero} or next;
        my $size = hex($to) - hex($from);

        $sum += $size if $size > 1 << 20;
    }

    return $sum;
}


sub reset_zones {
    my $server = Gateway->server('/' => 'ratelimit zone=z;');
    my @configs = map { "ratelimit_zone $_ zone=z:1m rate=100r/1h;\n$server" }
                  '$http_x_key', '$http_x_key$uri', '$http_x_key$uri '
                  . 'buckets=20', '$http_x_key$uri algorithm=sliding_log';

    my $gateway = start(shift @configs);

    exactly(100, 'at first', $gateway->load(requests => [of_each(110)]));

    for my $config (@configs) {
        my $known = () = reset_lines($gateway);

        $gateway->reload($config);

        is(() = reset_lines($gateway), $known + 1, 'the reset is logged');
        exactly(100, 'and does', $gateway->load(requests => [of_each(110)]));
    }

    is($gateway->complaints, '', 'nothing to complain about');
}


sub reset_lines {
    my ($gateway) = @_;

    return $gateway->log =~ /\[notice\].*zone "z" is reset/g;
}


sub off_and_on {
    my $gateway = start(zone('sliding_window', 100, '1m'));

    exactly(100, 'at first', $gateway->load(requests => [of_each(110)]));

    $gateway->reload(Gateway->server('/' => ''));

    my $tally = $gateway->load(requests => [of_each(110)]);

    all_admitted(110, 'no limit', $tally);

    for my $kind (qw(sliding_window fixed_window)) {
        $gateway->reload(zone($kind, 100, '1m'));
        settle($gateway);

        exactly(100, "$kind: another zone of that name",
                $gateway->load(requests => [of_each(110)]));

        $gateway->reload(Gateway->server('/' => ''));
    }

    is($gateway->complaints, '', 'nothing to complain about');
}


# the old configuration goes on; what was begun of the new one leaves no trace

sub fails {
    my $bad = 'server { listen unix:/nonexistent/socket; }';
    my $gateway = start(zone('sliding_window', 100, '1m'));
    my @workers = $gateway->current_workers;
    my @tallies;

    for my $size ('4m', '256k', '1m') {
        push @tallies, $gateway->load(requests => [of_each(10)]);

        $gateway->hup(zone('sliding_window', 200, $size) . $bad);

        ok(Gateway::await(sub { $gateway->failed }), "$size: fails");
    }

    is_deeply([$gateway->current_workers], \@workers, 'no new workers');

    push @tallies, $gateway->load(requests => [of_each(100)]);

    exactly(100, 'the old limit holds', @tallies);

    $gateway->reload(zone('sliding_window', 150, '4m'));
    settle($gateway);

    push @tallies, $gateway->load(requests => [of_each(100)]);

    exactly(150, 'a good one goes on with all counters', @tallies);
}
