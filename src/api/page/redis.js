'use strict';

// The table of Redis servers: whether they answer, and how fast.

const RECENT = 60;      // seconds that the latency is of


// breaker and failures of a server just now: [level, text]

function redisState({ up, breaker, rates }) {
    if (!up || breaker === 'open') {
        return ['bad', 'down'];
    }

    if (breaker !== 'closed') {
        return ['warn', 'probed'];
    }

    return rates && (rates.timeouts > 0 || rates.errors > 0)
        ? ['warn', 'fails at times'] : ['ok', 'up'];
}


// what can be counted of a server, the steps of its histogram as well

function redisCounters({ commands, timeouts, errors, latency_seconds }) {
    const counters = { commands, timeouts, errors };

    for (const [bound, n] of Object.entries(latency_seconds?.buckets ?? {})) {
        counters[`le ${bound}`] = n;
    }

    return counters;
}


// the smallest bound that a share of the replies did not exceed

function quantile(rates, share) {
    const steps = Object.entries(rates ?? {})
        .filter(([name]) => name.startsWith('le '))
        .map(([name, n]) => [Number(name.slice(3).replace('+Inf', 'Infinity')),
                             n])
        .sort(([a], [b]) => a - b);
    const all = steps.at(-1)?.[1] ?? 0;
    const step = steps.find(([, n]) => n >= all * share);

    return all > 0 ? step[0] : null;
}


// the nodes of a cluster have one name

function redisId({ name, address }) {
    return JSON.stringify([name, address]);
}


function describeRedis(redis, history) {
    const rates = history.rates();
    const [level, state] = redisState({ ...redis, rates });

    return { ...redis, id: redisId(redis), rates, level,
             state, latency: history.rates(RECENT) };
}


class RedisServers {

    constructor(table) {
        this.parts = new Map();
        this.list = new List(table, (redis) => this.create(redis),
                             (body, redis) => this.update(redis));
    }


    show(servers) {
        this.list.show(servers);
    }


    create(redis) {
        const part = {
            state: makeState(),
            figures: make('td', { class: 'sub', colspan: 4 }),
            commands: make('td', { class: 'number middle' }),
            median: make('td', { class: 'number' }),
            late: make('td', { class: 'number' }),
        };

        this.parts.set(redis.id, part);

        return make('tbody', {},
            make('tr', {},
                make('td', {}, part.state),
                make('th', { scope: 'row' },
                     make('span', { class: 'name' }, redis.name), ' ',
                     make('span', { class: 'hint' }, redis.address)),
                part.commands, part.median, part.late),
            make('tr', { class: 'figures' }, make('td'), part.figures));
    }


    update(redis) {
        const part = this.parts.get(redis.id);

        setState(part.state, redis.level, redis.state);
        setText(part.commands, rateText(redis.rates && redis.rates.commands));
        setText(part.median, latencyText(quantile(redis.latency, 0.5)));
        setText(part.late, latencyText(quantile(redis.latency, 0.99)));
        setText(part.figures, [
            thingsText(redis.commands, 'command'),
            thingsText(redis.timeouts, 'timeout'),
            thingsText(redis.errors, 'error'),
            `${countText(redis.fallbacks)} decided without it`,
            `${countText(redis.denied)} refused from memory`,
        ].join(' · '));
    }
}
