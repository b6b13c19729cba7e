-- A limit by a script of Redis, as the Lua module of nginx asks for it.

local redis = require 'nginx.redis'

local _M = {}


function _M.limit(port, script, name, limit, period)
    local client = redis:new()

    client:set_timeout(1000)

    local connected, why = client:connect('127.0.0.1', port)

    if not connected then
        ngx.log(ngx.ERR, 'connect: ', why)
        return ngx.exit(503)
    end

    local verdict, failure = client:evalsha(script, 1, name, limit, period,
                                            '1')

    if not verdict then
        ngx.log(ngx.ERR, 'evalsha: ', failure)
        return ngx.exit(503)
    end

    client:set_keepalive(60000, 256)

    if verdict[1] == 0 then
        return ngx.exit(429)
    end
end


return _M
