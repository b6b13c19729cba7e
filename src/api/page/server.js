'use strict';

// What the page asks the server.  All addresses are below that of the page,
// whatever prefix a proxy has put before it.

const BASE = location.pathname.replace(/\/*$/, '/');
const PATIENCE = 5000;      // milliseconds that an answer may take


async function ask(path, method = 'GET') {
    const answer = await fetch(BASE + path, {
        method,
        cache: 'no-store',
        headers: { Accept: 'application/json' },
        signal: AbortSignal.timeout(PATIENCE),
    });

    if (!answer.ok) {
        throw new Error(await reason(answer));
    }

    return answer.status === 204 ? null : answer.json();
}


// of a refused request: what the server says, or its status

async function reason(answer) {
    try {
        const { error } = await answer.json();

        return String(error);

    } catch {
        return `HTTP ${answer.status}`;
    }
}


// and of one without an answer

function failureText(error) {
    return error.name === 'TimeoutError' ? `no answer in ${PATIENCE / 1000} s`
         : error instanceof TypeError ? 'no connection'
         : error.message;
}


function zonePath(zone) {
    return `zones/${encode(zone)}`;
}


// As an argument, since a path can't have a byte 0, and a browser takes "." and
// ".." in it for places, however they are encoded: they would name the zone.

function keyPath(zone, key) {
    return `${zonePath(zone)}/keys?key=${encode(key)}`;
}


// The server shows what is not text percent-encoded, and text that looks like
// it: a "%XX" is always a byte.

function encode(shown) {
    return shown.replace(/%[0-9a-f]{2}|[^]/giu, (part) =>
        part.length === 3 ? part : encodeURIComponent(part));
}
