// Graphile Worker with its local queue, as its performance page configures it.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { record, serve, versionOf } from "./agent.mjs";

const logger = new Logger(() => (level, message) => level === "error" && process.stderr.write(message + "\n"));

// With few slots, the local queue takes the size that its documentation starts from: one more than the jobs at once.
const options = (slots) => ({
  concurrentJobs: slots || 24,
  maxPoolSize: slots ? slots + 1 : 25,
  localQueue: { size: slots ? slots + 1 : 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
});

await serve({
  describe: (slots) => ({
    version: versionOf("graphile-worker"),
    settings: { ...options(slots), driver: `pg ${versionOf("pg")}` },
    left: "select count(*) from graphile_worker._private_jobs",
  }),

  async install(dsn) {
    const utils = await makeWorkerUtils({ connectionString: dsn, logger });
    await utils.migrate();
    await utils.release();
  },

  async producer(dsn, connections) {
    const utils = await makeWorkerUtils({ connectionString: dsn, maxPoolSize: connections, logger });
    return {
      one: (payload) => utils.addJob("noop", payload),
      many: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: "noop", payload }))),
      close: () => utils.release(),
    };
  },

  async work(dsn, slots) {
    await run({
      preset: { worker: { connectionString: dsn, ...options(slots) } },
      logger,
      noHandleSignals: true,
      taskList: { noop: async (payload) => record(payload) },
    });
  },
});
