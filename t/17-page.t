#!/usr/bin/perl

# The live page as people see it, in a real browser: it shows the figures of
# the API, says when there are none, is used by keys and on a phone, and
# nothing but its own script ever runs in it.

use strict;
use warnings;

use Encode qw(decode_utf8);
use JSON::PP qw(decode_json encode_json);
use Test::More;

use lib 't/lib';
use Browser;
use Clients;
use Gateway;
use RedisServer;

my $redis = RedisServer->start;
my $http = <<'END';
ratelimit_redis main redis://127.0.0.1:REDIS timeout=5s connect_timeout=5s;
ratelimit_zone $http_x_key zone=user:1m rate=5r/h rate=100r/d;
ratelimit_zone $http_x_key zone=a-zone-whose-name-is-rather-long:1m
               rate=100r/h algorithm=token_bucket;

ratelimit_zone $ratelimit_client zone=ip:1m rate=3r/h;
ratelimit_zone $http_x_key zone=plan:1m rate=$http_x_plan;
ratelimit_zone $http_x_key zone=shared:1m rate=100r/h redis=main;
ratelimit_zone $http_x_key zone=dry:1m rate=2r/h;

log_format page '$uri $http_accept';

server {
    listen 127.0.0.1:PORT;

    location /user {
        ratelimit zone=user;
        empty_gif;
    }

    location /login {
        ratelimit zone=user rate=2r/h name=login;
        ratelimit zone=a-zone-whose-name-is-rather-long;
        empty_gif;
    }

    location /ip {
        ratelimit zone=ip;
        empty_gif;
    }

    location /shared {
        ratelimit zone=shared;
        empty_gif;
    }

    location /dry {
        ratelimit zone=dry;
        ratelimit_dry_run on;
        empty_gif;
    }

    location /plan {
        ratelimit zone=plan;
        empty_gif;
    }

    location /trial {
        ratelimit zone=plan name=trial rate=2r/h;
        empty_gif;
    }

    location /status/ {
        ratelimit_api write=on;
        access_log logs/status.log page;
    }

    location /other {
        ratelimit_api;
        access_log logs/other.log page;
    }

    location /behind/a/prefix/ {
        proxy_pass http://127.0.0.1:PORT/status/;
    }
}
END

$http =~ s/\bREDIS\b/$redis->{port}/;

my $gateway = Gateway->start(workers => 2, http => $http);
my $clients = Clients->new($gateway->{port});
my $browser = Browser->start;
my $url = "http://127.0.0.1:$gateway->{port}";


