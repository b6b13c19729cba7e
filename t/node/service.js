// Calls of the rate limit service as a client with Envoy's own messages makes
// them: a line of JSON for each line of JSON on the input.
//
//     node service.js ADDRESS
//
// A line {"health": NAME} asks for the health of a service.  Members of a call
// that are no part of the message: "timeout", milliseconds until its deadline;
// "cancel", a file: the call is cancelled when it is there; "together": the next
// call does not wait for this one.

const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const path = require('path');
const readline = require('readline');

const [address] = process.argv.slice(2);

const root = path.join(path.dirname(require.resolve(
    '@grpc/grpc-js-xds/package.json')), 'deps');
const options = {
    keepCase: true, longs: String, enums: String, defaults: true,
    includeDirs: ['envoy-api', 'xds', 'googleapis', 'protoc-gen-validate']
        .map((name) => path.join(root, name)),
};

const messages = grpc.loadPackageDefinition(
    loader.loadSync('envoy/service/ratelimit/v3/rls.proto', options));
const health = grpc.loadPackageDefinition(loader.fromJSON({ nested: {
    grpc: { nested: { health: { nested: { v1: { nested: {
        HealthCheckRequest: { fields: {
            service: { type: 'string', id: 1 } } },
        HealthCheckResponse: {
            fields: { status: { type: 'ServingStatus', id: 1 } },
            nested: { ServingStatus: { values: {
                UNKNOWN: 0, SERVING: 1, NOT_SERVING: 2 } } } },
        Health: { methods: { Check: {
            requestType: 'HealthCheckRequest',
            responseType: 'HealthCheckResponse' } } },
    } } } } } } } }, options));

const credentials = grpc.credentials.createInsecure();
const service = new messages.envoy.service.ratelimit.v3.RateLimitService(
    address, credentials);
const checker = new health.grpc.health.v1.Health(address, credentials);


function call({ timeout, cancel, together, ...request }) {
    const deadline = timeout ? { deadline: Date.now() + timeout } : {};

    return new Promise((resolve) => {
        const done = (error, response) => resolve(error
            ? { status: grpc.status[error.code], details: error.details }
            : { status: 'OK', response });

        if (request.health !== undefined) {
            checker.Check({ service: request.health }, deadline, done);
            return;
        }

        const sent = service.ShouldRateLimit(request, deadline, done);

        if (cancel) {
            const timer = setInterval(() => {
                if (fs.existsSync(cancel)) {
                    clearInterval(timer);
                    sent.cancel();
                }
            }, 20);
        }
    });
}


(async () => {
    const answers = [];

    for await (const line of readline.createInterface(process.stdin)) {
        const request = JSON.parse(line);

        answers.push(call(request));

        if (!request.together) {
            await answers[answers.length - 1];
        }
    }

    for (const answer of answers) {
        console.log(JSON.stringify(await answer));
    }

    service.close();
    checker.close();
})();
