import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Redrive, type RedriveRequest, type RedriveState, Task } from "@headgate/core"
import { TestDatabase } from "@headgate/testkit"
import { Effect, Schema } from "effect"
import * as Child from "./fixtures/Child.ts"
import * as Site from "./fixtures/Site.ts"

const by = { actor: "ada", note: "the shop is back" }

const get = (id: string) => Redrive.use((redrive) => redrive.get(id))

/** Waits until the redrive is in that state. */
const reaches = (id: string, state: RedriveState) =>
  Effect.repeat(Effect.delay(get(id), 20), { until: (told) => told.state === state }).pipe(Effect.timeout("60 seconds"))

const counts = Effect.fnUntraced(function*(kind: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ state: string; n: number }>`SELECT state, count(*)::int AS n FROM headgate.job
    WHERE kind = ${kind} GROUP BY state`
  return Object.fromEntries(rows.map(({ n, state }) => [state, n]))
})

const open = Effect.flatMap(TestDatabase.TestDatabase, ({ url }) => Site.open(url))

layer(TestDatabase.layer, { excludeTestServices: true })("A redrive", (it) => {
  it.effect(
    "of jobs whose handler still fails stops by itself, says so, and ends once it is mended",
    () =>
      Effect.gen(function*() {
        const site = yield* open
        let isMended = true
        const task = Task.make("order", { payload: Schema.Int, error: Schema.String, maxAttempts: 1, queue: "orders" })
        // While it is not, the later half fails.
        const handler = task.toLayer((n) => isMended || n < 1 ? Effect.void : Effect.fail("ShopDown"))
        const worker = yield* site.work(handler, { queues: ["orders"], pollInterval: "100 millis" })
        yield* site.use(Effect.gen(function*() {
          isMended = false
          yield* task.enqueueAll(Array.from({ length: 40 }, (_, n) => n + 1))
          yield* Effect.repeat(Effect.delay(counts("order"), 20), { until: ({ archived }) => archived === 40 })
          const filter = { queue: "orders", reason: "exhausted" } as const
          const { id } = yield* Redrive.use((redrive) => redrive.start({ filter, ...by }))
          const paused = yield* reaches(id, "paused")
          assert.deepInclude(paused, { pausedFor: "failures", moved: 1, ended: 1, failed: 1 })
          assert.deepStrictEqual(yield* counts("order"), { archived: 40 })
          yield* Effect.repeat(Effect.delay(Effect.void, 10), {
            until: () =>
              worker.told("JobsRedriven").some((event) => "pausedFor" in event && event.pausedFor === "failures")
          }).pipe(Effect.timeout("1 minute"))
          assert.isTrue(site.logged.some((line) => line.includes(`Redrive ${id} has paused`)))
          isMended = true
          yield* Redrive.use((redrive) => redrive.resume(id, { actor: "bob", note: "mended" }))
          const done = yield* reaches(id, "done")
          // The one that failed was archived after the redrive began.
          assert.deepInclude(done, { moved: 40, ended: 40, failed: 1 })
          assert.deepStrictEqual(yield* counts("order"), { completed: 39, archived: 1 })
        }))
      }).pipe(Effect.scoped),
    240_000
  )

  it.effect("outlives the workers that carry it out, and moves no job twice", () =>
    Effect.gen(function*() {
      const JOBS = 600
      const KILLS = 3
      const sql = yield* PgClient.PgClient
      const { url } = yield* TestDatabase.TestDatabase
      yield* sql`CREATE TABLE move (job_id text NOT NULL)`
      yield* sql`CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.move VALUES (new.id); RETURN null; END $$`
      yield* sql`CREATE TRIGGER moved AFTER UPDATE ON headgate.job FOR EACH ROW
        WHEN (old.state = 'archived' AND new.state = 'available') EXECUTE FUNCTION note_move()`
      yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect) VALUES ('lost', 'lost', 1, false)`
      yield* sql`INSERT INTO headgate.job (id, kind, queue, state, reason, fingerprint, payload, lane_id, schema_version,
          max_attempts, crash_limit, retention_ms, scheduled_at_ms, enqueued_at_ms, finished_at_ms)
        SELECT 'j' || n, 'lost', 'lost', 'archived', 'exhausted', 'f', '{}', l.id, 1, 5, 3, 0, n, n, n
        FROM generate_series(1, ${JOBS}) n JOIN headgate.lane l ON l.kind = 'lost'`
      // Whatever comes back fails again at once.
      const archive = sql`UPDATE headgate.job SET state = 'archived', finished_at_ms = headgate.now_ms()
        WHERE kind = 'lost' AND state = 'available'`
      yield* Effect.forkScoped(Effect.forever(Effect.delay(archive, 20)))
      const site = yield* open
      yield* site.use(Effect.gen(function*() {
        // Some are left for each worker, also where this process notices late how far it is.
        const request: RedriveRequest = { filter: { kind: "lost" }, ...by, staged: false, batch: 10, perSecond: 50 }
        const { id } = yield* Redrive.use((redrive) => redrive.start(request))
        const entry = new URL("./fixtures/redrive-worker.ts", import.meta.url)
        const moved = Effect.map(get(id), (told) => told.moved)
        let killed = 0
        for (let n = 0; n <= KILLS; n++) {
          const child = yield* Child.start(entry, { DATABASE_URL: url })
          yield* Effect.gen(function*() {
            if (n === KILLS) return yield* reaches(id, "done")
            const before = yield* moved
            yield* Effect.repeat(Effect.delay(moved, 5), { until: (now) => now >= before + 20 }).pipe(
              Effect.timeout("1 minute")
            )
            process.kill(child.pid, "SIGKILL")
            if ((yield* get(id)).state === "running") killed++
          }).pipe(Child.explaining(child))
        }
        assert.strictEqual(killed, KILLS, "workers killed midway")
        assert.deepInclude(yield* get(id), { state: "done", moved: JOBS })
      }))
      const [seen] = yield* sql`SELECT count(*)::int AS moves, count(DISTINCT job_id)::int AS jobs FROM move`
      assert.deepStrictEqual(seen, { moves: JOBS, jobs: JOBS })
    }).pipe(Effect.scoped), 240_000)
})
