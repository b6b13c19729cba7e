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
use constant PEERS => qw(limit_req limit_conn lua haproxy);
use constant FEW => 10_000;
use constant MANY => 1_000_000;
use constant LUA => qw(/usr/lib/nginx/modules/ndk_http_module.so
                       /usr/lib/nginx/modules/ngx_http_lua_module.so);


# of each store and each number of keys: rate (a share of that without a
# limit) and added (nanoseconds)

sub measure {
    my ($module, $rounds) = @_;

    my $nginx = Server->nginx(http => nginx_config(),
                              modules => [$module, LUA]);
    my $haproxy = Server->haproxy(haproxy_config());
    my %found;

    for my $keys (FEW, MANY) {
        my %some = (
            one($nginx, $keys, $rounds, OURS, qw(limit_req limit_conn lua)),
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


# ours, its bytes of a key in a zone, and what the zones are

sub nginx_config {
    my $zones = '';
    my $locations = '';

    for my $keys (FEW, MANY) {
        my $end = "zone=%s_$keys:%dk";
        my $size = sub { sprintf $end, $_[0], 64 + $keys * $_[1] / 1000 };

        $zones .= <<"END";
    limit_req_zone \$http_x_k ${\ $size->('limit_req', 140)} rate=9999r/s;
    limit_conn_zone \$http_x_k ${\ $size->('limit_conn', 140)};
    lua_shared_dict lua_$keys ${\ int($keys * 140 / 1000 + 64)}k;
    ratelimit_zone \$http_x_k ${\ $size->('fixed_window', 24)}
                   rate=9999999r/h algorithm=fixed_window;
    ratelimit_zone \$http_x_k ${\ $size->('sliding_window', 72)}
                   rate=9999999r/h;
END

        $locations .= join '', map { <<"END" } OURS;
        location = /$_/$keys { ratelimit zone=${_}_$keys; empty_gif; }
END

        $locations .= <<"END";
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
