#!/usr/bin/perl

# A real Prometheus, configured as docs/operations.md says, scrapes a real
# gateway: what was sent can be asked for, the dashboard's questions have
# answers, and the alerts come when they should.

use strict;
use warnings;

use Cwd qw(getcwd);
use JSON::PP qw(decode_json);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Prometheus;
use RedisServer;

my $root = getcwd();
my $redis = RedisServer->start;

my $http = <<"END";
ratelimit_redis main redis://127.0.0.1:$redis->{port} timeout=5s
                connect_timeout=5s;
ratelimit_zone \$http_x_key zone=user:1m rate=5r/h;
ratelimit_zone \$http_x_key zone=shared:1m rate=3r/h redis=main fail=closed;

server {
    listen 127.0.0.1:PORT;

    location /user {
        ratelimit zone=user;
        empty_gif;
    }

    location /login {
        ratelimit zone=user rate=2r/h name=login;
        empty_gif;
    }

    location /shared {
        ratelimit zone=shared;
        empty_gif;
    }

    location /ratelimit/ {
        ratelimit_api;
    }
}
END

my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});
my $metrics = $clients->ask('GET /ratelimit/metrics')->{body};
my %type = $metrics =~ /^# TYPE (\S+) (\S+)$/mg;

my $dashboard = decode_json(Gateway::slurp('docs/grafana.json'));
my $alerts = Gateway::slurp('docs/alerts.yml');
my @questions = map { $_->{expr} } map { @{$_->{targets} || []} }
                @{$dashboard->{panels}};
my @choices = map { $_->{definition} || () } @{$dashboard->{templating}{list}};


subtest 'names' => sub {
    cmp_ok(scalar keys %type, '>', 5, 'there are metrics');

    my $text = join "\n", @questions, @choices, $alerts;
    my %used = map { $_ => 1 } $text =~ /\b(nginx_ratelimit_\w+)/g;

    for my $name (sort keys %used) {
        my $family = $name =~ s/_bucket$//r;

        ok(exists $type{$name} || ($type{$family} // '') eq 'histogram',
           "there is $name");
    }
};


subtest 'the dashboard' => sub {
    my @panels = @{$dashboard->{panels}};
    my (%id, %cell);

    is(scalar(grep { $id{$_->{id}}++ } @panels), 0, 'ids are unique');

    for my $panel (@panels) {
        my ($x, $y, $w, $h) = @{$panel->{gridPos}}{qw(x y w h)};
        my @cells = map { my $r = $_; map { "$_,$r" } $x .. $x + $w - 1 }
                    $y .. $y + $h - 1;

        ok($x + $w <= 24 && !grep({ $cell{$_}++ } @cells),
           "$panel->{title} has a place of its own");
    }
};


subtest 'alerts' => sub {
    for my $command ('promtool check rules docs/alerts.yml',
                     'promtool test rules t/prometheus/alerts.yml')
    {
        my $text = `$command 2>&1`;

        is($?, 0, $command) or diag($text);
    }

    my @names = $alerts =~ /- alert: (\w+)/g;
    my $tests = Gateway::slurp('t/prometheus/alerts.yml');

    ok($tests =~ /alertname: $_\b[^-]*exp_alerts:/, "$_ is tested")
        for @names;
};


subtest 'a scrape' => sub {
    my $page = Gateway::slurp('docs/operations.md');
    my $yaml = join '', $page =~ /^```yaml\n(.*?)^```/msg;

    $yaml =~ s/127\.0\.0\.1:8080/127.0.0.1:$gateway->{port}/ or fail('target');
    $yaml =~ s{- alerts\.yml}{- $root/docs/alerts.yml} or fail('rules');
    $yaml =~ s/^( +)metrics_path:/$1scrape_interval: 1s\n$&/m or fail('job');

    my $prometheus = Prometheus->start($yaml);

    scraped($prometheus, 0);

    $clients->series((['GET /login', 'X-Key: b']) x 4);
    $clients->series((['GET /shared', 'X-Key: c']) x 5);
    $clients->series((['GET /user', 'X-Key: a']) x 7);

    scraped($prometheus, 2);
    is($prometheus->query('up')->[0]{value}, 1, 'without a fault');

    my %sent = (
        'user  passed' => 5, 'user  rejected' => 2,
        'user login passed' => 2, 'user login rejected' => 2,
        'shared  passed' => 3, 'shared  rejected' => 2,
    );
    my $samples = $prometheus->query('nginx_ratelimit_requests_total');
    my %seen = map { (join(' ', map { $_ // '' }
                                @{$_->{labels}}{qw(zone limit status)})
                      => $_->{value}) } @$samples;

    is($seen{$_}, $sent{$_}, "$_: what was sent") for sort keys %sent;

    answered($prometheus, $_) for @questions;
};

is($gateway->complaints, '', 'no complaints');

done_testing();


# Prometheus has seen so many refusals of the zone's own limit

sub scraped {
    my ($prometheus, $n) = @_;

    my $question = 'nginx_ratelimit_requests_total'
                   . '{zone="user", limit="", status="rejected"}';

    Gateway::await(sub {
        my ($sample) = @{$prometheus->query($question)};

        return $sample && $sample->{value} == $n;
    }, "a scrape with $n refusals", 60);

    pass("$n refusals are seen");
}


# a question of the dashboard, with all that there is to choose from; a share
# of no requests is none

sub answered {
    my ($prometheus, $question) = @_;

    my $all = $question =~ s/\$__rate_interval/1m/gr =~ s/\$\w+/.*/gr;

    Gateway::await(sub { @{$prometheus->query($all)} }, $question, 60);
    pass($question);
}
