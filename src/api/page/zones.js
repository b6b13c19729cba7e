'use strict';

// The table of zones: a row for each, and what is known of its limits behind
// the zone's name.

const MINUTE = 60;          // seconds that a row's graph shows
const MUCH = 0.3;           // share of refused requests that is alarming


// the worst that can be said of a zone just now: [level, text]

function zoneState({ rates, share, without }) {
    if (!rates) {
        return ['idle', 'waiting'];
    }

    if (rates.failed > 0) {
        return ['bad', 'store fails'];
    }

    if (rates.evictions > 0) {
        return ['bad', 'evicts'];
    }

    if (share >= MUCH) {
        return ['bad', 'refuses much'];
    }

    if (without) {
        return ['warn', 'Redis down'];
    }

    if (rates.refused > 0) {
        return ['warn', 'refuses'];
    }

    if (rates.above > 0) {
        return ['warn', 'over limit'];
    }

    if (rates.dry > 0) {
        return ['ok', 'dry run'];
    }

    return totalOf(rates) > 0 ? ['ok', 'ok'] : ['idle', 'idle'];
}


// a zone of the server, and what the page makes of it; "down" are names of
// Redis servers

function describeZone(zone, history, down) {
    const rates = history.rates();
    const share = shareRefused(rates);
    const full = zone.size ? zone.bytes_used / zone.size : 0;
    const without = down.has(zone.redis);
    const [level, state] = zoneState({ rates, share, without });

    return { ...zone, id: zone.zone, history, rates, share, full, level, state };
}


const SORTS = {
    zone: (a, b) => a.zone.localeCompare(b.zone),
    requests: (a, b) => totalOf(b.rates ?? {}) - totalOf(a.rates ?? {}),
    refused: (a, b) => (b.rates?.refused ?? 0) - (a.rates?.refused ?? 0),
    share: (a, b) => (b.share ?? -1) - (a.share ?? -1),
    entries: (a, b) => b.entries - a.entries,
    memory: (a, b) => b.full - a.full,
    evictions: (a, b) => b.evictions - a.evictions,
};


class Zones {

    // actions: what the buttons of a zone do

    constructor(table, actions) {
        this.actions = actions;
        this.parts = new Map();
        this.list = new List(table, (zone) => this.create(zone),
                             (body, zone) => this.update(zone));
        this.makeSortable(table);
    }


    makeSortable(table) {
        for (const head of table.querySelectorAll('[data-sort]')) {
            const button = make('button', { type: 'button', class: 'plain',
                onclick: () => this.sortBy(table, head) });

            button.append(...head.childNodes);
            head.append(button);
        }
    }


    // by a column, the other way round, and again in the server's order

    sortBy(table, head) {
        const usual = head.dataset.sort === 'zone' ? 'ascending' : 'descending';
        const other = head.dataset.sort === 'zone' ? 'descending' : 'ascending';
        const next = { [usual]: other, [other]: null };
        const sort = head.ariaSort in next ? next[head.ariaSort] : usual;

        table.querySelectorAll('[aria-sort]').forEach((one) => {
            one.removeAttribute('aria-sort');
        });

        this.compare = sort && SORTS[head.dataset.sort];
        this.sign = sort === usual ? 1 : -1;

        if (sort) {
            head.setAttribute('aria-sort', sort);
        }

        this.list.show(this.sorted(), true);
    }


    sorted() {
        return this.compare
            ? this.zones.toSorted((a, b) => this.sign * this.compare(a, b))
            : this.zones;
    }


    show(zones, now) {
        this.zones = zones;
        this.now = now;
        this.list.show(this.sorted());
    }


    create(zone) {
        const part = {
            state: makeState(),
            spark: new Stack(),
            requests: make('td', { class: 'number' }),
            refused: make('td', { class: 'number' }),
            share: make('td', { class: 'number' }),
            entries: make('td', { class: 'number middle' }),
            used: make('span', { class: 'sub' }),
            bar: makeBar(),
            evictions: make('td', { class: 'number middle' }),
            detail: new ZoneDetail(zone, this.actions),
        };

        const { detail } = part;
        const button = make('button', {
            type: 'button', class: 'plain', 'aria-expanded': 'false',
            'aria-controls': detail.element.id,
            onclick: () => this.disclose(part, button),
        }, zone.zone);

        this.parts.set(zone.id, part);

        return make('tbody', {},
            make('tr', {},
                make('td', {}, part.state),
                make('th', { scope: 'row', class: 'name' }, button),
                make('td', { class: 'wide' }, this.sparkBox(part.spark)),
                part.requests, part.refused, part.share, part.entries,
                make('td', { class: 'middle' }, part.bar, part.used),
                part.evictions),
            detail.element);
    }


