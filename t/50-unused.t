#!/usr/bin/perl

# A module that is loaded but limits nothing costs no cycle per request: no
# handler of it is in the phases, and no filter says a word.  nginx's debug log
# counts the handlers; that the counting works is shown where limits are used.
# If this fails, all requests pay for a module that limits none of them.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use Test::Nginx::Socket 'no_plan';

log_level('debug');


# "--- handlers" is the name under which it is kept how many phases a request
# went through, and what the module said of it

my (%phases, %words);

add_response_body_check(sub {
    my ($block) = @_;

    my @log = Ratelimit::lines_from(0);
    my ($connection) = map { m{ (\*\d+) http request line: "GET /t} } @log;

    my @mine = grep { / \Q$connection\E / } @log;

    $phases{$block->handlers} = grep { / generic phase: / } @mine;
    $words{$block->handlers} = join ' ',
                               map { / ratelimit: (\d+ rules|header)/ } @mine;
});


repeat_each(1);

run_tests();

cmp_ok($phases{nothing}, '>', 0, 'the phases of a request are in the log');
is($phases{zone}, $phases{nothing}, 'a zone alone adds no handler');
is($phases{settings}, $phases{nothing}, 'settings alone add no handler');
is($phases{off}, $phases{nothing}, '"off" adds no handler');
is($phases{variables}, $phases{nothing}, 'variables alone add no handler');
is($phases{elsewhere}, $phases{nothing} + 1, 'a limit adds one handler');

is($words{$_}, '', "$_: the module says nothing")
    for qw(nothing zone settings off variables);

is($words{elsewhere}, 'header', 'where no limit is, only the filter looks');
is($words{used}, '1 rules header', 'where one is, it is asked and told');

__DATA__

=== TEST 1: the module is loaded and not used
--- config
    location /t { try_files /index.html =404; }
--- request
GET /t
--- handlers chomp
nothing



=== TEST 2: a zone without limits
--- http_config
    ratelimit_zone $arg_k zone=unused:1m rate=1r/h;
--- config
    location /t { try_files /index.html =404; }
--- request
GET /t?k=a
--- handlers chomp
zone
--- response_headers
!X-RateLimit-Limit



=== TEST 3: settings of limits that there are not
--- http_config
    ratelimit_headers x ietf;
    ratelimit_status 503;
    ratelimit_bypass $arg_free;
    ratelimit_dry_run on;
--- config
    location /t { try_files /index.html =404; }
--- request
GET /t
--- handlers chomp
settings
--- response_headers
!X-RateLimit-Limit



=== TEST 4: a limit that is off
--- http_config
    ratelimit_zone $arg_k zone=off:1m rate=1r/h;
--- config
    ratelimit off;

    location /t { ratelimit off; try_files /index.html =404; }
--- request
GET /t?k=a
--- handlers chomp
off
--- response_headers
!X-RateLimit-Limit



=== TEST 5: variables without limits
--- config
    location /t {
        add_header X-Status "$ratelimit_status$ratelimit_limit." always;
        try_files /index.html =404;
    }
--- request
GET /t
--- handlers chomp
variables
--- response_headers
X-Status: .
!X-RateLimit-Limit



=== TEST 6: a limit elsewhere is asked nothing here
--- http_config
    ratelimit_zone $arg_k zone=elsewhere:1m rate=1r/h;
--- config
    location /limited { ratelimit zone=elsewhere; try_files /index.html =404; }
    location /t { try_files /index.html =404; }
--- request
GET /t?k=a
--- handlers chomp
elsewhere
--- response_headers
!X-RateLimit-Limit



=== TEST 7: a limit that is used is in the debug log
--- http_config
    ratelimit_zone $arg_k zone=used:1m rate=1r/h;
--- config
    location /t { ratelimit zone=used; try_files /index.html =404; }
--- request
GET /t?k=a
--- handlers chomp
used
--- response_headers
X-RateLimit-Limit: 1