subtest 'a document for browsers' => sub {
    my $accept = 'text/html,application/xhtml+xml,*/*;q=0.8';
    my $answer = $clients->ask('GET /status/', "Accept: $accept");
    my $policy = $answer->{field}{'content-security-policy'};

    is($answer->{status}, 200, 'is sent');
    is($answer->{field}{'content-type'}, 'text/html; charset=utf-8', 'HTML');
    is($answer->{field}{'cache-control'}, 'no-store', 'is not cached');
    ok($answer->{body} =~ /\A<!DOCTYPE html>.*<\/html>\s*\z/s, 'whole');
    ok($answer->{body} !~ m{ (?:src|href)="(?!data:)|\@import|url\(},
       'needs no other');
    like($policy, qr/^default-src 'none'; /, 'nothing but');
    like($policy, qr/ script-src '$_'; /, 'its script')
        for 'sha256-[\w+\/]{43}=';
    unlike($policy, qr/unsafe/, 'is permitted');

    my %type = (
        'Text/HTML' => 'text/html; charset=utf-8',
        'a/b;q=1, text/html ; q=0.1' => 'text/html; charset=utf-8',
        'text/html;q=0' => 'application/json',
        'application/json, text/html;q=0.9' => 'application/json',
        'text/html, application/json;q=0.9' => 'text/html; charset=utf-8',
        'text/html;level=1;q=0.000' => 'application/json',
        'text/htmlx, xtext/html' => 'application/json',
        '*/*' => 'application/json',
        'application/json' => 'application/json',
        ',;, ;' => 'application/json',
        '' => 'application/json',
    );

    for my $accept (sort keys %type) {
        my $field = $clients->ask('GET /status/', "Accept: $accept")->{field};

        is($field->{'content-type'}, $type{$accept}, "Accept: $accept");
    }

    is($clients->ask('GET /status/zones', 'Accept: text/html')
           ->{field}{'content-type'}, 'application/json', 'JSON below it');
};


my $page = $browser->open("$url/status/");

subtest 'figures' => sub {
    $clients->series((['GET /user', 'X-Key: a']) x 7);
    $clients->series((['GET /login', 'X-Key: a']) x 3);

    live($page);
    like($page->text('#gateway'), qr/^127\.0\.0\.1:$gateway->{port}\b.*
                                     \Q@{[get('\/status\/')->{version}]}\E$/x,
         'where and what');

    is_deeply($page->value(q{[...document.querySelectorAll('#zones .name')]
                             .map((name) => name.innerText)}),
              ['user', 'a-zone-whose-name-is-rather-long', 'ip', 'plan',
               'shared', 'dry'],
              'zones');

    shows_memory($page);
    $page->click('#zones .name button');
    shows_limits($page, 'user');

    is($page->value('document.querySelector("#zones .name button")'
                    . '.ariaExpanded'), 'true', 'they are disclosed');
    is($page->problems, '', 'no problem');
};


subtest 'requests a second' => sub {
    my $sum = 'all.samples.reduce((sum, { added }) => sum + added.KIND, 0)';
    my %before = map { $_ => $page->value($sum =~ s/KIND/$_/r) }
                 qw(admitted refused);

    $clients->series((['GET /user', "X-Key: b$_"]) x 8) for 1 .. 5;

    $page->wait(($sum =~ s/KIND/refused/r) . " == $before{refused} + 15");
    is($page->value($sum =~ s/KIND/admitted/r), $before{admitted} + 25,
       'all are counted');
    $page->wait('Number(document.querySelector("#total-refused").innerText)');
    like($page->value('document.title'), qr{^[\d.]+/s refused }, 'the title');
    like($page->text('#zones .state'), qr/^refuses/, 'the state of the zone');
    isnt($page->value(q{document.querySelector('#graph path.refused')
                        .getAttribute('d')}), '', 'the graph');
    shows_limits($page, 'user');
    is($page->problems, '', 'no problem');
};


subtest 'only its own script runs' => sub {
    my $try = <<'END';
(() => {
    try {
        const element = document.createElement('div');
        element.innerHTML = '<img src=x onerror="window.harmed = true">';
        return 'parsed';
    } catch (error) {
        return error.name;
    }
})()
END

    is($page->value($try), 'TypeError', 'text is never parsed as HTML');
    like($page->problems, qr/TrustedHTML/, 'by the policy');
    ok(!$page->value('window.harmed'), 'nothing has run');
};


subtest 'keys' => sub {
    my $page = $browser->open("$url/status/");
    my $focus = 'document.activeElement.innerText';

    live($page);
    $page->press('Tab');
    is($page->value('document.activeElement.id'), 'search-key',
       'the search is first');

    $page->press(('Tab') x 3);
    is($page->value('document.activeElement.id'), 'graph-zone',
       'a zone for the graph');

    $page->press('Tab', 'ArrowLeft', 'ArrowLeft');
    is($page->value('document.activeElement.ariaValueNow'), '-2',
       'the graph has a cursor');
    like($page->value('document.activeElement.ariaValueText'),
         qr{^\d\d:\d\d:\d\d: admitted \S+, .* refused \S+$}, 'and tells');

    $page->press('Tab', 'Enter');
    is($page->value('document.activeElement.parentElement.ariaSort'),
       'ascending', 'zones are sorted by name');
    is($page->text('#zones .name'), 'a-zone-whose-name-is-rather-long',
       'the other one is first');

    $page->press('Enter', 'Enter');
    is($page->value('document.activeElement.parentElement.ariaSort'), undef,
       'and again as they were');

    $page->press(('Tab') x 7, 'Space');
    is($page->value($focus), 'user', 'a zone has a button');
    is($page->value('document.activeElement.ariaExpanded'), 'true',
       'that shows its limits');
    cmp_ok($page->value('parseFloat(getComputedStyle('
                        . 'document.activeElement).outlineWidth)'), '>=', 2,
           'the focus is visible');
    is($page->problems, '', 'no problem');
};


# hostile keys, as any client may send them, and how people see them

my @keys = (
    ['plain'],
    ['<script>harmed = 1</script>'],
    ['<img src=x onerror=harmed=1>'],
    [q{"><svg onload='harmed=1'>}],
    ['${harmed=1}{{harmed=1}}'],
    ["tab\there", 'tab%09here'],
    ['slash/../in//it?x=1&y#z'],
    ['100% + 2%'],
    ['100% + 2%41', '100%25%20%2B%202%2541'],
    ['%E9', '%25E9'],
    ["\xe9", '%E9'],
    ["no \xff\xfe\x80 text", 'no%20%FF%FE%80%20text'],
    ["turned \xe2\x80\xae around", 'turned %E2%80%AE around'],
    ["\xc3\xa4 text \xe2\x82\xac"],
    ['long' . 'x' x 130, 'long' . 'x' x 124 . "\xe2\x80\xa6"],
);

$_->[1] = decode_utf8($_->[1] // $_->[0]) for @keys;


subtest 'keys that are refused most' => sub {
    my %refused;

    for my $i (0 .. $#keys) {
        my ($key, $shown) = @{$keys[$i]};

        $clients->series((['GET /user', "X-Key: $key"]) x (45 - $i));
        $refused{$shown} = 40 - $i;
    }

    my $page = $browser->open("$url/status/");
    my $rows = q{
        Object.fromEntries([...document.querySelectorAll('#top tbody tr')]
            .map(({ cells }) => [cells[0].innerText, cells[2].innerText]))
    };

    all_keys($page);

    # each fades as time goes by, and a part of it may be another one's

    my %shown = %{$page->value($rows)};

    for my $i (0 .. $#keys) {
        my $name = $keys[$i][1];
        my ($n) = ($shown{$name} // '') =~ /(\d+)$/;

        ok(defined $n && $n <= $refused{$name} + 3
           && $n >= $refused{$name} / 2, encode($name) . ": " . ($n // 'none'));
    }

    $page->hover('#top tbody tr:last-child code');
    is($page->value('window.harmed'), undef, 'nothing has run');
    is($page->problems, '', 'no problem');
    is_deeply($page->audit, [], 'for screen readers');
};


subtest 'keys that a dry run would refuse' => sub {
    my $page = $browser->open("$url/status/");

    live($page);
    $clients->series((['GET /dry', 'X-Key: dry']) x 6);
    all_keys($page);
    $page->wait(q{[...document.querySelectorAll('#top tbody tr')].some(
                  ({ innerText }) => /^dry\s+dry\s+[1-4]\s/.test(innerText))});
    pass('are in the list');
    is($page->problems, '', 'no problem');
};


subtest 'a look at each, and a reset' => sub {
    my $page = $browser->open("$url/status/");

    all_keys($page);

    for (@keys) {
        my ($key, $shown) = @$_;
        my $row = '[...document.querySelectorAll("#top tbody tr")]'
                  . '.find(({ cells }) => cells[0].innerText == '
                  . encode($shown) . ')';

        if (length $key > 128) {
            is($page->value("$row.querySelector('button')"), undef,
               'what is known in part is not offered');
            next;
        }

        $page->value("$row.querySelector('button').click()");
        $page->wait('document.querySelector("#look tbody tr")');
        like($page->text('#look tbody tr'), qr{^user\s+5r/h\s+0 of 5\s},
             encode($shown) . ': nothing is left');

        $page->click('#look tbody .write');
        $page->wait('document.querySelector("#confirm").open');
        is($page->text('#confirm-key'), $shown, 'it asks');
        $page->press('Enter');
        $page->wait('!document.querySelector("#confirm").open');
        is(status($key), 429, 'Cancel is the first answer, and does nothing');

        $page->click('#look tbody .write');
        $page->wait('document.querySelector("#confirm").open');
        $page->press('Tab', 'Enter');
        $page->wait('document.querySelector("#look tbody tr").innerText'
                    . '.includes("5 of 5")');
        like($page->text('#look-message'), qr/^Reset in zone user/, 'told');
        is(status($key), 200, 'the key is reset');

        $page->press('Escape');
        $page->wait('!document.querySelector("#look").open');
    }

    is($page->value('window.harmed'), undef, 'nothing has run');
    is($page->problems, '', 'no problem');
};


subtest 'a key that one of several limits has counted' => sub {
    my $page = $browser->open("$url/status/");

    live($page);
    $clients->ask('GET /trial', 'X-Key: 192.0.2.1');
    $page->press('Tab');
    $page->type('192.0.2.1');
    $page->press('Enter');
    $page->wait('document.querySelector("#look tbody tr")');
    like($page->text('#look tbody'), qr{^plan:trial\s+2r/h\s+1 of 2\s},
         'is found');
    is($page->value('document.querySelectorAll("#look tbody .write").length'),
       1, 'and can be reset');

    $clients->ask('GET /plan', 'X-Key: 192.0.2.1', 'X-Plan: 50r/d');
    $page->wait('/in d/.test(document.querySelector("#look tbody").innerText)');
    $page->wait('document.querySelectorAll("#look tbody .write").length == 1');
    like($page->text('#look tbody'),
         qr/^plan\s+in d\s+1 used\s.*Reset\s+plan:trial/s, 'by one button');
    is($page->problems, '', 'no problem');
};


subtest 'keys that could not be asked for' => sub {
    my $page = $browser->open("$url/status/");
    my $rows = 'document.querySelectorAll("#top tbody tr").length';
    my $shown = 'document.querySelector("#top").innerText.includes("late")';

    live($page);
    $page->wait("$rows > 3");

    my $before = $page->value($rows);

    $page->value(q{(() => {
        const real = ask;

        window.refused = 0;
        ask = (path, method) => path.endsWith('/top') && ++window.refused < 4
            ? Promise.reject(new Error('HTTP 429')) : real(path, method);
    })()});
    $clients->series((['GET /user', 'X-Key: late']) x 60);
    $page->wait('window.refused > 1');
    is($page->value($rows), $before, 'stay, as they were');
    $page->wait($shown);
    pass('and are asked for again');
};


subtest 'a search' => sub {
    my $page = $browser->open("$url/other");

    $clients->ask('GET /ip');
    $clients->ask('GET /plan', 'X-Key: 127.0.0.1', 'X-Plan: 50r/d');
    live($page);
    $page->press('Tab');
    $page->type('127.0.0.1');
    $page->press('Enter');
    $page->wait('document.querySelector("#look tbody tr")');

    my $text = $page->text('#look');

    like($text, qr{ip\s+3r/h\s+2 of 3\s.*plan\s+in d\s+1 used\s}s,
         'zones that have counted it');
    like($text, qr/Nothing is counted for it in user, a-zone-whose/,
         'and that have not');
    is_deeply($page->audit, [], 'for screen readers');
    is($page->value('getComputedStyle(document.querySelector("#look .write"))'
                    . '.display'), 'none', 'no reset without write=on');
    is($page->problems, '', 'no problem');

    $page->press('Escape');
    is($page->value('document.activeElement.id'), 'search-key',
       'the focus is where it was');

    $page->value('byId("search-key").select()');
    $page->type('no address');
    $page->press('Enter');
    $page->wait('byId("look-message").innerText.includes("ip: ")');
    like($page->text('#look-message'), qr/ip: it has other keys/,
         'what a zone does not take');
    is($page->value('document.querySelector("#look table").hidden'),
       JSON::PP::true, 'no counter');
    is($page->problems, '', 'and is not asked for');

    $page->press('Escape');
    $clients->ask('GET /user', 'X-Key: ..');
    $page->value('byId("search-key").select()');
    $page->type('..');
    $page->press('Enter');
    $page->wait('document.querySelector("#look tbody tr")');
    like($page->text('#look'), qr{user\s+5r/h\s+4 of 5\s},
         'what would be another path');
    is($page->value('keyPath("user", "\0&")'), 'zones/user/keys?key=%00%26',
       'and what no path can have');
    is($page->value('keyPath("user", keyText("5%\t%25E9 \u20ac"))'),
       'zones/user/keys?key=5%25%09%25E9%20%E2%82%AC', 'what is shown is found');
};


subtest 'statistics are reset' => sub {
    my $page = $browser->open("$url/status/");

    live($page);
    $page->click('#zones .name button');
    $page->wait('document.querySelector("#zones .detail .write")');
    $page->click('#zones .detail .write');
    $page->wait('document.querySelector("#confirm").open');
    $page->press('Tab', 'Enter');
    Gateway::await(sub {
        get('/status/zones/user')->{requests}{rejected} == 0
    }, 'the reset');
    shows_limits($page, 'user');
    is($page->problems, '', 'no problem');
};


subtest 'Redis' => sub {
    my $page = $browser->open("$url/status/");
    my $state = 'document.querySelector("#redis .state").innerText';
    my $zone = '[...document.querySelectorAll("#zones tbody")].find((body) =>'
               . ' body.innerText.includes("shared")).innerText';

    live($page);
    $clients->series((['GET /shared', 'X-Key: a']) x 5);
    $page->wait("$state == 'up'");

    # the latency of the last minute, known as soon as there was a command

    $page->wait(q{/ ms$/.test(document.querySelector('#redis').rows[1]
                              .cells[3].innerText)});

    my ($server) = @{get('/status/redis')->{redis}};

    $page->wait("document.querySelector('#redis .figures').innerText.includes("
                . "'$server->{commands} commands')");
    pass("$server->{commands} commands, as the API says");

    $redis->kill;
    Gateway::await(sub {
        $clients->ask('GET /shared', 'X-Key: a');
        return !get('/status/redis')->{redis}[0]{up};
    }, 'Redis to be marked down');
    $page->wait("$state == 'down' && /Redis down/.test($zone)");
    is($page->text('#total-redis'), '1 of 1 down', 'told at a glance');
    is($page->problems, '', 'no problem');
};


subtest 'while another page is in front' => sub {
    my $other = $browser->open("$url/other");
    my $asked = polls('status');

    live($other);
    Gateway::await(sub { polls('other') >= 4 }, 'the other page');
    cmp_ok(polls('status'), '<=', $asked + 1, 'it does not ask');

    ok($other->value('document.body.classList.contains("read-only")'),
       'without write=on it is read-only');
    like($other->text('#access'), qr/Changes are not permitted here/, 'told');
    is($other->problems, '', 'no problem of a location without a slash');

    $asked = polls('status');
    $page->front;
    Gateway::await(sub { polls('status') >= $asked + 2 }, 'the page');
    pass('in front again it asks');
};


subtest 'behind a prefix' => sub {
    my $behind = $browser->open("$url/behind/a/prefix/", dark => \1);

    live($behind);
    is_deeply($behind->value(q{[...document.links].map(({ href }) => href)}),
              [map { "$url/behind/a/prefix/$_" } qw(zones redis metrics)],
              'links');
    is($behind->problems, '', 'no problem');

    # the proxy reads a path in its own way

    my $path = $behind->value('keyPath("user", "a//b/../../..")');

    is(get("/behind/a/prefix/$path")->{key}, 'a//b/../../..',
       'a key is not taken for a path');

    my $back = 'getComputedStyle(document.documentElement).backgroundColor';

    isnt($behind->value($back), $page->value($back), 'dark is not light');
};


subtest 'for screen readers and poor sight' => sub {
    for my $dark (\0, \1) {
        my $page = $browser->open("$url/status/", dark => $dark);

        live($page);
        $page->click('#zones .name button');
        is_deeply($page->audit, [], $$dark ? 'dark' : 'light');
    }
};


subtest 'on a phone' => sub {
    my $phone = $browser->open("$url/status/", width => 360, height => 800);

    live($phone);
    fits($phone, 'closed');
    $phone->click("#zones tbody:nth-of-type($_) .name button") for 1, 2;
    $phone->wait('document.querySelectorAll("#zones .limits")[1].innerText');
    fits($phone, 'with limits');
    like($phone->text('#zones .detail'), qr/State.*Memory/s,
         'what the table has no room for');
    is($phone->problems, '', 'no problem');
};


subtest 'the server goes and comes' => sub {
    $page->front;
    live($page);
    $gateway->stop;
    $page->wait('document.querySelector("#connection").dataset.state'
                . ' == "lost"');
    like($page->text('#alert'), qr/^The server does not answer: no connection/,
         'is told');
    like($page->text('#alert'), qr/The figures are of \d\d:\d\d:\d\d\./,
         'and how old the figures are');
    ok($gateway->launch, 'nginx starts again');
    live($page);
    is($page->value('document.querySelector("#alert").hidden'), JSON::PP::true,
       'and the page goes on');
};

is($gateway->complaints, '', 'no complaints');

done_testing();


# the list of refused keys, all of it

sub all_keys {
    my ($page) = @_;

    $page->wait('document.querySelector("#top-more:not([hidden])")');
    $page->click('#top-more');
    $page->wait('document.querySelectorAll("#top tbody tr").length >= '
                . @keys);
}


# a string of JavaScript

sub encode {
    my ($text) = @_;

    return JSON::PP->new->allow_nonref->ascii->encode($text);
}


sub status {
    my ($key) = @_;

    return $clients->ask('GET /user', "X-Key: $key")->{status};
}


# the page shows what the server has said just now

sub live {
    my ($page) = @_;

    $page->wait('document.querySelector("#connection").dataset.state'
                . ' == "live"');
}


# the limits of the disclosed zone are those of the API

sub shows_limits {
    my ($page, $zone) = @_;

    my $shown = q{
        JSON.stringify([...document.querySelectorAll('#zones .limits tbody tr')]
            .map((row) => [...row.cells].map((cell) => cell.innerText)))
    };
    my @limits = @{get("/status/zones/$zone")->{limits}};
    my $expected = encode_json([map { limit_row($zone, $_) } @limits]);

    Gateway::await(sub { $page->value($shown) eq $expected }, $expected);
    pass("it shows $expected");
}


# counters, memory and evictions of each zone are those of the API

sub shows_memory {
    my ($page) = @_;

    my $shown = q{
        JSON.stringify([...document.querySelectorAll('#zones th.name')]
            .map(({ parentElement: { cells } }) => [...cells].slice(-3)
                .map((cell) => cell.innerText.trim())))
    };
    my @zones = @{get('/status/zones')->{zones}};
    my $expected = encode_json([map { ["$_->{entries}", memory_text($_),
                                       "$_->{evictions}"] } @zones]);

    Gateway::await(sub { $page->value($shown) eq $expected }, $expected);
    pass("it shows $expected");
}


sub memory_text {
    my ($zone) = @_;

    return join ' of ', map {
        $_ >= 1 << 20 ? ($_ >> 20) . ' MB' : int($_ / 1024 + 0.5) . ' kB'
    } @$zone{qw(bytes_used size)};
}


sub limit_row {
    my ($zone, $limit) = @_;

    my %n = %{$limit->{requests}};

    return [
        $zone . ($limit->{name} ne '' ? ":$limit->{name}" : ''),
        join(', ', @{$limit->{rates}}),
        "passed $n{passed}, rejected $n{rejected}",
    ];
}


sub fits {
    my ($page, $what) = @_;

    is($page->value('document.documentElement.scrollWidth'),
       $page->value('innerWidth'), "no wider than the screen: $what");
}


# how often a page has asked for figures

sub polls {
    my ($name) = @_;

    my $log = Gateway::slurp("$gateway->{dir}/logs/$name.log");

    return scalar(() = $log =~ m{^/\w+/? application/json$}mg);
}


sub get {
    my ($path) = @_;

    return decode_json($clients->ask("GET $path")->{body});
}
