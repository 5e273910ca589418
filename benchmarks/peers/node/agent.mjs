// The Node side of the benchmark: the same commands and the same lines as python/agent.py and python/meter.py.
//
//   PEER.mjs describe SLOTS | install | one N | concurrent N CALLERS | bulk N SIZE | latency N RATE | work SLOTS
//
// A peer calls `serve` with { describe, install, producer, work }; see graphile-worker.mjs.
import fs from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";

const CONNECTIONS = Number(process.env.BENCH_CONNECTIONS ?? 10);
const WARM_UP = 20;
const TICK_MS = 10;

const now = () => Number(process.hrtime.bigint());
const microseconds = () => Math.floor(now() / 1000);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const emit = (event, fields = {}) => fs.writeSync(1, JSON.stringify({ event, ...fields }) + "\n");

/** The installed version of a package whose exports may hide its package.json. */
export function versionOf(name) {
  const entry = createRequire(import.meta.url).resolve(name);
  const root = entry.slice(0, entry.lastIndexOf(`node_modules/${name}/`) + `node_modules/${name}/`.length);
  return JSON.parse(fs.readFileSync(root + "package.json", "utf8")).version;
}

let count = 0;
let told = 0;
let toldAt = 0;

function tell(at) {
  emit("count", { at, count });
  told = count;
  toldAt = at;
}

/** The whole of every handler: note that this job's handler has begun. */
export function record(payload) {
  if (payload.t !== undefined) {
    emit("pickup", { microseconds: microseconds() - payload.t });
    return;
  }
  if (count === 0) emit("first", { at: now() });
  count++;
  // A loop that is busy with promises starves its timers, so look at the clock here too.
  if ((count & 127) === 0) {
    const at = now();
    if (at - toldAt > TICK_MS * 1e6) tell(at);
  }
}

async function share(total, callers, one) {
  let next = 0;
  const call = async () => {
    while (next < total) await one({ n: next++ });
  };
  const begin = now();
  await Promise.all(Array.from({ length: callers }, call));
  return { jobs: total, seconds: (now() - begin) / 1e9 };
}

const commands = {
  async one(peer, dsn, total) {
    const producer = await peer.producer(dsn, 1);
    for (let i = 0; i < WARM_UP; i++) await producer.one({ n: -1 - i });
    const answer = await share(total, 1, producer.one);
    await producer.close();
    return answer;
  },
  async concurrent(peer, dsn, total, callers) {
    const producer = await peer.producer(dsn, CONNECTIONS);
    await share(callers, callers, producer.one);
    const answer = await share(total, callers, producer.one);
    await producer.close();
    return answer;
  },
  async bulk(peer, dsn, total, size) {
    const producer = await peer.producer(dsn, CONNECTIONS);
    const begin = now();
    for (let start = 0; start < total; start += size)
      await producer.many(Array.from({ length: Math.min(size, total - start) }, (_, i) => ({ n: start + i })));
    const seconds = (now() - begin) / 1e9;
    await producer.close();
    return { jobs: total, seconds, how: `${size} a call` };
  },
  async latency(peer, dsn, total, rate) {
    const producer = await peer.producer(dsn, 1);
    for (let i = 0; i < 3; i++) {
      await producer.one({ n: -1 });
      await sleep(50);
    }
    const begin = now();
    for (let n = 0; n < total; n++) {
      await sleep(Math.max(0, (n * 1000) / rate - (now() - begin) / 1e6));
      await producer.one({ n, t: microseconds() });
    }
    await producer.close();
    return { jobs: total, seconds: (now() - begin) / 1e9 };
  },
  async install(peer, dsn) {
    await peer.install(dsn);
    return {};
  },
  async describe(peer, dsn, slots) {
    return { runtime: `Node ${process.versions.node}`, ...peer.describe(slots) };
  },
};

/** Begin with the runner's first line; end with its second, or with the runner. */
async function work(peer, dsn, slots) {
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  emit("ready");
  await lines.next();
  setInterval(() => count !== told && tell(now()), TICK_MS);
  await peer.work(dsn, slots);
  await lines.next();
  process.exit(0);
}

/** Run the command that the runner gave. */
export async function serve(peer) {
  const [command, ...words] = process.argv.slice(2);
  const dsn = process.env.BENCH_DSN ?? "";
  if (command === "work") await work(peer, dsn, Number(words[0]));
  emit("done", await commands[command](peer, dsn, ...words.map(Number)));
  process.exit(0);
}
