#!/usr/bin/perl

# The metrics as Prometheus reads them: promtool and a strict parser of
# OpenMetrics accept them, what they say is what was sent, and counters never
# go back.

use strict;
use warnings;

use File::Temp;
use JSON::PP qw(decode_json);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RedisServer;

BAIL_OUT('promtool is missing') if system('promtool --version > /dev/null 2>&1');

my $redis = RedisServer->start;

# names with bytes that have a meaning in a label, and some that are not UTF-8

my $http = <<"END";
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s;
ratelimit_zone \$http_x_key zone=ip:1m rate=5r/h;
ratelimit_zone \$http_x_key zone=far:1m rate=2r/h redis=main;
ratelimit_zone \$http_x_key "zone=odd\\"\\\\\\n\xc3\xa4:1m" rate=5r/h;
ratelimit_zone \$http_x_key zone=\xff:1m rate=5r/h algorithm=leaky_bucket;
ratelimit_zone \$arg_a zone=full:1m rate=1000r/h algorithm=sliding_log;

server {
    listen 127.0.0.1:PORT;

    location /ip {
        ratelimit zone=ip;
        empty_gif;
    }

    location /far {
        ratelimit zone=far;
        empty_gif;
    }

    location /odd {
        ratelimit "zone=odd\\"\\\\\\n\xc3\xa4" "name=a\\"b\\\\" rate=1r/h;
        empty_gif;
    }

    location /delay {
        ratelimit zone=\xff rate=1r/m burst=5;
        empty_gif;
    }

    location /full {
        ratelimit zone=full;
        empty_gif;
    }

    location /api/ {
        ratelimit_api write=on;
    }
}
END

my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});

$clients->series((['GET /ip', 'X-Key: a']) x 7);
$clients->series((['GET /far', 'X-Key: a']) x 5);
$clients->series((['GET /odd', 'X-Key: a']) x 3);

# two of these wait for longer than the test does

my @waiting = map { $clients->send('GET /delay', 'X-Key: a') } 1 .. 3;

Clients::await_answers(1, @waiting);
Gateway::await(sub { $clients->ask('GET /api/metrics')->{body}
                         =~ /status="delayed"\} 2$/m }, 'delayed requests');

my $ODD = "odd\"\\\n\xc3\xa4";


subtest 'the text format' => sub {
    my $answer = $clients->ask('GET /api/metrics');

    is($answer->{status}, 200, 'status');
    is($answer->{field}{'content-type'},
       'text/plain; version=0.0.4; charset=utf-8', 'type');
    is($answer->{field}{'cache-control'}, 'no-store', 'is not cached');
    is(promtool($answer->{body}), '', 'promtool has no complaint');
    isnt(promtool("$answer->{body}what is this\n"), '', 'and can have one');

    check(samples($answer->{body}));
};


