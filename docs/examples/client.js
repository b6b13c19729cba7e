// Asks whether a message of this type may be sent:
//
//     node client.js ADDRESS TYPE

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [address, type] = process.argv.slice(2);
const { ratelimit } = grpc.loadPackageDefinition(
    loader.loadSync('ratelimit.proto', { keepCase: true, enums: String }))
    .envoy.service;

const client = new ratelimit.v3.RateLimitService(
    address, grpc.credentials.createInsecure());

client.ShouldRateLimit({
    domain: 'messaging',
    descriptors: [{ entries: [{ key: 'message_type', value: type }] }],
}, { deadline: Date.now() + 5000 }, (error, response) => {
    console.log(error ? error.message : response.overall_code);
    client.close();
});
