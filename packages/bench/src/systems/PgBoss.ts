/** pg-boss with whole batches a handler call, fetched without a pause while batches come back full. */
import { PgBoss } from "pg-boss"
import type { Setting, System, Worker } from "../System.ts"

const queue = "no-op"
const callers = 16

const best: Setting = {
  name: "batch 1000",
  workloads: ["W1", "W2"],
  concurrency: 2000,
  isKept: true,
  options: {
    batchSize: 1000,
    localConcurrency: 2,
    burstWhenBatchFull: true,
    pollingIntervalSeconds: 0.5,
    supervise: false,
    schedule: false,
    max: 10
  }
}

const open = async (url: string, max: number, isInstalling = false): Promise<PgBoss> => {
  const boss = new PgBoss({
    connectionString: url,
    max,
    migrate: isInstalling,
    createSchema: isInstalling,
    supervise: false,
    schedule: false
  })
  boss.on("error", (error) => console.error(`pg-boss: ${error.message}`))
  await boss.start()
  return boss
}

const close = (boss: PgBoss): Promise<void> => boss.stop({ graceful: true, close: true, timeout: 10_000 })

const batchOf = (first: number, count: number) =>
  Array.from({ length: count }, (_, index) => ({ data: { n: first + index } }))

const install = async (url: string): Promise<void> => {
  const boss = await open(url, 2, true)
  await boss.createQueue(queue)
  await close(boss)
}

const fill: System["fill"] = async (url, _setting, count) => {
  const boss = await open(url, 2)
  for (let first = 1; first <= count; first += 1000) {
    await boss.insert(queue, batchOf(first, Math.min(1000, count - first + 1)))
  }
  await close(boss)
}

const connectWorker: System["connectWorker"] = async (url, _setting, onHandled): Promise<Worker> => {
  const boss = await open(url, 10)
  return {
    start: async () => {
      await boss.work(
        queue,
        { batchSize: 1000, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
        async (jobs) => onHandled(jobs.length)
      )
    },
    pause: async () => {
      await boss.offWork(queue, { wait: true })
    },
    close: () => close(boss)
  }
}

const connectProducer: System["connectProducer"] = async (url) => {
  const boss = await open(url, callers)
  return {
    enqueue: async (n) => {
      await boss.send(queue, { n })
    },
    enqueueBatch: async (first, count) => {
      await boss.insert(queue, batchOf(first, count))
    },
    close: () => close(boss)
  }
}

export const pgBoss: System = {
  name: "pg-boss",
  settings: [best],
  install,
  fill,
  unfinished: "select exists (select from pgboss.job where state < 'completed')",
  finished: "select count(*)::int from pgboss.job where state = 'completed'",
  connectProducer,
  connectWorker
}
