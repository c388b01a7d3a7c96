// Calls criswitch with node's gRPC: client.js TARGET. Makes each call twice on one connection, and prints the length of
// each message that it receives.
const grpc = require('@grpc/grpc-js');

const SERVICE = '/runtime.v1.RuntimeService/';
const LIMIT_MS = 120_000;
const asIs = (bytes) => bytes;
const client = new grpc.Client(process.argv[2], grpc.credentials.createInsecure());
const options = () => ({ deadline: Date.now() + LIMIT_MS });

const version = () => new Promise((resolve, reject) => {
  client.makeUnaryRequest(`${SERVICE}Version`, asIs, asIs, Buffer.alloc(0), options(), (error, message) => {
    error ? reject(error) : resolve(message);
  });
});

const main = async () => {
  for (let call = 0; call < 2; call++) {
    console.log('Version', (await version()).length);
    const pods = client.makeServerStreamRequest(`${SERVICE}StreamPodSandboxes`, asIs, asIs, Buffer.alloc(0), options());
    for await (const message of pods) console.log('StreamPodSandboxes', message.length);
  }
  client.close();
};

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
