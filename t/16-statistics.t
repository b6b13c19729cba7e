#!/usr/bin/perl

# Statistics are exact: each status of each limit is counted as often as clients
# have seen it, by parallel clients of several workers, and over reloads that
# add, remove and resize zones while requests are under way.

use strict;
use warnings;

use JSON::PP qw(decode_json);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;

use constant WORKERS => 3;
use constant CLIENTS => 24;
use constant EACH => 6;         # requests of a client to a location
use constant LATE => 40;        # requests that end after a reload
use constant MANY => 6000;      # limits

my $away = Gateway::free_port();

# zone and location => parameters of both, and statuses that must occur

my %LIMIT = (
    plain => ['rate=100r/h', '', 'PASSED REJECTED'],
    soft => ['rate=50r/h', 'soft=100%', 'PASSED SOFT REJECTED'],
    elastic => ['rate=50r/h', 'elastic=100%', 'PASSED ELASTIC REJECTED'],
    rates => ['rate=50r/h rate=50r/d', 'soft=100%', 'PASSED SOFT REJECTED'],
    two => ['rate=50r/d rate=60r/h', 'soft=10% elastic=50%',
            'PASSED SOFT ELASTIC REJECTED'],
    leaky => ['rate=50r/s algorithm=leaky_bucket', 'burst=100',
              'PASSED DELAYED'],
    dry => ['rate=60r/h', ';ratelimit_dry_run on', 'PASSED REJECTED_DRY_RUN'],
    dry_leaky => ['rate=1r/m algorithm=leaky_bucket',
                  'burst=60;ratelimit_dry_run on',
                  'PASSED DELAYED_DRY_RUN REJECTED_DRY_RUN'],
    bypass => ['rate=70r/h', ';ratelimit_bypass $http_x_free',
               'PASSED BYPASSED REJECTED'],
    open => ['rate=5r/h redis=away fail=open', '', 'FAILED_OPEN'],
    closed => ['rate=5r/h redis=away fail=closed', '', 'FAILED_CLOSED'],
);

my $gateway = Gateway->start(workers => WORKERS, http => http('1m'));
my $clients = Clients->new($gateway->{port});

# what clients have seen: location, status => number

my %seen;


