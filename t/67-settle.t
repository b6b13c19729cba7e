#!/usr/bin/perl

# "settle=": what a request really cost is known at its end, and the difference
# to what was charged when it was admitted is charged or refunded.  If this
# fails, clients use more than their budget, or pay for what they did not use.

use strict;
use warnings;

use IO::Select;
use Test::More;
use Time::HiRes qw(sleep time);

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;
use Registry;

use constant PATIENCE => 60;                # seconds
use constant UNIT => 366 * 86400 / 100;     # seconds until one of 100 is back

my @algorithms = Registry::algorithms();
my %burst = (map({ $_ => '' } @algorithms), leaky_bucket => 'burst=99 nodelay');
my %store = (shm => '', redis => 'redis=main', sync => 'redis=main sync=100ms');
my $redis = RedisServer->start;
my $backend = Clients::backend();
my $gateway = Gateway->start(workers => 2, http => config());
our $clients = Clients->new($gateway->{port});
my $keys = 0;

for my $where (qw(shm redis sync)) {
    for my $algorithm (@algorithms) {
        my $uri = "/$where/$algorithm";

        subtest "$where, $algorithm: more or less" => sub { settled($uri) };
        subtest "$where, $algorithm: a debt" => sub { debt($uri) };
        subtest "$where, $algorithm: count= decides first" =>
            sub { counted($uri) };
    }

    subtest "$where: one request beyond the budget" => sub { budget($where) };
    subtest "$where: several rates and limits" => sub { several($where) };
    subtest "$where: a client that leaves" => sub { leave($where) };
    subtest "$where: a refused request" => sub { refused($where) };
}

subtest 'sync: Redis hears of it' => \&reported;
subtest 'what is no cost' => \&malformed;
subtest 'numbers' => \&numbers;
subtest 'a large debt' => \&large_debt;
subtest 'a mirror' => \&mirror;
subtest 'a post_action' => \&post_action;
subtest 'redirects' => \&redirects;
subtest 'subrequests' => \&subrequests;
subtest 'trailers' => \&trailers;
subtest 'HTTP/2' => \&http2;
subtest 'before the client has its answer' => \&early;
subtest 'a response that has a length' => \&length_known;
subtest 'bytes that were sent' => \&bytes_sent;
subtest 'dry run and bypass' => \&dry_run;
subtest 'refused after authentication' => \&after_auth;
subtest 'a request that leaves the queue' => \&queue;
subtest 'a response without a body' => \&no_body;
subtest 'a killed worker' => \&killed;
subtest 'a reload' => \&reloaded;
subtest 'Redis is down when a request ends' => \&down;

is($gateway->complaints =~ s/.*exited on signal 9\n//gr, '',
   'nothing to complain about');
unlike($gateway->log, qr/exited on signal (?!9)/, 'no worker has died');

done_testing();


# of 100 units nothing comes back for days

