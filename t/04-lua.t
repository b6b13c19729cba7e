#!/usr/bin/perl

# The scripts for Redis give the verdicts of the core: on the tables of
# t/vectors/, on random requests with a clock that is set by hand, and with
# Redis' own clock, where states expire.  All in a real Redis.
#
# SEED in the environment repeats a random run, STEPS and RUNS make it longer.

use strict;
use warnings;

use File::Path qw(make_path);
use Test::More;

use lib 't/lib';
use Programs qw(command relay);
use RedisServer;

my $out = 'build/lua';
my $cc = $ENV{CC} || 'gcc';
my $steps = $ENV{STEPS} || 100_000;
my $runs = $ENV{RUNS} || 60;
my $seed = $ENV{SEED} || 20;

my @flags = (qw(-std=gnu99 -g -O1 -Wall -Wextra -Werror -Isrc -It/lua -It/unit),
             "-I$out");

# changes of a script that must be noticed: the script, what is replaced, and by
# what; "large" is that of sliding_log, for a log that keeps what is refunded in
# its place

my @mutations = (
    [fixed_window => 'finish - now > period + skew', 'finish - now > period'],
    [fixed_window => 'finish <= now then', 'finish < now then'],
    [fixed_window => 'rebase = count > 0', 'rebase = false'],
    [fixed_window => '(after - limit) * 1000', '(after - limit) * 999'],
    [fixed_window => 'after > limit or after > ceiling', 'after > limit'],
    [fixed_window => 'finish == stamp', 'finish >= stamp'],
    [fixed_window => 'local expires = finish', 'local expires = finish - 1000'],
    [fixed_window => 'not allowed or last', 'not allowed'],
    [fixed_window => 'after + cost > ceiling', 'after + cost >= ceiling'],
    [sliding_window => 'held = count + cost', 'held = count'],
    [sliding_window => 'p < 9007199254740992', 'p < 90071992547409920'],
    [sliding_window => 'behind < range / 2', 'behind < range'],
    [sliding_window => 'place + gap - 1 do', 'place do'],
    [sliding_window => 'and 65535 or', 'and 65536 or'],
    [sliding_window => 'later <= skew * buckets', 'later <= 2 * skew * buckets'],
    [sliding_window => '(rest > 0) and share + 1 or share', 'share'],
    [sliding_window => 'old - share < part', 'true'],
    [sliding_window => 'old > room + part', 'false'],
    [sliding_window => 'newest - stamp > buckets', 'newest - stamp >= buckets'],
    [sliding_window => '(newest - index) % buckets * width', '0'],
    [sliding_window => 'rebase, ring = true, 0', 'rebase = true'],
    [sliding_window => '.. string.sub(state, ring + 1)', '.. state'],
    [sliding_window => 'wait + period - divide', 'wait + period - 1 - divide'],
    [sliding_log => '< period + skew', '< 0'],
    [sliding_log => 'n > room and held < ring', 'false'],
    [sliding_log => 'period < 549755813888', 'period <= 549757000000'],
    [sliding_log => 'ceiling - cost + 1, true)', 'ceiling - cost, true)'],
    [sliding_log => '- 2 * cost + 1, true)', '- 2 * cost + 2, true)'],
    [sliding_log => 'ceiling < 2 * cost', 'ceiling <= 2 * cost'],
    [sliding_log => "'GETRANGE', key, '0', '14'", "'GETRANGE', key, '1', '15'"],
    [sliding_log => "'SETRANGE', log.key, '15'", "'SETRANGE', log.key, '10'"],
    [sliding_log => 'log.head - found', 'log.head'],
    [sliding_log => '(head - n) %', '(head - n + 1) %'],
    [sliding_log => 'not index and later + cost < last', 'false'],
    [large => 'byte - byte % 2 ^ (-rest % 8)', 'byte'],
    [large => 'counted < r then', 'counted <= r then'],
    [large => 'if set ~= refunded then', 'if not set then'],
    [large => '(i > log.after) and i + log.gap or i', 'i'],
    [large => '(first >= log.head) and sum + total or sum', 'sum'],
    [large => '<= log.after - index.count(log.after)', '<= log.after'],
    [large => 'r + places - total or r', 'r + places or r'],
    [large => 'room - index.count(room - cost) or', 'room or'],
    [large => 'mark(log.head, cost, false)', ''],
    [large => 'log.head - log.gap, 0, k', 'log.head, 0, k'],
    [large => '(older < found) and older or found', 'found'],
    [large => 'mark(first, n, false)', ''],
    [large => 'total == 0 and log.gap == 0', 'total == 0'],
    [large => 'sliding_log_younger(log, age + 1, later)', 'same'],
    [large => 'counts and log.index.find(i) or i', 'i'],
    [token_bucket => 'elapsed >= 2 * period', 'elapsed >= 3 * period'],
    [token_bucket => 'since - now <= skew', 'since - now < skew'],
    [token_bucket => 'used < ceiling then', 'used <= ceiling then'],
    [token_bucket => 'ceiling > capacity', 'true'],
    [token_bucket => 'while r >= d do', 'while false do'],
    [token_bucket => 'while r < 0 do', 'while false do'],
    [token_bucket => '- q1 * d0 - q0 * d1))', '- q1 * d0 - q0 * d1 + 1))'],
    [token_bucket => 'since + lost < now', 'since + lost > now'],
    [token_bucket => '(part > 0) and counted', '(part > 1) and counted'],
    [token_bucket => 'more == ceiling and part > 0', 'false'],
    [token_bucket => 'part, limit) - wait', 'part, limit)'],
    [token_bucket => 'last + earlier > 0 and epoch == present + 1', 'false'],
    [token_bucket => '(last > 0) and 2 or 1', '2'],
    [token_bucket => 'reserve and admitted and', 'reserve and'],
    [token_bucket => 'stamp == epoch - 1 then', 'false then'],
    [token_bucket => 'not reserve or cost == 0', 'cost == 0'],
    [leaky_bucket => 'ceiling - reserved, true', 'ceiling, true'],
    [leaky_bucket => '(epoch == present - 1) and last', 'last'],
    [leaky_bucket => 'after - free - 1', 'after - free'],
    [leaky_bucket => 'after == free + 1', 'after == free'],
    [leaky_bucket => 'after >= above', 'after > above'],
    [leaky_bucket => 'cost > 0 or rebase or folded', 'cost > 0 or folded'],
    [fixed_window => 'stamp < finish', 'stamp <= finish'],
    [sliding_window => 'index - stamp > buckets', 'index - stamp >= buckets'],
    [sliding_window => 'cost, rebase = 0, true', 'rebase = true'],
    [sliding_log => 'stamp + period <= now', 'stamp + period / 2 <= now'],
    [sliding_log => 'sliding_log_younger(log, -step)', '0'],
    [token_bucket => 'cost <= returned', 'cost < returned'],
    [leaky_bucket => '(since > stamp) and since - stamp or 0', '0'],
    [fixed_window => 'stamp == latest and finish > now', 'false'],
    [sliding_window => 'i = newest, first - buckets + 1', 'i = newest, newest'],
    [sliding_window => 'cost > 0 and oldest <= newest', 'false'],
    [sliding_window => '((more < part) and more or part)', 'part'],
    [sliding_window => '((more < part) and more or part)', '0'],
    [sliding_log => 'stamp == latest', 'false'],
    [mixed => 'again or KEYS[j] == key', 'false'],
    [mixed => "elseif op == 'b' then", 'elseif false then'],
    [mixed => 'admitted and allowed', 'allowed'],
    [mixed => 'decide(i - 1, admitted)', 'decide(i - 1, true)'],
    [mixed => 'elseif rebase then', 'elseif false then'],
    [mixed => "allowed and 'charge' or 'punish'", "'punish'"],
    [mixed => "'look', true", "'look', false"],
);

