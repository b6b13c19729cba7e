'use strict';

// What all parts of the page do with the document.  Text of the server goes
// into text nodes and attributes alone, so that nothing of it is ever parsed.

const SVG = 'http://www.w3.org/2000/svg';


function byId(id) {
    return document.getElementById(id);
}


// make('td', { class: 'number' }, 'text', child, ...)

function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);

    for (const [key, value] of Object.entries(attributes)) {
        if (key === 'onclick') {
            element.addEventListener('click', value);

        } else {
            element.setAttribute(key, value);
        }
    }

    element.append(...children);

    return element;
}


function makeSvg(name, attributes = {}) {
    const element = document.createElementNS(SVG, name);

    for (const [key, value] of Object.entries(attributes)) {
        element.setAttribute(key, value);
    }

    return element;
}


// what has not changed is left alone: a screen reader would read it again

function setText(element, text) {
    if (element.textContent !== text) {
        element.textContent = text;
    }
}


function setAttribute(element, name, value) {
    if (element.getAttribute(name) !== String(value)) {
        element.setAttribute(name, value);
    }
}


// Shows a list of items as children of an element.  A child stays with its
// item, known by its id, so that the focus stays, too; and while the pointer or
// the focus is on one of them, none moves or goes, unless the user wants it
// now.

class List {

    constructor(parent, create, update) {
        this.parent = parent;
        this.create = create;
        this.update = update;
        this.children = new Map();
    }


    show(items, now = false) {
        const children = [...this.children.values()];
        const held = children.some((child) =>
            child.matches(':hover, :focus-within'));

        for (const item of items) {
            if (!this.children.has(item.id)) {
                const child = this.create(item);

                this.children.set(item.id, child);
                this.parent.append(child);
            }

            this.update(this.children.get(item.id), item);
        }

        if (now || !held) {
            this.remove(new Set(items.map((item) => item.id)));
            this.sort(items.map((item) => this.children.get(item.id)));
        }
    }


    remove(ids) {
        for (const [id, child] of this.children) {
            if (!ids.has(id)) {
                child.remove();
                this.children.delete(id);
            }
        }
    }


    sort(wanted) {
        const ours = new Set(wanted);
        const present = [...this.parent.children].filter((child) =>
            ours.has(child));

        if (wanted.some((child, i) => child !== present[i])) {
            this.parent.append(...wanted);
        }
    }
}


// a bar of which a share is full; the number stands beside it

function makeBar() {
    return make('span', { class: 'bar', 'aria-hidden': 'true' }, make('i'));
}


function setBar(bar, share, level) {
    bar.firstChild.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
    setAttribute(bar, 'data-level', level);
}


// a level is a colour, and its text says the same

function makeState() {
    return make('span', { class: 'state' },
                make('span', { class: 'state-text' }));
}


function setState(state, level, text) {
    setAttribute(state, 'data-level', level);
    setAttribute(state, 'title', text);
    setText(state.firstChild, text);
}
