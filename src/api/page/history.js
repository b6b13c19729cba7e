'use strict';

// Counters of the server become rates here: what was added to each of them,
// and in which time.

const SPAN = 300;       // seconds that are remembered
const NOW = 5;          // seconds that "now" is a mean of

// from the bottom of the graph to its top
const KINDS = [
    ['admitted', 'admitted'],
    ['above', 'soft or delayed'],
    ['dry', 'dry run'],
    ['refused', 'refused'],
];


function kindOf(status) {
    return status.endsWith('_dry_run') ? 'dry'
         : ['rejected', 'failed_closed'].includes(status) ? 'refused'
         : ['soft', 'elastic', 'delayed'].includes(status) ? 'above'
         : 'admitted';
}


// counters of a zone by kind

function zoneCounters(zone) {
    const counters = { admitted: 0, above: 0, dry: 0, refused: 0, failed: 0,
                       evictions: zone.evictions };

    for (const [status, n] of Object.entries(zone.requests)) {
        counters[kindOf(status)] += n;

        if (status.startsWith('failed_')) {
            counters.failed += n;
        }
    }

    return counters;
}


function totalOf(counters) {
    return KINDS.reduce((sum, [kind]) => sum + (counters[kind] ?? 0), 0);
}


function shareRefused(rates) {
    const total = rates ? totalOf(rates) : 0;

    return total > 0 ? rates.refused / total : null;
}


function sumOf(all) {
    const sums = {};

    for (const numbers of all) {
        for (const [name, n] of Object.entries(numbers)) {
            sums[name] = (sums[name] ?? 0) + n;
        }
    }

    return sums;
}


class History {

    constructor() {
        this.samples = [];      // { from, to, added }, the oldest first
    }


    // Returns what was added since the last call.  A counter that went back
    // began at 0 again: all of it was added.

    add(time, counters) {
        const { last } = this;

        this.last = { time, counters };

        if (!last) {
            return {};
        }

        const added = {};

        for (const [name, n] of Object.entries(counters)) {
            const before = last.counters[name] ?? 0;

            added[name] = n >= before ? n - before : n;
        }

        this.put(last.time, time, added);

        return added;
    }


    put(from, to, added) {
        this.samples.push({ from, to, added });

        while (this.samples[0].to < to - SPAN) {
            this.samples.shift();
        }
    }


    // added in a second, as a mean of the last seconds; null if not known yet

    rates(seconds = NOW) {
        const end = this.samples.at(-1)?.to;
        const some = this.samples.filter(({ to }) => to > end - seconds + 0.5);

        if (!some.length) {
            return null;
        }

        const rates = sumOf(some.map(({ added }) => added));

        for (const name of Object.keys(rates)) {
            rates[name] /= end - some[0].from;
        }

        return rates;
    }
}