    sparkBox(spark) {
        const box = make('div', { class: 'spark' });

        box.append(spark.svg);

        return box;
    }


    disclose(part, button) {
        const open = part.detail.element.hidden;

        part.detail.element.hidden = !open;
        button.setAttribute('aria-expanded', open);
        this.show(this.zones, this.now);
    }


    update(zone) {
        const part = this.parts.get(zone.id);
        const { rates } = zone;

        setState(part.state, zone.level, zone.state);
        part.spark.draw(zone.history.samples, this.now, MINUTE);
        setText(part.requests, rateText(rates && totalOf(rates)));
        setText(part.refused, rateText(rates && rates.refused));
        setText(part.share, shareText(zone.share));
        setText(part.entries, countText(zone.entries));
        setText(part.used, memoryText(zone));
        setBar(part.bar, zone.full, 'ok');
        setText(part.evictions, countText(zone.evictions));

        if (!part.detail.element.hidden) {
            part.detail.update(zone);
        }
    }
}


// behind a zone's name: what it is, and the requests of each limit by status

class ZoneDetail {

    constructor(zone, actions) {
        const cell = make('td');

        this.cell = cell;
        this.element = make('tr', { class: 'detail',
                                    id: `zone-${ZoneDetail.next++}` }, cell);
        this.element.hidden = true;
        this.facts = make('dl');
        this.limits = make('tbody');

        cell.append(this.facts,
            make('table', { class: 'limits',
                            'aria-label': `Limits of zone ${zone.zone}` },
                make('thead', {},
                    make('tr', {},
                        ...['Limit', 'Rates', 'Requests'].map((text) =>
                            make('th', { scope: 'col' }, text)))),
                this.limits),
            ...actions.map(({ text, run, write }) =>
                make('button', { type: 'button', class: write ? 'write' : '',
                                 onclick: () => run(zone.zone) }, text)));
    }


    // it has the width of the columns that are shown

    update(zone) {
        const row = this.element.previousElementSibling;

        this.cell.colSpan = [...row.cells].filter(({ offsetWidth }) =>
            offsetWidth).length;

        const facts = [
            ['Algorithm', zone.algorithm],
            ['Key', zone.key],
            ['Counts in', placeText(zone)],
            ['State', zone.state, 'narrow'],
            ['Counters', countText(zone.entries), 'narrow'],
            ['Memory', memoryText(zone), 'narrow'],
            ['Evicted', countText(zone.evictions), 'narrow'],
            ['Delayed for', zone.delayed_seconds > 0
                            && secondsText(zone.delayed_seconds)],
        ];

        this.facts.replaceChildren(...facts.filter(([, text]) => text)
            .map(([name, text, only = '']) =>
                make('div', { class: only },
                     make('dt', {}, name), make('dd', {}, text))));

        this.limits.replaceChildren(...zone.limits.map((limit) =>
            make('tr', {},
                make('th', { scope: 'row' }, limitText(zone.zone, limit.name)),
                make('td', {}, limit.rates.join(', ')),
                make('td', {}, requestsText(limit.requests)))));
    }
}

ZoneDetail.next = 1;


// requests by status; of most statuses there are none

function requestsText(requests) {
    return Object.entries(requests)
        .filter(([status, n]) => n || ['passed', 'rejected'].includes(status))
        .map(([status, n]) => `${status.replaceAll('_', ' ')} ${countText(n)}`)
        .join(', ');
}


function memoryText({ bytes_used, size }) {
    return `${bytesText(bytes_used)} of ${bytesText(size)}`;
}


function placeText({ backend, redis }) {
    return backend === 'shm' ? 'shared memory'
         : backend === 'sync' ? `shared memory, and Redis ${redis}`
         : `Redis ${redis}`;
}
