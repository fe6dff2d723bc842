import { assert, describe, it } from "@effect/vitest"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { EmbeddedPostgres, TestDatabase } from "@headgate/testkit"
import type { WorkerOptions } from "@headgate/worker"
import { Effect, Layer, Schedule } from "effect"
import * as Child from "../faults/fixtures/Child.ts"
import * as Figure from "../faults/fixtures/Figure.ts"
import * as Site from "../faults/fixtures/Site.ts"
import * as Watch from "../faults/fixtures/Watch.ts"
import { Quick, Timed } from "./fixtures/timed.ts"

const entry = new URL("./fixtures/timed-worker.ts", import.meta.url)

const start = Effect.fnUntraced(function*(url: string, options: WorkerOptions) {
  const child = yield* Child.start(entry, { DATABASE_URL: url, OPTIONS: JSON.stringify(options) })
  yield* Watch.untilTrue(() => child.told("up").length > 0, "a worker to be up")
  return child
})

const starts = (child: Child.Child, id: string) => child.told("started").filter((line) => line["id"] === id)

/** When the worker started the job, waited for. */
const startOf = Effect.fnUntraced(function*(child: Child.Child, id: string) {
  yield* Watch.untilTrue(() => starts(child, id).length > 0, `${id} to start`)
  return starts(child, id)[0]!.at
})

/** Sends the signal to the worker that runs the job and does all duties; answers when another has started the job. */
const moveBy = Effect.fnUntraced(
  function*(signal: NodeJS.Signals, id: string, options: WorkerOptions) {
    const { url } = yield* TestDatabase.TestDatabase
    const first = yield* start(url, options)
    yield* Timed.enqueue(undefined, { id })
    yield* startOf(first, id)
    const second = yield* start(url, options)
    const from = Child.now()
    process.kill(first.pid, signal)
    return (yield* startOf(second, id)) - from
  }
)

const database = PostgresStore.layer.pipe(Layer.provideMerge(TestDatabase.layer))

describe("recovery times", () => {
  it.live(
    "a killed worker's job runs elsewhere within its lease and 2 s, also when it held every duty",
    () =>
      Effect.gen(function*() {
        const leaseMs = 4000
        const took = yield* moveBy("SIGKILL", "killed", { lease: leaseMs })
        Figure.within(`recovery: worker killed to job running elsewhere, lease ${leaseMs} ms`, took, leaseMs + 2000)
      }).pipe(Effect.provide(database), Effect.scoped),
    240_000
  )

  it.live(
    "a job cut by SIGTERM runs elsewhere within the grace and 1 s",
    () =>
      Effect.gen(function*() {
        const graceMs = 1000
        // A lease that had to run out would show.
        const took = yield* moveBy("SIGTERM", "cut", { shutdownGrace: graceMs, lease: "10 minutes" })
        assert.isAbove(took, graceMs, "the grace is given")
        Figure.within(`recovery: SIGTERM to job running elsewhere, grace ${graceMs} ms`, took, graceMs + 1000)
      }).pipe(Effect.provide(database), Effect.scoped),
    240_000
  )

  it.live(
    "after a restart of PostgreSQL new work is claimed within 5 s of its accepting connections",
    () =>
      Effect.gen(function*() {
        const server = yield* EmbeddedPostgres.start({ isDurable: true })
        const site = yield* Site.open(server.url, { settings: { migrate: true } })
        const worker = yield* start(server.url, { pollInterval: "30 seconds" })
        yield* site.use(Quick.enqueue(undefined, { id: "before" }))
        yield* startOf(worker, "before")
        yield* server.restart("immediate")
        const upAt = Child.now()
        yield* Effect.retry(site.use(Quick.enqueue(undefined, { id: "after" })), Schedule.spaced(20))
        const took = (yield* startOf(worker, "after")) - upAt
        Figure.within("recovery: PostgreSQL accepts connections to new work claimed", took, 5000)
      }).pipe(Effect.scoped),
    240_000
  )
})
