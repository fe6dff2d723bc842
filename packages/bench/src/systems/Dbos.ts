/** DBOS: its queue, looked at every 10 ms, and its workflows, called directly. */
import { DBOS, DBOSClient } from "@dbos-inc/dbos-sdk"
import * as Pg from "pg"
import { type Setting, stepsOfWorkflow, type System, type Tally, type Worker, type Workflows } from "../System.ts"

const queue = "no-op"
/** Where jobs lie that were stored before the clock started. */
const parked = "parked"
const callers = 16

const queued: Setting = {
  name: "queue, 10 ms poll",
  workloads: ["W1", "W2", "W3"],
  concurrency: 100,
  isKept: true,
  options: { minPollingIntervalMs: 10, workerConcurrency: 100, systemDatabasePoolSize: 20 },
  most: 4000
}

const flowing = (concurrency: number): Setting => ({
  name: `${concurrency} at once`,
  workloads: ["W5"],
  concurrency,
  isKept: true,
  options: { systemDatabasePoolSize: 20 },
  most: concurrency === 1 ? 60 : 5 * concurrency
})

const silent = {
  info: () => {},
  debug: () => {},
  warn: () => {},
  error: (entry: unknown) => console.error("dbos:", entry)
}

let told: Tally = { handled: () => {}, claimed: () => {} }

DBOS.registerWorkflow(async (_n: number): Promise<void> => {
  told.handled(1)
}, { name: "no-op" })

let stepsRun = 0

const tenSteps = DBOS.registerWorkflow(async (): Promise<void> => {
  for (let n = 0; n < stepsOfWorkflow; n++) {
    await DBOS.runStep(async () => {
      stepsRun++
      return n
    }, { name: `step-${n}` })
  }
}, { name: "ten-steps" })

/** Each process is an executor of its own, or it would recover what another one runs. */
const launch = async (url: string): Promise<void> => {
  DBOS.setConfig({
    name: "bench",
    systemDatabaseUrl: url,
    systemDatabasePoolSize: 20,
    applicationVersion: "1",
    executorID: `bench-${process.pid}`,
    logger: silent
  })
  await DBOS.launch()
}

const install = async (url: string): Promise<void> => {
  await launch(url)
  await DBOS.registerQueue(queue, { minPollingIntervalMs: 10, workerConcurrency: 100 })
  await DBOS.shutdown()
}

const connectClient = (url: string) =>
  DBOSClient.create({ systemDatabaseUrl: url, systemDatabasePoolSize: callers, logger: silent })

/** Copies of a workflow that was enqueued like all others. */
const fill: System["fill"] = async (url, _setting, count) => {
  const dbosClient = await connectClient(url)
  const { workflowID } = await dbosClient.enqueue({ queueName: parked, workflowName: "no-op" }, 1)
  await dbosClient.destroy()
  await withClient(url, (client) =>
    client.query(
      `with ids as materialized (select gen_random_uuid()::text as id from generate_series(1, $1)), inputs as (
        insert into dbos.workflow_input
        select (jsonb_populate_record(seed, jsonb_build_object('workflow_uuid', ids.id))).*
        from dbos.workflow_input seed, ids where seed.workflow_uuid = $2)
      insert into dbos.workflow_status
      select (jsonb_populate_record(seed, jsonb_build_object('workflow_uuid', ids.id))).*
      from dbos.workflow_status seed, ids where seed.workflow_uuid = $2`,
      [count - 1, workflowID]
    ))
}

const withClient = async (url: string, use: (client: Pg.Client) => Promise<unknown>): Promise<void> => {
  const client = new Pg.Client({ connectionString: url })
  await client.connect()
  await use(client)
  await client.end()
}

const connectWorker: System["connectWorker"] = async (url, _setting, tally): Promise<Worker> => {
  told = tally
  await launch(url)
  return {
    // A queue cannot be told to wait, so its jobs are brought to it: one statement of some milliseconds in the clock.
    start: () =>
      withClient(
        url,
        (client) =>
          client.query("update dbos.workflow_status set queue_name = $1 where queue_name = $2", [queue, parked])
      ),
    pause: async () => {},
    close: () => DBOS.shutdown({ workflowCompletionTimeoutMS: 5000 })
  }
}

const connectProducer: System["connectProducer"] = async (url) => {
  const client = await connectClient(url)
  const options = { queueName: queue, workflowName: "no-op" }
  return {
    enqueue: async (n) => {
      await client.enqueue(options, n)
    },
    enqueueBatch: async (first, count) => {
      const numbers = Array.from({ length: count }, (_, index) => first + index)
      await Promise.all(numbers.map((n) => client.enqueue(options, n)))
    },
    close: () => client.destroy()
  }
}

const connectWorkflows: System["connectWorkflows"] = async (url, setting): Promise<Workflows> => {
  await launch(url)
  return {
    run: async (count) => {
      const before = stepsRun
      let left = count
      const flow = async (): Promise<void> => {
        while (left-- > 0) await tenSteps()
      }
      await Promise.all(Array.from({ length: setting.concurrency }, flow))
      return stepsRun - before
    },
    close: () => DBOS.shutdown()
  }
}

export const dbos: System = {
  name: "dbos",
  settings: [queued, flowing(1), flowing(32)],
  install,
  fill,
  unfinished: "dbos.workflow_status where status in ('ENQUEUED', 'PENDING')",
  running: "dbos.workflow_status where status = 'PENDING'",
  finished: "dbos.workflow_status where status = 'SUCCESS'",
  connectProducer,
  connectWorker,
  connectWorkflows
}
