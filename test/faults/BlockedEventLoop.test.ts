import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Fence, Job, JobId, LeaseId, Output, Progress, Task } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Deferred, Effect, Layer, Schema } from "effect"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import { Blocked, LEASE_MS, Other, QUEUE } from "./fixtures/blocked.ts"
import * as Child from "./fixtures/Child.ts"
import * as Holder from "./fixtures/Holder.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const entry = new URL("./fixtures/blocked-worker.ts", import.meta.url)

/** The application's table, and crashed jobs that come back almost at once. */
const prepared = Layer.effectDiscard(Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  yield* Holder.createMarks
  yield* sql`CREATE OR REPLACE FUNCTION headgate.crash_backoff_ms(p_crash_attempt int) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 100::bigint'`
}))

const Busy = Task.make("busy", { payload: Schema.Void, queue: QUEUE })

interface Second {
  /** Lets the second workers look at the queue. */
  readonly open: Deferred.Deferred<void>
  /** Lets their attempts at jobs that the first worker lost come to an end. */
  readonly finish: (jobId: string) => Effect.Effect<unknown>
}

/** Two workers of one slot each, kept busy until `open`: a worker takes one job at a time that a crash came before. */
const secondWorkers = Effect.fnUntraced(function*(site: Site.Site, { finish, open }: Second) {
  const handler = Blocked.toLayer(() =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const { id } = yield* Job.facts
      yield* Progress.report({ current: 1, total: 2, message: "second" })
      yield* Output.put(Schema.String, "second")
      yield* Blocked.once("mark", sql`INSERT INTO mark (job_id, written_by) VALUES (${id}, 'second')`)
      yield* finish(id)
      return "second"
    })
  )
  const handlers = Layer.merge(handler, Busy.toLayer(() => Deferred.await(open)))
  const options = { concurrency: 1, pollInterval: "100 millis" as const }
  yield* site.use(Busy.enqueueAll([undefined, undefined]))
  const workers = [yield* site.work(handlers, options), yield* site.work(handlers, options)]
  yield* Watch.untilTrue(
    () => workers.every((worker) => worker.told("JobStarted").length > 0),
    "the second workers to be busy"
  )
  return workers
})

const leaseOf = Effect.fnUntraced(function*(id: string) {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ lease_id: string; fence: bigint }>`SELECT lease_id::text, fence FROM headgate.job
    WHERE id = ${id} AND worker = 'first'`
  if (row === undefined) return yield* Effect.die(new Error(`the first worker does not hold ${id}`))
  return { jobId: JobId.make(id), leaseId: LeaseId.make(row.lease_id), fence: Fence.make(Number(row.fence)) }
})

/** The path of a file that is still to be written, in a folder of the scope's. */
const newFile = Effect.map(
  Effect.acquireRelease(
    Effect.sync(() => Fs.mkdtempSync(Path.join(Os.tmpdir(), "blocked-"))),
    (folder) => Effect.sync(() => Fs.rmSync(folder, { recursive: true }))
  ),
  (folder) => Path.join(folder, "wake")
)

