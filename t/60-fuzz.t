#!/usr/bin/perl

# Replays the corpora of t/fuzz/ with sanitizers, without a fuzzer: one
# subtest for each driver.  "make fuzz" looks for new inputs.

use strict;
use warnings;

use File::Path qw(make_path);
use Test::More;

use lib 't/lib';
use Programs qw(command);

my $out = 'build/fuzz/replay';
my $cc = $ENV{CC} || 'gcc';

my @flags = (qw(-std=gnu99 -O1 -g -Wall -Wextra -Werror -Isrc
                -fno-sanitize-recover=all -fno-omit-frame-pointer),
             '-fsanitize=address,undefined');

my @sources = (glob('src/{core,domain,service}/ratelimit_*.c'),
               glob('src/redis/ratelimit_{url,cluster}.c'));
my @drivers = map { m{([^/]+)\.c$} } glob('t/fuzz/ratelimit_*.c');

BAIL_OUT('run me from the root of the repository') if !@sources;
BAIL_OUT('no driver in t/fuzz') if !@drivers;

make_path($out);

$ENV{UBSAN_OPTIONS} = 'print_stacktrace=1';

my @objects = map { object($_) } @sources, 't/fuzz/replay.c';

for my $driver (@drivers) {
    subtest $driver => sub { replay($driver) };
}

done_testing();


sub replay {
    my ($driver) = @_;

    my @inputs = sort glob("t/fuzz/corpus/$driver/*");
    my $exe = "$out/$driver";

    cmp_ok(scalar @inputs, '>=', 10, 'there are inputs');

    return if !ok(command($cc, @flags, '-o', $exe, "t/fuzz/$driver.c",
                          @objects, '-lyaml'), 'builds');

    my $said = qx(./$exe @inputs 2>&1);
    my $status = $?;
    my @passed = $said =~ /^ok \d+ - (.*)$/mg;

    is_deeply(\@passed, \@inputs, 'survives all of them')
        or diag($said);
    is($status, 0, 'ends well');
}


sub object {
    my ($source) = @_;

    my ($name) = $source =~ m{([^/]+)\.c$};
    my $object = "$out/$name.o";

    return command($cc, @flags, '-c', '-o', $object, $source) ? $object : ();
}
