// A call by gRPC as a client makes it: prints the status that the client sees,
// and the metadata that came with it.
//
//     node call.js ADDRESS METHOD

const grpc = require('@grpc/grpc-js');

const [address, method] = process.argv.slice(2);
const client = new grpc.Client(address, grpc.credentials.createInsecure());
const metadata = {};

const call = client.makeUnaryRequest(
    method, (bytes) => bytes, (bytes) => bytes, Buffer.from('hello'),
    (error) => {
        print(error || { code: grpc.status.OK, details: '' });
        client.close();
    });

call.on('metadata', (fields) => Object.assign(metadata, fields.getMap()));


function print(status) {
    if (status.metadata) {
        Object.assign(metadata, status.metadata.getMap());
    }

    console.log(JSON.stringify({
        status: grpc.status[status.code],
        details: status.details,
        metadata,
    }));
}
