/** pg-boss with whole batches a handler call, fetched without a pause while batches come back full. */
import { PgBoss } from "pg-boss"
import type { Setting, System, Worker } from "../System.ts"

const plainQueue = "no-op"
const announcedQueue = "no-op-announced"
const callers = 16

const best: Setting = {
  name: "batch 1000",
  workloads: ["W1", "W2", "W4"],
  onlyInFull: ["W4"],
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

const notify: Setting = {
  name: "notify",
  workloads: ["W3"],
  concurrency: 1,
  isKept: true,
  options: {
    batchSize: 1,
    localConcurrency: 1,
    useListenNotify: true,
    notify: true,
    notifyPollingIntervalSeconds: 30,
    supervise: false,
    schedule: false,
    max: 10
  }
}

const queueOf = (setting: Setting): string => setting.name === notify.name ? announcedQueue : plainQueue

const open = async (url: string, max: number, isInstalling = false, useListenNotify = false): Promise<PgBoss> => {
  const boss = new PgBoss({
    connectionString: url,
    max,
    migrate: isInstalling,
    createSchema: isInstalling,
    supervise: false,
    schedule: false,
    useListenNotify
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
  await boss.createQueue(plainQueue)
  await boss.createQueue(announcedQueue, { notify: true })
  await close(boss)
}

const fill: System["fill"] = async (url, setting, count) => {
  const boss = await open(url, 2)
  for (let first = 1; first <= count; first += 1000) {
    await boss.insert(queueOf(setting), batchOf(first, Math.min(1000, count - first + 1)))
  }
  await close(boss)
}

/** Enqueued like all others, and brought by one statement into the state in which a success leaves them. */
const fillFinished: System["fillFinished"] = async (client, url, setting, count) => {
  await fill(url, setting, count)
  await client.query("update pgboss.job set state = 'completed', started_on = now(), completed_on = now()")
}

const connectWorker: System["connectWorker"] = async (url, setting, tally): Promise<Worker> => {
  const isNotified = setting.name === notify.name
  const queue = queueOf(setting)
  const boss = await open(url, 10, false, isNotified)
  const options = isNotified
    ? { batchSize: 1, localConcurrency: 1, notifyPollingIntervalSeconds: 30, pollingIntervalSeconds: 0.5 }
    : { batchSize: 1000, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
  return {
    start: async () => {
      await boss.work(queue, options, async (jobs) => tally.handled(jobs.length))
    },
    pause: async () => {
      await boss.offWork(queue, { wait: true })
    },
    close: () => close(boss)
  }
}

const connectProducer: System["connectProducer"] = async (url, setting) => {
  const boss = await open(url, callers)
  const queue = queueOf(setting)
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
  settings: [best, notify],
  install,
  fill,
  fillFinished,
  unfinished: "pgboss.job where state < 'completed'",
  running: "pgboss.job where state = 'active'",
  finished: "pgboss.job where state = 'completed'",
  connectProducer,
  connectWorker
}
