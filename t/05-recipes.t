#!/usr/bin/perl

# Every recipe of docs/recipes.md and docs/recipes-plans.md, each section of
# README.md and of docs/operations.md that has commands, and every
# docs/examples/*.conf runs in a real nginx, and what a client sees is what the
# page shows: the commands of its "console" blocks are run unchanged, and their
# output is compared. So are the header fields of a refusal that
# docs/directives.md shows.
#
# Left out on the page, and here, are fields of nginx itself, as Server and
# Date.  Times, in seconds, may differ a little.  The port is a free one.

use strict;
use warnings;

use Test::More;

use lib 't/lib';
use Certificates;
use Clients;
use Gateway;
use Page;
use RedisCluster;
use RedisSentinel;
use RedisServer;

my $page = Page->new('docs/recipes.md');
my $plans = Page->new('docs/recipes-plans.md');
my ($service) = Page::blocks($page->{intro}, 'nginx');
my ($words) = Page::blocks($page->{intro}, 'sh');
my %run;
our $files = '';

BAIL_OUT('the page has no service') if !$service;
BAIL_OUT('the page has no words for the shell') if !$words;


subtest 'the checks can fail' => \&self_test;

for my $recipes (map { $_->{sections} } $page, $plans) {
    cmp_ok(scalar @$recipes, '>=', 8, 'there are recipes');

    for my $recipe (@$recipes) {
        subtest $recipe->{title} => sub { try($recipe) };
    }
}

my %others = ('README.md' => ['Five lines'], 'docs/operations.md' =>
              ['Watching', 'Unlocking a client',
               'Who may see it']);

for my $file (sort keys %others) {
    my @sections = grep { @{$_->{console}} } @{Page->new($file)->{sections}};

    is_deeply([map { $_->{title} } @sections], $others{$file},
              "sections of $file");

    for my $section (@sections) {
        subtest $section->{title} => sub { try($section) };
    }
}

subtest 'header fields of a refusal' => \&fields;
subtest 'quickstart.conf' => \&quickstart;
subtest 'api.conf' => \&api;
subtest 'redis-sentinel.conf' => \&redis_sentinel;
subtest 'redis-tls.conf' => \&redis_tls;
subtest 'redis-cluster.conf' => \&redis_cluster;
subtest 'redis-sync.conf' => \&redis_sync;
subtest 'login-redirect.conf: a server fails' => \&another_server;

# those of other pages are run by their tests

for my $file ('docs/service.md', 'docs/getting-started.md') {
    $run{$_} = 1 for Page::slurp($file) =~ /\]\(examples\/(\S+\.conf)\)/g;
}

is_deeply([sort keys %run], [sort(map { s{.*/}{}r } glob 'docs/examples/*.conf')],
          'all examples were run');

done_testing();


# the page has an example's essential part, to the letter

sub try {
    my ($recipe) = @_;

    my $conf = join "\n", @{$recipe->{conf}};

    ok($conf ne '', 'has a configuration');
    ok(scalar @{$recipe->{console}}, 'has what a client sees');

    if (defined $recipe->{file}) {
        my $file = Page::slurp("docs/examples/$recipe->{file}");

        ok(index($file, $_) >= 0, "$recipe->{file} has what the page has")
            for @{$recipe->{conf}};

        $conf = $file;
        $run{$recipe->{file}} = 1;
    }

    my $redis = $conf =~ /^ratelimit_redis /m ? RedisServer->start : undef;
    my @steps = map { Page::commands($_) } @{$recipe->{console}};
    my $n = (grep { $_->{command} =~ /:8090\b/ } @steps) ? 2 : 1;
    my @gateways = map { gateway($conf, $redis) } 1 .. $n;
    my $shell = shell($redis, @gateways);

    for my $step (@steps) {
        my @lines = $shell->result($step->{command}, $step->{lines});

        is_deeply([Page::near($step->{lines}, \@lines)], $step->{lines},
                  (split /\n/, $step->{command})[0]);
    }

    for (@gateways) {
        is($_->complaints, '', 'nothing is wrong with nginx');
        $_->stop;
    }
}


# a try is one, whichever server has answered in the end

