/** headgate as its users run it: every guarantee on, defaults where a setting does not say otherwise. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Gate } from "@headgate/core/Gate"
import { Task } from "@headgate/core/Task"
import { Wakeups } from "@headgate/core/Wakeups"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import type { SpanExporter } from "@opentelemetry/sdk-trace-base"
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as ManagedRuntime from "effect/ManagedRuntime"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { sleep } from "../Process.ts"
import type { Setting, System, Tally, Worker, Workflows } from "../System.ts"

const callers = 16
const defaultConcurrency = 100
const unfinished = "headgate.job where state in ('pending', 'scheduled', 'available', 'running', 'retryable')"

const payload = Schema.Struct({ n: Schema.Int })

/** The same no-op, deleted when it is done or kept for a day. */
const taskOf = (setting: Setting) =>
  Task.make(setting.isKept ? "no-op-kept" : "no-op", {
    payload,
    retention: setting.isKept ? "1 day" : 0
  })

const stepNames = [
  "step-0",
  "step-1",
  "step-2",
  "step-3",
  "step-4",
  "step-5",
  "step-6",
  "step-7",
  "step-8",
  "step-9"
] as const

const tenSteps = Task.make("ten-steps", { payload, steps: stepNames, retention: 0 })

/** What differs from the defaults. */
interface Choice {
  readonly concurrency?: number
  readonly pollInterval?: number
  readonly listen?: boolean
  /** Traced, with this part of all traces kept; off by default. */
  readonly sampleRatio?: number
}

const choices = new Map<string, Choice>()

const setting = (
  name: string,
  choice: Choice,
  workloads: Setting["workloads"],
  { attached, isKept = false, onlyInFull = [] }: Partial<Pick<Setting, "attached" | "isKept" | "onlyInFull">> = {}
): Setting => {
  const { concurrency = defaultConcurrency } = choice
  choices.set(name, choice)
  return {
    name,
    workloads,
    concurrency,
    isKept,
    onlyInFull,
    options: { ...choice, concurrency, retention: isKept ? "1 day" : 0 },
    ...attached === undefined ? {} : { attached }
  }
}

const choiceOf = ({ name }: Setting): Choice => choices.get(name) ?? {}

