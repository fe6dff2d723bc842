/** graphile-worker with the settings its performance page measures with. */
import { Logger, makeWorkerUtils, run, runMigrations, type Runner, type WorkerUtils } from "graphile-worker"
import * as Pg from "pg"
import type { Setting, System, Worker } from "../System.ts"

const task = "no-op"
const callers = 16

const best: Setting = {
  name: "local queue 500",
  workloads: ["W1", "W2", "W4"],
  onlyInFull: ["W4"],
  concurrency: 24,
  isKept: false,
  options: {
    "localQueue.size": 500,
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    concurrentJobs: 24,
    maxPoolSize: 25,
    preparedStatements: true
  }
}

/** Without a local queue each announcement leads to a claim at once. */
const notify: Setting = {
  name: "notify",
  workloads: ["W3"],
  concurrency: 24,
  isKept: false,
  options: { concurrentJobs: 24, maxPoolSize: 25, preparedStatements: true }
}

const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(`graphile-worker: ${message}`)
})

const withUtils = async <A>(url: string, use: (utils: WorkerUtils) => Promise<A>): Promise<A> => {
  const utils = await makeWorkerUtils({ connectionString: url, logger })
  try {
    return await use(utils)
  } finally {
    await utils.release()
  }
}

const batchOf = (first: number, count: number) =>
  Array.from({ length: count }, (_, index) => ({ identifier: task, payload: { n: first + index } }))

const fill: System["fill"] = (url, _setting, count) =>
  withUtils(url, async (utils) => {
    for (let first = 1; first <= count; first += 1000) {
      await utils.addJobs(batchOf(first, Math.min(1000, count - first + 1)))
    }
  })

const connectWorker: System["connectWorker"] = async (url, setting, tally): Promise<Worker> => {
  const { concurrency } = setting
  const pgPool = await openPool(url, concurrency + 1)
  let runner: Runner | undefined
  return {
    start: async () => {
      runner = await run({
        pgPool,
        logger,
        noHandleSignals: true,
        parsedCronItems: [],
        taskList: { [task]: () => tally.handled(1) },
        preset: {
          worker: {
            concurrentJobs: concurrency,
            ...setting.name === best.name
              ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 }
              : {}
          }
        }
      })
    },
    pause: async () => {
      await runner?.stop()
      runner = undefined
    },
    close: () => pgPool.end()
  }
}

/** With its connections open, as in a process that has been running for a while. */
const openPool = async (url: string, size: number): Promise<Pg.Pool> => {
  const pool = new Pg.Pool({ connectionString: url, max: size, idleTimeoutMillis: 0 })
  const complain = (error: Error) => console.error(`graphile-worker's pool: ${error.message}`)
  pool.on("error", complain)
  pool.on("connect", (client) => client.on("error", complain))
  const clients = await Promise.all(Array.from({ length: size }, () => pool.connect()))
  for (const client of clients) client.release()
  return pool
}

const connectProducer: System["connectProducer"] = async (url) => {
  const pgPool = await openPool(url, callers)
  const utils = await makeWorkerUtils({ pgPool, logger })
  return {
    enqueue: async (n) => {
      await utils.addJob(task, { n })
    },
    enqueueBatch: async (first, count) => {
      await utils.addJobs(batchOf(first, count))
    },
    close: async () => {
      await utils.release()
      await pgPool.end()
    }
  }
}

export const graphileWorker: System = {
  name: "graphile-worker",
  settings: [best, notify],
  install: (url) => runMigrations({ connectionString: url, logger, taskList: {} }),
  fill,
  unfinished: "graphile_worker._private_jobs",
  running: "graphile_worker._private_jobs where locked_at is not null",
  finished: "generate_series(1, 0)",
  connectProducer,
  connectWorker
}
