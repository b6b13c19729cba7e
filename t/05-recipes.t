#!/usr/bin/perl

# Every recipe of docs/recipes.md and every docs/examples/*.conf runs in a real
# nginx, and what a client sees is what the page shows: the commands of its
# "console" blocks are run as they stand, and their output is compared.
#
# Left out on the page, and here, are fields of nginx itself, as Server and
# Date.  Times, in seconds, may differ a little.  The port is a free one.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(time sleep);

use lib 't/lib';
use Gateway;

use constant PAGE => 'docs/recipes.md';
use constant PATIENCE => 10;    # seconds for a line to be in a log
use constant HANG => 60;        # and for a command

# of nginx and of the tests' own; and the line between head and body
my $boilerplate = qr/^(?: (?: Server|Date|Content-Type|Content-Length|Connection
                              |X-Worker|WWW-Authenticate|Last-Modified|ETag
                              |Accept-Ranges) :\ .* | ) $/x;

# what is told in seconds
my $seconds = qr/^( (?: X-RateLimit-Reset|Retry-After|X-RateLimit-Retry-After)
                    :\  | RateLimit:\ .*;t= )(\d+)$/x;

my $page = slurp(PAGE);
my ($intro, @recipes) = recipes($page);
my ($service) = blocks($intro, 'nginx');
my ($words) = blocks($intro, 'sh');
my %run;

BAIL_OUT(PAGE . ' has no service') if !$service;
BAIL_OUT(PAGE . ' has no words for the shell') if !$words;


subtest 'the checks can fail' => \&self_test;

cmp_ok(scalar @recipes, '>=', 10, 'there are recipes');

for my $recipe (@recipes) {
    subtest $recipe->{title} => sub { try($recipe) };
}

subtest 'quickstart.conf' => \&quickstart;
subtest 'api.conf' => \&api;

is_deeply([sort keys %run], [sort(map { s{.*/}{}r } glob 'docs/examples/*')],
          'all examples were run');

done_testing();


# title and text of each section, after what stands before them

sub recipes {
    my ($text) = @_;

    my ($head, @parts) = split /^## (.*)\n/m, $text;
    my @found;

    while (my ($title, $body) = splice @parts, 0, 2) {
        push @found, {
            title => $title,
            body => $body,
            conf => [blocks($body, 'nginx')],
            console => [blocks($body, 'console')],
            file => $body =~ m{\]\(examples/(\S+\.conf)\)} ? $1 : undef,
        };
    }

    return ($head, @found);
}


sub blocks {
    my ($text, $language) = @_;

    return $text =~ /^```\Q$language\E\n(.*?)^```$/msg;
}


# commands and what they print

sub commands {
    my ($text) = @_;

    my @found;

    for (split /\n/, $text) {
        if (/^\$ (.*)/) {
            push @found, {command => $1, lines => []};

        } elsif (/^> (.*)/) {
            $found[-1]{command} .= "\n$1";

        } else {
            push @{$found[-1]{lines}}, $_;
        }
    }

    return @found;
}


# the page has an example's essential part, to the letter

sub try {
    my ($recipe) = @_;

    my $conf = join "\n", @{$recipe->{conf}};

    ok($conf ne '', 'has a configuration');
    ok(scalar @{$recipe->{console}}, 'has what a client sees');

    if (defined $recipe->{file}) {
        my $file = slurp("docs/examples/$recipe->{file}");

        ok(index($file, $_) >= 0, "$recipe->{file} has what the page has")
            for @{$recipe->{conf}};

        $conf = $file;
        $run{$recipe->{file}} = 1;
    }

    my $gateway = gateway($conf);

    for my $step (map { commands($_) } @{$recipe->{console}}) {
        my @lines = result($gateway, $step->{command}, $step->{lines});

        is_deeply([near($step->{lines}, \@lines)], $step->{lines},
                  (split /\n/, $step->{command})[0]);
    }

    is($gateway->complaints, '', 'nothing is wrong with nginx');
    $gateway->stop;
}