const storeAt = (url: string, maxConnections: number, { listen = true }: Choice = {}) =>
  PostgresStore.layerWith({ listen }).pipe(
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

/** Enqueued like all others, and brought by one statement into the state in which a success leaves them. */
const fillFinished: System["fillFinished"] = async (client, url, setting, count) => {
  await fill(url, setting, count)
  await client.query(
    `update headgate.job set state = 'completed', fence = 1, claimed_at_ms = headgate.now_ms(),
      finished_at_ms = headgate.now_ms(), evict_at_ms = headgate.now_ms() + retention_ms, last_worker = 'bench'`
  )
}

/**
 * Stands before the gate: closed until told to start, since every other system waits for that too; tells how long claims
 * took; and wakes the worker again after each call while it is to poll as fast as it can.
 */
class Doorkeeper {
  readonly door = Latch.makeUnsafe(false)
  readonly wakeups = Effect.runSync(Queue.sliding<void>(1))
  private readonly tally: Tally
  private calls = 0
  private pollsLeft = 0
  private polled: () => void = () => {}

  private readonly isPolled: boolean

  constructor(tally: Tally, isPolled: boolean) {
    this.tally = tally
    this.isPolled = isPolled
  }

  readonly gate = Layer.effect(
    Gate,
    Gate.use((gate) =>
      Effect.succeed(Gate.of({
        ...gate,
        admit: (request) => Effect.andThen(this.door.await, this.watch(gate.admit(request)))
      }))
    )
  )

  readonly announcements = Layer.effect(
    Wakeups,
    Wakeups.use((wakeups) =>
      Effect.succeed(Wakeups.of({
        subscribe: (queues) => {
          const announced = wakeups.subscribe(queues)
          return this.isPolled ? Stream.merge(announced, Stream.fromQueue(this.wakeups)) : announced
        }
      }))
    )
  )

  /** Answers when no call is on its way any more. */
  async shut(): Promise<void> {
    this.door.closeUnsafe()
    while (this.calls > 0) await sleep(1)
  }

  poll(times: number): Promise<void> {
    return new Promise((resolve) => {
      this.pollsLeft = times
      this.polled = resolve
      Queue.offerUnsafe(this.wakeups, undefined)
    })
  }

  private watch<A extends { readonly claims: ReadonlyArray<unknown> }, E>(
    admit: Effect.Effect<A, E>
  ): Effect.Effect<A, E> {
    return Effect.suspend(() => {
      const askedAt = performance.now()
      this.calls++
      const watched = Effect.tap(
        admit,
        ({ claims }) => Effect.sync(() => this.answered(claims.length, performance.now() - askedAt))
      )
      return Effect.ensuring(watched, Effect.sync(() => this.calls--))
    })
  }

  private answered(claims: number, ms: number): void {
    if (claims > 0) this.tally.claimed(ms)
    if (this.pollsLeft === 0) return
    if (--this.pollsLeft === 0) this.polled()
    else Queue.offerUnsafe(this.wakeups, undefined)
  }
}

/** As a program has it that exports to somewhere; its batches go nowhere. */
const tracing = async (sampleRatio: number) => {
  const { layer } = await import("@headgate/otel/Otel")
  const spanExporter: SpanExporter = {
    export: (_spans, done) => done({ code: 0 }),
    shutdown: () => Promise.resolve()
  }
  return layer(() => ({ serviceName: "bench", spanExporter, sampleRatio }))
}

const connectWorker: System["connectWorker"] = async (url, setting, tally): Promise<Worker> => {
  const { Worker } = await import("@headgate/worker/Worker")
  const { listen: _, sampleRatio, ...options } = choiceOf(setting)
  const doorkeeper = new Doorkeeper(tally, setting.workloads.includes("W8"))
  const handler = taskOf(setting).toLayer(() => Effect.sync(() => tally.handled(1)))
  const worker = Worker.layer(options).pipe(
    Layer.provide(handler),
    Layer.provide([doorkeeper.gate, doorkeeper.announcements]),
    Layer.provide(storeAt(url, 2, choiceOf(setting))),
    Layer.provide(sampleRatio === undefined ? Layer.empty : await tracing(sampleRatio))
  )
  const runtime = ManagedRuntime.make(worker)
  await runtime.context()
  return {
    start: async () => void doorkeeper.door.openUnsafe(),
    pause: () => doorkeeper.shut(),
    // What waits at the door is let in, so that the drain need not wait for it.
    close: async () => {
      doorkeeper.door.openUnsafe()
      await runtime.dispose()
    },
    poll: (times) => doorkeeper.poll(times)
  }
}

const connectProducer: System["connectProducer"] = async (url, setting) => {
  const task = taskOf(setting)
  const runtime = ManagedRuntime.make(storeAt(url, callers, choiceOf(setting)))
  await runtime.context()
  return {
    enqueue: (n) => runtime.runPromise(Effect.asVoid(task.enqueue({ n }))),
    enqueueBatch: (first, count) => runtime.runPromise(Effect.asVoid(task.enqueueAll(numbers(first, count)))),
    close: () => runtime.dispose()
  }
}

const connectWorkflows: System["connectWorkflows"] = async (url, setting): Promise<Workflows> => {
  const { Worker } = await import("@headgate/worker/Worker")
  let steps = 0
  let left = 0
  const allEnded = Latch.makeUnsafe(false)
  const handler = tenSteps.toLayer(() =>
    Effect.gen(function*() {
      for (const [n, name] of stepNames.entries()) {
        yield* tenSteps.step(name, Effect.sync(() => (steps++, n)), { result: Schema.Int })
      }
      if (--left === 0) allEnded.openUnsafe()
    })
  )
  const runtime = ManagedRuntime.make(
    Worker.layer({ concurrency: setting.concurrency }).pipe(Layer.provide(handler), Layer.provideMerge(storeAt(url, 2)))
  )
  await runtime.context()
  const isUnfinished = PgClient.PgClient.use((sql) =>
    Effect.map(
      sql.unsafe<{ found: boolean }>(`select exists (select from ${unfinished}) as found`),
      ([row]) => row?.found === true
    )
  )
  const run = (count: number) =>
    Effect.gen(function*() {
      const before = steps
      left = count
      allEnded.closeUnsafe()
      yield* tenSteps.enqueueAll(numbers(0, count))
      yield* allEnded.await
      while (yield* isUnfinished) yield* Effect.sleep(1)
      return steps - before
    })
  return {
    run: (count) => runtime.runPromise(run(count)),
    close: () => runtime.dispose()
  }
}

export const headgate: System = {
  name: "headgate",
  settings: [
    setting("concurrency 1000", { concurrency: 1000 }, ["W1", "W2"]),
    setting("concurrency 1000, 2 workers attached", { concurrency: 1000 }, ["W1"], { attached: 2 }),
    setting("concurrency 1000, kept", { concurrency: 1000 }, ["W2", "W4"], { isKept: true }),
    setting("concurrency 1000, 1 % traced", { concurrency: 1000, sampleRatio: 0.01 }, ["W2"]),
    setting("concurrency 200", { concurrency: 200 }, ["W2"], { onlyInFull: ["W2"] }),
    setting("default concurrency", {}, ["W2", "W7", "W9"]),
    setting("default concurrency, kept", {}, ["W2"], { isKept: true, onlyInFull: ["W2"] }),
    setting("notify", {}, ["W3"]),
    setting("poll 100 ms", { listen: false, pollInterval: 100 }, ["W3"]),
    setting("polls when told", {}, ["W8"]),
    setting("1 at once", { concurrency: 1 }, ["W5"]),
    setting("32 at once", { concurrency: 32 }, ["W5"])
  ],
  install: (url) => withStore(url, Effect.void),
  fill,
  fillFinished,
  unfinished,
  running: "headgate.job where state = 'running'",
  finished: "headgate.job where state = 'completed'",
  connectProducer,
  connectWorker,
  connectWorkflows
}