# the same of those for write-back

my @exchanges = (
    ['limit.number > limit.counted', 'true'],
    ['number > counted', 'true'],
    ['#before == #value', 'true'],
    ['left / 4', '2 * left'],
    ['remember(limit, 0, 0)', ''],
    ["1, 8) .. pack('<I8', 0)", '1, 16)'],
    ['refund(limit.key, limit.argument, asked.stamp, asked.cost)', ''],
    ['not limits[record]', 'true'],
);

my $redis = RedisServer->start;

BAIL_OUT('the programs do not build') if !build();

subtest vectors => sub { relay({ RATELIMIT_REDIS => $redis->{path} },
                               "$out/vectors") };

subtest random => sub { relay({}, "$out/compare", $redis->{path}, $steps,
                              $seed) };

subtest machines => sub { relay({}, "$out/machines", $redis->{path}, $runs,
                                $seed) };

subtest real => sub { relay({}, "$out/real", $redis->{path}, $seed) };

subtest work => sub { relay({}, "$out/work", $redis->{path}, $seed) };

subtest mutations => sub {
    for my $mutation (@mutations) {
        my ($algorithm, $from, $to) = @$mutation;
        my $name = "$algorithm: $from => $to" =~ s/\n/ /gr;
        my ($rc, $text) = mutant($algorithm, "$from=>$to");

        like($text, qr/^not ok/m, $name) or diag($text);
        is($rc, 1, 'by a verdict') or diag($text);
    }

    for my $mutation (@exchanges) {
        my $name = join ' => ', @$mutation;

        $redis->call('FLUSHALL');
        local $ENV{MUTATE} = join '=>', @$mutation;

        like(scalar `$out/machines $redis->{path} 12 $seed 2>&1`, qr/^not ok/m,
             $name);
    }
};

done_testing();


sub mutant {
    my ($algorithm, $mutation) = @_;

    local $ENV{MUTATE} = $mutation;

    my $text = `$out/compare $redis->{path} 60000 $seed $algorithm 2>&1`;

    return ($? >> 8 || $?, $text);
}


# the program "vectors" is that of t/unit/, with the scripts instead of the core

sub build {
    my @core = (glob('src/core/*.c'),
                'src/table/ratelimit_lock.c',
                map { "src/redis/ratelimit_$_.c" }
                    qw(script exchange ledger ledger_account));
    my @objects;

    make_path("$out/redis");

    return if !command("src/redis/lua/embed > $out/redis/ratelimit_lua.h");

    for my $source (@core) {
        my $object = "$out/" . ($source =~ s{.*/|\.c$}{}gr) . '.o';

        return if !command($cc, @flags, '-c', '-o', $object, $source);

        push @objects, $object;
    }

    my %programs = (
        compare => ['t/lua/compare.c'],
        machines => ['t/lua/machines.c'],
        real => ['t/lua/real.c'],
        work => ['t/lua/work.c'],
        vectors => ["$out/vectors.o", 't/lua/verbs.c'],
    );

    return if !command($cc, @flags, '-Dratelimit_algorithms=lua_algorithms',
                       '-c', '-o', "$out/vectors.o", 't/unit/vectors.c');

    for my $name (sort keys %programs) {
        return if !command($cc, @flags, '-o', "$out/$name",
                           @{$programs{$name}}, @objects, qw(-lhiredis -lpthread));
    }

    return 1;
}