sub config {
    my $slow = $backend->sockport;
    my ($http, $locations) = ('', '');

    for my $where (qw(shm redis sync)) {
        my $store = $store{$where};

        for my $name (@algorithms) {
            my $limit = "ratelimit zone=$where-$name $burst{$name}";

            $http .= "ratelimit_zone \$arg_k zone=$where-$name:1m"
                     . " rate=100r/366d algorithm=$name $store;\n";
            $locations .= <<"END";
    location /$where/$name { $limit cost=\$arg_c
                             settle=\$upstream_http_x_usage;
                             proxy_pass http://127.0.0.2:PORT; }
    location /look/$where/$name { $limit cost=0; empty_gif; }
    location /count/$where/$name { $limit cost=\$arg_c count=401
                                   settle=\$upstream_http_x_usage;
                                   proxy_pass http://127.0.0.2:PORT; }
END
        }

        $http .= <<"END";
ratelimit_zone \$arg_k zone=$where-two:1m rate=100r/300d rate=200r/366d $store;
ratelimit_zone \$arg_k zone=$where-other:1m rate=50r/366d $store;
END
        $locations .= <<"END";
    location /$where/several { ratelimit zone=$where-two cost=10
                                         settle=\$upstream_http_x_usage;
                               ratelimit zone=$where-other;
                               proxy_pass http://127.0.0.2:PORT; }
    location /look/$where/two { ratelimit zone=$where-two cost=0;
                                empty_gif; }
    location /look/$where/other { ratelimit zone=$where-other cost=0;
                                  empty_gif; }
    location /$where/slow { ratelimit zone=$where-other cost=10
                                      settle=\$upstream_http_x_usage;
                            proxy_buffering off;
                            proxy_pass http://127.0.0.1:$slow; }
    location /$where/constant { ratelimit zone=$where-other cost=10 settle=7;
                                proxy_pass http://127.0.0.2:PORT; }
END
    }

    return <<"END";
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;
$http
ratelimit_zone \$arg_k zone=own:1m rate=100r/366d;
ratelimit_zone \$arg_k zone=debt:1m rate=100r/d algorithm=token_bucket;
ratelimit_zone \$arg_k zone=wait:1m rate=100r/d capacity=1
               algorithm=token_bucket;
log_format end "\$request_uri \$status \$ratelimit_remaining";
error_log logs/error.log notice;
error_log logs/info.log info;

server {
    listen 127.0.0.2:PORT;

    add_header X-Usage \$arg_u always;

    location ~ /redirect { add_header X-Accel-Redirect /static;
                           add_header X-Usage \$arg_u; return 200; }
    location / { return 200 "of course\\n"; }
    location /count/ { if (\$arg_s = 401) { return 401; } return 200; }
    location ~ /404 { return 404; }
    location ~ /empty { return 200; }
    location ~ /large { alias large; }
    location ~ /action { add_header X-Usage 77; return 200; }
}

server {
    listen 127.0.0.3:PORT http2;

    location / { add_trailer X-Usage \$arg_u; return 200 "trailer\\n"; }
}

server {
    listen 127.0.0.4:PORT http2;

    location / { ratelimit zone=own settle=\$upstream_http_x_usage;
                 proxy_pass http://127.0.0.2:PORT; }
}

server {
    listen 127.0.0.1:PORT reuseport;
    access_log logs/access.log end;
$locations
    location /look/own { ratelimit zone=own cost=0; empty_gif; }
    location /look/named { ratelimit zone=own name=named cost=0; empty_gif; }
    location /own { ratelimit zone=own settle=\$upstream_http_x_usage;
                    proxy_pass http://127.0.0.2:PORT; }
    location /value { ratelimit zone=own cost=10 settle=\$arg_v;
                      empty_gif; }
    location /debt { ratelimit zone=debt settle=\$arg_v; empty_gif; }
    location /mirror { ratelimit zone=own settle=\$upstream_http_x_usage;
                       mirror /mirrored; proxy_pass http://127.0.0.2:PORT; }
    location = /mirrored { internal; proxy_pass http://127.0.0.1:$slow; }
    location /post { ratelimit zone=own settle=\$upstream_http_x_usage;
                     post_action /action; proxy_pass http://127.0.0.2:PORT; }
    location = /action { proxy_pass http://127.0.0.2:PORT; }
    location /redirect { ratelimit zone=own settle=\$upstream_http_x_usage;
                         proxy_pass http://127.0.0.2:PORT; }
    location = /static { ratelimit zone=own settle=\$upstream_http_x_usage;
                         empty_gif; }
    location /page { ratelimit zone=own settle=\$upstream_http_x_usage;
                     proxy_intercept_errors on; error_page 404 = \@page;
                     proxy_pass http://127.0.0.2:PORT; }
    location \@page { ratelimit zone=own settle=\$upstream_http_x_usage;
                     rewrite ^ /page break;
                     proxy_pass http://127.0.0.2:PORT; }
    location /auth { auth_request /who; try_files /nothing =204; }
    location = /who { internal;
                      ratelimit zone=own name=who rate=100r/366d
                                key=\$http_x_key
                                settle=\$upstream_http_x_usage;
                      proxy_pass http://127.0.0.2:PORT/?u=30; }
    location /look/who { ratelimit zone=own name=who rate=100r/366d cost=0;
                         empty_gif; }
    location /trailer { ratelimit zone=own settle=\$upstream_trailer_x_usage;
                        grpc_pass grpc://127.0.0.3:PORT; }
    location /bytes { ratelimit zone=own name=named rate=100000r/366d
                                settle=\$bytes_sent; alias nginx.conf; }
    location /own/large { ratelimit zone=own settle=\$upstream_http_x_usage;
                          proxy_buffer_size 4m; proxy_buffers 8 4m;
                          proxy_busy_buffers_size 8m;
                          proxy_pass http://127.0.0.2:PORT; }
    location /own/length { ratelimit zone=own settle=\$upstream_http_x_usage;
                           fastcgi_buffering off;
                           fastcgi_param END "\\r\\n\\r\\n";
                           fastcgi_pass 127.0.0.1:$slow; }
    location /own/none { ratelimit zone=own settle=\$upstream_http_x_usage;
                         postpone_output 0;
                         fastcgi_param END "\\r\\n\\r\\n";
                         fastcgi_pass 127.0.0.1:$slow; }
    location /large { ratelimit zone=own name=named rate=100000r/366d
                                settle=\$bytes_sent; alias large; }
    location /look/bytes { ratelimit zone=own name=named rate=100000r/366d
                                     cost=0; empty_gif; }
    location /dry { ratelimit zone=own settle=\$upstream_http_x_usage;
                    ratelimit_dry_run on; proxy_pass http://127.0.0.2:PORT; }
    location /bypass { ratelimit zone=own settle=\$upstream_http_x_usage;
                       ratelimit_bypass 1; proxy_pass http://127.0.0.2:PORT; }
    location /stages { ratelimit zone=own cost=10 settle=20;
                       ratelimit zone=own name=late rate=1r/366d after_auth;
                       proxy_pass http://127.0.0.2:PORT; }
    location /queue { ratelimit zone=wait delay=1d settle=\$arg_v;
                      proxy_pass http://127.0.0.2:PORT; }
    location /look/wait { ratelimit zone=wait delay=1d cost=0; empty_gif; }
    location /killed { ratelimit zone=own cost=10
                                 settle=\$upstream_http_x_usage;
                       proxy_pass http://127.0.0.1:$slow; }
}
END
}


sub key { return 'k' . ++$keys }


sub remaining {
    my ($what, $k) = @_;

    return $clients->ask("GET /look$what?k=$k")->{field}
           {'x-ratelimit-remaining'};
}


# a request is settled a moment after its answer is there

sub left {
    my ($what, $k, $n, $name) = @_;

    my $end = time + PATIENCE;
    my $left;

    do {
        $left = remaining($what, $k) // die "no figures of $what";
    } until $left == $n || time > $end || !sleep 0.005;

    is($left, $n, $name);
}


sub told { return $_[0]{field}{'x-ratelimit-remaining'} }


# until a request is in the access log, where all is over

sub ended {
    my ($line, $n) = @_;

    Gateway::await(sub {
        my $log = Gateway::slurp("$gateway->{dir}/logs/access.log");
        my $lines = () = $log =~ /^\Q$line\E/mg;

        return $lines >= ($n // 1);
    }, $line);
}


sub settled {
    my ($uri) = @_;

    my $k = key();
    my $answer = $clients->ask("GET $uri?k=$k&c=1&u=30");

    is(told($answer), 99, 'the response tells what is reserved');
    left($uri, $k, 70, 'more is charged');
    is(told($clients->ask("GET $uri?k=$k&c=50&u=20")), 20, 'a large one');
    left($uri, $k, 50, 'less is refunded');
    $clients->ask("GET $uri?k=$k&c=8&u=8");
    left($uri, $k, 42, 'the same is neither');
    $clients->ask("GET $uri?k=$k&c=40&u=0");
    left($uri, $k, 42, 'nothing is refunded in full');
    $clients->ask("GET $uri?k=$k&c=0&u=2");
    left($uri, $k, 40, 'nothing was reserved');
    $clients->ask("GET $uri?k=$k&c=5");
    left($uri, $k, 35, 'what was reserved stays, if nothing is known');
}


# it holds until its window ends, or drips off, as long as it is

sub debt {
    my ($uri) = @_;

    my $k = key();

    is($clients->ask("GET $uri?k=$k&c=1&u=250")->{status}, 200, 'admitted');
    left($uri, $k, 0, 'nothing is left');

    my $answer = $clients->ask("GET $uri?k=$k&c=1&u=0");

    is($answer->{status}, 429, 'the next one is refused');
    cmp_ok($answer->{field}{'retry-after'}, '>', 150 * UNIT,
           'until the debt has dripped off') if $uri =~ /bucket/;

    # an admission that leaves too little is remembered, as it was before

    $k = key();

    is($clients->ask("GET $uri?k=$k&c=99&u=250")->{status}, 200, 'nearly all');
    left($uri, $k, 0, 'and more than that');

    $answer = $clients->ask("GET $uri?k=$k&c=99&u=0");

    is($answer->{status}, 429, 'the next one is refused');
    cmp_ok($answer->{field}{'retry-after'}, '>', 200 * UNIT,
           'for as long as it is true') if $uri =~ /bucket/;

    $k = key();

    is($clients->ask("GET $uri?k=$k&c=60&u=4294967295")->{status}, 200, 'huge');
    left($uri, $k, 0, 'nothing is left');
    is($clients->ask("GET $uri?k=$k&c=100&u=1")->{status}, 429, 'for long');
}


# what the status does not count costs nothing, whatever it cost

sub counted {
    my ($uri) = @_;

    my $k = key();
    my $count = "/count$uri?k=$k";

    is($clients->ask("GET $count&c=10&u=30&s=200")->{status}, 200, 'good');
    left($uri, $k, 100, 'is free');
    is($clients->ask("GET $count&c=10&u=30&s=401")->{status}, 401, 'bad');
    left($uri, $k, 70, 'costs what it has cost');
    $clients->ask("GET $count&c=50&u=20&s=401");
    left($uri, $k, 50, 'less than was reserved');
    $clients->ask("GET $count&c=20&s=401");
    left($uri, $k, 30, 'as much as was reserved');
    $clients->ask("GET $count&c=1&u=400&s=200");
    left($uri, $k, 30, 'good ones are free, however large');
    $clients->ask("GET $count&c=1&u=400&s=401");
    left($uri, $k, 0, 'a debt');
    is($clients->ask("GET $count&c=1&u=0&s=200")->{status}, 429, 'holds');
}


# a client that waits for its answers: whatever its requests cost, each is
# admitted while there is room for what it reserves, and only then

sub budget {
    my ($where) = @_;

    for my $algorithm (@algorithms) {
        my ($k, $used, $last) = (key(), 0, 0);
        my $uri = "/$where/$algorithm";

        while (1) {
            my $cost = 1 + int rand 40;
            my $answer = $clients->ask("GET $uri?k=$k&c=5&u=$cost");
            my $left = $used < 100 ? 100 - $used : 0;

            is($answer->{status}, $left >= 5 ? 200 : 429,
               "$algorithm: $left are left");

            last if $answer->{status} != 200;

            $used += $last = $cost;
            left($uri, $k, $used < 100 ? 100 - $used : 0,
                 "$algorithm: $cost more");
        }

        cmp_ok($used - $last, '<=', 95,
               "$algorithm: only the last one went beyond the budget");

        # on one connection, without a look in between

        $k = key();

        my @answers = $clients->series((["GET $uri?k=$k&c=5&u=30"]) x 6);

        is(join(' ', map { $_->{status} } @answers), '200 200 200 200 429 429',
           "$algorithm: each request knows what the one before it has cost");
    }
}


sub several {
    my ($where) = @_;

    my $k = key();

    $clients->ask("GET /$where/several?k=$k&u=70");
    left("/$where/two", $k, 30, 'of one rate');
    left("/$where/other", $k, 49, 'of another limit');
    $clients->ask("GET /$where/several?k=$k&u=140");
    left("/$where/two", $k, 0, 'a debt');
    is($clients->ask("GET /$where/several?k=$k&u=1")->{status}, 429, 'refused');
    left("/$where/other", $k, 48, 'the other one was not charged');
}


# what is known of it counts

sub leave {
    my ($where) = @_;

    my $k = key();
    my $client = $clients->send("GET /$where/slow?k=$k");
    my $errand = Clients::errand($backend);

    left("/$where/other", $k, 40, 'reserved');
    Clients::leave($client);
    ended("/$where/slow?k=$k 499");
    left("/$where/other", $k, 40, 'what was reserved counts');

    $client = $clients->send("GET /$where/slow?k=$k");
    $errand = Clients::errand($backend);
    Clients::put($errand, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n"
                          . "X-Usage: 25\r\n\r\nthe beginning");
    Gateway::await(sub { IO::Select->new($client->{socket})->can_read(0) },
                   'the header');
    left("/$where/other", $k, 30, 'reserved, while there is no end');
    Clients::leave($client);
    ended("/$where/slow?k=$k 200");
    left("/$where/other", $k, 15, 'what the header said');
}


sub refused {
    my ($where) = @_;

    my $k = key();

    $clients->ask("GET /$where/constant?k=$k") for 1 .. 6;
    left("/$where/other", $k, 8, 'six cost 7');
    is($clients->ask("GET /$where/constant?k=$k")->{status}, 429, 'refused');
    left("/$where/other", $k, 8, 'which costs nothing');
}


# a machine that asks Redis each time sees what the other one has settled

sub reported {
    my $http = "ratelimit_redis main redis://127.0.0.1:$redis->{port}"
               . " timeout=5s;\n";
    my %location;

    for my $name (@algorithms) {
        $http .= "ratelimit_zone \$arg_k zone=sync-$name:1m rate=100r/366d"
                 . " algorithm=$name redis=main;\n";
        $location{"/look/sync/$name"} = "ratelimit zone=sync-$name cost=0"
                                        . " $burst{$name};";
    }

    my $other = Gateway->start(http => $http . Gateway->server(%location));
    my $here = $clients;
    my $there = Clients->new($other->{port});

    for my $name (@algorithms) {
        my ($uri, $k) = ("/sync/$name", key());

        $here->ask("GET $uri?k=$k&c=1&u=30");

        local $clients = $there;

        left($uri, $k, 70, "$name: more");
        $here->ask("GET $uri?k=$k&c=50&u=10");
        left($uri, $k, 60, "$name: less");
        $here->ask("GET $uri?k=$k&c=1&u=250");
        left($uri, $k, 0, "$name: a debt");
    }

    is($other->complaints, '', 'nothing to complain about');
}


sub malformed {
    my $k = key();
    my @bad = ('x', '-1', '1e3', '+5', '1,2', '0x10', '5s', '.5', '5.', '%205');
    my $n = 100;
    my $start = time;

    for my $value (@bad) {
        $clients->ask("GET /value?k=$k&v=$value");
        left('/own', $k, $n -= 10, "$value: what was reserved counts");
    }

    Gateway::await(sub { $gateway->log =~ /settle "\$arg_v"/ }, 'it is logged');
    like($gateway->log,
         qr/\[error\]\ .*\ settle\ "\$arg_v"\ of\ zone\ "own"\ is\ not\ a\ number:
            \ "x",\ what\ was\ reserved\ counts/x, 'with the value');

    # whatever values clients choose

    $k = key();
    $clients->series((map { ["GET /value?k=$k&v=often$_"] } 1 .. 200));

    my $lines = () = $gateway->log =~ /settle/g;

    cmp_ok($lines, '<=', 2 + time - $start, "one line a second, $lines");

    $k = key();
    $clients->series((["GET /value?k=$k&v="]) x 3);
    left('/own', $k, 70, 'an empty one, too');

    my $info = Gateway::slurp("$gateway->{dir}/logs/info.log");

    like($info, qr/\[info\] .* settle "\$arg_v" of zone "own" is empty, /,
         'which is told to those that want to know');
    unlike($gateway->log, qr/is empty/, 'and to no others');
}


sub numbers {
    my %cost = ('7' => 7, '007' => 7, '0' => 0, '0.000' => 0, '0.001' => 1,
                '6.0' => 6, '6.01' => 7, '1.999' => 2,
                '99999999999999999999999' => 100, '4294967296' => 100);

    for my $value (sort keys %cost) {
        my $k = key();

        $clients->ask("GET /value?k=$k&v=$value");
        left('/own', $k, 100 - $cost{$value}, "$value: $cost{$value}");
    }
}


# however small the limit is, a debt is counted in full

sub large_debt {
    my $k = key();

    $clients->ask("GET /debt?k=$k&v=100000000");
    ended("/debt?k=$k");

    my $retry = $clients->ask("GET /debt?k=$k")->{field}{'retry-after'};

    cmp_ok($retry, '>', (100_000_000 - 100) * 864 - 60, 'to the second');
    cmp_ok($retry, '<=', (100_000_000 - 100 + 1) * 864, 'and no longer');
}


# neither waits for what is done after the response

sub mirror {
    my $k = key();

    is($clients->ask("GET /mirror?k=$k&u=30")->{status}, 200, 'answered');

    my $errand = Clients::errand($backend);

    left('/own', $k, 70, 'before the mirror has');
    Clients::reply($errand, 200, 'X-Usage: 5');
    ended("/mirror?k=$k");
    left('/own', $k, 70, 'and once');

    my $client = $clients->send("HEAD /mirror?k=$k&u=20");

    $errand = Clients::errand($backend);
    left('/own', $k, 50, 'if there is no body, too');
    Clients::reply($errand, 200);
}


sub post_action {
    my $k = key();

    $clients->ask("GET /post?k=$k&u=30");
    ended("/post?k=$k");
    left('/own', $k, 70, 'the usage is that of the response');

    $clients->ask("HEAD /post/empty?k=$k&u=20", 'Connection: close');
    ended("/post/empty?k=$k");
    left('/own', $k, 50, 'if it has no body, too');
}


sub redirects {
    my $k = key();

    is($clients->ask("GET /redirect?k=$k&u=30")->{field}{'content-type'},
       'image/gif', 'X-Accel-Redirect');
    left('/own', $k, 70, 'is settled once');
    is($clients->ask("GET /page/404?k=$k&u=20")->{status}, 200, 'error_page');
    left('/own', $k, 50, 'is, too');
}


sub subrequests {
    my $k = key();

    is($clients->ask('GET /auth', "X-Key: $k")->{status}, 204, 'auth_request');
    left('/who', $k, 70, 'a subrequest is settled by its own response');
}


sub trailers {
    my $k = key();

    is($clients->ask("GET /trailer?k=$k&u=30")->{status}, 200, 'a trailer');
    left('/own', $k, 70, 'is known in time');
}


sub http2 {
    my $k = key();
    my $url = "http://127.0.0.4:$gateway->{port}/?k=$k&u=30";
    my $code = `curl -so /dev/null --http2-prior-knowledge -w '%{http_code}' \\
                     '$url'`;

    is($code, 200, 'answered');
    left('/own', $k, 70, 'and settled');
}


# a client that has its answer may ask again on any connection, at once

sub length_known {
    for (['length', 'hello'], ['none', '']) {
        my ($name, $body) = @$_;
        my $k = key();
        my $client = $clients->send("GET /own/$name?k=$k");
        my $errand = Clients::errand($backend);
        my $text = "Content-Length: @{[length $body]}\r\nX-Usage: 30\r\n\r\n"
                   . $body;

        Clients::put($errand, pack('CCnnn', 1, 6, 1, length $text, 0) . $text);
        Clients::await_answers(1, $client);
        is(remaining('/own', $k), 70, "$name: settled, the upstream goes on");
        close $errand->{socket};
        ended("/own/$name?k=$k");
        left('/own', $k, 70, "$name: once");
    }
}


sub early {
    my $k = key();

    open my $file, '>', "$gateway->{dir}/large" or die $!;
    print $file 'x' x (16 << 20);
    close $file;

    my $client = $clients->send("GET /own/large?k=$k&u=30");

    left('/own', $k, 70, 'what the upstream has said is known already');
    Clients::leave($client);
    ended("/own/large?k=$k");
    left('/own', $k, 70, 'and counts once');

    $k = key();
    $client = $clients->send("GET /large?k=$k");

    Gateway::await(sub { IO::Select->new($client->{socket})->can_read(0) },
                   'the header');
    left('/bytes', $k, 100_000 - 1, 'bytes are counted when they are sent');
    Clients::leave($client);
    ended("/large?k=$k");
    left('/bytes', $k, 0, 'all of them');
}


sub bytes_sent {
    my $k = key();
    my $client = $clients->send("GET /bytes?k=$k", 'Connection: close');
    my $n = 0;

    while (sysread $client->{socket}, my $bytes, 65536) {
        $n += length $bytes;
    }

    cmp_ok($n, '>', 2000, 'a response');
    left('/bytes', $k, 100_000 - $n, 'each byte');
}


sub dry_run {
    my $k = key();

    $clients->ask("GET /dry?k=$k&u=30");
    left('/own', $k, 70, 'a dry run counts');
    $clients->ask("GET /dry?k=$k&u=90");
    left('/own', $k, 0, 'up to a debt');
    is($clients->ask("GET /dry?k=$k&u=1")->{status}, 200, 'and refuses none');

    $k = key();
    $clients->ask("GET /bypass?k=$k&u=30");
    ended("/bypass?k=$k");
    left('/own', $k, 100, 'a bypass counts nothing');
}


sub after_auth {
    my $k = key();

    is($clients->ask("GET /stages?k=$k")->{status}, 200, 'admitted');
    left('/own', $k, 80, 'and settled');
    is($clients->ask("GET /stages?k=$k")->{status}, 429, 'refused');
    ended("/stages?k=$k 429");
    left('/own', $k, 80, 'what was refunded is not settled');
}


# it has cost nothing, whatever settle= says

sub queue {
    my $k = key();

    is($clients->ask("GET /queue?k=$k&v=1")->{status}, 200, 'the first token');

    my $client = $clients->send("GET /queue?k=$k&v=20");

    Gateway::await(sub {
        Gateway::slurp("$gateway->{dir}/logs/info.log") =~ /delaying request/
    }, 'a delay');
    Clients::leave($client);
    ended("/queue?k=$k&v=20 499");

    my $answer = $clients->ask("GET /look/wait?k=$k");

    cmp_ok($answer->{field}{'x-ratelimit-reset'}, '<=', 864,
           'one token is missing');
}


sub no_body {
    my $k = key();

    $clients->ask("HEAD /own/empty?k=$k&u=30", 'Connection: close');
    left('/own', $k, 70, 'HEAD');
    $clients->ask("GET /own/empty?k=$k&u=30");
    left('/own', $k, 40, 'an empty one');
}


# what its requests have reserved stays charged

sub killed {
    my $k = key();
    my $client = $clients->send("GET /killed?k=$k");
    my $errand = Clients::errand($backend);

    left('/own', $k, 90, 'reserved');
    kill 'KILL', $gateway->current_workers;
    Gateway::await(sub { eval { remaining('/own', $k) } }, 'new workers');
    left('/own', $k, 90, 'for ever');
}


sub reloaded {
    my $k = key();
    my $client = $clients->send("GET /killed?k=$k");
    my $errand = Clients::errand($backend);

    $gateway->reload($gateway->{http});
    Clients::reply($errand, 200, 'X-Usage: 40');
    Clients::await_answers(1, $client);
    left('/own', $k, 60, 'settled by the worker that reserved it');
}


# what could not be said is said when it is up again

sub down {
    my $k = key();
    my $client = $clients->send("GET /redis/slow?k=$k");
    my $errand = Clients::errand($backend);

    $redis->pause;
    Clients::reply($errand, 200, 'X-Usage: 25');
    Clients::await_answers(1, $client);
    $redis->resume;
    left('/redis/other', $k, 25, 'Redis hears of it');
}