subtest 'OpenMetrics' => sub {
    my $answer = $clients->ask('GET /api/metrics',
        'Accept: application/openmetrics-text;version=1.0.0;q=0.8,'
        . 'text/plain;version=0.0.4;q=0.5,*/*;q=0.1');

    is($answer->{status}, 200, 'status');
    is($answer->{field}{'content-type'},
       'application/openmetrics-text; version=1.0.0; charset=utf-8', 'type');
    like($answer->{body}, qr/\n# EOF\n\z/, 'its end');

    my $parsed = strict($answer->{body});

    isnt(strict($answer->{body} =~ s/# EOF\n//r), '', 'it can have complaints')
        or return;
    is($parsed, '', 'the strict parser has none');

    check(samples($answer->{body}));
};


subtest 'the format that a client prefers' => sub {
    my $open = 'application/openmetrics-text';

    for (["$open;q=0.5, text/plain;version=0.0.4;q=0.9", 0],
         ["text/plain;version=0.0.4;q=0.9, $open;q=0.5", 0],
         ["$open;version=0.0.1;q=0.2,$open;q=0.7,text/plain;q=0.5,*/*;q=1", 1],
         ["$open;q=0.5, text/*;q=0.6", 0],
         ["$open;q=0.5, text/*;q=0.6, text/plain;q=0.25", 1],
         ["$open;q=0.5", 1],
         ["$open, text/plain", 1],
         ["$open;q=0.5, */*", 0],
         ["$open;q=0, */*;q=0.1", 0],
         ["$open;q=x, text/plain;q=0.9", 1],
         ['application/*, */*;q=0.1', 0])
    {
        my ($accept, $wanted) = @$_;
        my $type = $clients->ask('GET /api/metrics', "Accept: $accept")
                           ->{field}{'content-type'};

        is($type =~ /openmetrics/ || 0, $wanted, $accept);
    }
};


subtest 'what is documented' => sub {
    my $answer = $clients->ask('GET /api/metrics');
    my %families = map { $_ => 1 } $answer->{body} =~ /^# TYPE (\w+)/mg;

    open my $page, '<', 'docs/api.md' or die $!;
    my %rows = map { $_ => 1 } join('', <$page>)
                               =~ /^\| `(nginx_ratelimit_\w+)`/mg;

    is_deeply([sort keys %rows], [sort keys %families],
              'the metrics of docs/api.md are those that there are');
};


subtest 'nothing goes back' => sub {
    my $before = samples($clients->ask('GET /api/metrics')->{body});
    my $requests = requests('ip', '');

    is($before->{$requests->('rejected')}, 2, 'refused before');

    # a zone comes, one goes, and one grows

    my $other = $http =~ s/zone=ip:1m/zone=ip:2m/r
                      =~ s/^ratelimit_zone .*zone=far.*\n/
                           ratelimit_zone \$arg_a zone=new:1m rate=1r\/h;\n/mr
                      =~ s/zone=far/zone=new/r;

    Clients::leave($_) for @waiting;

    $gateway->reload($other);

    my $after;

    Gateway::await(sub {
        $after = samples($clients->ask('GET /api/metrics')->{body});

        return $after->{'nginx_ratelimit_zone_size_bytes{zone="ip"}'}
               == 2 << 20;
    }, 'the new size');

    is($after->{$requests->('rejected')}, 2, 'refused after a reload');
    ok(exists $after->{requests('new', '')->('passed')}, 'the new zone');
    ok(!exists $after->{requests('far', '')->('passed')}, 'the old zone');

    $gateway->reload($http);

    my $again = samples($clients->ask('GET /api/metrics')->{body});

    is($again->{requests('far', '')->('passed')}, 2,
       'a zone that was gone for a while');
};


subtest 'statistics of a zone are reset' => sub {
    my $total = 'nginx_ratelimit_zone_evictions_total{zone="full"}';
    my $evictions = sub {
        my $zone = decode_json($clients->ask('GET /api/zones/full')->{body});
        my $sample = samples($clients->ask('GET /api/metrics')->{body});

        return ($zone->{evictions}, $sample->{$total});
    };

    $clients->series(map { ["GET /full?a=$_"] } 1 .. 300);

    my ($shown, $all) = $evictions->();

    cmp_ok($all, '>', 50, "$all evictions");
    is($shown, $all, 'all are shown');
    is($clients->ask('DELETE /api/zones/full')->{status}, 204, 'reset');
    is_deeply([$evictions->()], [0, $all], 'shown from 0 on');

    $clients->series(map { ["GET /full?a=$_"] } 301 .. 310);
    is_deeply([$evictions->()], [10, $all + 10], 'and counted');

    # another memory goes on with it

    $gateway->reload($http =~ s/zone=full:1m/zone=full:2m/r);
    is_deeply([$evictions->()], [10, $all + 10], 'of another size');
};


# how full it is, of the memory that counts: a zone evicts when that is full

subtest 'a zone that shrinks' => sub {
    my $zone = sub {
        return decode_json($clients->ask('GET /api/zones/full')->{body});
    };
    my $becomes = sub {
        my ($size) = @_;

        Gateway::await(sub { $zone->()->{size} == $size }, 'the new size');
    };

    $becomes->(2 << 20);
    $clients->series(map { ["GET /full?a=$_"] } 1 .. 300);

    my $before = $zone->();
    my $delayed = sub {
        my $text = $clients->ask('GET /api/metrics')->{body};

        return ($text =~ /zone="%FF".*status="delayed"\} (\d+)$/m)[0];
    };
    my $waiting = $delayed->();
    my @clients = map { $clients->send('GET /delay', 'X-Key: b') } 1, 2;

    Gateway::await(sub { $delayed->() == $waiting + 1 }, 'a delayed request');
    $gateway->reload($http =~ s/zone=full:1m/zone=full:512k/r);

    my $shared = $zone->();

    is_deeply([@$shared{qw(size bytes_used entries)}],
              [@$before{qw(size bytes_used entries)}],
              'the old memory, until old workers have exited');

    Clients::leave($_) for @clients;
    $becomes->(512 << 10);

    my $after = $zone->();

    cmp_ok($after->{bytes_used}, '<', $after->{size} / 2,
           'then the new one, without what waits in the old one');
    is($after->{entries}, $before->{entries}, 'which counts');
};

is($gateway->complaints, '', 'no complaints');

done_testing();


sub check {
    my ($sample) = @_;

    my ($ip, $far, $odd, $delay) = (requests('ip', ''), requests('far', ''),
                                    requests($ODD, 'a"b\\'),
                                    requests('%FF', '/delay'));

    is($sample->{$ip->('passed')}, 5, 'passed');
    is($sample->{$ip->('rejected')}, 2, 'rejected');
    is($sample->{$ip->('soft')}, 0, 'all statuses are there');
    is($sample->{$far->('passed')}, 2, 'passed by Redis');
    is($sample->{$far->('rejected')}, 3, 'rejected by Redis');
    is($sample->{$odd->('passed')}, 1, 'odd names');
    is($sample->{$odd->('rejected')}, 2, 'odd names');
    is($sample->{$delay->('passed')}, 1, 'bytes that are not text');
    is($sample->{$delay->('delayed')}, 2, 'delayed');

    my $delay_seconds = $sample->{'nginx_ratelimit_delayed_seconds_total'
                                  . '{zone="%FF",limit="/delay"}'};

    cmp_ok($delay_seconds, '>', 120, 'how long');
    cmp_ok($delay_seconds, '<=', 180, 'not longer');
    is($sample->{'nginx_ratelimit_zone_size_bytes{zone="ip"}'}, 1 << 20,
       'size');
    is($sample->{'nginx_ratelimit_zone_entries{zone="ip"}'}, 1, 'entries');
    is($sample->{'nginx_ratelimit_zone_evictions_total{zone="ip"}'}, 0,
       'evictions');

    my $server = qq(redis="main",address="127.0.0.1:$redis->{port}");

    is($sample->{"nginx_ratelimit_redis_up{$server}"}, 1, 'Redis is up');
    is($sample->{"nginx_ratelimit_redis_timeouts_total{$server}"}, 0,
       'no timeouts');

    my $name = 'nginx_ratelimit_redis_duration_seconds';
    my $count = $sample->{"${name}_count{$server}"};

    cmp_ok($count, '>=', 3, 'replies');
    is($sample->{"${name}_bucket{$server,le=\"+Inf\"}"}, $count, 'all of them');
    cmp_ok($sample->{"${name}_sum{$server}"}, '>', 0, 'took some time');
}


# the name of a sample of a limit, by the status

sub requests {
    my ($zone, $limit) = @_;

    my ($z, $l) = map { s/([\\"])/\\$1/gr =~ s/\n/\\n/gr } $zone, $limit;

    return sub {
        return 'nginx_ratelimit_requests_total'
               . qq({zone="$z",limit="$l",status="$_[0]"});
    };
}


sub samples {
    my ($text) = @_;

    return { map { /^(.*) (\S+)$/ } grep { !/^#/ } split /\n/, $text };
}


sub promtool {
    my ($text) = @_;

    return filter($text, 'promtool check metrics');
}


# what the parser says against a text

sub strict {
    my ($text) = @_;

    my $python = 'from prometheus_client.openmetrics import parser; '
                 . 'import sys; '
                 . 'print(len(list(parser.text_fd_to_metric_families('
                 . 'open(sys.argv[1], encoding=\"utf-8\")))), '
                 . 'file=open(\"/dev/null\", \"w\"))';

    my $file = File::Temp->new;

    print $file $text;
    close $file;

    my $said = `/usr/bin/python3 -c "$python" $file 2>&1`;

    return $? ? $said || 'failed' : $said;
}


sub filter {
    my ($text, $command) = @_;

    my $file = File::Temp->new;

    print $file $text;
    close $file;

    my $said = `$command < $file 2>&1`;

    return $? ? $said || 'failed' : $said;
}
