'use strict';

// The page: it asks the server each second while it is visible, and hands
// what it learns to the parts.

const PERIOD = 1000;        // milliseconds from question to question

const ICONS = { ok: '2c9a62', warn: 'd99b1c', bad: 'd63a40', idle: '8a94a0' };
const LEVELS = ['idle', 'ok', 'warn', 'bad'];

const histories = new Map();
const all = new History();

const graph = new Graph(byId('graph'), byId('graph-title'),
                        byId('legend'));
const look = new Look(byId('look'));
const servers = new RedisServers(byId('redis'));

const zones = new Zones(byId('zones'), [
    { text: 'Show in the graph', run: (zone) => choose(zone) },
    { text: 'Reset statistics', write: true,
      run: async (zone) => tell(await resetStatistics(zone)) },
]);

const top_keys = new Top(byId('top').tBodies[0], byId('top-more'), [
    { text: 'Look', run: ({ zone, key }) => look.open(key, [zone]) },
    { text: 'Reset', write: true,
      run: async ({ zone, key }) => tell(await resetKey(zone, key)) },
]);

let names = [];
let timer;
let asking = false;
let answered;               // when the server answered last, in milliseconds


function historyOf(kind, id) {
    const name = `${kind} ${id}`;

    if (!histories.has(name)) {
        histories.set(name, new History());
    }

    return histories.get(name);
}


// what the server said, at a time in seconds

function remember(data, now) {
    const added = data.zones.map((zone) =>
        historyOf('zone', zone.zone).add(now, zoneCounters(zone)));

    if (all.time !== undefined) {
        all.put(all.time, now, { admitted: 0, above: 0, dry: 0, refused: 0,
                                 ...sumOf(added) });
    }

    all.time = now;

    for (const redis of data.redis) {
        historyOf('redis', redisId(redis)).add(now, redisCounters(redis));
    }
}


function show(data, now) {
    const redis = data.redis.map((server) =>
        describeRedis(server, historyOf('redis', redisId(server))));
    const down = new Set(redis.filter(({ level }) => level === 'bad')
                              .map(({ name }) => name));
    const described = data.zones.map((zone) =>
        describeZone(zone, historyOf('zone', zone.zone), down));

    showNames(data.zones.map(({ zone }) => zone));
    showTotals(described, redis);
    showGraph(now);
    zones.show(described, now);
    servers.show(redis);
    byId('zones-empty').hidden = described.length > 0;
    byId('zones').hidden = !described.length;
    byId('redis-panel').hidden = !redis.length;
    document.body.classList.toggle('read-only', !data.write);
    setText(byId('gateway'), `${location.host} · ${data.version}`);
    setText(byId('access'), 'Refreshes each second while it is visible.'
            + (data.write ? '' : ' Changes are not permitted here.'));
}


function showTotals(described, redis) {
    const rates = all.rates();
    const share = shareRefused(rates);
    const down = redis.filter(({ level }) => level === 'bad').length;
    const worst = worstOf([...described, ...redis]);

    setText(byId('total-requests'), rateText(rates && totalOf(rates)));
    setText(byId('total-refused'), rateText(rates && rates.refused));
    setText(byId('total-share'), shareText(share));
    setText(byId('total-entries'), countText(
        described.reduce((sum, { entries }) => sum + entries, 0)));
    setText(byId('total-redis'), !redis.length ? NONE
        : down ? `${down} of ${redis.length} down` : 'up');

    setAttribute(byId('total-refused-tile'), 'data-level',
                 share >= MUCH ? 'bad' : share > 0 ? 'warn' : 'ok');
    setAttribute(byId('total-redis-tile'), 'data-level', worstOf(redis));
    byId('total-redis-tile').hidden = !redis.length;

    showIcon(worst);
    document.title = rates && rates.refused > 0
        ? `${rateText(rates.refused)}/s refused – ratelimit` : 'ratelimit';
}


function worstOf(things) {
    return LEVELS[Math.max(0, ...things.map(({ level }) =>
        LEVELS.indexOf(level)))];
}


function showIcon(level) {
    setAttribute(byId('icon'), 'href', 'data:image/svg+xml,'
        + '%3Csvg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"%3E'
        + `%3Ccircle cx="8" cy="8" r="7" fill="%23${ICONS[level]}"/%3E`
        + '%3C/svg%3E');
}


// the lists to choose a zone from

function showNames(now) {
    if (JSON.stringify(now) === JSON.stringify(names)) {
        return;
    }

    names = now;

    for (const select of [byId('search-zone'), byId('graph-zone')]) {
        const { value } = select;

        select.replaceChildren(select.options[0], ...names.map((name) =>
            make('option', { value: name }, name)));
        select.value = names.includes(value) ? value : '';
    }
}


function showGraph(now) {
    const zone = byId('graph-zone').value;

    graph.show(zone ? historyOf('zone', zone) : all, now);
}


function choose(zone) {
    byId('graph-zone').value = zone;
    showGraph(all.time);
    byId('graph').focus();
}


function tell(text) {
    setText(byId('notice'), text);
}


// a figure that is not of now is not shown as if it were

function connected() {
    answered = Date.now();
    byId('alert').hidden = true;
    document.body.classList.remove('stale');
    setAttribute(byId('connection'), 'data-state', 'live');
    setText(byId('connection'), 'live');
}


function disconnected(error) {
    document.body.classList.add('stale');
    setAttribute(byId('connection'), 'data-state', 'lost');
    setText(byId('connection'), 'no answer');
    setText(byId('alert'), `The server does not answer: ${failureText(error)}. `
        + (answered ? `The figures are of ${clockText(answered)}. ` : '')
        + 'The page tries again each second.');
    byId('alert').hidden = false;
}


async function refresh() {
    if (asking) {
        return;
    }

    asking = true;

    const start = performance.now();

    try {
        const data = await ask('');
        const now = performance.now() / 1000;

        remember(data, now);
        show(data, now);
        connected();
        await top_keys.refresh(data.zones, now);

    } catch (error) {
        disconnected(error);
    }

    asking = false;
    schedule(start + PERIOD - performance.now());
}


function schedule(milliseconds) {
    clearTimeout(timer);

    if (!document.hidden) {
        timer = setTimeout(refresh, Math.max(0, milliseconds));
    }
}


for (const link of document.querySelectorAll('[data-href]')) {
    link.href = BASE + link.dataset.href;
}

byId('graph-zone').addEventListener('change', () => showGraph(all.time));

byId('search').addEventListener('submit', (event) => {
    const zone = byId('search-zone').value;

    event.preventDefault();
    look.open(byId('search-key').value, zone ? [zone] : names);
});

document.addEventListener('visibilitychange', () => schedule(0));

schedule(0);
