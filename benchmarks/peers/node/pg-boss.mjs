// pg-boss with batches that refill at once while they come back full, woken by LISTEN.
import { PgBoss } from "pg-boss";
import { record, serve, versionOf } from "./agent.mjs";

const QUEUE = "noop";
const options = (slots) => ({
  batchSize: slots || 1000,
  burstWhenBatchFull: true,
  pollingIntervalSeconds: 0.5,
});

async function start(dsn, more) {
  const boss = new PgBoss({ connectionString: dsn, ...more });
  boss.on("error", (error) => process.stderr.write(String(error) + "\n"));
  await boss.start();
  return boss;
}

await serve({
  describe: (slots) => ({
    version: versionOf("pg-boss"),
    settings: { ...options(slots), notify: true, useListenNotify: true, pool: 10, driver: `pg ${versionOf("pg")}` },
    left: "select count(*) from pgboss.job where state < 'completed'",
  }),

  async install(dsn) {
    const boss = await start(dsn, { supervise: false, schedule: false });
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop({ graceful: false });
  },

  async producer(dsn, connections) {
    const boss = await start(dsn, { max: connections, supervise: false, schedule: false });
    return {
      one: (data) => boss.send(QUEUE, data),
      many: (payloads) => boss.insert(QUEUE, payloads.map((data) => ({ data }))),
      close: () => boss.stop({ graceful: false }),
    };
  },

  async work(dsn, slots) {
    const boss = await start(dsn, { useListenNotify: true });
    await boss.work(QUEUE, options(slots), async (jobs) => {
      for (const job of jobs) record(job.data);
    });
  },
});
