'use strict';

// One key: where it stands in each zone, and its reset.

const LIVE_ZONES = 10;      // no more are asked again each second


// Whether the user agrees: by a button; Escape means no.

function confirmed({ title, key, text, action }) {
    const dialog = byId('confirm');

    setText(byId('confirm-title'), title);
    setText(byId('confirm-key'), keyText(key));
    setText(byId('confirm-text'), text);
    setText(byId('confirm-yes'), action);

    return new Promise((resolve) => {
        dialog.returnValue = 'no';
        dialog.addEventListener('close',
            () => resolve(dialog.returnValue === 'yes'), { once: true });
        dialog.showModal();
    });
}


// returns what became of it, or nothing if the user did not want it

async function resetKey(zone, key) {
    const yes = await confirmed({
        title: `Reset this key in zone ${zone}?`,
        key,
        text: 'It has its full limit again at once, in all limits of the '
              + 'zone, on every gateway that counts in the same place.',
        action: 'Reset',
    });

    if (!yes) {
        return '';
    }

    try {
        await ask(keyPath(zone, key), 'DELETE');

        return `Reset in zone ${zone}: ${keyText(key)}`;

    } catch (error) {
        return `Not reset in zone ${zone}: ${failureText(error)}`;
    }
}


async function resetStatistics(zone) {
    const yes = await confirmed({
        title: `Reset the statistics of zone ${zone}?`,
        key: '',
        text: 'The requests of its limits are counted from 0. Limits, keys and '
              + 'metrics are not touched.',
        action: 'Reset',
    });

    if (!yes) {
        return '';
    }

    try {
        await ask(zonePath(zone), 'DELETE');

        return `The statistics of zone ${zone} were reset.`;

    } catch (error) {
        return `The statistics of zone ${zone} stay: ${failureText(error)}`;
    }
}


// the names of all zones that can have a key; nothing if there is no answer

async function zonesTaking(key) {
    try {
        const { zones } = await ask(`zones?key=${encode(key)}`);

        return new Set(zones.map(({ zone }) => zone));

    } catch {
        return null;
    }
}


// Where a key stands in a zone.  Of one that can't have it nothing is asked: a
// browser logs each refusal as an error.

async function lookAt(zone, key, takers) {
    try {
        if (takers && !takers.has(zone)) {
            throw new Error('it has other keys, such as addresses');
        }

        return await ask(keyPath(zone, key));

    } catch (error) {
        return { zone, limits: [], failure: failureText(error) };
    }
}


// the names of at most some zones

function namesText(zones) {
    const some = zones.slice(0, LIVE_ZONES).join(', ');

    return zones.length > LIVE_ZONES
        ? `${some} and ${zones.length - LIVE_ZONES} more` : some;
}


// of a rate that varies, the server knows what was used of it

function isUsed({ used, limit, remaining }) {
    return used === undefined ? remaining < limit : used > 0;
}


// The dialog that shows a key; what it shows is refreshed while it is open.

class Look {

    constructor(dialog) {
        this.dialog = dialog;
        this.rows = dialog.querySelector('tbody');
        this.message = byId('look-message');

        dialog.querySelector('.close').addEventListener('click',
            () => dialog.close());
        dialog.addEventListener('close', () => clearTimeout(this.timer));
    }


    open(key, zones) {
        this.key = key;
        this.zones = zones;
        this.news = '';
        this.used = new Set();
        this.rows.replaceChildren();
        this.list = new List(this.rows, (row) => this.create(row),
                             (element, row) => this.update(element, row));

        setText(byId('look-key'), keyText(key));
        setText(this.message, 'asking');
        this.dialog.showModal();
        this.refresh();
    }


    // zones that can have the key are learned once

    async refresh(takers) {
        const { list, key, zones } = this;

        if (document.hidden) {
            this.again(takers);
            return;
        }

        takers = takers ?? await zonesTaking(key);

        const answers = await Promise.all(zones.map((zone) =>
            lookAt(zone, key, takers)));

        // it may show another key now

        if (this.list !== list || !this.dialog.open) {
            return;
        }

        this.show(answers);

        if (zones.length <= LIVE_ZONES) {
            this.again(takers);
        }
    }


    again(takers) {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.refresh(takers), PERIOD);
    }


    // of many zones, those in which something was counted

    show(answers) {
        const rest = [];

        for (const { zone, limits, failure } of answers) {
            const used = limits.some(({ rates }) => rates.some(isUsed));

            if (used || (answers.length === 1 && limits.length)) {
                this.used.add(zone);
            }

            if (!failure && !this.used.has(zone)) {
                rest.push(zone);
            }
        }

        this.list.show(answers.filter(({ zone }) => this.used.has(zone))
                              .flatMap((answer) => this.rowsOf(answer)));

        setText(this.message, [
            this.news,
            ...answers.filter(({ failure }) => failure)
                .map(({ zone, failure }) => `${zone}: ${failure}.`),
            rest.length ? `Nothing is counted for it in ${namesText(rest)}.`
                        : '',
        ].filter(Boolean).join(' '));

        this.dialog.querySelector('table').hidden = !this.rows.firstChild;
    }


    rowsOf({ zone, limits }) {
        const rows = limits.flatMap(({ name, rates }) =>
            rates.map((rate) => ({ zone, name, ...rate })));

        return rows.map((row, i) => ({
            id: JSON.stringify([zone, row.name, row.rate ?? row.period, !i]),
            first: !i,
            ...row,
        }));
    }


    create(row) {
        const actions = make('td', { class: 'actions' });

        if (row.first) {
            actions.append(make('button', {
                type: 'button', class: 'write',
                'aria-label': `Reset in zone ${row.zone}`,
                onclick: () => this.reset(row.zone),
            }, 'Reset'));
        }

        return make('tr', {},
            make('th', { scope: 'row' }, limitText(row.zone, row.name),
                 make('span', { class: 'sub' },
                      row.rate ?? `in ${row.period}`)),
            make('td', {}, make('span'), makeBar()),
            make('td', {}, make('span'), make('span', { class: 'sub' })),
            actions);
    }


    update(element, { limit, remaining, used, reset, retry_after }) {
        const [, left, times] = element.children;
        const known = used === undefined;

        setText(left.firstChild, known
            ? `${countText(remaining)} of ${countText(limit)}`
            : `${countText(used)} used`);
        left.lastChild.hidden = !known;
        setBar(left.lastChild, limit ? remaining / limit : 0,
               remaining > 0 ? 'ok' : 'bad');
        setText(times.firstChild, retry_after > 0 ? secondsText(retry_after)
                                : known ? 'now' : NONE);
        setText(times.lastChild, reset > 0 ? `whole in ${secondsText(reset)}`
                                           : 'whole');
    }


    async reset(zone) {
        this.news = await resetKey(zone, this.key);
        this.refresh();
    }
}
