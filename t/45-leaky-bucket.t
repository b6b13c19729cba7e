#!/usr/bin/perl

# A configuration of limit_req is ours after renaming and a parameter more.
# Here both run side by side: what is written for limit_req is written again,
# renamed, and both must answer alike.  If this fails, a configuration can't move over
# without reading on.

use strict;
use warnings;

use lib 't/lib';
use Ratelimit;
use IO::Socket::INET;
use Test::Nginx::Socket 'no_plan';


# a piece of configuration, and the same of ours

sub both {
    my ($theirs) = @_;

    my $ours = $theirs;

    $ours =~ s/limit_req/ratelimit/g;
    $ours =~ s/\bzone=/zone=our_/g;
    $ours =~ s/^(\s*ratelimit_zone [^;]+);/$1 algorithm=leaky_bucket;/gm;

    return "$theirs\n$ours";
}


# requests to limit_req, then the same to us

sub twice {
    return [@_, map { s/limit_req/ratelimit/gr } @_];
}


# what the log says, in these words and with these commas

sub limiting {
    my ($excess, $zone, $dry_run) = (@_, '');

    return qr/\[error\]\ .*\ limiting\ requests$dry_run,
              \ excess:\ (?:$excess)\ by\ zone\ "$zone",\ client/x;
}


sub delaying {
    my ($excess, $zone, $dry_run) = (@_, '');

    return qr/\[warn\]\ .*\ delaying\ request$dry_run,
              \ excess:\ (?:$excess),\ by\ zone\ "$zone",\ client/x;
}


# after each request of a block, "--- leave" has one that is delayed, and whose
# client does not wait; that of "--- hurry" sends another request meanwhile

add_response_body_check(sub {
    my ($block, undef, $i) = @_;

    leave($block->name, $block->leave->[$i]) if defined $block->leave;
    hurry($block->name, $block->hurry->[$i]) if defined $block->hurry;
});