subtest 'each status' => sub {
    my @clients = map { $clients->connect } 1 .. CLIENTS;
    my @paths = sort keys %LIMIT;
    my %worker;

    for my $n (0 .. $#clients) {
        my @fields = $n % 3 ? () : 'X-Free: 1';
        my @all = map { [@paths[$n % @paths .. $#paths],
                         @paths[0 .. $n % @paths - 1]] } 1 .. EACH;
        my @order = map { @$_ } @all;

        $clients[$n]{paths} = \@order;
        $clients[$n]{expected} = @order;
        Clients::put($clients[$n], join '', map { $clients->text("GET /$_",
                                                                 @fields) }
                                            @order);
    }

    Clients::await_answers(scalar @clients, @clients);

    for my $client (@clients) {
        my @order = @{$client->{paths}};

        for my $answer (@{$client->{answers}}) {
            $seen{shift @order}{$answer->{field}{'x-status'}}++;
            $worker{$answer->{field}{'x-worker'}}++;
        }
    }

    cmp_ok(scalar keys %worker, '>', 1, 'several workers');
    is_deeply([sort keys %{$seen{$_}}], [sort split ' ', $LIMIT{$_}[2]],
              "$_: $LIMIT{$_}[2]") for @paths;
    compare();

    my $zone = zones()->{leaky};

    cmp_ok($zone->{delayed_seconds}, '>', 0, 'time of delays');
    is(zones()->{dry_leaky}{delayed_seconds}, 0, 'none in a dry run');
};


subtest 'reloads' => sub {
    my @paths = grep { !/leaky/ } sort keys %LIMIT;
    my @changes = (
        sub { http('2m') },                             # grows
        sub { http('2m', qw(soft bypass)) },            # some are removed
        sub { http('1m', 'plain') },                    # others, and it shrinks
        sub { http('3m', qw(elastic open closed dry)) },
        sub { http('1m') . "ratelimit_zone \$arg_x zone=new:1m rate=1r/h;" },
        sub { http('1m') },
    );

    for my $n (0 .. $#changes) {
        my @sent;
        my $some = sub {
            for my $path (@paths) {
                my $client = $clients->send("GET /$path", 'Connection: close');

                $client->{path} = $path;
                push @sent, $client;
            }
        };

        $some->() for 1 .. 5;
        $gateway->hup($changes[$n]->());
        $some->() for 1 .. 5;

        Clients::await_answers(scalar @sent, @sent);

        for my $client (@sent) {
            my $status = $client->{answers}[0]{field}{'x-status'};

            $seen{$client->{path}}{$status}++ if $status;
        }

        Gateway::await(sub { $gateway->settled }, 'the reload');
    }

    compare();
};

subtest 'what is gone, and comes back' => \&kept;
subtest 'of a Redis, by all workers' => \&redis;
subtest 'another limit is not taken for one that is gone' => \&others;
subtest 'many limits' => \&many;
subtest 'resets while they are read' => \&resets;
subtest 'limits that are decided at once' => \&together;
subtest 'many of these' => \&many_together;
subtest 'beside a limit that fails' => \&beside;
subtest 'after a dry run' => \&after_dry_run;

is($gateway->complaints, '', 'no complaints');

done_testing();


# evictions and counters of a Redis are not in the memory of statistics

sub kept {
    my $zones = <<"END";
ratelimit_redis away redis://127.0.0.1:$away;
ratelimit_zone \$arg_k zone=full:64k rate=1r/h;
ratelimit_zone \$arg_k zone=remote:1m rate=1r/h redis=away fail=open;
END
    my $limits = <<'END';
location /full { ratelimit zone=full; empty_gif; }
location /remote { ratelimit zone=remote; empty_gif; }
END
    my $api = 'location /api/ { ratelimit_api write=on; }';
    my $server = 'listen 127.0.0.1:PORT;';
    my $gateway = Gateway->start(workers => 1,
                                 http => "$zones server { $server $limits $api }");
    my $clients = Clients->new($gateway->{port});

    my $figures = sub {
        my %metric = $clients->ask('GET /api/metrics')->{body}
                     =~ /^nginx_ratelimit_(\w+_total\{.*?\}) (\d+)$/mg;
        my $zone = decode_json($clients->ask('GET /api/zones/full')->{body});

        $metric{recent} = $zone->{evictions};

        return \%metric;
    };
    my $some = sub {
        $clients->series(map { ["GET /full?k=$_[0]$_"] } 1 .. 3000);
        $clients->series((["GET /remote?k=$_[0]"]) x 5);
    };

    # the worker has begun to read these when it answers another request

    my $late = sub {
        my @late = map { $clients->connect } 1 .. LATE;

        for my $n (0 .. $#late) {
            my $path = $n % 2 ? "full?k=$_[0]$n" : 'remote?k=late';

            $late[$n]{expected} = 1;
            Clients::put($late[$n], $clients->text("GET /$path") =~ s/\r\n\z//r);
        }

        $clients->ask('GET /api/zones');

        return @late;
    };
    my $end = sub {
        Clients::put($_, "\r\n") for @_;
        Clients::await_answers(scalar @_, @_);
    };

    $some->('a');
    $clients->ask('DELETE /api/zones/full');
    $some->('b');

    my $before = $figures->();
    my $evictions = 'zone_evictions_total{zone="full"}';
    my ($fallbacks) = grep { /redis_fallbacks/ } keys %$before;

    cmp_ok($before->{$evictions}, '>', $before->{recent}, 'some are dismissed');
    cmp_ok($before->{recent}, '>', 0, 'some are not');
    cmp_ok($before->{$fallbacks}, '>', 0, 'a Redis has some');

    # requests that end when their zone and Redis are gone, and are there again

    my @early = $late->('d');
    my @later = $late->('e');
    my $asked = $clients->connect;

    $asked->{expected} = 1;
    Clients::put($asked, $clients->text('GET /api/metrics') =~ s/\r\n\z//r);
    $clients->ask('GET /api/zones');

    $gateway->reload("server { $server $api }");
    $end->(@early);
    $end->($asked);
    is(($asked->{answers}[0]{body} =~ /\Q$fallbacks\E (\d+)/)[0],
       $before->{$fallbacks} + LATE / 2, 'the former worker shows what it had');
    $gateway->reload("$zones server { $server $limits $api }");
    $end->(@later);
    Gateway::await(sub { $gateway->settled }, 'the former worker to go');

    my $counted = $figures->();
    my %more = map { $_ => $counted->{$_} - $before->{$_} }
               grep { $counted->{$_} != $before->{$_} }
               grep { !/redis/ || $_ eq $fallbacks } keys %$counted;

    is_deeply(\%more, {
        $evictions => LATE, recent => LATE, $fallbacks => LATE,
        'requests_total{zone="full",limit="",status="passed"}' => LATE,
        'requests_total{zone="remote",limit="",status="failed_open"}' => LATE,
    }, 'what it has counted is not lost');

    $before = $counted;

    $gateway->hup("server { $server $api }");
    Gateway::await(sub { $gateway->settled }, 'all are removed');
    is(scalar(() = $clients->ask('GET /api/metrics')->{body} =~ /zone=/g), 0,
       'they are gone');
    $gateway->hup("server { $server $api } $zones");
    Gateway::await(sub { $gateway->settled }, 'they are unused');
    $gateway->hup("$zones server { $server $limits $api }");
    Gateway::await(sub { $gateway->settled }, 'all are there again');
    is_deeply($figures->(), $before, 'no counter has gone back');

    # another algorithm is another memory

    $zones =~ s/full:64k/full:64k algorithm=fixed_window/;
    $gateway->hup("$zones server { $server $limits $api }");
    Gateway::await(sub { $gateway->settled }, 'another algorithm');
    is_deeply($figures->(), $before, 'nor then');

    $some->('c');

    my $after = $figures->();

    cmp_ok($after->{$_}, '>', $before->{$_}, "$_: and it counts on")
        for $evictions, 'recent', $fallbacks;
    is($gateway->complaints =~ s/.*(?:is full|marked down).*\n//gr, '',
       'no complaints');
}


# a worker that is killed has counted, and so does the next one; nothing is
# counted where there is no API

sub redis {
    my $config = sub {
        my ($api) = @_;

        return <<"END";
ratelimit_redis away redis://127.0.0.1:$away;
ratelimit_zone \$arg_k zone=remote:1m rate=1r/h redis=away fail=open;
add_header X-Worker \$pid always;
server {
    listen 127.0.0.1:PORT reuseport;
    location / { ratelimit zone=remote; empty_gif; }
    location /api/ { @{[$api ? 'ratelimit_api;' : '']} }
}
END
    };

    my $gateway = Gateway->start(workers => WORKERS, http => $config->(0),
                                 main => 'error_log logs/info.log info;');
    my $clients = Clients->new($gateway->{port});
    my $said = sub {
        my $log = Gateway::slurp("$gateway->{dir}/logs/info.log");

        return [$log =~ /redis "away": .*?(\d+) fallbacks/g];
    };
    my %worker;

    my $some = sub {
        my @clients = map { $clients->connect } 1 .. CLIENTS;

        for my $client (@clients) {
            $client->{expected} = EACH;
            Clients::put($client, $clients->text("GET /?k=$_[0]") x EACH);
        }

        Clients::await_answers(scalar @clients, @clients);
        $worker{$_}++ for map { $_->{field}{'x-worker'} }
                          map { @{$_->{answers}} } @clients;
    };
    my $fallbacks = sub {
        my $redis = decode_json($clients->ask('GET /api/redis')->{body});

        return $redis->{redis}[0]{fallbacks};
    };

    $some->('a');
    $gateway->reload($config->(1));
    Gateway::await(sub { $gateway->settled }, 'an API');
    is_deeply($said->(), [], 'a worker that ends has counted nothing');
    is($fallbacks->(), 0, 'they begin with it');

    %worker = ();
    $some->($_) for 'a' .. 'c';
    cmp_ok(scalar keys %worker, '>', 1, 'several workers');
    is($fallbacks->(), 3 * CLIENTS * EACH, 'their sum');

    for my $pid ($gateway->current_workers) {
        kill 'KILL', $pid;
        Gateway::await(sub { $gateway->current_workers == WORKERS
                             && !grep { $_ == $pid } $gateway->all_workers },
                       'another worker');
        is($fallbacks->(), 3 * CLIENTS * EACH, 'one is killed');
    }

    $some->('d');
    is($fallbacks->(), 4 * CLIENTS * EACH, 'others count on');

    $gateway->reload($config->(1));
    Gateway::await(sub { $gateway->settled }, 'the reload');
    $some->('e');
    is($fallbacks->(), 5 * CLIENTS * EACH, 'over a reload');
    is_deeply($said->(), [(4 * CLIENTS * EACH) x WORKERS], 'workers that end have');

    $gateway->reload($config->(0));
    Gateway::await(sub { $gateway->settled }, 'no API');
    $some->('f');
    $gateway->reload($config->(1));
    Gateway::await(sub { $gateway->settled }, 'an API again');
    is($fallbacks->(), 5 * CLIENTS * EACH, 'nothing was counted without it');
    is($gateway->complaints(qr/exited on signal 9/), '', 'no complaints');
}


# a limit that comes while another one is gone has counts and keys of its own

sub others {
    my $gateway = Gateway->start(workers => 1, http => named('a', 'b'));
    my $clients = Clients->new($gateway->{port});

    $clients->series((["GET /b"]) x 3);

    for my $names (['a'], ['a', 'c'], ['a', 'c', 'b']) {
        $gateway->hup(named(@$names));
        Gateway::await(sub { $gateway->settled }, "@$names");

        my ($limit, $top) = figures($clients);
        my $there = grep { $_ eq 'b' } @$names;

        is_deeply($top, $there ? { b => 2 } : {}, "@$names: refused keys");
        is($limit->{$_}{rejected}, $_ eq 'b' ? 2 : 0, "refusals of $_")
            for @$names;
    }
}


# a third of them comes later, and more come and go than there is room for

sub many {
    my @names = map { sprintf 'n%04d', $_ } 1 .. MANY;
    my @few = @names[0 .. MANY / 3 * 2 - 1];
    my $gateway = Gateway->start(workers => 2, http => named(@few));
    my $clients = Clients->new($gateway->{port});
    my %want;

    my $each = sub {
        my @some = @_;

        $clients->series(map { ["GET /$_"] } @some);
        $want{$_}++ for @some;
    };
    my $compare = sub {
        my ($limit, undef, $sum) = figures($clients);
        my @wrong = grep { my $of = $limit->{$_};
                           !$of || $of->{passed} + $of->{rejected}
                                   != ($want{$_} // 0) } @{$_[0]};
        my $all = 0;

        $all += $want{$_} // 0 for @{$_[0]};

        is("@wrong[0 .. ($#wrong < 3 ? $#wrong : 3)]", '', "$_[1]: each limit");
        is($sum->{passed} + $sum->{rejected}, $all, "$_[1]: the zone");
    };

    $each->(@few);
    $compare->(\@few, 'at first');

    # this one ends when the others have come

    my $late = $clients->connect;

    $late->{expected} = 1;
    Clients::put($late, $clients->text("GET /$few[-1]") =~ s/\r\n\z//r);
    $each->($few[0]);

    $gateway->reload(named(@names));
    $each->(@names);
    Clients::put($late, "\r\n");
    Clients::await_answers(1, $late);
    $want{$few[-1]}++;
    Gateway::await(sub { $gateway->settled }, 'the reload');
    $compare->(\@names, 'after a reload');

    my %metric = $clients->ask('GET /api/metrics')->{body}
                 =~ /requests_total\{.*?limit="(\w+)",status="passed"\} (\d+)/g;

    is(scalar(grep { $_ == 1 } values %metric), MANY, 'metrics');

    $each->(($names[-1]) x 3);
    cmp_ok((figures($clients))[1]{$names[-1]}, '>=', 3, 'a refused key');

    $gateway->hup(named(@few));
    Gateway::await(sub { $gateway->settled }, 'fewer limits');
    $compare->(\@few, 'without some');
    $gateway->hup(named(@names));
    Gateway::await(sub { $gateway->settled }, 'all limits');
    $compare->(\@names, 'with these again');

    for my $letter ('o', 'p') {
        my @others = map { s/n/$letter/r } @few;

        $gateway->hup(named(@others));
        Gateway::await(sub { $gateway->settled }, 'other limits');
        $each->(@others);
        $compare->(\@others, "others: $letter");
    }

    is($gateway->complaints, '', 'no complaints');
}


# what is left of a count is never less than 0, whatever another worker does
# meanwhile; more workers than processors are interrupted anywhere

sub resets {
    my $limits = join '', map { "ratelimit zone=many name=n$_ rate=9999r/s;\n" }
                          1 .. 100;
    my $gateway = Gateway->start(workers => 32, http => <<"END");
ratelimit_zone localhost zone=many:4m rate=1r/h;

server {
    listen 127.0.0.1:PORT reuseport;
    location / { $limits empty_gif; }
    location /api/ { ratelimit_api write=on; }
}
END
    my $clients = Clients->new($gateway->{port});
    my @asked = ('GET /', 'GET /api/zones/many', 'DELETE /api/zones/many');
    my @shown;

    for (1 .. 5) {
        my @some = map { $clients->connect } 1 .. 12 * @asked;

        for my $n (0 .. $#some) {
            $some[$n]{expected} = 100;
            Clients::put($some[$n], $clients->text($asked[$n % @asked]) x 100);
        }

        Clients::await_answers(scalar @some, @some);
        push @shown, grep { /"zone"/ } map { $_->{body} }
                     map { @{$_->{answers}} } @some;
    }

    is(scalar @shown, 5 * 12 * 100, 'all are answered');
    is(scalar(grep { /:\d{10}/ } @shown), 0, 'none went below 0');
    is($gateway->complaints, '', 'no complaints');
}


# each limit counts what it says by itself, whatever the others of a block say;
# blocks come and go

sub together {
    my %rate = (a => 3, b => 5, c => 8);
    my %block = (
        a => ['a'],
        ab => ['a', 'b'],
        ba => ['b', 'a'],
        abc => ['a', 'b', 'c'],
        later => ['a', 'b later', 'c later'],
        dry => ['a', 'b'],
        two => ['d', 'a'],      # d has two rates
    );
    my @paths = sort keys %block;

    $rate{d} = 4;

    my $config = sub {
        my %there = map { $_ => 1 } @_;
        my $zones = join '', map { "ratelimit_zone \$arg_$_ zone=$_:1m "
                                   . "rate=$rate{$_}r/h "
                                   . ($_ eq 'd' ? "rate=99r/d;\n" : ";\n") }
                             sort keys %rate;
        my $locations = join '', map {
            my $limits = join '', map { "ratelimit zone=$_;\n" }
                                  map { s/later/after_auth/r } @{$block{$_}};
            my $dry = $_ eq 'dry' ? 'ratelimit_dry_run on;' : '';

            "location = /$_ { "
            . ($there{$_} ? "$limits $dry ratelimit_bypass \$arg_free;" : '')
            . " empty_gif; }\n"
        } @paths;

        return <<"END";
$zones
add_header X-Status \$ratelimit_status always;
server {
    listen 127.0.0.1:PORT reuseport;
    $locations
    location /api/ { ratelimit_api; }
}
END
    };

    my $gateway = Gateway->start(workers => WORKERS, http => $config->(@paths));
    my $clients = Clients->new($gateway->{port});
    my (%used, %want);

    # what each limit says of a request, stage by stage

    my $decide = sub {
        my ($path, $key) = @_;

        my @limits = @{$block{$path}};
        my @before = grep { $key->{$_} } grep { !/later/ } @limits;
        my @after = grep { $key->{$_} } map { /(\w) later/ } @limits;

        if ($key->{free}) {
            $want{$_}{bypassed}++ for map { substr $_, 0, 1 } @limits;
            return 'BYPASSED';
        }

        my ($status, @charged);

        for my $stage (\@before, \@after) {
            my %refuses = map { my $used = $used{$_}{$key->{$_}} // 0;
                                ($_ => $used >= $rate{$_}) } @$stage;
            my $refused = grep { $_ } values %refuses;
            my $how = $path eq 'dry' ? 'rejected_dry_run' : 'rejected';

            $want{$_}{$refuses{$_} ? $how : 'passed'}++ for @$stage;

            if ($refused) {
                $used{$_}{$key->{$_}}-- for $how eq 'rejected' ? @charged : ();
                return uc $how;
            }

            $used{$_}{$key->{$_}}++ for @$stage;
            push @charged, @$stage;
            $status = 'PASSED' if @$stage;
        }

        return $status;
    };

    my ($round, @wrong) = (0);
    my $some = sub {
        my @sent;

        $round++;

        for my $n (0 .. CLIENTS - 1) {
            my $client = $clients->connect;
            my %key = map { $_ => "$_-$round-$n" } keys %rate;

            # all keys; keys of which some are new each time; some have none

            for my $i (0 .. 9) {
                for my $path (@paths) {
                    my %own = %key;

                    $own{(qw(a b c d))[$n % 4]} .= "-$i-$path" if $n % 3 == 1;
                    delete $own{(qw(a b c d))[$n % 4]} if $n % 3 == 2;
                    $own{free} = 1 if $i == 7;

                    push @{$client->{asked}}, [$path, \%own];
                    $client->{text} .= $clients->text(
                        "GET /$path?" . join '&', map { "$_=$own{$_}" }
                                                  sort keys %own);
                }
            }

            $client->{expected} = @{$client->{asked}};
            push @sent, $client;
        }

        Clients::put($_, $_->{text}) for @sent;
        Clients::await_answers(scalar @sent, @sent);

        for my $client (@sent) {
            for my $answer (@{$client->{answers}}) {
                my ($path, $key) = @{shift @{$client->{asked}}};
                my $status = $answer->{field}{'x-status'};

                next if !grep { $_ eq $path } @_;

                my $expected = $decide->($path, $key) // '';

                push @wrong, "$path: $status, not $expected"
                    if ($status // '') ne $expected;
            }
        }
    };
    my $counted = sub {
        my ($name, @there) = @_;

        my $zones = decode_json($clients->ask('GET /api/zones')->{body});
        my %used = map { substr($_, 0, 1) => 1 } map { @{$block{$_}} } @there;
        my %shown = map { $_ => $want{$_} } keys %used;
        my %got;

        for my $zone (@{$zones->{zones}}) {
            my %requests = %{$zone->{requests}};

            $got{$zone->{zone}} = { map { $_ => $requests{$_} }
                                    grep { $requests{$_} } keys %requests };
        }

        delete @got{grep { !$used{$_} } keys %got};

        is_deeply(\%got, \%shown, "$name: each limit by itself");
        is("@wrong[0 .. ($#wrong < 2 ? $#wrong : 2)]", '', "$name: statuses");
    };

    $some->(@paths);
    $counted->('at first', @paths);

    for my $there (['a', 'dry'], [qw(ab later)], ['two'], \@paths) {
        $gateway->hup($config->(@$there));
        Gateway::await(sub { $gateway->settled }, 'the reload');
        $counted->("@$there, before", @$there);
        $some->(@$there);
        $counted->("@$there", @$there);
    }

    is($gateway->complaints, '', 'no complaints');
}


# what was counted for all limits of a block at once stays when there is no room
# for blocks that are gone

sub many_together {
    my $config = sub {
        my ($letter) = @_;

        my $limits = join '', map { "location = /$letter$_ { "
                                    . "ratelimit zone=all; "
                                    . "ratelimit zone=many name=$letter$_ "
                                    . "rate=1r/h; empty_gif; }\n" }
                              1 .. MANY / 4;
        return <<"END";
ratelimit_zone localhost zone=all:1m rate=1000000r/h;
ratelimit_zone localhost zone=many:4m rate=1r/h;
server { listen 127.0.0.1:PORT; $limits location /api/ { ratelimit_api; } }
END
    };
    my $gateway = Gateway->start(workers => 1, http => $config->('m'));
    my $clients = Clients->new($gateway->{port});
    my $all = 0;

    for my $letter ('n' .. 's') {

        # the former worker answers when its blocks are gone, and others there

        my $late = $clients->connect;

        $late->{expected} = 1;
        Clients::put($late, $clients->text('GET /api/zones/all')
                            =~ s/\r\n\z//r);
        $clients->ask('GET /api/zones');

        $gateway->reload($config->($letter));
        $clients->series(map { (["GET /$letter$_"]) x 2 } 1 .. MANY / 4);
        Clients::put($late, "\r\n");
        Clients::await_answers(1, $late);

        my $former = decode_json($late->{answers}[0]{body});

        is($former->{requests}{passed}, $all, "$letter: the former worker");
        Gateway::await(sub { $gateway->settled }, 'other limits');
        $all += MANY / 2;

        my ($limit, undef, $sum) = figures($clients);
        my $zone = decode_json($clients->ask('GET /api/zones/all')->{body});

        is_deeply([@{$sum}{qw(passed rejected)}], [MANY / 4, MANY / 4],
                  "$letter: limits that are there");
        is($zone->{requests}{passed}, $all, 'the limit of all blocks');
    }

    is($gateway->complaints, '', 'no complaints');
}


# a limit that cannot be asked fails as it says itself; others have nothing
# against the request

sub beside {
    my $gateway = Gateway->start(workers => 1, http => <<"END");
ratelimit_redis away redis://127.0.0.1:$away;
ratelimit_zone localhost zone=a:1m rate=100r/h;
ratelimit_zone localhost zone=plan:1m rate=\$arg_plan fail=closed;
ratelimit_zone localhost zone=open:1m rate=9r/h redis=away fail=open;
ratelimit_zone localhost zone=closed:1m rate=9r/h redis=away fail=closed;
ratelimit_zone localhost zone=local:1m rate=9r/h redis=away fail=local;
server {
    listen 127.0.0.1:PORT;
    location /plan {
        ratelimit zone=a name=first;
        ratelimit zone=plan;
        ratelimit zone=a name=last;
        empty_gif;
        location /plan/dry { ratelimit_dry_run on; empty_gif; }
    }
    location /redis {
        ratelimit zone=open;
        ratelimit zone=closed;
        ratelimit zone=local;
        ratelimit zone=a;
        empty_gif;
    }
    location /api/ { ratelimit_api; }
}
END
    my $clients = Clients->new($gateway->{port});
    my $counted = sub {
        my $all = decode_json($clients->ask('GET /api/zones')->{body});
        my @counts;

        for my $zone (@{$all->{zones}}) {
            for my $limit (@{$zone->{limits}}) {
                my %of = %{$limit->{requests}};

                push @counts, map { "$zone->{zone} $limit->{name} $_: $of{$_}" }
                              grep { $of{$_} } sort keys %of;
            }
        }

        return \@counts;
    };

    is($clients->ask('GET /plan?plan=oops')->{status}, 503,
       'a malformed rate refuses');
    is_deeply($counted->(), ['a first passed: 1', 'a last passed: 1',
                             'plan  failed_closed: 1'], 'each counts it');
    is($clients->ask('GET /plan/dry?plan=oops')->{status}, 200, 'a dry run');
    is_deeply($counted->(), ['a first passed: 2', 'a last passed: 2',
                             'plan  failed_closed: 1', 'plan  failed_open: 1'],
              'so it does then');

    is($clients->ask('GET /redis')->{status}, 503, 'a Redis refuses');
    is_deeply([grep { /^(?!plan)\w+  / } @{$counted->()}],
              ['a  passed: 1', 'open  failed_open: 1',
               'closed  failed_closed: 1', 'local  failed_open: 1'],
              'by each limit itself');
}


# a request goes on from there to where it is delayed

sub after_dry_run {
    my $gateway = Gateway->start(workers => 1, http => <<'END');
ratelimit_zone localhost zone=dry:1m rate=9r/h;
ratelimit_zone localhost zone=leaky:1m rate=10r/s algorithm=leaky_bucket;
add_header X-Status $ratelimit_status always;
server {
    listen 127.0.0.1:PORT;
    location / {
        ratelimit zone=dry;
        ratelimit_dry_run on;
        try_files /none @later;
    }
    location @later { ratelimit zone=leaky burst=9 after_auth; empty_gif; }
    location /api/ { ratelimit_api; }
}
END
    my $clients = Clients->new($gateway->{port});
    my @status = map { $_->{field}{'x-status'} }
                 $clients->series((['GET /']) x 3);
    my $zone = decode_json($clients->ask('GET /api/zones/leaky')->{body});
    my %requests = %{$zone->{requests}};

    is_deeply(\@status, [qw(PASSED DELAYED DELAYED)], 'it is delayed');
    is_deeply({ map { $_ => $requests{$_} } grep { $requests{$_} }
                keys %requests },
              { passed => 1, delayed => 2 }, 'and counted so');
    cmp_ok($zone->{delayed_seconds}, '>', 0, 'with the time');
}


# limits of one key and zone, in locations of their names

sub named {
    my $limits = join '', map { "location = /$_ { ratelimit zone=many name=$_ "
                                . "rate=1r/h; empty_gif; }\n" } @_;

    return <<"END";
ratelimit_zone localhost zone=many:4m rate=1r/h;
server { listen 127.0.0.1:PORT; $limits location /api/ { ratelimit_api; } }
END
}


# requests by limit, refused keys by limit, requests of all

sub figures {
    my ($clients) = @_;

    my $zone = decode_json($clients->ask('GET /api/zones/many')->{body});
    my $top = decode_json($clients->ask('GET /api/zones/many/top')->{body});

    return ({ map { $_->{name} => $_->{requests} } @{$zone->{limits}} },
            { map { $_->{name} => $_->{refused} } @{$top->{top}} },
            $zone->{requests});
}


# without some zones, whose locations have no limit then

sub http {
    my ($size, @without) = @_;

    my %without = map { $_ => 1 } @without;
    my @names = grep { !$without{$_} } sort keys %LIMIT;
    my $zones = join '', map { "ratelimit_zone localhost zone=$_:$size "
                               . "$LIMIT{$_}[0];\n" } @names;
    my $locations = join '', map { $without{$_}
                                   ? "location /$_ { empty_gif; }\n"
                                   : "location /$_ { ratelimit zone=$_ "
                                     . "$LIMIT{$_}[1]; empty_gif; }\n" }
                             sort keys %LIMIT;

    return <<"END";
ratelimit_redis away redis://127.0.0.1:$away;
ratelimit_elastic connections=90%;
add_header X-Status \$ratelimit_status always;
add_header X-Worker \$pid always;
$zones
server {
    listen 127.0.0.1:PORT reuseport;
    $locations
    location /api/ { ratelimit_api; }
}
END
}


sub zones {
    my $all = decode_json($clients->ask('GET /api/zones')->{body});

    return { map { $_->{zone} => $_ } @{$all->{zones}} };
}


# of each zone, of its only limit, and in the metrics

sub compare {
    my $zones = zones();
    my %metric = $clients->ask('GET /api/metrics')->{body}
                 =~ /^nginx_ratelimit_requests_total\{(.*?)\} (\d+)$/mg;

    for my $name (sort keys %LIMIT) {
        my %requests = %{$zones->{$name}{requests}};
        my %want = map { $_ => $seen{$name}{uc $_} // 0 } keys %requests;
        my %shown = map { my $label = qq(zone="$name",limit="",status="$_");
                          ($_ => $metric{$label}) } keys %requests;

        is_deeply(\%requests, \%want, "$name: as clients have seen it");
        is_deeply($zones->{$name}{limits}[0]{requests}, \%want, 'its limit');
        is_deeply(\%shown, \%want, 'metrics');
    }
}
