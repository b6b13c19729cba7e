# What every test of the nginx suite needs, before Test::Nginx::Socket starts:
#
#     use lib 't/lib';
#     use Ratelimit;
#     use Test::Nginx::Socket 'no_plan';
#
# The module is loaded, a free port is taken unless one is given, and no block
# may leave an alert or worse in the error log, unless it says what it allows.
# A further section, "logged", is described below.

package Ratelimit;

use strict;
use warnings;

use File::Path qw(remove_tree);
use File::Spec;

use Ports qw(free_port);

use constant MODULE => 'build/ngx_http_ratelimit_module.so';


BEGIN {
    $ENV{TEST_NGINX_LOAD_MODULES} ||= $ENV{RATELIMIT_MODULE}
                                      || File::Spec->rel2abs(MODULE);
    $ENV{TEST_NGINX_PORT} ||= $ENV{TEST_NGINX_SERVER_PORT} || free_port();

    # of its own, as files of the suite run at the same time
    $ENV{TEST_NGINX_SERVROOT} ||= File::Spec->rel2abs("t/servroot_$$");

    # seconds: a busy machine is not a failure, and what is looked for in the
    # log is there before the response
    $ENV{TEST_NGINX_TIMEOUT} ||= 60;
    $ENV{TEST_NGINX_SLEEP} ||= 0.005;

    # root's workers run as the user nobody, which may not read a private clone
    $ENV{TEST_NGINX_WORKER_USER} ||= 'root' if $> == 0;
}

# runs after the one of Test::Nginx, which stops nginx; what failed is kept

END {
    remove_tree("t/servroot_$$") if $? == 0;
}

use Test::More;
use Test::Nginx::Socket ();
use Test::Nginx::Util;
use Time::HiRes qw(sleep time);


add_block_preprocessor(sub {
    my ($block) = @_;

    if (!defined $block->no_error_log) {
        $block->set_value(no_error_log => "[emerg]\n[alert]\n[crit]");
    }
});

no_long_string();


# "--- logged eval [...]" has for each request of a block what the error log
# says of it above the level of debugging, in the order of the lines: nothing
# (undef), a pattern, or several ([...])

my ($logged_block, $logged_from) = ('', 0);

Test::Nginx::Socket::add_response_body_check(sub {
    my ($block, undef, $i) = @_;

    return if !defined $block->logged;

    if ($logged_block ne $block->name) {
        ($logged_block, $logged_from) = ($block->name, 0);
    }

    my @lines = lines_from($logged_from);
    $logged_from += length join '', @lines;

    my $expected = $block->logged->[$i];
    my @expected = ref $expected eq 'ARRAY' ? @$expected
                                            : grep { defined } $expected;
    my @said = grep { /\[(info|notice|warn|error)\] .*, client: / } @lines;

    is(scalar @said, scalar @expected, $block->name . " - lines of request $i")
        or diag(@said);

    for my $pattern (@expected) {
        my $line = shift @said // '';

        like($line, ref $pattern ? $pattern : qr/\Q$pattern\E/,
             $block->name . " - the log of request $i");
    }
});


# waits until a log, "access" or "error", has a line like this

sub said {
    my ($log, $pattern) = @_;

    my $until = time + timeout();

    while (time < $until) {
        open my $in, '<', server_root() . "/logs/$log.log" or die "open: $!";
        return 1 if grep { $_ =~ $pattern } <$in>;
        sleep 0.02;
    }

    return 0;
}


sub lines_from {
    my ($position) = @_;

    open my $log, '<', $Test::Nginx::Util::ErrLogFile or return;
    seek $log, $position, 0;

    return <$log>;
}


1;