sub gateway {
    my ($conf) = @_;

    $conf .= $service if $conf !~ /listen +127\.0\.0\.2:/;
    $conf =~ s/:8080\b/:PORT/g;

    return Gateway->start(http => $conf);
}


# lines that a command prints; a log may be written a moment later

sub result {
    my ($gateway, $command, $expected) = @_;

    my $end = time + PATIENCE;
    my $wanted = join "\n", @$expected;
    my @lines;

    for ( ;; ) {
        @lines = output($gateway, $command);

        last if $command !~ /^(?:cat|tail|grep) /;
        last if time > $end || join("\n", near($expected, \@lines)) eq $wanted;

        sleep 0.01;
    }

    return @lines;
}


sub output {
    my ($gateway, $command) = @_;

    $command =~ s/:8080\b/:$gateway->{port}/g;

    open my $pipe, '-|', 'timeout', HANG, 'bash', '-c',
         'cd "$0" && exec 2>&1 < /dev/null; eval "$1"', $gateway->{dir},
         "$words\n$command"
        or die "timeout: $!";

    my @lines = map { s/\r?\n\z//r } <$pipe>;

    close $pipe;

    s/:$gateway->{port}\b/:8080/g for @lines;

    return grep { $_ !~ $boilerplate } @lines;
}


# a window of a period may be whole up to a tenth of it later

sub near {
    my ($expected, $lines) = @_;

    my @expected = @$expected;

    return map {
        my $line = $_;
        my $other = shift @expected;

        if (defined $other && $line =~ $seconds) {
            my ($field, $got) = ($1, $2);

            $line = $other if $other =~ $seconds && $1 eq $field
                              && abs($got - $2) <= $2 * 0.12 + 1;
        }

        $line;
    } @$lines;
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


sub example {
    my ($name) = @_;

    $run{$name} = 1;

    return gateway(slurp("docs/examples/$name"));
}


sub look {
    my ($gateway, $path, $options) = @_;

    return output($gateway, "look $options 'http://127.0.0.1:8080$path'");
}


# as 10x200 1x429

sub statuses {
    my ($gateway, $path, $options) = @_;

    $options ||= '';

    my @lines = output($gateway,
                       "tally $options 'http://127.0.0.1:8080$path'");

    return join ' ', map { s/^ *(\d+) /$1x/r } @lines;
}


sub self_test {
    my @shown = ('HTTP/1.1 200 OK', 'X-RateLimit-Reset: 63', 'RateLimit: '
                 . '"ip";r=1;t=63');

    is_deeply([near(\@shown, ['HTTP/1.1 200 OK', 'X-RateLimit-Reset: 66',
                              'RateLimit: "ip";r=1;t=60'])], \@shown,
              'times are near');
    isnt((near(['Retry-After: 60'], ['Retry-After: 70']))[0],
         'Retry-After: 60', 'a time is not');
    isnt((near(['X-RateLimit-Limit: 60'], ['X-RateLimit-Limit: 61']))[0],
         'X-RateLimit-Limit: 60', 'a limit is not a time');
    isnt((near(['RateLimit: "ip";r=1;t=6'], ['RateLimit: "ip";r=2;t=6']))[0],
         'RateLimit: "ip";r=1;t=6', 'nor is what is left');

    my ($first, $second) = commands("\$ a\n> b\nx\n\$ c\n");

    is_deeply($first, {command => "a\nb", lines => ['x']}, 'a command');
    is_deeply($second, {command => 'c', lines => []}, 'and the next');

    my (undef, $recipe) = recipes("## A\n```nginx\na\n```\n```console\n\$ b\n"
                                  . "```\n[x](examples/x.conf)\n");

    is_deeply([@$recipe{qw(title conf file)}], ['A', ["a\n"], 'x.conf'],
              'a recipe');
}


sub slurp {
    my ($file) = @_;

    open my $in, '<', $file or BAIL_OUT("$file: $!");
    local $/;

    return <$in>;
}
