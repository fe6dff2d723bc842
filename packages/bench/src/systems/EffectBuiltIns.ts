/** What Effect itself has: PersistedQueue on its SQL store, and Workflow on the cluster's SQL storage with one runner. */
import * as NodeCrypto from "@effect/platform-node/NodeCrypto"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as ClusterWorkflowEngine from "effect/cluster/ClusterWorkflowEngine"
import * as SingleRunner from "effect/cluster/SingleRunner"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import * as PersistedQueue from "effect/persistence/PersistedQueue"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Activity from "effect/workflow/Activity"
import * as Workflow from "effect/workflow/Workflow"
import { type Setting, stepsOfWorkflow, type System, type Worker, type Workflows } from "../System.ts"

const callers = 16
const fibers = 256
const pollMs = 10

const queued: Setting = {
  name: "256 fibers",
  workloads: ["W1", "W2", "W3"],
  concurrency: fibers,
  isKept: true,
  options: { fibers, pollInterval: pollMs, connections: 16 },
  most: 10_000
}

const flowing = (concurrency: number): Setting => ({
  name: `${concurrency} at once`,
  workloads: ["W5"],
  concurrency,
  isKept: true,
  options: { runnerStorage: "sql", simulateRemoteSerialization: false, connections: 16 },
  most: concurrency === 1 ? 20 : 4 * concurrency
})

const payload = Schema.Struct({ n: Schema.Int })

const sqlAt = (url: string, maxConnections: number) =>
  PgClient.layer({ url: Redacted.make(url), minConnections: maxConnections, maxConnections })

const queueAt = (url: string, maxConnections: number) =>
  PersistedQueue.layer.pipe(
    Layer.provide(PersistedQueue.layerStoreSql({ pollInterval: pollMs })),
    Layer.provideMerge(sqlAt(url, maxConnections))
  )

const makeQueue = PersistedQueue.make({ name: "no-op", schema: payload })

const TenSteps = Workflow.make("ten-steps", { payload, idempotencyKey: ({ n }) => String(n) })

const clusterAt = (url: string) =>
  ClusterWorkflowEngine.layer.pipe(
    Layer.provideMerge(
      SingleRunner.layer({ runnerStorage: "sql", shardingConfig: { simulateRemoteSerialization: false } })
    ),
    Layer.provide(NodeCrypto.layer),
    Layer.provide(sqlAt(url, 16))
  )

const install = async (url: string): Promise<void> => {
  await Effect.runPromise(Effect.provide(makeQueue, queueAt(url, 1)))
  await Effect.runPromise(Effect.provide(Effect.void, clusterAt(url)))
}

const fill: System["fill"] = (url, _setting, count) =>
  Effect.runPromise(Effect.provide(
    PgClient.PgClient.use((sql) =>
      sql`insert into effect_queue (id, queue_name, element, state, attempts, visible_at, created_at, updated_at)
        select gen_random_uuid(), 'no-op', '{"n":' || n || '}', 'pending', 0, now(), now(), now()
        from generate_series(1, ${count}::int) n`
    ),
    sqlAt(url, 1)
  )).then(() => undefined)

const connectWorker: System["connectWorker"] = async (url, _setting, tally): Promise<Worker> => {
  const runtime = ManagedRuntime.make(queueAt(url, 16))
  const queue = await runtime.runPromise(makeQueue)
  const take = Effect.forever(queue.take(() => Effect.sync(() => tally.handled(1))))
  let running: ReadonlyArray<Fiber.Fiber<unknown, unknown>> = []
  const pause = async (): Promise<void> => {
    await Effect.runPromise(Fiber.interruptAll(running))
    running = []
  }
  return {
    start: async () => {
      running = Array.from({ length: fibers }, () => runtime.runFork(take))
    },
    pause,
    close: () => runtime.dispose()
  }
}

const connectProducer: System["connectProducer"] = async (url) => {
  const runtime = ManagedRuntime.make(queueAt(url, callers))
  const queue = await runtime.runPromise(makeQueue)
  return {
    enqueue: (n) => runtime.runPromise(Effect.asVoid(queue.offer({ n }))),
    enqueueBatch: (first, count) => {
      const numbers = Array.from({ length: count }, (_, index) => first + index)
      return runtime.runPromise(PgClient.PgClient.use((sql) =>
        sql.withTransaction(
          Effect.forEach(numbers, (n) => queue.offer({ n }), { concurrency: "unbounded", discard: true })
        )
      ))
    },
    close: () => runtime.dispose()
  }
}

const connectWorkflows: System["connectWorkflows"] = async (url, setting): Promise<Workflows> => {
  let steps = 0
  let started = 0
  const activity = (n: number) =>
    Activity.make({
      name: `step-${n}`,
      success: Schema.Int,
      execute: Effect.sync(() => (steps++, n))
    })
  const workflow = TenSteps.toLayer(() =>
    Effect.gen(function*() {
      for (let n = 0; n < stepsOfWorkflow; n++) yield* activity(n)
    })
  )
  const runtime = ManagedRuntime.make(workflow.pipe(Layer.provideMerge(clusterAt(url))))
  await runtime.context()
  const run = (count: number) =>
    Effect.gen(function*() {
      const before = steps
      const ids = Array.from({ length: count }, () => started++)
      yield* Effect.forEach(ids, (n) => TenSteps.execute({ n }), { concurrency: setting.concurrency, discard: true })
      return steps - before
    })
  return {
    run: (count) => runtime.runPromise(run(count)),
    close: () => runtime.dispose()
  }
}

export const effectBuiltIns: System = {
  name: "effect",
  settings: [queued, flowing(1), flowing(32)],
  install,
  fill,
  unfinished: "effect_queue where state = 'pending'",
  running: "effect_queue where state = 'pending' and acquired_at is not null",
  finished: "effect_queue where state = 'completed'",
  connectProducer,
  connectWorker,
  connectWorkflows
}
