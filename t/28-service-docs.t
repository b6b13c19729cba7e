#!/usr/bin/perl

# docs/service.md: every file and command of the page, and every example that
# it names, are run.  There is no Envoy here: its configuration is checked
# against Envoy's own messages, and a client sends what Envoy would.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Copy qw(copy);
use File::Temp;
use JSON::PP;
use Test::More;
use YAML::XS;

use lib 't/lib';
use Clients;
use Gateway;
use Page;
use RedisServer;
use RuleFiles;
use ServiceCalls;

my $root = getcwd();
my $page = Page->new('docs/service.md');
my %section = map { ($_->{title} => $_) } @{$page->{sections}};

subtest 'Rule files' => \&rule_files;
subtest $_->{title} => \&run, $_
    for grep { @{$_->{console}} } @{$page->{sections}};
subtest "Envoy's configuration" => \&envoy;

done_testing();


# each is loaded, and does what the page says

sub rule_files {
    my @files = map { Page::blocks($_->{body}, 'yaml') } @{$page->{sections}};

    cmp_ok(scalar @files, '>=', 2, 'there are some');

    my %file;

    for my $text (@files) {
        my ($domain) = $text =~ /^domain: (\w+)$/m;

        $file{"$domain.yaml"} = $text;
    }

    is($file{'messaging.yaml'},
       Page::slurp('docs/examples/rules/messaging.yaml') =~ s/\A#.*\n\n//r,
       'the example is on the page');

    my $files = RuleFiles->new(%file);
    my $conf = <<"END" . Gateway->server(
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m;
END
        '/' => 'ratelimit rules=shop descriptor=ip:$arg_ip; '
               . 'ratelimit rules=shop descriptor=ip:$arg_ip,'
               . 'method:$request_method;');
    my $gateway = Gateway->start(http => $conf);
    my $clients = Clients->new($gateway->{port});
    my $tally = sub {
        return Clients::tally($clients->series(map { [$_] } @_));
    };

    is_deeply($tally->(('GET /?ip=a') x 110), { 200 => 100, 429 => 10 },
              '100 for each address');
    is_deeply($tally->(('DELETE /?ip=b') x 90, ('POST /?ip=b') x 12),
              { 405 => 100, 429 => 2 }, '10 that write');
    is_deeply($tally->(('GET /?ip=192.0.2.1') x 110), { 200 => 110 },
              'as many as one address likes');

    $files->write('shop.yaml' => $file{'shop.yaml'}
                                 =~ s/unit: \Kminute/fortnight/r);
    $gateway->hup($conf);
    Gateway::await(sub { $gateway->failed }, 'the refusal of a bad file');

    my ($shown) = Page::blocks($section{'Rule files'}{body}, 'text');
    my ($said) = $gateway->log =~ /(invalid file.*)/;

    # names of files and numbers of lines aside

    is(alike($said), alike($shown =~ s/\n/ /gr), 'a bad file is refused so');
}


sub alike {
    my ($text) = @_;

    return $text =~ s{/\S+/}{}gr =~ s/\w+\.yaml/x.yaml/r =~ s/\d+/N/gr
                 =~ s/ *\z//r;
}


sub run {
    my ($part) = @_;

    my $conf = join "\n", @{$part->{conf}};

    if (defined $part->{file}) {
        my $file = Page::slurp("docs/examples/$part->{file}");

        ok(index($file, $_) >= 0, "$part->{file} has what the page has")
            for @{$part->{conf}};

        $conf = $file;
    }

    my $redis = $conf =~ /ratelimit_redis/ ? RedisServer->start : undef;

    $conf =~ s{:6379  timeout=\w+}{:$redis->{port}  timeout=5s} if $redis;

    my ($gateway, $h2) = start($conf);
    my $shell = Page->shell(dir => $gateway->{dir}, ports => {
        8080 => $gateway->{port}, 8081 => $h2,
    });

    copy("docs/examples/$_", "$gateway->{dir}/$_")
        for qw(client.js ratelimit.proto);

    local $ENV{NODE_PATH} = "$root/build/npm/node_modules";

    for my $step (map { Page::commands($_) } @{$part->{console}}) {

        # no window of a minute ends meanwhile

        Gateway::await(sub { time % 60 < 45 }, 'the begin of a minute');

        my @lines = $shell->result($step->{command}, $step->{lines});

        is_deeply([Page::near($step->{lines}, \@lines)], $step->{lines},
                  (split /\n/, $step->{command})[0]);
    }

    is($gateway->complaints, '', 'nothing is wrong with nginx');
}


