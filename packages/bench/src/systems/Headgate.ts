/** headgate as its users run it: every guarantee on, defaults where a setting does not say otherwise. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Gate } from "@headgate/core/Gate"
import { Task } from "@headgate/core/Task"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import type { Setting, System } from "../System.ts"

const callers = 16
const defaultConcurrency = 100

const payload = Schema.Struct({ n: Schema.Int })

/** The same no-op, deleted when it is done or kept for a day. */
const taskOf = (setting: Setting) =>
  Task.make(setting.isKept ? "no-op-kept" : "no-op", {
    payload,
    retention: setting.isKept ? "1 day" : 0
  })

interface WorkerChoice {
  readonly concurrency?: number
}

const choices = new Map<string, WorkerChoice>()

const setting = (choice: WorkerChoice, isKept: boolean, workloads: Setting["workloads"]): Setting => {
  const { concurrency = defaultConcurrency } = choice
  const capacity = choice.concurrency === undefined ? "default concurrency" : `concurrency ${concurrency}`
  const name = isKept ? `${capacity}, kept` : capacity
  choices.set(name, choice)
  return {
    name,
    workloads,
    concurrency,
    isKept,
    options: { concurrency, retention: isKept ? "1 day" : 0 }
  }
}

const storeAt = (url: string, maxConnections: number) =>
  PostgresStore.layer.pipe(
    Layer.provideMerge(PgClient.layer({ url: Redacted.make(url), minConnections: maxConnections, maxConnections }))
  )

const withStore = <A, E>(
  url: string,
  use: Effect.Effect<A, E, Layer.Success<ReturnType<typeof storeAt>>>
): Promise<A> => Effect.runPromise(Effect.provide(use, storeAt(url, 1)))

const numbers = (first: number, count: number) => Array.from({ length: count }, (_, index) => ({ n: first + index }))

const fill: System["fill"] = (url, setting, count) => {
  const task = taskOf(setting)
  return withStore(
    url,
    Effect.gen(function*() {
      for (let first = 1; first <= count; first += 5000) {
        yield* task.enqueueAll(numbers(first, Math.min(5000, count - first + 1)))
      }
    })
  )
}

const connectWorker: System["connectWorker"] = async (url, setting, onHandled) => {
  const { Worker } = await import("@headgate/worker/Worker")
  // The worker has started and waits at its gate, where every other system waits to be told to start.
  const open = Latch.makeUnsafe(false)
  const gate = Layer.effect(
    Gate,
    Gate.use((gate) =>
      Effect.succeed(Gate.of({ ...gate, admit: (request) => Effect.andThen(open.await, gate.admit(request)) }))
    )
  )
  const handler = taskOf(setting).toLayer(() => Effect.sync(() => onHandled(1)))
  const worker = Worker.layer(choices.get(setting.name) ?? {}).pipe(
    Layer.provide(handler),
    Layer.provide(gate),
    Layer.provide(storeAt(url, 2))
  )
  const runtime = ManagedRuntime.make(worker)
  await runtime.context()
  return {
    start: () => Effect.runPromise(Effect.asVoid(open.open)),
    pause: () => Effect.runPromise(Effect.asVoid(open.close)),
    close: () => runtime.dispose()
  }
}

const connectProducer: System["connectProducer"] = async (url, setting) => {
  const task = taskOf(setting)
  const runtime = ManagedRuntime.make(storeAt(url, callers))
  await runtime.context()
  return {
    enqueue: (n) => runtime.runPromise(Effect.asVoid(task.enqueue({ n }))),
    enqueueBatch: (first, count) => runtime.runPromise(Effect.asVoid(task.enqueueAll(numbers(first, count)))),
    close: () => runtime.dispose()
  }
}

export const headgate: System = {
  name: "headgate",
  settings: [
    setting({ concurrency: 1000 }, false, ["W1", "W2"]),
    setting({ concurrency: 1000 }, true, ["W2"]),
    setting({ concurrency: 200 }, false, ["W2"]),
    setting({}, false, ["W2"]),
    setting({}, true, ["W2"])
  ],
  install: (url) => withStore(url, Effect.void),
  fill,
  unfinished:
    "select exists (select from headgate.job where state in ('pending', 'scheduled', 'available', 'running', 'retryable'))",
  finished: "select count(*)::int from headgate.job where state = 'completed'",
  connectProducer,
  connectWorker
}
