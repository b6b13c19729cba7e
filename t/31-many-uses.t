#!/usr/bin/perl

# A zone may have as many uses as a large configuration has locations, and
# "nginx -t" needs about as long as for limit_req.  Times are those of the
# processor, and the better of two runs, so that a busy machine does not matter.
# If each use were compared with all others, it would take thirty times as long.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Configuration;

use constant LOCATIONS => 20_000;
use constant AT_MOST => 4;

my $limit_req = best('limit_req_zone $arg_a zone=z:1m rate=1r/s;',
                     'limit_req zone=z;');

my $redis = "ratelimit_redis r unix:$dir/redis;\n";
my $zone = 'ratelimit_zone $arg_a zone=z:1m rate=1r/s';

for my $case (
    ['counters of the zone',    "$zone;", ''],
    ['counters of each',        "$zone;", 'rate=5r/s'],
    ['buckets of one name',     "$zone algorithm=token_bucket;",
                                'name=x rate=5r/s'],
    ['variables',               "$zone;",
                                'key=$arg_b$arg_c rate=$arg_d cost=$arg_e'],
    ['Redis, counters of each', "$redis$zone redis=r;", 'rate=5r/s'],
) {
    my ($name, $head, $parameters) = @$case;

    my $ratio = best($head, "ratelimit zone=z $parameters;") / $limit_req;

    cmp_ok($ratio, '<', AT_MOST,
           sprintf('%s: %.1f times as long as limit_req', $name, $ratio));
}

done_testing();


# locations in the order that nginx sorts them in: its own sorting is quadratic

sub best {
    my ($head, $limit) = @_;

    write_conf("http { $settings\n$head\n"
               . "server { listen unix:$dir/socket;",
               join("\n", map { sprintf('location /%05d/ { %s }', $_, $limit) }
                              1 .. LOCATIONS),
               '} }');

    my $best;

    for (1 .. 2) {
        my ($user, $system) = (times)[2, 3];

        is(test_conf(), passed(), $limit);

        my ($user_now, $system_now) = (times)[2, 3];
        my $spent = $user_now - $user + $system_now - $system;

        $best = $spent if !defined $best || $spent < $best;
    }

    return $best;
}
