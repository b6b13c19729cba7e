#!/usr/bin/perl

# What operators see of rule files: statistics of each rule, from calls and from
# locations, where a descriptor stands, and its reset.  If this fails, a rule
# is not to be found among the limits of its zone.

use strict;
use warnings;

use JSON::PP;
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use RuleFiles;
use ServiceCalls;

my $files = RuleFiles->new('basic.yaml' => <<'END');
domain: basic
descriptors:
  - { key: one, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: shadow, shadow_mode: true,
      rate_limit: { unit: day, requests_per_unit: 1 } }
END

my $gateway = Gateway->start(workers => 2, http => <<"END" . Gateway->server(
ratelimit_rules $files->{dir}/*.yaml zone=rules:1m algorithm=fixed_window;
END
    '/service' => 'ratelimit_service;',
    '/location' => 'ratelimit rules=basic descriptor=one:$arg_k;',
    '/api/' => 'ratelimit_api write=on;'));

my $clients = Clients->new($gateway->{port});
my $calls = ServiceCalls->new($clients, '/service');

$calls->ask('basic', { one => 'a' }, { shadow => 'a' }) for 1 .. 3;
$clients->series((['GET /location?k=b']) x 3);

my %limit = map { ($_->{name} => $_) } @{api('/zones/rules')->{limits}};

is_deeply([sort keys %limit], [qw(basic.one basic.shadow basic:override)],
          'the zone has the rules of the file');
is_deeply($limit{'basic.one'}{rates}, ['2r/d'], 'with their rates');
is($limit{'basic.one'}{requests}{passed}, 4, 'passed calls and requests');
is($limit{'basic.one'}{requests}{rejected}, 2, 'refused ones');
is($limit{'basic.shadow'}{requests}{passed}, 1, 'shadow mode: passed');
is($limit{'basic.shadow'}{requests}{rejected_dry_run}, 2,
   'and what would be refused');

my $key = '/zones/rules/keys/one:a?name=basic.one';

is(api($key)->{limits}[0]{rates}[0]{remaining}, 0, 'where a descriptor stands');
is($clients->ask("DELETE /api$key")->{status}, 204, 'its reset');
is(api($key)->{limits}[0]{rates}[0]{remaining}, 2, 'it has its whole limit');
is(ServiceCalls::short($calls->ask('basic', { one => 'a' })->{json}),
   'OK OK(1 of 2/DAY)', 'also for calls');

# a limit that the call brings along

my %own = (-limit => { requestsPerUnit => 3, unit => 'DAY' });
my $own = '/zones/rules/keys/one:c?name=basic:override';
my $last = sub {
    return ServiceCalls::short($calls->ask('basic', { one => 'c', %own })
                                     ->{json});
};

$last->() for 1 .. 4;
is_deeply([map { @$_{qw(period used)} } @{api($own)->{limits}[0]{rates}}],
          ['d', 3], 'where its descriptor stands');
is($clients->ask("DELETE /api$own")->{status}, 204, 'its reset');
is($last->(), 'OK OK(2 of 3/DAY)', 'it has its whole limit');

is($gateway->complaints, '', 'nothing to complain about');

done_testing();


sub api {
    my ($path) = @_;

    return decode_json($clients->ask("GET /api$path")->{body});
}