sub leave {
    my ($name, $uri) = @_;

    my $client = delayed($name, $uri);

    close $client;

    ok(Ratelimit::said('error', qr/prematurely closed.*"GET \Q$uri\E /),
       "$name - $uri: it is noticed that the client is gone");
    ok(Ratelimit::said('access', qr/"GET \Q$uri\E HTTP\/1.1" 499 0/),
       "$name - $uri: the request ends");
}


# after a response that had to wait for the client, nginx hears of each chance
# to write

sub hurry {
    my ($name, $uri) = @_;

    my $client = connected();

    ask($client, '/big');

    ok(Ratelimit::said('error', qr/not ready \(11/), "$name - /big waits");

    ask($client, $uri);

    my $big = '';

    while ($big !~ /y$/) {
        sysread $client, $big, 65536 or die "read: $!";
    }

    ok(Ratelimit::said('error', qr/delaying request.*"GET \Q$uri\E /),
       "$name - $uri is delayed");

    print $client "GET / HTTP/1.0\r\n\r\n";

    my $answer = CORE::join '', <$client>;

    like($answer, qr/^X-Time: (0\.[2-9]|[1-9]).*It works.*It works/ms,
         "$name - $uri waits nevertheless");
}


sub delayed {
    my ($name, $uri) = @_;

    my $client = connected();

    ask($client, $uri);

    ok(Ratelimit::said('error', qr/delaying request.*"GET \Q$uri\E /),
       "$name - $uri is delayed");

    return $client;
}


sub connected {
    return IO::Socket::INET->new(PeerAddr => '127.0.0.1',
                                 PeerPort => server_port())
           // die "connect: $!";
}


sub ask {
    my ($client, $uri) = @_;

    print $client "GET $uri HTTP/1.1\r\nHost: localhost\r\n\r\n";
}


repeat_each(1);

run_tests();

__DATA__

=== TEST 1: without a burst, one request at a time
--- http_config eval
::both('limit_req_zone $arg_k zone=single:1m rate=1r/m;')
--- config eval
::both('location /limit_req { limit_req zone=single; limit_req_status 429;
                              try_files /index.html =404; }')
--- request eval
::twice(("GET /limit_req?k=a") x 3, "GET /limit_req?k=b")
--- error_code eval
[(200, 429, 429, 200) x 2]
--- logged eval
[map { (undef, (::limiting('1\.000|0\.[5-9]\d\d', $_)) x 2, undef) }
     "single", "our_single"]



=== TEST 2: a burst without delay
--- http_config eval
::both('limit_req_zone $arg_k zone=burst:1m rate=1r/m;')
--- config eval
::both('location /limit_req { limit_req zone=burst burst=2 nodelay;
                              limit_req_status 429;
                              add_header X-Status $limit_req_status always;
                              try_files /index.html =404; }')
--- request eval
::twice(("GET /limit_req?k=a") x 5)
--- error_code eval
[(200, 200, 200, 429, 429) x 2]
--- response_headers eval
[(("X-Status: PASSED") x 3, ("X-Status: REJECTED") x 2) x 2]
--- logged eval
[map { ((undef) x 3, (::limiting('3\.000|2\.[5-9]\d\d', $_)) x 2) }
     "burst", "our_burst"]



=== TEST 3: what the fields say of a burst
--- http_config
    ratelimit_zone $arg_k zone=fields:1m rate=1r/m algorithm=leaky_bucket;
--- config
    location /t {
        ratelimit zone=fields burst=2 nodelay;
        ratelimit_headers x ietf;
        try_files /index.html =404;
    }
--- request eval
[("GET /t?k=a") x 4]
--- error_code eval
[200, 200, 200, 429]
--- response_headers_like eval
["X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 2\nX-RateLimit-Reset: 60",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 1\n"
 . "X-RateLimit-Reset: 1([01]\\d|20)",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0\n"
 . "X-RateLimit-Reset: 1([67]\\d|80)",
 "X-RateLimit-Limit: 3\nX-RateLimit-Remaining: 0\n"
 . "X-RateLimit-Reset: 1([67]\\d|80)\nRetry-After: ([45]\\d|60)"]



=== TEST 4: a burst is delayed, the first request is not
--- http_config eval
::both('limit_req_zone $arg_k zone=delay:1m rate=1r/s;')
--- config eval
::both('location /limit_req { limit_req zone=delay burst=3;
                              add_header X-Status $limit_req_status always;
                              add_header X-Time $request_time always;
                              try_files /index.html =404; }')
--- pipelined_requests eval
::twice(("GET /limit_req?k=a") x 2)
--- error_code eval
[(200) x 4]
--- response_headers_like eval
[("X-Status: PASSED",
  "X-Status: DELAYED\nX-Time: (0\\.[2-9]\\d\\d|[1-9].*)") x 2]
--- logged eval
[[map { ::delaying('1\.000|0\.\d\d\d', $_) } "delay", "our_delay"],
 (undef) x 3]



=== TEST 5: delay=N leaves so many undelayed
--- http_config eval
::both('limit_req_zone $arg_k zone=some:1m rate=1r/s;')
--- config eval
::both('location /limit_req { limit_req zone=some burst=3 delay=2;
                              add_header X-Status $limit_req_status always;
                              add_header X-Time $request_time always;
                              try_files /index.html =404; }')
--- pipelined_requests eval
::twice(("GET /limit_req?k=a") x 4)
--- error_code eval
[(200) x 8]
--- response_headers_like eval
[(("X-Status: PASSED") x 3,
  "X-Status: DELAYED\nX-Time: (0\\.[2-9]\\d\\d|[1-9].*)") x 2]
--- logged eval
[[map { ::delaying('3\.000|2\.\d\d\d', $_) } "some", "our_some"],
 (undef) x 7]



=== TEST 6: delays are logged one level below refusals
--- http_config eval
::both('limit_req_zone $arg_k zone=levels:1m rate=1r/s;
limit_req_log_level warn;')
--- config eval
::both('location /limit_req_warn { limit_req zone=levels burst=9;
                                   try_files /index.html =404; }
        location /limit_req_info { limit_req zone=levels burst=9;
                                   limit_req_log_level info;
                                   try_files /index.html =404; }')
--- pipelined_requests eval
::twice(("GET /limit_req_warn?k=a") x 2, ("GET /limit_req_info?k=b") x 2)
--- error_code eval
[(200) x 8]
--- logged eval
[[map { (qr/\[notice\] .* delaying request, .* by zone "${_}levels"/,
         qr/\[info\] .* delaying request, .* by zone "${_}levels"/) }
      "", "our_"], (undef) x 7]



=== TEST 7: a delayed request keeps its body
--- http_config eval
::both('limit_req_zone $arg_k zone=body:1m rate=1r/s;')
--- config eval
::both('location /limit_req { limit_req zone=body burst=3;
                              proxy_set_header X-Status $limit_req_status;
                              proxy_pass http://127.0.0.1:$server_port/echo; }')
. 'location /echo {
        if ($http_x_status = "") { return 500; }
        return 200 "$http_x_status:$http_content_length";
   }'
--- pipelined_requests eval
::twice("POST /limit_req?k=a\n" . "x" x 100,
        "POST /limit_req?k=a\n" . "x" x 500_000, "GET /limit_req?k=b")
--- error_code eval
[(200) x 6]
--- response_body eval
[("PASSED:100", "DELAYED:500000", "PASSED:") x 2]



=== TEST 8: several zones, the tightest refuses, no other zone is charged
--- http_config eval
::both('limit_req_zone $arg_a zone=wide:1m rate=1r/m;
limit_req_zone $arg_b zone=tight:1m rate=1r/m;')
--- config eval
::both('location /limit_req { limit_req zone=wide burst=1 nodelay;
                              limit_req zone=tight;
                              limit_req_status 429;
                              try_files /index.html =404; }')
--- request eval
::twice("GET /limit_req?a=1&b=1", "GET /limit_req?a=1&b=1",
        "GET /limit_req?a=1&b=1", "GET /limit_req?a=1&b=2",
        "GET /limit_req?a=1&b=3", "GET /limit_req?a=2&b=3")
--- error_code eval
[(200, 429, 429, 200, 429, 200) x 2]
--- logged eval
[map { (undef, (qr/limiting requests, excess: .* by zone "${_}tight"/) x 2,
        undef, qr/limiting requests, excess: .* by zone "${_}wide"/, undef) }
     "", "our_"]



=== TEST 9: several zones, the longest delay is waited for
--- http_config eval
::both('limit_req_zone $arg_k zone=quick:1m rate=50r/s;
limit_req_zone $arg_k zone=slow:1m rate=1r/s;
limit_req_zone $arg_k zone=middle:1m rate=20r/s;')
--- config eval
::both('location /limit_req { limit_req zone=quick burst=5;
                              limit_req zone=slow burst=5;
                              limit_req zone=middle burst=5;
                              add_header X-Time $request_time always;
                              try_files /index.html =404; }')
--- pipelined_requests eval
::twice(("GET /limit_req?k=a") x 2)
--- error_code eval
[(200) x 4]
--- response_headers_like eval
[("X-Time: .*", "X-Time: (0\\.[1-9]\\d\\d|[1-9].*)") x 2]
--- logged eval
[[map { qr/delaying request, excess: [\d.]+, by zone "$_"/ }
      "slow", "our_slow"], undef, undef, undef]



=== TEST 10: a dry run neither delays nor refuses, but says so
--- http_config eval
::both('limit_req_zone $arg_k zone=dry:1m rate=1r/m;')
--- config eval
::both('location /limit_req { limit_req zone=dry burst=1; limit_req_dry_run on;
                              add_header X-Status $limit_req_status always;
                              try_files /index.html =404; }')
--- request eval
::twice(("GET /limit_req?k=a") x 3)
--- error_code eval
[(200) x 6]
--- response_headers eval
[("X-Status: PASSED", "X-Status: DELAYED_DRY_RUN",
  "X-Status: REJECTED_DRY_RUN") x 2]
--- logged eval
[map { (undef, ::delaying('1\.000|0\.[5-9]\d\d', $_, ',\ dry\ run'),
        ::limiting('2\.000|1\.[5-9]\d\d', $_, ',\ dry\ run')) }
     "dry", "our_dry"]



=== TEST 11: a client that disconnects while it is delayed
--- http_config eval
::both('limit_req_zone $arg_k zone=leave:1m rate=1r/m;')
--- config eval
::both('location /limit_req { limit_req zone=leave burst=9;
                              try_files /index.html =404; }')
--- request eval
::twice("GET /limit_req?k=a")
--- error_code eval
[200, 200]
--- leave eval
::twice("/limit_req?k=a")



=== TEST 12: a delayed request that is redirected is not delayed again
--- http_config eval
::both('limit_req_zone $server_name zone=again:1m rate=1r/s;')
--- config eval
::both('location /limit_req { limit_req zone=again burst=9;
                              try_files /no @limit_req; }
        location @limit_req { limit_req zone=again burst=9;
                              try_files /index.html =404; }')
--- pipelined_requests eval
::twice(("GET /limit_req") x 2)
--- error_code eval
[(200) x 4]
--- logged eval
[[map { qr/delaying request, .* by zone "$_"/ } "again", "our_again"],
 (undef) x 3]



=== TEST 13: an empty key is not limited
--- http_config eval
::both('limit_req_zone $arg_k zone=empty:1m rate=1r/m;')
--- config eval
::both('location /limit_req { limit_req zone=empty;
                              add_header X-Status $limit_req_status. always;
                              try_files /index.html =404; }')
--- request eval
::twice(("GET /limit_req") x 2)
--- error_code eval
[(200) x 4]
--- response_headers eval
[("X-Status: .") x 4]



=== TEST 14: limits are inherited as limit_req's are
--- http_config eval
::both('limit_req_zone $arg_limit_req zone=http:1m rate=1r/m;
limit_req_zone $arg_limit_req zone=own:1m rate=1r/m;
limit_req_status 429;
limit_req zone=http;')
--- config
    location /t { try_files /index.html =404; }
    location /own {
        limit_req zone=own burst=1 nodelay;
        limit_req_status 503;
        ratelimit zone=our_own burst=1 nodelay;
        ratelimit_status 503;
        try_files /index.html =404;
    }
--- request eval
::twice(("GET /t?limit_req=a") x 2, ("GET /own?limit_req=a") x 3)
--- error_code eval
[(200, 429, 200, 200, 503) x 2]



=== TEST 15: both limit one request, each delays it for itself
--- http_config eval
::both('limit_req_zone $server_name zone=each:1m rate=1r/s;')
--- config eval
::both('limit_req zone=each burst=5;')
. 'location /t { add_header X-Status "$limit_req_status $ratelimit_status";
                 try_files /index.html =404; }'
--- pipelined_requests eval
[("GET /t") x 2]
--- error_code eval
[200, 200]
--- response_headers_like eval
["X-Status: PASSED PASSED", "X-Status: DELAYED (PASSED|DELAYED)"]



=== TEST 16: a client that says more while it is delayed waits no less
--- http_config eval
::both('limit_req_zone $arg_k zone=hurry:1m rate=30r/m;')
--- user_files eval
[["big", "x" x 16_000_000 . "y"]]
--- config eval
::both('location /limit_req { limit_req zone=hurry burst=9;
                              add_header X-Time $request_time always;
                              try_files /index.html =404; }')
--- request eval
::twice("GET /limit_req?k=a")
--- error_code eval
[200, 200]
--- hurry eval
::twice("/limit_req?k=a")
