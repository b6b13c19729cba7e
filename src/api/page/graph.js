'use strict';

// A stack of areas, one for each kind of request: in the graph with its axes,
// and in a row of a zone without.  A step is what was counted from one answer
// of the server to the next.


// what the graph shows: a minute at first, and five as soon as there is more

const SPANS = [
    { seconds: 60, title: 'Last minute', step: 15, unit: 's', size: 1 },
    { seconds: SPAN, title: 'Last five minutes', step: 60, unit: 'min',
      size: 60 },
];


// 1, 2 or 5 with zeros: the smallest that is not below

function roundUp(n) {
    const power = 10 ** Math.floor(Math.log10(n));

    return [1, 2, 5, 10].map((digit) => digit * power)
                        .find((number) => number >= n * 0.9999);
}


class Stack {

    constructor() {
        this.svg = makeSvg('svg', { preserveAspectRatio: 'none',
                                    'aria-hidden': 'true' });
        this.paths = KINDS.map(([kind]) => makeSvg('path', { class: kind }));
        this.svg.append(...this.paths);
    }


    // the last seconds up to now; returns what the height stands for

    draw(samples, now, span) {
        const shown = samples.filter(({ to }) => to > now - span);
        const tops = shown.map(({ from, to, added }) =>
                               totalOf(added) / (to - from));
        const height = roundUp(Math.max(1, ...tops));
        const floor = shown.map(() => 0);

        setAttribute(this.svg, 'viewBox', `${-span} -100 ${span} 100`);

        KINDS.forEach(([kind], i) => {
            const ceiling = shown.map(({ from, to, added }, j) =>
                floor[j] + added[kind] / (to - from) / height * 100);
            const path = this.area(shown.map(({ from, to }) =>
                [Math.max(from - now, -span), to - now]), floor, ceiling);

            setAttribute(this.paths[i], 'd', path);
            ceiling.forEach((y, j) => { floor[j] = y; });
        });

        return height;
    }


    // of steps from x to x: forth along the ceiling, back along the floor

    area(steps, floor, ceiling) {
        if (!steps.length) {
            return '';
        }

        const point = (x, y) => `${x.toFixed(2)} ${(-y).toFixed(2)}`;
        const forth = steps.flatMap(([from, to], i) =>
            [point(from, ceiling[i]), point(to, ceiling[i])]);
        const back = steps.flatMap(([from, to], i) =>
            [point(from, floor[i]), point(to, floor[i])]);

        return `M${forth.join(' ')} ${back.reverse().join(' ')}Z`;
    }
}


class Graph {

    constructor(element, title, legend) {
        this.element = element;
        this.title = title;
        this.stack = new Stack();
        this.cursor = null;     // seconds before now that are pointed at

        this.line = makeSvg('line', { class: 'cursor', y1: -100, y2: 0 });
        this.labels = [0, 50, 100].map((y) => {
            const label = make('span', { class: 'left' });

            label.style.bottom = `${y}%`;

            return label;
        });

        this.times = make('div');
        this.stack.svg.prepend(...[25, 50, 75].map((y) =>
            makeSvg('line', { x1: -SPAN, x2: 0, y1: -y, y2: -y })));
        this.stack.svg.append(this.line);
        element.append(this.stack.svg, ...this.labels, this.times);
        this.setSpan(SPANS[0]);
        this.makeLegend(legend);
        this.listen();
    }


    setSpan(span) {
        const { seconds, title, step, unit, size } = span;

        if (this.span === span) {
            return;
        }

        this.span = span;
        setText(this.title, title);
        setAttribute(this.element, 'aria-valuemin', -seconds);
        this.times.replaceChildren();

        for (let time = seconds; time >= 0; time -= step) {
            const label = make('span', { class: 'below' },
                               time ? `${time / size} ${unit}` : 'now');

            label.style.left = `${100 - time / seconds * 100}%`;
            this.times.append(label);
        }
    }


    makeLegend(legend) {
        this.when = make('li');
        this.values = KINDS.map(() => make('b'));

        legend.append(this.when, ...KINDS.map(([kind, text], i) =>
            make('li', {}, make('i', { class: kind }), `${text} `,
                 this.values[i])));
    }


    // by pointer and by keys: the legend shows the figures of that moment

    listen() {
        const { element } = this;
        const set = (cursor) => {
            this.cursor = cursor === null ? null
                : Math.min(Math.max(Math.round(cursor), 0), this.span.seconds);
            this.update();
        };

        element.addEventListener('pointermove', (event) => {
            const box = element.getBoundingClientRect();

            set(this.span.seconds * (1 - (event.clientX - box.left) / box.width));
        });

        element.addEventListener('pointerleave', () => set(null));
        element.addEventListener('blur', () => set(null));
        element.addEventListener('keydown', (event) => {
            const step = { ArrowLeft: 1, ArrowRight: -1, PageUp: 30,
                           PageDown: -30, Home: SPAN, End: -SPAN }[event.key];

            if (step) {
                set((this.cursor ?? 0) + step);
                event.preventDefault();
            }
        });
    }


    show(history, now) {
        this.history = history;
        this.now = now;
        this.update();
    }


    update() {
        if (!this.history) {
            return;
        }

        const { samples } = this.history;
        const age = samples.length ? this.now - samples[0].from : 0;

        this.setSpan(SPANS.find(({ seconds }) => age <= seconds)
                     ?? SPANS.at(-1));

        const height = this.stack.draw(samples, this.now, this.span.seconds);

        this.labels.forEach((label, i) =>
            setText(label, shortText(height * i / 2)));

        this.tell();
    }


    tell() {
        const { cursor, now } = this;
        const sample = cursor === null ? null
            : this.history.samples.find(({ from, to }) =>
                from < now - cursor && to >= now - cursor);
        const rates = cursor === null ? this.history.rates()
                    : sample && Object.fromEntries(
                        Object.entries(sample.added).map(([name, n]) =>
                            [name, n / (sample.to - sample.from)]));
        const time = cursor ? clockText(Date.now() - cursor * 1000) : 'now';
        const texts = KINDS.map(([kind]) =>
            rates ? `${rateText(rates[kind])}/s` : NONE);

        setText(this.when, time);
        texts.forEach((text, i) => setText(this.values[i], text));

        this.line.style.display = cursor === null ? 'none' : '';
        setAttribute(this.line, 'x1', -(cursor ?? 0));
        setAttribute(this.line, 'x2', -(cursor ?? 0));
        setAttribute(this.element, 'aria-valuenow', -(cursor ?? 0));
        setAttribute(this.element, 'aria-valuetext', `${time}: `
            + KINDS.map(([, name], i) => `${name} ${texts[i]}`).join(', '));
    }
}
