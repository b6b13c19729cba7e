#!/usr/bin/perl

# Builds every program of t/unit/ with the sources of the core and of the
# table, with sanitizers, and runs it: one subtest each.  A program that says
# "no sanitizer" in a comment of its own is built with -O2 and without them; one
# that says "no sanitizer, then ThreadSanitizer" is run in both ways.
#
# Names of programs in the environment's UNIT run these alone, and KIND runs
# those that are built in this way alone:
#
#     UNIT="vectors properties" prove -v t/03-unit.t
#     KIND=tsan prove -v t/03-unit.t
#
# With RUNNER, an emulator that runs what CC makes, all are built without
# sanitizers, and those whose processes die are left out: it has no robust
# mutexes.
#
#     CC=aarch64-linux-gnu-gcc RUNNER=qemu-aarch64 prove -v t/03-unit.t

use strict;
use warnings;

use File::Path qw(make_path);
use Test::More;

use lib 't/lib';
use Programs qw(command relay);

my $out = 'build/unit';
my $cc = $ENV{CC} || 'gcc';

my @common = (qw(-std=gnu99 -g -Wall -Wextra -Werror -Isrc), "-I$out");

# how a program is built; gcc's ThreadSanitizer does not know fences

my %compile = (
    san => [$cc, @common, '-O1', '-fsanitize=address,undefined',
        qw(-fno-sanitize-recover=all -fno-omit-frame-pointer)],
    fast => [$cc, @common, '-O2'],
    tsan => ['clang', @common, '-O1', '-fsanitize=thread'],
);

my @sources = (glob('src/core/*.c'), glob('src/{table,redis,elastic,domain,service}/ratelimit_*.c'));
my @programs = grep { slurp($_) =~ /^main\(/m } glob('t/unit/*.c');

if ($ENV{UNIT}) {
    my %wanted = map { $_ => 1 } split ' ', $ENV{UNIT};
    @programs = grep { $wanted{name($_)} } @programs;
}

if ($ENV{RUNNER}) {
    @programs = grep { slurp($_) !~ /\bkill\(|fleet_fork\(/ } @programs;
}

BAIL_OUT('run me from the root of the repository') if !@sources;
BAIL_OUT('no program in t/unit') if !@programs;

$ENV{ASAN_OPTIONS} = 'detect_leaks=1:abort_on_error=0';
$ENV{UBSAN_OPTIONS} = 'print_stacktrace=1';

# a lifeline is held for life: its detector of deadlocks has no room for many

$ENV{TSAN_OPTIONS} = 'detect_deadlocks=0';

my %objects;

make_path("$out/redis");
system("src/redis/lua/embed > $out/redis/ratelimit_lua.h") == 0
    or BAIL_OUT('the scripts cannot be embedded');

for my $program (@programs) {
    for my $kind (kinds($program)) {
        next if $ENV{KIND} && $kind ne $ENV{KIND};

        my $name = name($program) . ($kind eq 'tsan' ? ', ThreadSanitizer' : '');

        subtest $name => sub { check($program, $kind) };
    }
}

done_testing();


sub kinds {
    my ($program) = @_;

    my $text = slurp($program);

    return 'fast' if $ENV{RUNNER};
    return $text =~ m{^/\* no sanitizer, then ThreadSanitizer \*/$}m
           ? qw(fast tsan)
           : $text =~ m{^/\* no sanitizer \*/$}m ? 'fast' : 'san';
}


sub check {
    my ($program, $kind) = @_;

    my $exe = "$out/" . name($program) . ($kind eq 'tsan' ? '-tsan' : '');

    $objects{$kind} ||= objects($kind);

    my $built = $objects{$kind}
        && command(@{$compile{$kind}}, '-o', $exe, $program,
                   @{$objects{$kind}}, '-lm', '-lpthread', '-lyaml');

    return fail('builds') if !$built;

    relay({}, $ENV{RUNNER} || (), "./$exe");
}


sub objects {
    my ($kind) = @_;

    my @objects;

    make_path("$out/$kind");

    for my $source (@sources) {
        my $object = "$out/$kind/" . name($source) . '.o';

        return if !command(@{$compile{$kind}}, '-c', '-o', $object, $source);

        push @objects, $object;
    }

    return \@objects;
}


sub name {
    my ($path) = @_;

    return $path =~ m{([^/]+)\.c$} ? $1 : $path;
}


sub slurp {
    my ($path) = @_;

    open(my $fh, '<', $path) or die "$path: $!";
    local $/;

    return scalar <$fh>;
}
