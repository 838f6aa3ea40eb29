// The package openai for Node: node openai.cjs URL KEY BODY PAUSE. Each step prints a line of JSON.
const { setTimeout: sleep } = require("node:timers/promises");
const { OpenAI } = require("openai");

const [url, apiKey, body, pause] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const input = JSON.parse(body).inputs;

async function embed(step, more = {}) {
  const { data } = await client.embeddings.create({ model: "all-MiniLM-L6-v2", input, ...more });
  console.log(JSON.stringify({ step, status: 200, body: JSON.stringify(data.map((row) => Array.from(row.embedding))) }));
}

(async () => {
  await embed("plain");
  await embed("floats", { encoding_format: "float" });
  await Promise.all(Array.from({ length: 20 }, () => embed("at once")));
  await sleep(1000 * pause);
  await embed("after a pause");
})();
