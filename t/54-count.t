#!/usr/bin/perl

# "count=401,403": a request is counted by how it ends.  If this fails, a
# password is guessed more often than was said, by guessing many times at once
# or by leaving early, or a user is refused because of good logins.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Clients;
use Gateway;

my $backend = Clients::backend();
my $gateway = Gateway->start(workers => 2, http => config());
my $clients = Clients->new($gateway->{port});

subtest 'failed logins' => \&failed_logins;
subtest 'a hundred at once' => \&brute_force;
subtest 'a hundred good ones at once' => \&good_ones;
subtest 'good and bad ones at once' => \&good_and_bad;
subtest 'a client that leaves is settled' => \&leave;
subtest 'a client that leaves is settled by the backend' => \&leave_ignored;
subtest 'classes of statuses' => \&classes;
subtest 'statuses of nginx itself' => \&own_statuses;
subtest 'error pages and redirects' => \&redirects;
subtest 'refunded once' => \&once;
subtest 'one limit of several' => \&several;
subtest 'algorithms' => \&algorithms;
subtest 'plans and costs' => \&plans_and_costs;
subtest 'what others refuse' => \&others_refuse;
subtest 'a dry run' => \&dry_run;
subtest 'HTTP/1.0 and HEAD' => \&spellings;
subtest 'a mirror' => \&mirror;
subtest 'a slow body' => \&slow_body;
subtest 'a post_action' => \&post_action;
subtest 'statuses that filters make' => \&filters;

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub config {
    my $slow = $backend->sockport;

    return <<'END' =~ s/SLOW/$slow/gr;
ratelimit_zone $arg_k zone=login:1m rate=3r/d;
ratelimit_zone $arg_k zone=all:1m rate=5r/d;
ratelimit_zone $arg_k zone=rates:1m rate=3r/d rate=9r/2d;
ratelimit_zone $arg_k zone=plan:1m rate=$arg_r;
ratelimit_zone $arg_k zone=fixed:1m rate=3r/366d algorithm=fixed_window;
ratelimit_zone $arg_k zone=log:1m rate=3r/d algorithm=sliding_log;
ratelimit_zone $arg_k zone=token:1m rate=3r/d algorithm=token_bucket;
ratelimit_zone $arg_k zone=leaky:1m rate=3r/d algorithm=leaky_bucket;
limit_req_zone $arg_k zone=req:1m rate=1r/m;

log_format outcome "$request_uri $status $ratelimit_status";
add_header X-Status $ratelimit_status always;

server {
    listen 127.0.0.2:PORT;

    # /STATUS in any place of the path is answered with this status
    location ~ /200$ { return 200; }
    location ~ /204$ { return 204; }
    location ~ /302$ { return 302 /; }
    location ~ /400$ { return 400; }
    location ~ /401$ { return 401; }
    location ~ /403$ { return 403; }
    location ~ /404$ { return 404; }
    location ~ /500$ { return 500; }
    location ~ /503$ { return 503; }
}

server {
    listen 127.0.0.1:PORT reuseport backlog=2048;
    access_log logs/access.log outcome;
    proxy_intercept_errors on;

    location /login { ratelimit zone=login count=401,403;
                      proxy_pass http://127.0.0.2:PORT; }
    location /slow { ratelimit zone=login count=401,403;
                     proxy_pass http://127.0.0.1:SLOW; }
    location /ignore { ratelimit zone=login count=401,403;
                       proxy_ignore_client_abort on;
                       proxy_pass http://127.0.0.1:SLOW; }

    location /4xx { ratelimit zone=login name=4xx count=4xx;
                    proxy_pass http://127.0.0.2:PORT; }
    location /5xx { ratelimit zone=login name=5xx count=5xx;
                    proxy_pass http://127.0.0.2:PORT; }
    location /mixed { ratelimit zone=login name=mixed count=404,5xx,204;
                      proxy_pass http://127.0.0.2:PORT; }
    location /away { ratelimit zone=login name=5xx count=5xx;
                     proxy_pass http://127.0.0.2:1; }

    location /deny { ratelimit zone=login name=own count=403; deny all; }
    location /missing { ratelimit zone=login name=own count=404; }
    location /password { ratelimit zone=login name=own count=401;
                         auth_basic realm; auth_basic_user_file passwords;
                         empty_gif; }

    location /page { ratelimit zone=login count=401; error_page 401 /page.gif;
                     proxy_pass http://127.0.0.2:PORT; }
    location /hidden { ratelimit zone=login count=401;
                       error_page 401 =200 /page.gif;
                       proxy_pass http://127.0.0.2:PORT; }
    location /named { ratelimit zone=login count=401; error_page 401 @page;
                      proxy_pass http://127.0.0.2:PORT; }
    location /became { ratelimit zone=login count=401; error_page 404 = @bad;
                       proxy_pass http://127.0.0.2:PORT; }
    location /tried { ratelimit zone=login count=401; try_files /no @bad; }
    location /well { ratelimit zone=login count=401; try_files /no @good; }
    location = /page.gif { ratelimit zone=login count=401; empty_gif; }
    location @page { ratelimit zone=login count=401; empty_gif; }
    location @bad { ratelimit zone=login count=401;
                    rewrite ^ /401 break; proxy_pass http://127.0.0.2:PORT; }
    location @good { ratelimit zone=login count=401;
                     rewrite ^ /200 break; proxy_pass http://127.0.0.2:PORT; }

    location /all { ratelimit zone=all; ratelimit zone=rates count=401;
                    proxy_pass http://127.0.0.2:PORT; }
    location /lla { ratelimit zone=rates count=401; ratelimit zone=all;
                    proxy_pass http://127.0.0.2:PORT; }

    location /fixed { ratelimit zone=fixed count=401;
                      proxy_pass http://127.0.0.2:PORT; }
    location /log { ratelimit zone=log count=401;
                    proxy_pass http://127.0.0.2:PORT; }
    location /token { ratelimit zone=token count=401;
                      proxy_pass http://127.0.0.2:PORT; }
    location /leaky { ratelimit zone=leaky count=401 burst=2 nodelay;
                      proxy_pass http://127.0.0.2:PORT; }
    location /plan { ratelimit zone=plan count=401;
                     proxy_pass http://127.0.0.2:PORT; }
    location /cost { ratelimit zone=all name=cost count=401 cost=$arg_c;
                     proxy_pass http://127.0.0.2:PORT; }
    location /req { ratelimit zone=login name=req count=401; limit_req zone=req;
                    proxy_pass http://127.0.0.2:PORT; }
    location /dry { ratelimit zone=login name=dry count=401;
                    ratelimit_dry_run on; proxy_pass http://127.0.0.2:PORT; }

    location /mirror { ratelimit zone=login count=401; mirror /mirrored;
                       proxy_pass http://127.0.0.2:PORT; }
    location = /mirrored { internal; proxy_pass http://127.0.0.1:SLOW; }
    location /body { ratelimit zone=login count=401; empty_gif; }
    location /post/bad { ratelimit zone=login count=401; post_action @bad;
                         proxy_pass http://127.0.0.2:PORT; }
    location /post/good { ratelimit zone=login count=401; post_action @good;
                          proxy_pass http://127.0.0.2:PORT; }
    location /post/slow { ratelimit zone=login count=401;
                          post_action /mirrored;
                          proxy_pass http://127.0.0.2:PORT; }
    location /post/leave { ratelimit zone=login count=401; post_action @bad;
                           proxy_pass http://127.0.0.1:SLOW; }
    location = /file { ratelimit zone=login name=file count=200,416;
                       alias nginx.conf; }
}
END
}


# what becomes of requests, one after another: "200 401 429"

sub statuses {
    return join ' ', map { $_->{status} }
                     $clients->series(map { ["GET $_"] } @_);
}


# that exactly so many failures are left to a key

sub left {
    my ($n, $uri, $name) = @_;

    is(statuses(($uri) x ($n + 2)), join(' ', (401) x $n, 429, 429),
       "$name: $n are left");
}


sub failed_logins {
    is(statuses(('/login/200?k=a') x 20), join(' ', (200) x 20),
       'good ones cost nothing');
    is(statuses('/login/401?k=a', '/login/200?k=a', '/login/403?k=a',
                '/login/500?k=a', '/login/302?k=a', '/login/401?k=a',
                '/login/200?k=a', '/login/401?k=a'),
       '401 200 403 500 302 401 429 429', 'three bad ones are all');
    left(3, '/login/401?k=b', 'another key');
}


sub brute_force {
    my @all = map { $clients->send('GET /slow?k=brute') } 1 .. 100;

    Clients::await_answers(97, @all);

    my @errands = map { Clients::errand($backend) } 1 .. 3;

    ok(Clients::quiet($backend), 'three come to the backend');
    Clients::reply($_, 401) for @errands;
    Clients::await_answers(100, @all);

    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 401 => 3, 429 => 97 }, 'all others are refused');
    left(0, '/login/401?k=brute', 'afterwards');
}


sub good_ones {
    my @all = map { $clients->send('GET /slow?k=good') } 1 .. 100;

    Clients::await_answers(97, @all);
    Clients::reply(Clients::errand($backend), 200) for 1 .. 3;
    Clients::await_answers(100, @all);

    is_deeply(Clients::tally(map { $_->{answers}[0] } @all),
              { 200 => 3, 429 => 97 }, 'three at a time');
    settled('/slow?k=good 200', 3);
    left(3, '/login/401?k=good', 'afterwards');
}


# an answer is there a moment before its request is settled

sub settled {
    my ($line, $n) = @_;

    Gateway::await(sub {
        my $log = Gateway::slurp("$gateway->{dir}/logs/access.log");
        my $lines = () = $log =~ /^\Q$line\E /mg;

        return $lines >= $n;
    }, $line);
}


sub good_and_bad {
    my @all = map { $clients->send('GET /slow?k=mixed') } 1 .. 10;

    Clients::await_answers(7, @all);

    my @errands = map { Clients::errand($backend) } 1 .. 3;

    Clients::reply($errands[0], 401);
    Clients::reply($errands[1], 200);
    Clients::reply($errands[2], 401);
    Clients::await_answers(10, @all);
    settled('/slow?k=mixed 200', 1);
    settled('/slow?k=mixed 401', 2);

    left(1, '/login/401?k=mixed', 'afterwards');
}


sub leave {
    my @all = map { $clients->send('GET /slow?k=leave') } 1 .. 3;
    my @errands = map { Clients::errand($backend) } 1 .. 3;

    is(statuses('/login/401?k=leave'), '429', 'three are reserved');
    Clients::leave($_) for @all;
    settled('/slow?k=leave 499', 3);
    left(3, '/login/401?k=leave', 'after they left');
}


# a guess that was made counts, though the client has left

sub leave_ignored {
    my @all = map { $clients->send('GET /ignore?k=ignore') } 1 .. 2;
    my @errands = map { Clients::errand($backend) } 1 .. 2;

    Clients::leave($_) for @all;
    Clients::reply($errands[0], 401);
    Clients::reply($errands[1], 200);
    settled('/ignore?k=ignore 401', 1);
    settled('/ignore?k=ignore 200', 1);
    left(2, '/login/401?k=ignore', 'after one bad and one good');
}


sub classes {
    is(statuses(map { "/4xx/$_?k=a" } 200, 302, 500, 503, 204, 400, 401, 404,
                                      404),
       '200 302 500 503 204 400 401 404 429', '4xx');
    is(statuses(map { "/5xx/$_?k=a" } 200, 302, 400, 404, 500, 503, 204),
       '200 302 400 404 500 503 204', '5xx');
    is(statuses('/away?k=a', '/away?k=a'), '502 429', '502 is one');
    is(statuses(map { "/mixed/$_?k=a" } 200, 401, 403, 404, 500, 204, 200),
       '200 401 403 404 500 204 429', '404,5xx,204');
}


sub own_statuses {
    is(statuses('/missing?k=a'), '404', 'no such file');
    is(statuses('/deny?k=a'), '403', 'no access');
    is(statuses('/password?k=a'), '401', 'no password');
    is(statuses('/password?k=a', '/deny?k=a', '/missing?k=a'), '429 429 429',
       'are all counted');
}


sub redirects {
    left(3, '/page/401?k=page', 'an error page');
    left(3, '/named/401?k=named', 'a named one');
    is(statuses(('/hidden/401?k=hidden') x 9), join(' ', (200) x 9),
       'what the client does not see is not counted');
    left(3, '/became/404?k=became', 'what became a 401');
    left(3, '/tried/x?k=tried', 'what was tried elsewhere');
    is(statuses(('/well/x?k=well') x 9), join(' ', (200) x 9), 'and well so');
}


# what others have used is not refunded instead; a connection's requests are
# settled one after another

sub once {
    for my $uri (qw(/login/200 /login/500 /well/x /hidden/401)) {
        my $key = "?k=once$uri";
        my $good = $uri eq '/login/500' ? 500 : 200;

        is(statuses(("/login/401$key") x 2, ("$uri$key") x 4,
                    ("/login/401$key") x 2),
           join(' ', 401, 401, ($good) x 4, 401, 429), $uri);
    }

    is(statuses(('/login/401?k=once') x 2), '401 401', 'two are used');

    my $client = $clients->send('GET /slow?k=once');
    my $errand = Clients::errand($backend);

    Clients::leave($client);
    settled('/slow?k=once 499', 1);
    left(1, '/login/401?k=once', 'a client that left');
}


# "all" counts everything, "rates" what is bad, whichever is first

sub several {
    for my $uri (qw(/all /lla)) {
        my $k = "?k=several$uri";

        is(statuses("$uri/401$k", ("$uri/200$k") x 3, "$uri/401$k",
                    "$uri/401$k"),
           '401 200 200 200 401 429', "$uri: five of any kind");

        $k .= '2';
        is(statuses(("$uri/401$k") x 4), '401 401 401 429',
           "$uri: three bad ones");
    }
}


sub algorithms {
    for my $name (qw(fixed log token leaky)) {
        is(statuses(("/$name/200?k=a") x 9), join(' ', (200) x 9),
           "$name: good ones");
        left(3, "/$name/401?k=a", $name);
    }
}


sub plans_and_costs {
    my $plan = '?k=a&r=2r/d';

    is(statuses(("/plan/200$plan") x 9), join(' ', (200) x 9), 'good ones');
    left(2, "/plan/401$plan", 'a plan');

    is(statuses('/cost/200?k=a&c=5', '/cost/401?k=a&c=3', '/cost/200?k=a&c=2',
                '/cost/401?k=a&c=3', '/cost/401?k=a&c=2', '/cost/401?k=a&c=1'),
       '200 401 200 429 401 429', 'all of a cost is refunded');
}


sub others_refuse {
    is(statuses('/req/200?k=a', ('/req/200?k=a') x 9),
       join(' ', 200, (503) x 9), 'limit_req refuses, which costs nothing');
}


sub dry_run {
    is(statuses(('/dry/200?k=a') x 9), join(' ', (200) x 9), 'good ones');

    my @answers = $clients->series((['GET /dry/401?k=a']) x 4);

    is(join(' ', map { $_->{field}{'x-status'} } @answers),
       'PASSED PASSED PASSED REJECTED_DRY_RUN', 'bad ones');
}


# an answer without a body leaves at once, also before its request is settled

sub spellings {
    is($clients->ask('HEAD /login/200?k=head', 'Connection: close')->{status},
       200, 'HEAD') for 1 .. 9;
    settled('/login/200?k=head 200', 9);
    left(3, '/login/401?k=head', 'afterwards');
}


# what is counted by its status is refunded as soon as the client has it: six
# good logins, though only three may be under way

sub mirror {
    my @answers = map { $clients->ask('GET /mirror/200?k=mirror') } 1 .. 6;

    is(join(' ', map { $_->{status} } @answers), join(' ', (200) x 6),
       'no answer waits for the mirror');

    my @errands = map { Clients::errand($backend) } 1 .. 6;

    left(3, '/login/401?k=mirror', 'while the mirror works');
    Clients::reply($_, 401) for @errands;
}


sub slow_body {
    my @all = map { $clients->send('POST /body?k=body', 'Content-Length: 9') }
              1 .. 3;

    Clients::await_answers(3, @all);
    is($_->{answers}[0]{status}, 405, 'an answer before the body') for @all;
    left(3, '/login/401?k=body', 'while the bodies are awaited');
    Clients::leave($_) for @all;
}


sub post_action {
    is($clients->ask('GET /post/bad/200?k=post')->{status}, 200, 'a good one')
        for 1 .. 6;
    left(3, '/login/401?k=post', 'after actions that fail');

    is($clients->ask('GET /post/good/401?k=wrong')->{status}, 401, 'a bad one')
        for 1 .. 3;
    left(0, '/login/401?k=wrong', 'after actions that do not');

    is($clients->ask('GET /post/slow/200?k=slow')->{status}, 200, 'a good one')
        for 1 .. 6;

    my @errands = map { Clients::errand($backend) } 1 .. 6;

    left(3, '/login/401?k=slow', 'while actions are under way');
    Clients::reply($_, 401) for @errands;

    my @all = map { $clients->send('GET /post/leave?k=left') } 1 .. 3;

    my @held = map { Clients::errand($backend) } @all;

    is(statuses('/login/401?k=left'), '429', 'three are reserved');
    Clients::leave($_) for @all;
    settled('/post/leave?k=left 401', 3);
    left(3, '/login/401?k=left', 'no client has seen these fail');
}


sub filters {
    my @part = ('GET /file?k=a', 'Range: bytes=0-0');
    my @none = ('GET /file?k=a', 'Range: bytes=99999-');

    is(join(' ', map { $_->{status} } $clients->series(
            (\@part) x 9, \@none, ['GET /file?k=a'], \@none, \@none, \@part)),
       join(' ', (206) x 9, 416, 200, 416, 429, 429),
       'parts are not counted, whole files and missing parts are');
}
