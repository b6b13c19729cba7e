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
    return `zones/${encodeURIComponent(zone)}`;
}


// As an argument, since a path can't have a byte 0, and a browser takes "." and
// ".." in it for places, however they are encoded: they would name the zone.

function keyPath(zone, key) {
    return `${zonePath(zone)}/keys?key=${encodeKey(key)}`;
}


// A key whose bytes are not text is shown percent-encoded, and asked for as it
// is shown.

function encodeKey(key) {
    if (/^(?:[\w.~-]|%[0-9a-f]{2})+$/i.test(key)) {
        try {
            decodeURIComponent(key);

        } catch {
            return key;
        }
    }

    return encodeURIComponent(key);
}
