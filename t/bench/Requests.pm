package Requests;

# Processor time that a limit adds to a request, with few keys and with many,
# against that of the peers: limit_req and limit_conn, a counter in a shared
# dictionary of Lua, and a stick table of HAProxy.  All admit everything.  The
# time is that of the whole worker, less what it takes without a limit.

use strict;
use warnings;

use Load;
use Server;

use constant OURS => qw(fixed_window sliding_window);
use constant PEERS => qw(limit_req limit_conn lua);
use constant FEW => 10_000;
use constant MANY => 1_000_000;


# of each store and each number of keys: rate (a share of that without a
# limit) and added (nanoseconds)

sub measure {
    my ($module, $rounds) = @_;

    my $nginx = Server->nginx(http => nginx_config(),
                              modules => [$module, Server::LUA]);
    my $haproxy = Server->haproxy(haproxy_config());
    my %found;

    for my $keys (FEW, MANY) {
        my %some = (
            one($nginx, $keys, $rounds, OURS, PEERS),
            one($haproxy, $keys, $rounds, 'haproxy'),
        );

        $found{$_}{$keys} = $some{$_} for keys %some;
    }

    return %found;
}


sub one {
    my ($server, $keys, $rounds, @stores) = @_;

    my %path = map { ($_ => "/$_/$keys") } @stores;
    my @all = ('/none', map { $path{$_} } @stores);
    my %job = (port => $server->{port}, keys => $keys);

    Load::fill(%job, path => [grep { !/limit_conn/ } @all[1 .. $#all]]);

    my %found = Load::measure(%job, path => \@all, pid => [$server->{worker}],
                              rounds => $rounds, requests => 5000, depth => 8);

    for my $path (@all) {
        die "$path refuses\n" if $found{$path}{refused};
    }

    return map {
        ($_ => {
            rate => $found{$path{$_}}{rate} / $found{'/none'}{rate},
            added => $found{$path{$_}}{added}[0],
        })
    } @stores;
}


# each store has a zone and a location for each number of keys

sub nginx_config {
    my $zones = join '', map { zones($_) } FEW, MANY;
    my $locations = join '', map { locations($_) } FEW, MANY;

    return <<"END";
    ratelimit_headers off;

$zones
    server {
        listen 127.0.0.1:PORT backlog=1024;
        location = /none { empty_gif; }
$locations
    }
END
}


# Limits that no client reaches.  A higher one of a sliding_window needs counters
# of four bytes, and the keys would not find room.

sub zones {
    my ($keys) = @_;

    my $key = '$http_x_k';
    my $size = sub { sprintf '%dk', 64 + $keys * $_[0] / 1000 };

    return <<"END";
    limit_req_zone $key zone=limit_req_$keys:${\ $size->(140)} rate=9999r/s;
    limit_conn_zone $key zone=limit_conn_$keys:${\ $size->(140)};
    lua_shared_dict lua_$keys ${\ $size->(140)};

    ratelimit_zone $key zone=fixed_window_$keys:${\ $size->(24)}
                   rate=9999999r/h algorithm=fixed_window;
    ratelimit_zone $key zone=sliding_window_$keys:${\ $size->(72)}
                   rate=60000r/h algorithm=sliding_window;
END
}


sub locations {
    my ($keys) = @_;

    my $ours = join '', map { <<"END" } OURS;
        location = /$_/$keys { ratelimit zone=${_}_$keys; empty_gif; }
END

    return <<"END";
$ours
        location = /limit_req/$keys {
            limit_req zone=limit_req_$keys burst=9999 nodelay;
            empty_gif;
        }

        location = /limit_conn/$keys {
            limit_conn limit_conn_$keys 9999;
            empty_gif;
        }

        location = /lua/$keys {
            access_by_lua_block {
                local key = ngx.var.http_x_k
                local n = ngx.shared.lua_$keys:incr(key, 1, 0, 3600)

                if n > 9999999 then
                    return ngx.exit(429)
                end
            }
            empty_gif;
        }
END
}


# a limit of requests in a time is the only one that it has

sub haproxy_config {
    my $tables = join '', map { <<"END" } FEW, MANY;
backend keys_$_
    stick-table type string len 17 size ${_}0 expire 1h store http_req_rate(1h)

END

    my $rules = join '', map { <<"END" } FEW, MANY;
    http-request track-sc0 req.hdr(x-k) table keys_$_ if { path /haproxy/$_ }
END

    return <<"END";
global
    nbthread 1
    maxconn 2048

defaults
    mode http
    timeout client 1h
    timeout connect 1s
    timeout server 1h

$tables
frontend clients
    bind 127.0.0.1:PORT backlog 1024
$rules
    http-request deny deny_status 429 if { sc0_http_req_rate gt 9999999 }
    http-request return status 200
END
}


1;
