'use strict';

// The table of keys that are refused most, of all zones.  A zone is asked for
// its keys when it has refused since it was asked, or would have but for a dry
// run, and now and then while it has any, as they fade.

const ASK_AT_ONCE = 8;      // zones in a second
const FADE = 5;             // seconds until a zone that is quiet is asked again
const SHOWN = 12;           // rows, unless all are wanted


class Top {

    constructor(body, more, actions) {
        this.actions = actions;
        this.more = more;
        this.zones = new Map();     // { top, refused, time } by zone
        this.list = new List(body, (row) => this.create(row),
                             (element, row) => this.update(element, row));

        more.addEventListener('click', () => {
            this.all = !this.all;
            this.show();
        });
    }


    // asks for what may have changed; the zones that waited longest come first

    async refresh(zones, now) {
        const known = (name) => this.zones.get(name) ?? { top: [], time: 0 };
        const refused = ({ requests }) =>
            requests.rejected + requests.rejected_dry_run;

        const due = zones.filter((zone) => {
            const { top, refused: before, time } = known(zone.zone);

            return refused(zone) !== (before ?? 0)
                   || (top.length && now - time >= FADE);
        }).sort((a, b) => known(a.zone).time - known(b.zone).time);

        await Promise.all(due.slice(0, ASK_AT_ONCE).map(async (zone) => {
            const news = await this.ask(zone.zone, refused(zone));

            this.zones.set(zone.zone,
                           { ...known(zone.zone), ...news, time: now });
        }));

        this.forget(new Set(zones.map(({ zone }) => zone)));
        this.show();
    }


    // without an answer there is nothing new: it is asked for again

    async ask(zone, refused) {
        try {
            const { top } = await ask(`${zonePath(zone)}/top`);

            return { top, refused };

        } catch {
            return {};
        }
    }


    forget(names) {
        for (const name of this.zones.keys()) {
            if (!names.has(name)) {
                this.zones.delete(name);
            }
        }
    }


    show() {
        const rows = [...this.zones].flatMap(([zone, { top }]) =>
            top.map((entry) => ({
                ...entry, zone,
                id: JSON.stringify([zone, entry.name, entry.key]),
            })));

        rows.sort((a, b) => b.refused - a.refused);
        this.list.show(this.all ? rows : rows.slice(0, SHOWN));

        byId('top').hidden = !rows.length;
        byId('top-empty').hidden = rows.length > 0;
        this.more.hidden = rows.length <= SHOWN;
        setText(this.more, this.all ? 'Show fewer'
                                    : `Show all ${countText(rows.length)}`);
    }


    // of a long key only the beginning is known: it cannot be asked for

    create(row) {
        const shown = keyText(row.key) + (row.cut ? '…' : '');

        return make('tr', {},
            make('th', { scope: 'row' },
                 make('code', { class: 'key' }, shown)),
            make('td', {}, limitText(row.zone, row.name)),
            make('td', { class: 'number' }),
            make('td', { class: 'actions' },
                ...(row.cut ? [] : this.actions).map(({ text, run, write }) =>
                    make('button', {
                        type: 'button', class: write ? 'write' : '',
                        'aria-label': `${text} ${shown} in zone ${row.zone}`,
                        onclick: () => run(row),
                    }, text))));
    }


    // the sketch knows a number and how much of it may be another key's

    update(element, { refused, error }) {
        const least = refused - error;

        setText(element.children[2], error > 0
            ? `${countText(least)}–${countText(refused)}` : countText(refused));
    }
}
