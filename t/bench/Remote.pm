package Remote;

# Limits that Redis decides, one round trip for each request, against the Lua
# module with scripts of the same algorithms (peer/): requests a second, and
# what nginx and Redis spend.  Both have the same Redis, and admit everything.

use strict;
use warnings;

use Cwd qw(getcwd);

use Instructions;
use Load;
use Server;

use constant KEYS => 10_000;
use constant ALGORITHMS => qw(fixed_window sliding_window);
use constant CONNECTIONS => (32, 128);
use constant LUA => qw(/usr/lib/nginx/modules/ndk_http_module.so
                       /usr/lib/nginx/modules/ngx_http_lua_module.so);


# of each algorithm, each number of connections and "ours" or "lua": rate,
# nginx (nanoseconds added to a request) and redis (nanoseconds of a decision)

sub measure {
    my ($module, $rounds) = @_;

    my $redis = Server->redis;
    my $nginx = Server->nginx(http => config($redis),
                              modules => [$module, LUA]);
    my %path = paths();
    my @all = ('/none', map { values %{$path{$_}} } ALGORITHMS);
    my %job = (port => $nginx->{port}, keys => KEYS, path => \@all,
               pid => [$nginx->{worker}, $redis->{worker}]);
    my %found;

    Load::fill(%job);

    for my $connections (CONNECTIONS) {
        my %some = Load::measure(%job, connections => $connections,
                                 rounds => $rounds, requests => 10_000);

        for my $algorithm (ALGORITHMS) {
            $found{$algorithm}{$connections}{$_}
                = figures($some{$path{$algorithm}{$_}})
                for sort keys %{$path{$algorithm}};
        }
    }

    return %found;
}


# of each algorithm and "ours" or "lua": instructions added to a request

sub instructions {
    my ($module) = @_;

    my $redis = Server->redis;
    my %path = paths();
    my %some = Instructions::measure(
        path => ['/none', map { values %{$path{$_}} } ALGORITHMS],
        http => config($redis), modules => [$module, LUA]);

    return map {
        my $of = $path{$_};

        ($_ => { map { $_ => $some{$of->{$_}} - $some{'/none'} } keys %$of });
    } ALGORITHMS;
}


sub paths {
    return map {
        ($_ => { lua => "/lua/$_" })
    } ALGORITHMS;
}


sub figures {
    my ($found) = @_;

    die "a limit refuses\n" if $found->{refused};

    return {
        rate => $found->{rate},
        nginx => $found->{added}[0],
        redis => $found->{cpu}[1],
    };
}


sub config {
    my ($redis) = @_;

    my $folder = getcwd() . '/t/bench/peer';
    my $locations = join '', map { <<"END" } ALGORITHMS;
        location = /lua/$_ {
            access_by_lua_block {
                require('access').limit($redis->{port},
                                        '${\ sha($redis, $_)}',
                                        'lua:$_:' .. ngx.var.http_x_k)
            }
            empty_gif;
        }
END

    return <<"END";
    lua_package_path "$folder/?.lua;;";

    server {
        listen 127.0.0.1:PORT backlog=1024;
        location = /none { empty_gif; }
        ${\ Instructions::MARK}
$locations
    }
END
}


# Redis knows the script of the peer by this

sub sha {
    my ($redis, $name) = @_;

    my $sha = `redis-cli -p $redis->{port} -x script load < t/bench/peer/$name.lua`;

    chomp $sha;
    die "$name.lua: $sha\n" if $sha !~ /^[0-9a-f]{40}$/;

    return $sha;
}


1;
