#!/usr/bin/perl

# "make install" puts the module where nginx looks for modules and says how to
# load it.  A module that a running nginx has mapped is replaced by a new file:
# its workers live on and go on counting, and so it is by "make uninstall".

use strict;
use warnings;

use File::Temp qw(tempdir);
use Test::More;

use lib 't/lib';
use Clients;
use Gateway;
use Together;

use constant TIMES => 5;

my $name = 'ngx_http_ratelimit_module.so';
my $module = Gateway->module;
my $dir = tempdir(CLEANUP => 1);

# of the make that runs the tests
delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES)};

chmod 0755, $dir;

BAIL_OUT("$module is missing: make") if !-f $module;


subtest 'the folder is that of nginx' => sub {
    for (['--prefix=/opt/a --modules-path=/usr/lib/m --b', '/usr/lib/m'],
         ['--prefix=/opt/a --with-compat', '/opt/a/modules'],
         ['', '/usr/local/nginx/modules'])
    {
        my ($arguments, $modules) = @$_;

        nginx("echo nginx version: nginx/1.22.1 >&2\n"
              . "echo configure arguments: $arguments >&2");

        my $text = make("install NGINX_BINARY=$dir/nginx DESTDIR='$dir/a root'");

        is($?, 0, "with \"$arguments\"") or diag($text);
        like($text, qr{^load_module \Q$modules/$name\E;$}m, 'a line to load it');
        ok(-f "$dir/a root$modules/$name", 'in the folder, below DESTDIR');
        is((stat _)[2] & 07777, 0644, 'for all to read');
    }

    my $text = make("install NGINX_BINARY=$dir/none DESTDIR='$dir/a root'");

    isnt($?, 0, 'without nginx it is not known');
    like($text, qr/where are the modules.* MODULES_DIR=/, 'told what to do');
};

subtest 'over a module that is running' => sub {
    my $installed = "$dir/modules/$name";
    my $install = "MODULES_DIR=$dir/modules";
    my ($line) = make("install $install") =~ /^(load_module .*)$/m;

    is($line, "load_module $installed;", 'installed');

    local $ENV{RATELIMIT_MODULE} = $installed;

    my $gateway = Gateway->start(workers => 2, http =>
        "ratelimit_zone \$arg_k zone=z:1m rate=3r/d;\n"
        . Gateway->server('/' => 'ratelimit zone=z;'));
    my @workers = sort $gateway->current_workers;

    my ($statuses) = Together::run(undef, sub {
        my $clients = Clients->new($gateway->{port});

        return Clients::tally(map { $clients->series(['GET /?k=a'],
                                                     ["GET /?k=b$_"]) }
                                  1 .. 500);
    }, sub {
        make("install $install") for 1 .. TIMES;
        return {};
    });

    is_deeply($statuses, { 200 => 503, 429 => 497 }, 'limits as before');
    is_deeply([map { mapped($_) } @workers], [("$installed (deleted)") x 2],
              'workers have the old file');
    ok(-f $installed && !-e "$installed.new", 'others will have the new one');

    like(make("uninstall $install"), qr/^\Q$line\E$/m, 'removed');
    is($?, 0, 'make uninstall');
    ok(!-e $installed, 'there is none');

    is(join(' ', map { $_->{status} } Clients->new($gateway->{port})
                     ->series((['GET /?k=c']) x 4)),
       '200 200 200 429', 'and the gateway limits still');
    is_deeply([sort $gateway->current_workers], \@workers,
              'all workers are alive');
    is($gateway->complaints, '', 'nothing to complain about');
};

done_testing();


# of a module that is there, whatever it was built with

sub make {
    my ($target) = @_;

    return scalar `make -o $module MODULE=$module $target 2>&1 < /dev/null`;
}


# a program that is taken for nginx

sub nginx {
    my ($text) = @_;

    open my $file, '>', "$dir/nginx" or die "$dir/nginx: $!";
    print $file "#!/bin/sh\n$text\n";
    close $file or die "$dir/nginx: $!";
    chmod 0755, "$dir/nginx";
}


# the path of the module that a process has mapped

sub mapped {
    my ($pid) = @_;

    return Gateway::slurp("/proc/$pid/maps") =~ m{ (/\S+\Q$name\E.*)$}m
           ? $1 : 'none';
}
