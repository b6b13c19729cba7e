#!/usr/bin/perl

# The service, asked as JSON: what it decides, what it says of it, and what it
# refuses.  If this fails, other services are limited by other rules than those
# of the files.

use strict;
use warnings;

use JSON::PP;
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Registry qw(algorithms);
use RuleFiles;
use ServiceCalls;

my $files = RuleFiles->new('basic.yaml' => <<'END', 'modes.yaml' => <<'MODES');
domain: basic
descriptors:
  - key: one
    rate_limit: { unit: day, requests_per_unit: 20 }
  - key: two
    rate_limit: { unit: day, requests_per_unit: 10, name: "second" }
    descriptors:
      - { key: deep, rate_limit: { unit: week, requests_per_unit: 3 } }
  - key: free
    rate_limit: { unlimited: true }
  - key: never
    rate_limit: { unit: hour }
  - key: step
  - key: path
    value: /a/*
    share_threshold: true
    rate_limit: { unit: month, requests_per_unit: 2 }
END
domain: modes
descriptors:
  - { key: shadow, shadow_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: plain, rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: small, quota_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: large, quota_mode: true,
      rate_limit: { unit: day, requests_per_unit: 3 } }
  - { key: mute, quota_mode: true, shadow_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: base, rate_limit: { unit: day, requests_per_unit: 1, name: base } }
  - { key: plus, rate_limit: { unit: day, requests_per_unit: 4,
                               replaces: [{ name: base }, { name: any }] } }
  - { key: any, rate_limit: { unlimited: true, name: any,
                              replaces: [{ name: base }] } }
MODES

my $gateway = Gateway->start(workers => 2, http => <<"END" . Gateway->server(
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m algorithm=fixed_window;
ratelimit_zone \$arg_k zone=callers:1m rate=2r/d;
ratelimit_headers off;
client_body_buffer_size 16k;
log_format bodies escape=none '\$request_body';
END
    '/json' => 'ratelimit_service;',
    '/logged' => 'ratelimit_service; access_log logs/bodies bodies;',
    '/ietf' => 'ratelimit_service; ratelimit_headers ietf;',
    '/dry' => 'ratelimit_service; ratelimit_dry_run on;',
    '/limited' => 'ratelimit_service; ratelimit zone=callers;',
    '/location' => 'ratelimit rules=basic descriptor=one:$arg_k;'));

my $clients = Clients->new($gateway->{port});
my $calls = ServiceCalls->new($clients, '/json');

subtest 'what is decided' => \&decided;
subtest 'near and over a limit with more than one hit' => \&hits;
subtest 'until when' => \&resets;
subtest 'modes' => \&modes;
subtest 'a limit that the call brings along' => \&override;
subtest 'hits that are given back' => \&negative;
subtest "given back by $_" => \&given_back, $_ for algorithms();
subtest 'one counter for calls and locations' => \&one_counter;
subtest 'fields for the response' => \&fields;
subtest 'what is refused' => \&refused;
subtest 'bodies' => \&bodies;
subtest 'dry run, and limits of the callers' => \&others;
subtest 'no rule file' => \&no_file;

is($gateway->complaints, '', 'nothing to complain about');
unlike($gateway->log, qr/exited on signal/, 'no worker has died');

done_testing();


sub is_answer {
    my ($expected, @call) = @_;

    my $answer = $calls->ask(@call);
    my $code = $expected =~ /^OVER/ ? 429 : 200;

    is("$answer->{status} " . ServiceCalls::short($answer->{json} || {}),
       "$code $expected", $expected) or diag($answer->{body});
}


sub decided {
    is_answer('OK OK(19 of 20/DAY)', 'basic', { one => 'a' });
    is_answer('OK OK(18 of 20/DAY)', 'basic', { one => 'a' });
    is_answer('OK OK(19 of 20/DAY)', 'basic', { one => 'b' });
    is_answer('OK OK(17 of 20/DAY) OK(9 of 10/DAY second)', 'basic',
              { one => 'a' }, { two => 'a' });
    is_answer('OK OK(2 of 3/WEEK)', 'basic', [two => 'a', deep => 'b']);
    is_answer('OK OK(4294967295)', 'basic', { free => 'a' });
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 0/HOUR)', 'basic', { never => 'a' });
    is_answer('OK OK', 'basic', { step => 'a' });
    is_answer('OK OK', 'basic', { unknown => 'a' });
    is_answer('OK OK', 'basic', {});
    is_answer('OK OK', 'unknown', { one => 'a' });
    is_answer('OK OK(1 of 2/MONTH)', 'basic', { path => '/a/1' });
    is_answer('OK OK(0 of 2/MONTH)', 'basic', { path => '/a/2' });
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 2/MONTH)', 'basic',
              { path => '/a/3' });

    my $answer = $calls->ask('basic', { one => 'a' });

    is($answer->{field}{'content-type'}, 'application/json', 'is JSON');

    is_answer('OK OK(0 of 10/DAY second)', 'basic',
              [two => 'all', -hitsAddend => 10]);
    is_answer('OVER_LIMIT OK(16 of 20/DAY) OVER_LIMIT(0 of 10/DAY second)',
              'basic', { one => 'a' }, { two => 'all' });
    is_answer('OK OK(15 of 20/DAY)', 'basic', { one => 'a' });
    is_answer('OK OK(18 of 20/DAY) OK(18 of 20/DAY)', 'basic',
              { one => 'twice' }, { one => 'twice' });
    is_answer('OK OK(19 of 20/DAY) OK(19 of 20/DAY)', 'basic',
              { one => 'x' }, { one => 'y' });
}


# a refused call costs nothing: there, 5 hits upon 18 of 20 would count

sub hits {
    is_answer('OK OK(2 of 20/DAY)', 'basic', { one => 'h' }, \18);
    is_answer('OVER_LIMIT OVER_LIMIT(2 of 20/DAY)', 'basic', { one => 'h' },
              \5);
    is_answer('OK OK(1 of 20/DAY)', 'basic', { one => 'h' });
    is_answer('OK OK(1 of 20/DAY)', 'basic', [one => 'h', -hitsAddend => 0],
              \5);
    is_answer('OK OK(0 of 20/DAY)', 'basic', [one => 'h', -hitsAddend => '1'],
              \5);
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 20/DAY)', 'basic', { one => 'h' });
    is_answer('OK OK(0 of 20/DAY)', 'basic', [one => 'h', -hitsAddend => 0]);
    is_answer('OVER_LIMIT OVER_LIMIT(20 of 20/DAY)', 'basic',
              [one => 'i', -hitsAddend => '18446744073709551615']);

    my $most = 4294967295;
    my @huge = (-limit => { requestsPerUnit => $most, unit => 'DAY' });

    is_answer("OVER_LIMIT OVER_LIMIT($most of $most/DAY)", 'basic',
              [one => 'j', @huge, -hitsAddend => '4294967296']);
    is_answer("OVER_LIMIT OVER_LIMIT($most of $most/DAY)"
              . " OVER_LIMIT($most of $most/DAY)", 'basic',
              map { [one => 'j', @huge, -hitsAddend => '3000000000'] } 1, 2);
    is_answer("OK OK(0 of $most/DAY)", 'basic',
              [one => 'j', @huge, -hitsAddend => $most]);
    is_answer("OVER_LIMIT OVER_LIMIT(0 of $most/DAY)", 'basic',
              [one => 'j', @huge]);
}


# the window is that of the clock, whether something was counted in it or not

sub resets {
    my %call = (
        'a charge' => [86400, [one => 'r']],
        'a look' => [86400, [one => 's', -hitsAddend => 0]],
        'a refusal' => [86400, [one => 't', -hitsAddend => 21]],
        'what was given back' => [86400, [one => 'u', -isNegativeHits =>
                                          JSON::PP::true]],
        'no request at all' => [3600, [never => 'a']],
        'a week' => [604800, [two => 'r', deep => 'r']],
        'a year' => [31536000, [any => 'r', -limit =>
                                { requestsPerUnit => 1, unit => 'YEAR' }]],
    );

    for my $name (sort keys %call) {
        my ($unit, $descriptor) = @{$call{$name}};
        my @left;

        # unless it ends in this moment

        do {
            my $before = time;
            my $answer = $calls->ask('basic', $descriptor)->{json};

            @left = ($unit - $before % $unit, $unit - time % $unit,
                     $answer->{statuses}[0]{durationUntilReset});
        } until $left[0] >= $left[1];

        my ($most, $least, $said) = @left;

        like($said, qr/^\d+s$/, $name);
        cmp_ok($said =~ s/s//r, '<=', $most, "$name: at most $most");
        cmp_ok($said =~ s/s//r, '>=', $least - 1, "$name: at least $least");
    }
}


sub modes {
    is_answer('OK OK(0 of 1/DAY) OK(2 of 3/DAY)', 'modes',
              { shadow => 'a' }, { plain => 'a' });
    is_answer('OK OK(0 of 1/DAY) OK(1 of 3/DAY)', 'modes',
              { shadow => 'a' }, { plain => 'a' });
    is_answer('OK OK(0 of 1/DAY)', 'modes', { shadow => 'a' });
    is_answer('OVER_LIMIT OK(0 of 1/DAY) OVER_LIMIT(1 of 3/DAY)', 'modes',
              { shadow => 'a' }, [plain => 'a', -hitsAddend => 2]);

    is_answer('OK OK(0 of 1/DAY) OK(2 of 3/DAY)', 'modes',
              { small => 'a' }, { large => 'a' });
    is_answer('OK OVER_LIMIT(0 of 1/DAY) OK(1 of 3/DAY)', 'modes',
              { small => 'a' }, { large => 'a' });
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 1/DAY) OVER_LIMIT(1 of 3/DAY)',
              'modes', { small => 'a' }, [large => 'a', -hitsAddend => 2]);
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 1/DAY)', 'modes', { small => 'a' });

    # one in quota mode that never refuses

    is_answer('OK OVER_LIMIT(0 of 1/DAY) OK(0 of 1/DAY)', 'modes',
              { small => 'a' }, { mute => 'a' });
    is_answer('OK OVER_LIMIT(0 of 1/DAY) OK(0 of 1/DAY)', 'modes',
              { small => 'a' }, { mute => 'a' });
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 1/DAY) OK(0 of 1/DAY)'
              . ' OVER_LIMIT(1 of 3/DAY)', 'modes', { small => 'a' },
              { mute => 'a' }, [plain => 'a', -hitsAddend => 2]);

    is_answer('OK OK(0 of 1/DAY base)', 'modes', { base => 'a' });
    is_answer('OK OK OK(3 of 4/DAY)', 'modes', { base => 'a' },
              { plus => 'a' });
    is_answer('OK OK OK(4294967295) OK(2 of 4/DAY)', 'modes', { base => 'a' },
              { any => 'a' }, { plus => 'a' });
    is_answer('OK OK OK(4294967295)', 'modes', { base => 'a' },
              { any => 'a' });
}


sub override {
    my %limit = (requestsPerUnit => 2, unit => 'MONTH');

    is_answer('OK OK(1 of 2/MONTH)', 'basic', [any => 'a', -limit => \%limit]);
    is_answer('OK OK(0 of 2/MONTH)', 'basic', [any => 'a', -limit => \%limit]);
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 2/MONTH)', 'basic',
              [any => 'a', -limit => \%limit]);
    is_answer('OK OK(8 of 9/YEAR)', 'basic',
              [one => 'a', -limit => { requestsPerUnit => 9, unit => 6 }]);
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 0/DAY)', 'basic',
              [one => 'a', -limit => { unit => 'DAY' }]);
    is_answer('OK OK', 'unknown', [any => 'a', -limit => \%limit]);

    my @both = map { [any => 'b', -limit => { requestsPerUnit => $_,
                                              unit => 'DAY' }] } 9, 2;

    is_answer('OK OK(0 of 9/DAY) OK(0 of 2/DAY)', 'basic', @both);
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 9/DAY) OVER_LIMIT(0 of 2/DAY)',
              'basic', @both);
}


sub negative {
    is_answer('OK OK(5 of 20/DAY)', 'basic', [one => 'n', -hitsAddend => 15]);
    is_answer('OK OK(15 of 20/DAY)', 'basic',
              [one => 'n', -hitsAddend => 10,
               -isNegativeHits => JSON::PP::true]);
    is_answer('OK OK(14 of 20/DAY)', 'basic', { one => 'n' });
    is_answer('OK OK(20 of 20/DAY)', 'basic',
              [one => 'n', -hitsAddend => 1000,
               -isNegativeHits => JSON::PP::true]);
    is_answer('OK OK(19 of 20/DAY)', 'basic', { one => 'n' });

    my @two = [one => 'o', -hitsAddend => 2, -isNegativeHits => JSON::PP::true];

    is_answer('OK OK(15 of 20/DAY) OK(15 of 20/DAY)', 'basic',
              [one => 'o', -hitsAddend => 7], @two);
    is_answer('OK OK(19 of 20/DAY) OK(19 of 20/DAY)', 'basic', @two, @two);
    is_answer('OVER_LIMIT OVER_LIMIT(10 of 10/DAY second) OK(19 of 20/DAY)',
              'basic', [two => 'o', -hitsAddend => 11], @two);
    is_answer('OK OK(19 of 20/DAY)', 'basic', [one => 'o', -hitsAddend => 0]);
}


# also what was charged before the current sub-window, or a microsecond ago

sub given_back {
    my ($algorithm) = @_;

    my $gateway = Gateway->start(workers => 1, http => <<"END"
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m algorithm=$algorithm;
END
        . Gateway->server('/json' => 'ratelimit_service;'));
    my $calls = ServiceCalls->new(Clients->new($gateway->{port}), '/json');
    my @back = (-isNegativeHits => JSON::PP::true);

    # a leaky bucket without a burst has room for one

    my $most = $algorithm eq 'leaky_bucket' ? 1 : 20;
    my $ask = sub {
        return ServiceCalls::short($calls->ask('basic', @_)->{json});
    };

    is($ask->({ one => 'a' }), 'OK OK(' . ($most - 1) . ' of 20/DAY)', 'one');
    is($ask->([one => 'a', -hitsAddend => 5]), 'OK OK(14 of 20/DAY)', 'five')
        if $most > 1;
    is($ask->([one => 'a', -hitsAddend => 4, @back]), $most > 1
       ? 'OK OK(18 of 20/DAY)' : 'OK OK(1 of 20/DAY)', 'four are given back');
    is($ask->([one => 'a', -hitsAddend => 0]), $most > 1
       ? 'OK OK(18 of 20/DAY)' : 'OK OK(1 of 20/DAY)', 'and are there');
    is($ask->([one => 'a', -hitsAddend => 9, @back]), "OK OK($most of 20/DAY)",
       'no more than there were');
    is($ask->([one => 'a', -hitsAddend => 0]), "OK OK($most of 20/DAY)",
       'is there');
    is($gateway->complaints, '', 'nothing to complain about');
}


sub one_counter {
    is_answer('OK OK(1 of 20/DAY)', 'basic', [one => 'both',
                                              -hitsAddend => 19]);
    is(join(' ', map { $_->{status} }
                 $clients->series((['GET /location?k=both']) x 2)), '200 429',
       'a location goes on');
    is_answer('OVER_LIMIT OVER_LIMIT(0 of 20/DAY)', 'basic',
              { one => 'both' });
}


sub fields {
    my $ietf = ServiceCalls->new($clients, '/ietf');
    my %field = map { ($_->{key} => $_->{value}) }
                @{$ietf->ask('basic', { one => 'f' }, { two => 'f' })
                  ->{json}{responseHeadersToAdd}};

    is($field{'RateLimit-Policy'},
       '"basic.one";q=20;w=86400, "second";q=10;w=86400', 'policies');
    like($field{RateLimit}, qr/^"second";r=9;t=\d+$/, 'the tightest limit');
    ok(!exists $field{'Retry-After'}, 'no wait');

    %field = map { ($_->{key} => $_->{value}) }
             @{$ietf->ask('basic', [two => 'f', -hitsAddend => 10])
               ->{json}{responseHeadersToAdd}};

    like($field{'Retry-After'}, qr/^\d+$/, 'a wait');
    ok(!exists $calls->ask('basic', { one => 'f' })
               ->{json}{responseHeadersToAdd}, 'none');
}


sub refused {
    my @bad = (
        ['', 'an object is expected'],
        ['x', 'an object is expected'],
        ['{"domain":"a"', 'a comma is expected'],
        ['{"domain":"basic","descriptors":[{}],"x":1}', 'a member is unknown'],
        ['{}', 'the domain must not be empty'],
        ['{"domain":"","descriptors":[{}]}', 'the domain must not be empty'],
        ['{"domain":"basic"}', 'the list of descriptors must not be empty'],
        ['{"domain":"basic","descriptors":[{"limit":{}}]}',
         'the limit of a descriptor has no valid unit'],
        ['{"domain":"basic","descriptors":[{"limit":{"unit":7}}]}',
         'the limit of a descriptor has no valid unit'],
        ['{"domain":"basic","descriptors":['
         . join(',', map { "{\"entries\":[{\"key\":\"one\",\"value\":\"$_\"}]}" }
                     1 .. 65) . ']}', 'more than 64 descriptors have a limit'],
    );

    for (@bad) {
        my ($text, $reason) = @$_;
        my $answer = $calls->ask($text);

        is("$answer->{status} $answer->{body}", "400 {\"error\":\"$reason\"}\n",
           $reason);
    }

    is($clients->ask('GET /json')->{status}, 400, 'no body at all');
}


# in memory, in a file, and too long

sub bodies {
    my $long = sub {
        return '{"domain":"basic","descriptors":[{"entries":[{"key":"one",'
               . '"value":"' . 'x' x $_[0] . '"}]}]}';
    };

    is($calls->ask($long->($_))->{status}, 200, "$_ bytes")
        for 100, 10_000, 20_000, 40_000, 65_000;
    is($calls->ask($long->(66_000))->{status}, 413, '66000 bytes');
    is($calls->ask($long->(100_000))->{status}, 413, '100000 bytes');

    for my $size (100, 30_000) {
        my $client = $clients->connect;

        Clients::put($client, $clients->text('POST /json',
                                             'Transfer-Encoding: chunked'));
        Clients::put($client, sprintf "%x\r\n%s\r\n", length, $_)
            for $long->($size) =~ /(.{1,4000})/sg;
        Clients::put($client, "0\r\n\r\n");
        Clients::await_answers(1, $client);

        is($client->{answers}[0]{status}, 200, "$size bytes in pieces");
    }

    my $escaped = $long->(1) =~ s/one/\\u006fne/r;

    is(ServiceCalls->new($clients, '/logged')->ask($escaped)->{status}, 200,
       'with an escape');
    is(Gateway::await(sub { Gateway::slurp("$gateway->{dir}/logs/bodies") }),
       "$escaped\n", 'the log has it as it was sent');

    for my $condition ('If-None-Match: *', 'If-Match: "x"') {
        my $other = ServiceCalls->new($clients, '/json', $condition);

        is($other->ask($long->(1))->{status}, 200, $condition);
    }
}


sub others {
    my $dry = ServiceCalls->new($clients, '/dry');

    is(ServiceCalls::short($dry->ask('basic', { never => 'a' })->{json}),
       'OK OVER_LIMIT(0 of 0/HOUR)', 'a dry run is OK at last');

    my @limited = map { ServiceCalls->new($clients, '/limited?k=a')
                        ->ask('basic', { one => 'l' }) } 1 .. 3;

    is(join(' ', map { $_->{status} } @limited), '200 200 429',
       'callers have limits of their own');
    like($limited[2]{body}, qr/violated-policies.*"callers"/, 'that say so');
}


sub no_file {
    my $empty = Gateway->start(http => "ratelimit_headers off;\n"
                               . Gateway->server('/json' =>
                                                 'ratelimit_service;'));
    my $asked = ServiceCalls->new(Clients->new($empty->{port}), '/json');
    my $answer = $asked->ask('basic', { one => 'a' });

    is("$answer->{status} $answer->{body}",
       qq(503 {"error":"there is no rule file"}\n), 'is no admission');
    is($asked->ask('{}')->{status}, 400, 'what is malformed stays so');
}
