// Node's fetch and node:http: node fetch.mjs URL KEY BODY PAUSE. Each step prints a line of JSON.
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { deflateSync, gzipSync } from "node:zlib";

const [url, key, body, pause] = process.argv.slice(2);
const headers = { "content-type": "application/json", authorization: `Bearer ${key}` };

const report = (step, status, text) => console.log(JSON.stringify({ step, status, body: text }));

async function embed(step, more = {}) {
  const request = { method: "POST", body, ...more, headers: { ...headers, ...more.headers } };
  const response = await fetch(`${url}/embed`, request);
  report(step, response.status, await response.text());
}

// What fetch cannot send: `Upgrade` and `Expect`.
function embedOverHttp(step, more, waits = false) {
  return new Promise((resolve, reject) => {
    const length = { "content-length": Buffer.byteLength(body) };
    const request = http.request(`${url}/embed`, { method: "POST", headers: { ...headers, ...length, ...more } });
    request.on("error", reject).on("response", async (response) => {
      const parts = await response.toArray();
      report(step, response.statusCode, Buffer.concat(parts).toString());
      resolve();
    });
    if (waits) request.on("continue", () => request.end(body)).flushHeaders();
    else request.end(body);
  });
}

await embed("plain");
await embed("chunked", { body: new Blob([body]).stream(), duplex: "half" });
await embed("gzip", { body: gzipSync(body), headers: { "content-encoding": "gzip" } });
await embed("deflate", { body: deflateSync(body), headers: { "content-encoding": "deflate" } });
await embedOverHttp("offer", { connection: "Upgrade, HTTP2-Settings", upgrade: "h2c", "http2-settings": "AAMAAABk" });
await embedOverHttp("expect", { expect: "100-continue" }, true);
await Promise.all(Array.from({ length: 20 }, () => embed("at once")));
await sleep(1000 * pause);
await embed("after a pause");