layer(prepared.pipe(Layer.provideMerge(TestDatabase.layer)), { excludeTestServices: true })(
  "A blocked event loop",
  (it) => {
    it.effect(
      "a worker that wakes up after its lease writes nothing, whether its job was finished elsewhere or still runs there",
      () =>
        Effect.gen(function*() {
          const { url } = yield* TestDatabase.TestDatabase
          const site = yield* Site.open(url)
          const open = yield* Deferred.make<void>()
          const isOver = yield* Deferred.make<void>()
          const finish = (id: string) => id === "held" ? Deferred.await(isOver) : Effect.void
          const second = yield* secondWorkers(site, { open, finish })
          const wakeFile = yield* newFile
          const first = yield* Child.start(entry, { DATABASE_URL: url, WAKE_FILE: wakeFile })
          yield* site.use(Blocked.enqueue({ fails: false }, { id: "ended" }))
          yield* site.use(Blocked.enqueue({ fails: true }, { id: "held" }))
          yield* Watch.untilTrue(
            () => first.told("started").length === 2,
            "the first worker to start both jobs"
          )
          const stale = yield* Effect.forEach(["ended", "held"], leaseOf)
          yield* Deferred.succeed(open, undefined)

          yield* site.use(Watch.reaches("ended", "completed"))
          yield* Watch.untilTrue(
            () => second.some((worker) => worker.told("JobStarted", "held").length > 0),
            "the second start"
          )
          assert.lengthOf(first.told("tried"), 0, "the first worker still sleeps")
          const ended = yield* Holder.written("ended")
          assert.deepInclude(ended[0], {
            state: "completed",
            result: "\"second\"",
            message: "second",
            output: "\"second\""
          })
          assert.deepInclude(ended[0], { attempt: 0, crash_attempt: 1, marks: ["second"] })

          Fs.writeFileSync(wakeFile, "")
          yield* Watch.untilTrue(() => first.told("tried").length === 2, "the first worker to wake up and try").pipe(
            Child.explaining(first)
          )
          // A report of progress says nothing of what became of it: a server that did not answer has dropped it.
          const refused = {
            output: "refused",
            step: "refused",
            once: "refused",
            completion: "refused"
          }
          for (const line of first.told("tried")) assert.deepInclude(line, refused)
          // Whatever its process does, the store has the last word.
          for (const lease of stale) assert.deepStrictEqual(yield* site.use(Holder.sendAll(lease)), Holder.allRefused)

          yield* site.use(Other.enqueue(undefined))
          yield* Watch.untilTrue(() => first.told("other").length === 1, "the first worker to do other work")
          assert.isTrue(first.isAlive(), first.complaints())
          yield* Deferred.succeed(isOver, undefined)
          yield* site.use(Watch.reaches("held", "completed"))
          assert.deepStrictEqual(yield* Holder.written("ended"), ended)
          for (const id of ["ended", "held"]) {
            assert.deepInclude((yield* Holder.written(id))[0], {
              attempt: 0,
              crash_attempt: 1,
              fence: 2n,
              message: "second",
              output: "\"second\"",
              marks: ["second"]
            })
            assert.deepStrictEqual(yield* site.use(Watch.result(id)), "second")
            assert.deepStrictEqual(yield* site.use(Watch.outcomes(id)), ["lease_lost", "success"])
          }
          for (const id of ["ended", "held"]) {
            const heard = first.told("event").map(({ event }) => JSON.stringify(event)).filter((text) =>
              text.includes(`"${id}"`)
            )
            assert.lengthOf(heard.filter((text) => text.includes("LeaseLost")), 1)
            assert.lengthOf(heard.filter((text) => text.includes("JobEnded")), 0)
          }
        }).pipe(Effect.scoped),
      240_000
    )

    it.effect(
      "a worker that may be blocked keeps its jobs for three leases, beside an idle one",
      () =>
        Effect.gen(function*() {
          const { url } = yield* TestDatabase.TestDatabase
          const site = yield* Site.open(url)
          const open = yield* Deferred.make<void>()
          const second = yield* secondWorkers(site, {
            open,
            finish: () => Effect.void
          })
          const first = yield* Child.start(entry, { DATABASE_URL: url, BLOCKED_MS: String(3 * LEASE_MS) })
          yield* site.use(Blocked.enqueue({ fails: false }, { id: "kept" }))
          yield* Watch.untilTrue(() => first.told("started").length === 1, "the first worker to start")
          yield* Deferred.succeed(open, undefined)
          yield* site.use(Watch.reaches("kept", "completed"))
          assert.deepInclude((yield* Holder.written("kept"))[0], {
            fence: 1n,
            attempt: 0,
            crash_attempt: 0,
            result: "\"first\""
          })
          assert.lengthOf(second.flatMap((worker) => worker.told("JobStarted", "kept")), 0)
          assert.lengthOf(first.told("event").filter(({ event }) => JSON.stringify(event).includes("LeaseLost")), 0)
        }).pipe(Effect.scoped),
      240_000
    )
  }
)
