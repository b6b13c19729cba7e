// What a client's library reads in the fields of a response.
//
//     node parse.js URL

const http = require('http');
const { parseRateLimit } = require('ratelimit-header-parser');

http.get(process.argv[2], (response) => {
    const { limit, used, remaining, reset } = parseRateLimit(response);

    console.log(JSON.stringify({
        limit, used, remaining,
        reset: Math.round((reset - Date.now()) / 1000),
    }));

    response.resume();
});
