if op == 'i' then
    return redis.status_reply('OK')
end

return verdicts