sub another_server {
    my $conf = Page::slurp('docs/examples/login-redirect.conf');

    $conf =~ s{http://127\.0\.0\.2:8080}{http://service}
        or die 'the example has no service';

    my $gateway = gateway(<<"END" . $conf);
upstream service {
    server  127.0.0.3:8080  max_fails=0;
    server  127.0.0.2:8080  backup;
}
END

    my $clients = Clients->new($gateway->{port});

    is(join(' ', map { $clients->ask('POST /login?password=no')->{status} }
                     1 .. 7),
       '200 200 200 200 200 429 429', 'failed logins');
    is(scalar(() = $gateway->log =~ /Connection refused/g), 5,
       'each by the second server');
    $gateway->stop;
}


# a busy machine is not in a hurry

sub gateway {
    my ($conf, $redis) = @_;

    $conf .= $service if $conf !~ /listen +127\.0\.0\.2:/;
    $conf .= "upstream backend {\n    server  127.0.0.2:8080;\n}\n"
        if $conf =~ m{//backend};
    $conf = Page::with_paths($conf);
    $conf =~ s/:8080\b/:PORT/g;

    # at the level that nginx has by default, not the gateway's
    $conf =~ s/^server \{\n/$&ratelimit_log_level error;\n/mg
        if $conf !~ /^    ratelimit_log_level/m;
    $conf =~ s{(redis://127\.0\.0\.1):6379  timeout=\w+}
              {$1:$redis->{port}  timeout=5s} if $redis;

    return Gateway->start(http => $conf);
}


# the second gateway of a page has the port 8090

sub shell {
    my ($redis, $gateway, $second) = @_;

    return Page->shell(dir => $gateway->{dir}, words => $words, ports => {
        8080 => $gateway->{port},
        $second ? (8090 => $second->{port}) : (),
        $redis ? (6379 => $redis->{port}) : (),
    });
}


# of docs/directives.md: their times are near, and fit together

sub fields {
    my ($text) = grep { /^RateLimit-Policy: /m }
                 Page::blocks(Page::slurp('docs/directives.md'), 'text');
    my @shown = split /\n/, $text;

    my $gateway = gateway(<<'END');
ratelimit_zone  $ratelimit_client  zone=ip:16m  rate=2r/m  rate=250r/15m;

server {
    listen             127.0.0.1:8080;
    ratelimit_headers  x ietf;

    location / {
        ratelimit   zone=ip;
        proxy_pass  http://127.0.0.2:8080;
    }
}
END

    look($gateway, '/[1-2]', '');

    my (undef, @head) = look($gateway, '/3', '');

    is_deeply([Page::near(\@shown, \@head)], \@shown, 'as they are shown');
    ok(fit(@$_), 'times fit') for \@shown, \@head;
    is($gateway->complaints, '', 'nothing is wrong with nginx');
}


# the time of RateLimit is that of Retry-After

sub fit {
    return join("\n", @_)
           =~ /^X-RateLimit-Reset:\s(\d+)$ .* ;t=(\d+);.* ;ngx-reset=\1$ .*
               ^Retry-After:\s\2$ .* ^X-RateLimit-Retry-After:\s\2$/msx;
}


sub quickstart {
    my $gateway = example('quickstart.conf');

    is(statuses($gateway, '/api/[1-11]'), '10x200 1x429', '/api/');
    is(statuses($gateway, '/login?[1-6]'), '5x200 1x429', '/login');
    is($gateway->complaints, '', 'nothing is wrong with nginx');
}


sub api {
    my $gateway = example('api.conf');

    my @head = look($gateway, '/v1/x', '-H "X-API-Key: a"');

    is($head[0], 'HTTP/1.1 200 OK', 'a key');
    is_deeply([grep { /^RateLimit-Policy: / } @head],
              ['RateLimit-Policy: "ip";q=50;w=1, '
               . '"key";q=20;w=1, "key";q=10000;w=3600'], 'and its limits');

    is(statuses($gateway, '/v1/x[1-5]', '-H "X-API-Key: b"'), '5x200',
       'another key has a limit of its own');

    @head = look($gateway, '/v1/report', '-H "X-API-Key: c"');
    ok(scalar(grep { $_ eq 'X-RateLimit-Remaining: 0' } @head),
       'a report costs 20');

    is(statuses($gateway, '/v1/login?[1-6]'), '5x200 1x429', '/v1/login');
    is(statuses($gateway, '/v1/health?[1-70]'), '70x200', '/v1/health');

    @head = look($gateway, '/v1/x', '--interface 127.1.0.1');
    is_deeply([grep { /RateLimit/ } @head], [], 'no limit inside');

    is($gateway->complaints, '', 'nothing is wrong with nginx');
}


sub redis_sentinel {
    my $fleet = RedisSentinel->start(replicas => 1);
    my %port = map { (26379 + $_ => $fleet->{sentinels}[$_]{port}) } 0 .. 2;

    decided_by_redis('redis-sentinel.conf', %port);
}


sub redis_tls {
    my $made = Certificates->new;

    $made->issue('redis', names => 'DNS:redis.example.com');
    $made->issue('gateway');

    my $redis = RedisServer->start(tls => "$made->{dir}/redis",
                                   '--tls-auth-clients' => 'yes');

    local $files = "$made->{dir}/";
    decided_by_redis('redis-tls.conf', 6379 => $redis->{tls_port});
}


sub redis_cluster {
    my $cluster = RedisCluster->start(replicas => 0);
    my %port = map { (7000 + $_ => $cluster->{servers}[$_]{port}) } 0 .. 2;

    decided_by_redis('redis-cluster.conf', %port);
}


# gateways that decide by themselves, and tell Redis what they have admitted

sub redis_sync {
    my $redis = RedisServer->start;

    my $conf = Page::slurp('docs/examples/redis-sync.conf');

    $run{'redis-sync.conf'} = 1;
    is($conf =~ s{(redis://127\.0\.0\.1):6379}{$1:$redis->{port}}g, 1,
       'a Redis');
    $conf =~ s/timeout=50ms/timeout=5s connect_timeout=5s/;

    my @gateways = map { gateway($conf) } 1 .. 2;

    for my $gateway (@gateways) {
        is(statuses($gateway, '/[1-25]', '-H "X-API-Key: 4711"'), '25x200',
           'half of the limit');
    }

    for my $gateway (@gateways) {
        my @head;

        Gateway::await(sub {
            @head = look($gateway, '/', '-H "X-API-Key: 4711"');
            return $head[0] eq 'HTTP/1.1 429 Too Many Requests';
        }, 'a refusal');
        ok(scalar(grep { $_ eq 'X-Decided-By: sync' } @head), 'by write-back');
        is($gateway->complaints, '', 'nothing is wrong with nginx');
    }
}


# by gateways whose servers have other ports

sub decided_by_redis {
    my ($name, %port) = @_;

    $run{$name} = 1;

    my $conf = Page::slurp("docs/examples/$name");
    my $n = $conf =~ s{(rediss?://127\.0\.0\.1):(\d+)}{$1:$port{$2}}g;

    $conf =~ s/(ssl_(?:ca|certificate|certificate_key)=)/$1$files/g;

    is($n, keys %port, 'all servers have a place');
    $conf =~ s/timeout=50ms/timeout=5s connect_timeout=5s/;

    my @gateways = map { gateway($conf) } 1 .. 2;

    for my $gateway (@gateways) {
        is(statuses($gateway, '/[1-25]', '-H "X-API-Key: 4711"'), '25x200',
           'half of the limit');
    }

    for my $gateway (@gateways) {
        my @head = look($gateway, '/', '-H "X-API-Key: 4711"');

        is($head[0], 'HTTP/1.1 429 Too Many Requests', 'nothing is left');
        ok(scalar(grep { $_ eq 'X-Decided-By: redis' } @head), 'by Redis');
        is($gateway->complaints, '', 'nothing is wrong with nginx');
    }
}


sub example {
    my ($name) = @_;

    $run{$name} = 1;

    return gateway(Page::slurp("docs/examples/$name"));
}


sub look {
    my ($gateway, $path, $options) = @_;

    return shell(undef, $gateway)
           ->output("look $options 'http://127.0.0.1:8080$path'");
}


# as 10x200 1x429

sub statuses {
    my ($gateway, $path, $options) = @_;

    $options ||= '';

    my @lines = shell(undef, $gateway)
                ->output("tally $options 'http://127.0.0.1:8080$path'");

    return join ' ', map { s/^ *(\d+) /$1x/r } @lines;
}


sub self_test {
    my @shown = ('HTTP/1.1 200 OK', 'X-RateLimit-Reset: 63', 'RateLimit: '
                 . '"ip";r=1;t=63');

    is_deeply([Page::near(\@shown, ['HTTP/1.1 200 OK',
                                    'X-RateLimit-Reset: 66',
                                    'RateLimit: "ip";r=1;t=60'])], \@shown,
              'times are near');
    is((Page::near(['RateLimit: "ip";r=1;t=6;ngx-limit=9;ngx-reset=60'],
                   ['RateLimit: "ip";r=1;t=6;ngx-limit=9;ngx-reset=66']))[0],
       'RateLimit: "ip";r=1;t=6;ngx-limit=9;ngx-reset=60',
       'so are two of them');
    isnt((Page::near(['Retry-After: 60'], ['Retry-After: 70']))[0],
         'Retry-After: 60', 'a time is not');
    isnt((Page::near(['X-RateLimit-Limit: 60'], ['X-RateLimit-Limit: 61']))[0],
         'X-RateLimit-Limit: 60', 'a limit is not a time');
    isnt((Page::near(['RateLimit: "ip";r=1;t=6'],
                     ['RateLimit: "ip";r=2;t=6']))[0],
         'RateLimit: "ip";r=1;t=6', 'nor is what is left');

    my ($first, $second) = Page::commands("\$ a\n> b\nx\n\$ c\n");

    is_deeply($first, {command => "a\nb", lines => ['x']}, 'a command');
    is_deeply($second, {command => 'c', lines => []}, 'and the next');

    my $recipe = Page::section('A', "```nginx\na\n```\n```console\n\$ b\n"
                                    . "```\n[x](examples/x.conf)\n");

    is_deeply([@$recipe{qw(title conf file)}], ['A', ["a\n"], 'x.conf'],
              'a recipe');
}
