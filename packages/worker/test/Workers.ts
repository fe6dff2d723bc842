/** Real workers over a fresh database, each with a scope of its own, and what became of their jobs. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { assert } from "@effect/vitest"
import {
  type Codec,
  Control,
  type Event,
  Gate,
  Inspect,
  JobId,
  LeaseId,
  type State,
  Telemetry,
  WorkerId
} from "@headgate/core"
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Context, Effect, Exit, Fiber, Layer, Option, Redacted, Result, Scope } from "effect"
import { Worker } from "../src/Worker.ts"
import type { WorkerOptions } from "../src/WorkerOptions.ts"

export const layer = PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))

export const pollingLayer = PostgresStore.layerWith({ listen: false }).pipe(Layer.provideMerge(TestDatabase.layer))

/** Jobs that some worker of this process has started. */
const begun = new Set<string>()

/** A worker for the current scope. `stop` drains it; `events` is what its telemetry said. */
export const start = Effect.fnUntraced(function*<Handlers, E, R>(
  handlers: Layer.Layer<Handlers, E, R>,
  options: WorkerOptions = {}
) {
  const scope = yield* Scope.fork(yield* Effect.scope)
  const events: Array<Event> = []
  const telemetry = Layer.succeed(Telemetry, {
    isListening: true,
    emit: (event) => {
      events.push(event)
      if (event._tag === "JobStarted") begun.add(event.jobId)
    }
  })
  const live = Worker.layer({ pollInterval: "200 millis", shutdownGrace: "500 millis", ...options }).pipe(
    Layer.provide(handlers),
    Layer.provide(telemetry)
  )
  const context = yield* Layer.buildWithScope(live, scope)
  const worker = Context.get(context, Worker)
  return {
    id: worker.id,
    health: worker.health,
    worker,
    events,
    stop: Scope.close(scope, Exit.void),
    /** Events of one kind, about one job if given. */
    told: (tag: Event["_tag"], jobId?: string) =>
      events.filter((event) =>
        event._tag === tag && (jobId === undefined || ("jobId" in event && event.jobId === jobId))
      )
  }
})

export const job = (id: string) => Inspect.use((inspect) => inspect.job(JobId.make(id)))

export const attempts = (id: string) => Inspect.use((inspect) => inspect.attempts(JobId.make(id)))

/** `deleted` once the job is gone. */
export const stateOf = (id: string) =>
  job(id).pipe(
    Effect.map(({ state }): State | "deleted" => state),
    Effect.catchTag("NotFound", () => Effect.succeed("deleted" as const))
  )

/** Waits until the job stands in one of the states. */
export const settled = (id: string, ...states: ReadonlyArray<State | "deleted">) =>
  until(
    Effect.map(stateOf(id), (state) => states.includes(state) ? Option.some(state) : Option.none()),
    `job ${id} to be ${states.join(" or ")}`
  )

/** Waits until a worker of this process has begun to run the job: the store says `running` of what is only claimed, too. */
export const begins = (id: string) => untilTrue(() => begun.has(id), `job ${id} to begin`)

/**
 * Waits until the condition holds; a test that waits in vain fails with what it waited for. By default far longer than a
 * machine stalls, and less long than the usual lease: what comes true only because a lease ran out is in vain.
 */
export const until = <A, E, R>(
  condition: Effect.Effect<Option.Option<A>, E, R>,
  what: string,
  withinMs = 25_000
): Effect.Effect<A, E, R> => {
  const end = monotonicMs() + withinMs
  const look: Effect.Effect<A, E, R> = Effect.flatMap(
    condition,
    Option.match({
      onSome: Effect.succeed,
      onNone: () =>
        monotonicMs() > end
          ? Effect.die(new Error(`waited ${withinMs} ms for ${what}`))
          : Effect.delay(Effect.suspend(() => look), 10)
    })
  )
  return look
}

/** How late anything may be on a busy machine, where a process or the server may stand still for seconds. */
const STALL_MS = 15_000

/** Prints what it took beside what is promised. That may be exceeded by a stall, and by nothing that takes longer. */
export const within = (what: string, tookMs: number, promisedMs: number): void => {
  console.log(`${what}: ${Math.round(tookMs)} ms, of at most ${promisedMs} ms on a quiet machine`)
  assert.isAtMost(tookMs, promisedMs + STALL_MS, what)
}

/** Holds up this thread and all its fibers, as a computation would, and leaves the processor to others. */
export const block = (ms: number): void => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)

/** Waits for something that happens in this process. */
export const untilTrue = (condition: () => boolean, what: string, withinMs?: number) =>
  until(Effect.sync(() => condition() ? Option.some(true) : Option.none()), what, withinMs)

/** How many jobs of a queue stand in each state. */
export const counts = Effect.fnUntraced(function*(queue: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ state: string; n: number }>`SELECT state, count(*)::int AS n FROM headgate.job
    WHERE queue = ${queue} GROUP BY state ORDER BY state`
  return Object.fromEntries(rows.map(({ n, state }) => [state, n]))
})

export const counters = (id: string) => Effect.map(job(id), ({ attempt, crashAttempt }) => ({ attempt, crashAttempt }))

/** Waits until the job neither waits for its first attempt nor runs. */
export const ended = (id: string) =>
  until(
    Effect.map(
      stateOf(id),
      (state) => state === "available" || state === "running" ? Option.none() : Option.some(state)
    ),
    `job ${id} to end an attempt`
  )

export const result = (id: string, codec: Codec<unknown>) =>
  Effect.map(
    Inspect.use((inspect) => inspect.result(JobId.make(id))),
    (found) => found === undefined ? undefined : Result.getOrThrow(codec.decode(found.bytes))
  )

export const cancel = (id: string) => Control.use((control) => control.cancel(JobId.make(id)))

/** What runs in `use` reaches the database through a proxy that can fail. */
export const throughProxy = Effect.fnUntraced(function*() {
  const { url } = yield* TestDatabase.TestDatabase
  const proxy = yield* TcpProxy.make(url)
  const store = Layer.fresh(PostgresStore.layer).pipe(Layer.provide(PgClient.layer({ url: Redacted.make(proxy.url) })))
  const context = yield* Layer.buildWithScope(store, yield* Effect.scope)
  return { proxy, use: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.provideContext(effect, context) }
})

/** Waits until the answer is as wanted. */
export const eventually = <A, E, R>(
  look: Effect.Effect<A, E, R>,
  isWanted: (answer: A) => boolean,
  withinMs?: number
) =>
  until(
    Effect.map(look, (answer) => isWanted(answer) ? Option.some(answer) : Option.none()),
    "another answer",
    withinMs
  )

export const joined = <A, E>(fiber: Fiber.Fiber<A, E>) => Effect.timeout(Fiber.join(fiber), "25 seconds")

/** Claims the next job of a task as a worker would that is not heard of again. */
export const claimFor = Effect.fnUntraced(function*(worker: string, task: { readonly kind: string }, queue: string) {
  const gate = yield* Gate
  yield* gate.admit({
    worker: WorkerId.make(worker),
    leaseId: LeaseId.make(crypto.randomUUID()),
    queues: [queue],
    kinds: [{ kind: task.kind, version: 1 }],
    capacity: 1,
    leaseMs: 30_000,
    quantum: undefined
  })
})
