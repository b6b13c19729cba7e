'use strict';

// Numbers, times and keys as people read them.

const NONE = '–';

const grouped = new Intl.NumberFormat('en');

// control characters, and those that turn or hide text
const HIDDEN =
    /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;


function countText(n) {
    return grouped.format(n);
}


function thingsText(n, thing) {
    return `${countText(n)} ${thing}${n === 1 ? '' : 's'}`;
}


// three digits, or none after the point

function shortText(n) {
    if (n === 0 || (n >= 10 && n < 1000)) {
        return n.toFixed(0);
    }

    if (n < 10) {
        return n < 0.05 ? '<0.1' : n.toFixed(1);
    }

    return n < 999500 ? `${Number((n / 1e3).toPrecision(3))}k`
                      : `${grouped.format(Number((n / 1e6).toPrecision(3)))}M`;
}


function rateText(n) {
    return n === null ? NONE : shortText(n);
}


function shareText(share) {
    return share === null ? NONE : `${shortText(share * 100)} %`;
}


function bytesText(n) {
    const units = ['B', 'kB', 'MB', 'GB', 'TB'];
    let i = 0;

    while (n >= 1024 && i < units.length - 1) {
        n /= 1024;
        i++;
    }

    return `${n < 10 && n % 1 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}


function secondsText(n) {
    const parts = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
    const i = parts.findIndex(([, size]) => n >= size);

    if (i < 0) {
        return NONE;
    }

    const [unit, size] = parts[i];
    const rest = i < 3 ? Math.floor(n % size / parts[i + 1][1]) : 0;

    return `${Math.floor(n / size)} ${unit}`
           + (rest ? ` ${rest} ${parts[i + 1][0]}` : '');
}


// of Redis: a bound of its histogram

function latencyText(seconds) {
    if (seconds === null) {
        return NONE;
    }

    if (seconds === Infinity) {
        return 'longer';
    }

    return seconds < 1 ? `${Number((seconds * 1e3).toPrecision(2))} ms`
                       : `${Number(seconds.toPrecision(2))} s`;
}


function clockText(milliseconds) {
    return new Date(milliseconds).toLocaleTimeString('en-GB');
}


function keyText(key) {
    return key.replace(HIDDEN, (character) => encodeURIComponent(character));
}


// as the error log names a limit

function limitText(zone, name) {
    return name ? `${zone}:${name}` : zone;
}