# an example, and the port that is 8081 there

sub start {
    my ($conf) = @_;

    my $h2 = Gateway::free_port();

    return (Gateway->start(http => Page::with_paths($conf)
                =~ s/:8080\b/:PORT/gr =~ s/:8081\b/:$h2/gr
                =~ s{ rules/}{ $root/docs/examples/rules/}gr), $h2);
}


sub envoy {
    my $text = Page::slurp('docs/examples/envoy.yaml');
    my @parts = Page::blocks($section{"As Envoy's rate limit service"}{body},
                             'text');

    cmp_ok(scalar @parts, '>=', 3, 'there are parts of it on the page');
    ok(within($_, $text), 'the file has what the page has') for @parts;

    my $said = envoy_says($text);

    is_deeply($said->{wrong}, [], 'Envoy knows every field');
    is_deeply($said->{address},
              { address => '127.0.0.1', port_value => 8081 },
              'the service is where the page says');
    is($said->{calls}[2], undef, 'without the field nothing is asked');

    my ($gateway, $h2) = start(Page::slurp('docs/examples/service.conf'));
    my ($marketing, $receipt) = @{$said->{calls}};
    my @codes = map { $_->{response}{overall_code} }
                ServiceCalls::grpc($h2, ($marketing) x 6, ($receipt) x 6);
    my @health = map { ServiceCalls::health($h2, $_) } @{$said->{health}};

    is("@codes", join(' ', ('OK') x 5, 'OVER_LIMIT', ('OK') x 6),
       'the sixth message of a day is refused');
    is("@health", 'SERVING', 'and the check of health is answered');

    mistakes($text);
}


# what would be seen

sub mistakes {
    my ($text) = @_;

    for (['domain', 'domian', qr/RateLimit has no "domian"/],
         ['V3', 'V4', qr/"V4" is no ApiVersion/],
         ['0.05s', '50ms', qr/"50ms" is not a duration/],
         [': false', ': "no"', qr/"no" is not of type bool/],
         ['unhealthy_threshold: 2', '', qr/"unhealthy_threshold" is missing/],
         ['x-message-type', 'x message', qr/breaks the rule "well_known/],
         ['grpc_health_check: { service_name: ratelimit }',
          'alt_port: 1', qr/0 of "health_checker"/])
    {
        my ($from, $to, $expected) = @$_;
        my $said = envoy_says($text =~ s/^[^#\n]*?\K\Q$from\E/$to/mr);

        like(join("\n", @{$said->{wrong}}), $expected, "not $from");
    }
}


# a configuration as JSON, and what Envoy makes of it

sub envoy_says {
    my ($text) = @_;

    local $ENV{NODE_PATH} = "$root/build/npm/node_modules";
    local $YAML::XS::Boolean = 'JSON::PP';

    my $file = File::Temp->new;
    my @fields = map { "'$_'" } '{"x-message-type":"marketing"}',
                                '{"x-message-type":"receipt"}', '{}';

    print $file encode_json(Load($text));
    close $file;

    return decode_json(`node t/node/envoy.js @fields < $file`);
}


# a part, whatever its indentation

sub within {
    my ($part, $text) = @_;

    my $lines = join '\n', map { length ? "\\1\Q$_\E" : '' }
                           split /\n/, $part;

    return $text =~ /^(?=(\ *))$lines$/m;
}
