import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import * as Outcome from "@headgate/core/Outcome"
import { Redrive, type RedriveFilter, type RedriveRequest, type RedriveSelection } from "@headgate/core/Redrive"
import { Time } from "@headgate/testkit"
import { Effect, Fiber } from "effect"
import * as Jobs from "./Jobs.ts"
import * as Store from "./Store.ts"

const by = { actor: "ada", note: "the API is back" }
const all: RedriveRequest = { filter: { archivedFromMs: 0 }, ...by, staged: false }

const dead = (id: string, columns: Partial<Jobs.Seed> = {}): Jobs.Seed => ({
  id,
  state: "archived",
  reason: "exhausted",
  attempt: 5,
  ...columns
})

/** One step; the clock goes on to the next one that is due. */
const step = Effect.gen(function*() {
  const round = yield* Duties.use((duties) => duties.redriveStep)
  if (round.step === undefined && round.nextDueInMs !== undefined) yield* Time.advance(round.nextDueInMs)
  return round
})

/** Steps until nothing runs, with `between` after each. */
const carryOut = Effect.fnUntraced(function*<E, R>(between: Effect.Effect<unknown, E, R>) {
  for (let n = 0; n < 10_000; n++) {
    const { nextDueInMs } = yield* step
    if (nextDueInMs === undefined) return
    yield* between
  }
  return yield* Effect.die(new Error("the redrive does not end"))
})

const start = (request: RedriveRequest) => Redrive.use((redrive) => redrive.start(request))
const get = (id: string) => Redrive.use((redrive) => redrive.get(id))

const redriven = Effect.fnUntraced(function*(request: RedriveRequest) {
  const { id } = yield* start(request)
  yield* carryOut(Effect.void)
  return yield* get(id)
})

const inState = Effect.fnUntraced(function*(state: string) {
  const sql = yield* PgClient.PgClient
  const rows = yield* sql<{ id: string }>`SELECT id FROM headgate.job WHERE state = ${state} ORDER BY id`
  return rows.map(({ id }) => id)
})

const empty = Effect.flatMap(
  PgClient.PgClient,
  (sql) =>
    sql`TRUNCATE headgate.job, headgate.attempt, headgate.strike, headgate.redrive,
      headgate.redrive_job, headgate.redrive_open, headgate.redrive_event`
)

/** Ends what is ready: with a failure that archives it, or with success. */
const work = Effect.fnUntraced(function*(capacity: number, fails: (id: string) => boolean) {
  const claims = yield* Store.admit({ capacity })
  for (const { lease } of claims) {
    const boom = { tag: "Boom", message: "boom", text: "boom", encoded: undefined }
    yield* Store.settle(lease, fails(lease.jobId) ? Outcome.fatal(boom) : Outcome.success)
  }
})

const named = (count: number, columns: Partial<Jobs.Seed> = {}) =>
  Array.from({ length: count }, (_, n) => dead(`d${10_000 + n}`, columns))

layer(Store.layer, { excludeTestServices: true })("Redrive", (it) => {
  it.effect("selects by each field of a filter and by all of them together", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const now = yield* Time.now()
      const at = now - 10_000
      const fields: Readonly<Record<string, readonly [Partial<Jobs.Seed>, RedriveFilter]>> = {
        kind: [{ kind: "mail" }, { kind: "mail" }],
        queue: [{ queue: "slow" }, { queue: "slow" }],
        partition: [{ partition_key: "acme" }, { partitionKey: "acme" }],
        reason: [{ reason: "skipped" }, { reason: "skipped" }],
        tag: [{ tags: ["a", "vip"] }, { tag: "vip" }],
        from: [{ finished_at_ms: now - 500 }, { archivedFromMs: now - 500 }],
        until: [{ finished_at_ms: at - 500 }, { archivedBeforeMs: at - 499 }],
        error: [{ fence: 7 }, { errorTag: "ShopDown" }]
      }
      const columns = Object.entries(fields).map(([id, [columns]]) => dead(id, { finished_at_ms: at, ...columns }))
      const everything = Object.assign({}, ...Object.values(fields).map(([columns]) => columns))
      for (const [id, [, filter]] of Object.entries(fields)) {
        yield* empty
        yield* Jobs.seed(
          ...columns,
          dead("plain", { finished_at_ms: at }),
          dead("everything", { ...everything, finished_at_ms: id === "until" ? at - 500 : now - 500 }),
          { id: "alive", kind: "mail", queue: "slow", tags: ["vip"] },
          { id: "cancelled", state: "cancelled", kind: "mail", queue: "slow", tags: ["vip"] }
        )
        for (const job of ["error", "everything"]) {
          for (const [fence, tag] of [[6, "Older"], [7, "ShopDown"]] as const) {
            yield* sql`INSERT INTO headgate.attempt (job_id, fence, started_at_ms, ended_at_ms, worker, outcome, error_tag)
              VALUES (${job}, ${fence}, 1, 1, 'w', 'retry', ${tag})`
          }
        }
        const wanted = [id, "everything"].sort()
        const preview = yield* Redrive.use((redrive) => redrive.preview({ filter }))
        assert.deepStrictEqual(preview.sample.toSorted(), wanted, id)
        assert.deepInclude(preview, { matching: 2, approximate: false })
        const told = yield* redriven({ filter, ...by, staged: false })
        assert.deepInclude(told, { state: "done", moved: 2, filter })
        assert.deepStrictEqual(yield* inState("available"), ["alive", ...wanted].sort(), id)
      }
      yield* empty
      yield* Jobs.seed(...columns, dead("everything", { ...everything, finished_at_ms: now - 500 }))
      yield* sql`INSERT INTO headgate.attempt (job_id, fence, started_at_ms, ended_at_ms, worker, outcome, error_tag)
        VALUES ('everything', 7, 1, 1, 'w', 'retry', 'ShopDown')`
      const filter = Object.assign({}, ...Object.values(fields).map(([, filter]) => filter), { archivedBeforeMs: now })
      assert.deepInclude(yield* redriven({ filter, ...by, staged: false }), { moved: 1 })
    }))

  it.effect("a preview counts up to 10,000 jobs, says when there are more, and changes nothing", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(dead("a"), dead("b", { kind: "rare", finished_at_ms: 1_000_000 }), { id: "alive" })
      yield* sql`INSERT INTO headgate.job SELECT r.* FROM headgate.job j, generate_series(1, 20000) n
        CROSS JOIN LATERAL jsonb_populate_record(j, jsonb_build_object('id', 'a' || n, 'finished_at_ms', n)) r
        WHERE j.id = 'a'`
      const preview = (selection: RedriveSelection) => Redrive.use((redrive) => redrive.preview(selection))
      const many = yield* preview({ filter: { kind: "greet" } })
      assert.deepInclude(many, { matching: 10_000, approximate: true })
      assert.deepStrictEqual(many.sample, Array.from({ length: 20 }, (_, n) => Jobs.jobId(`a${n + 1}`)))
      const group = { kind: "rare", reason: "exhausted", errorTag: undefined, jobs: 1 } as const
      const rare = { matching: 1, approximate: false, sample: [Jobs.jobId("b")], groups: [group] }
      assert.deepStrictEqual(yield* preview({ filter: { kind: "rare" } }), rare)
      assert.deepStrictEqual(yield* preview({ ids: ["b", "gone", "alive", "b"].map(Jobs.jobId) }), rare)
      assert.strictEqual((yield* inState("archived")).length, 20_002)
    }))

  it.effect("brings a job back as an operator's retry does: counters anew, what it has done kept", () =>
    Effect.gen(function*() {
      yield* empty
      const worn = {
        attempt: 5,
        crash_attempt: 2,
        streak: 4,
        fence: 9,
        orphaned: true,
        has_steps: true,
        cursor_step: "s",
        in_progress_step: "s",
        evict_at_ms: 4e12
      }
      yield* Jobs.seed(dead("redriven", worn), dead("keyed", { ...worn, unique_key: "\\x01" }), dead("retried", worn))
      yield* Control.use((control) => control.retry(Jobs.jobId("retried")))
      const told = yield* redriven({ ids: ["redriven", "keyed"].map(Jobs.jobId), ...by, staged: false })
      assert.strictEqual(told.moved, 2)
      const own = ["id", "fingerprint", "unique_key", "scheduled_at_ms", "enqueued_at_ms", "claimed_at_ms"]
      const [redrivenRow, keyed, retried] = yield* Effect.forEach(
        ["redriven", "keyed", "retried"],
        (id) => Effect.map(Jobs.row(id), (row = {}) => Object.entries(row).filter(([column]) => !own.includes(column)))
      )
      assert.deepStrictEqual(redrivenRow, retried)
      assert.deepStrictEqual(keyed, retried)
      assert.deepInclude(yield* Jobs.row("redriven"), { state: "available", attempt: 0, crash_attempt: 0, fence: 9 })
    }))

  it.effect("keeps, clears or replaces deadlines, and skips what is past a kept one", () =>
    Effect.gen(function*() {
      for (const deadline of ["keep", "clear", { afterMs: 60_000 }] as const) {
        yield* empty
        const now = yield* Time.now()
        yield* Jobs.seed(
          dead("passed", { deadline_at_ms: now - 1 }),
          dead("passed keyed", { deadline_at_ms: now - 1, unique_key: "\\x02" }),
          dead("ahead", { deadline_at_ms: now + 9e6 }),
          dead("ahead keyed", { deadline_at_ms: now + 9e6, unique_key: "\\x03" })
        )
        const told = yield* redriven({ ...all, deadline })
        const deadlines = yield* Effect.forEach(["passed", "passed keyed", "ahead", "ahead keyed"], (id) =>
          Effect.map(Jobs.columns(id, "state", "deadline_at_ms"), ([state, at]) =>
            state === "archived" ? state : at))
        assert.deepStrictEqual(told.deadline, deadline)
        if (deadline === "keep") {
          assert.deepStrictEqual(deadlines, ["archived", "archived", now + 9e6, now + 9e6])
          assert.deepInclude(told, { moved: 2 })
          assert.strictEqual(told.skipped.deadlinePassed, 2)
        } else if (deadline === "clear") {
          assert.deepStrictEqual(deadlines, [null, null, null, null])
        } else {
          for (const at of deadlines) {
            assert.approximately(Number(at), now + 60_000, 5000)
          }
        }
      }
    }))

  it.effect("skips and counts what cannot come back, and tells job by job", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(
        { id: "holder", unique_key: "\\x0101" },
        dead("taken", { unique_key: "\\x0101" }),
        dead("twin 1", { unique_key: "\\x0102" }),
        dead("twin 2", { unique_key: "\\x0102" }),
        dead("poison", { fingerprint: "bad" }),
        dead("free"),
        dead("locked"),
        { id: "completed", state: "completed" }
      )
      yield* sql`INSERT INTO headgate.strike (fingerprint, strikes, last_at_ms, kind, last_job_id, closed_at_ms)
        VALUES ('bad', 3, 1, 'greet', 'x', 1)`
      const ids = ["taken", "twin 1", "twin 2", "poison", "gone", "free", "locked", "completed", "free"].map(Jobs.jobId)
      const { id } = yield* start({ ids, ...by, staged: false })
      const waiting = yield* Redrive.use((redrive) => redrive.jobs(id, { limit: 1 }))
      assert.deepStrictEqual(waiting, { items: [{ jobId: ids[0]!, result: "waiting" }], next: 1 })
      yield* sql.withTransaction(Effect.andThen(
        sql`SELECT FROM headgate.job WHERE id = 'locked' FOR UPDATE`,
        // On a connection of the store's, which must not wait for it.
        Effect.timeout(carryOut(Effect.void), "1 minute")
      ))
      const told = yield* get(id)
      assert.deepInclude(told, { state: "done", moved: 2, named: 8, filter: undefined })
      assert.deepStrictEqual(told.skipped, {
        keyTaken: 2,
        deadlinePassed: 0,
        fingerprintClosed: 1,
        notArchived: 2,
        held: 1
      })
      const first = yield* Redrive.use((redrive) => redrive.jobs(id, { limit: 5 }))
      const rest = yield* Redrive.use((redrive) => redrive.jobs(id, { after: first.next }))
      assert.deepStrictEqual([...first.items, ...rest.items].map(({ jobId, result }) => `${jobId}: ${result}`), [
        "taken: keyTaken",
        "twin 1: moved",
        "twin 2: keyTaken",
        "poison: fingerprintClosed",
        "gone: notArchived",
        "free: moved",
        "locked: held",
        "completed: notArchived"
      ])
      assert.isUndefined(rest.next)
      assert.deepStrictEqual(yield* inState("available"), ["free", "holder", "twin 1"])
    }))

  it.effect("a unique key that an open transaction is about to take is waited for a moment only", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(dead("a", { unique_key: "\\x0777" }), dead("b"))
      const { id } = yield* start(all)
      yield* sql.withTransaction(Effect.gen(function*() {
        yield* Jobs.seed({ id: "newcomer", unique_key: "\\x0777" })
        yield* Effect.timeout(carryOut(Effect.void), "1 minute")
      }))
      const told = yield* get(id)
      assert.deepInclude(told, { state: "done", moved: 1 })
      assert.strictEqual(told.skipped.held, 1)
    }))

  it.effect("moves no job that was archived again since it began, also within the same millisecond", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Time.freeze()
      yield* Jobs.seed(...named(30))
      const again = Effect.flatMap(
        PgClient.PgClient,
        (sql) =>
          sql`UPDATE headgate.job SET state = 'archived', finished_at_ms = headgate.now_ms() WHERE state = 'available'`
      )
      const { id } = yield* start({ ...all, batch: 7, perSecond: 10_000 })
      yield* carryOut(again)
      yield* Time.resume()
      yield* again
      assert.deepInclude(yield* get(id), { state: "done", moved: 30 })
      const { id: other } = yield* start({ ids: [Jobs.jobId("d10000")], ...by, staged: false })
      yield* Time.advance("1 second")
      yield* again
      const sql = yield* PgClient.PgClient
      yield* sql`UPDATE headgate.job SET finished_at_ms = headgate.now_ms() WHERE id = 'd10000'`
      yield* carryOut(Effect.void)
      assert.strictEqual((yield* get(other)).skipped.notArchived, 1)
    }))

  it.effect("moves so many jobs a batch, and so many a second", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(25))
      yield* Time.freeze()
      yield* start({ ...all, batch: 10, perSecond: 20 })
      const rounds = yield* Effect.all([step, step, step, step, step])
      yield* Time.resume()
      assert.deepStrictEqual(rounds.map(({ nextDueInMs, step }) => [step?.moved, nextDueInMs]), [
        [10, 500],
        [undefined, 500],
        [10, 500],
        [undefined, 500],
        [5, undefined]
      ])
    }))

  it.effect("of two workers that do a step at once, one gives way", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(...named(20))
      const { id } = yield* start({ ...all, batch: 10, perSecond: 10_000 })
      const held = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT * FROM headgate.redrive_step()`
        return yield* Effect.timeout(Duties.use((duties) => duties.redriveStep), "1 minute")
      }))
      assert.isUndefined(held.step)
      yield* carryOut(Effect.void)
      const { items } = yield* Redrive.use((redrive) => redrive.jobs(id))
      assert.strictEqual(new Set(items.map(({ jobId }) => jobId)).size, 20)
      assert.deepInclude(yield* get(id), { state: "done", moved: 20 })
    }))

  it.effect("a step that is rolled back has moved nothing, and the next one does it", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(...named(3))
      const { id } = yield* start(all)
      yield* Effect.ignore(sql.withTransaction(Effect.andThen(
        sql`SELECT * FROM headgate.redrive_step()`,
        Effect.fail("the worker died")
      )))
      assert.deepInclude(yield* get(id), { state: "running", moved: 0 })
      assert.deepStrictEqual(yield* inState("available"), [])
      yield* carryOut(Effect.void)
      assert.deepInclude(yield* get(id), { state: "done", moved: 3 })
    }))

  it.effect("races with operators: what they brought back or removed is not touched", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(...named(4))
      const { id } = yield* start(all)
      const context = yield* Effect.context<Duties>()
      const fiber = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT * FROM headgate.retry_job('d10000', false, null)`
        yield* sql`SELECT * FROM headgate.remove_job('d10001')`
        return yield* Effect.forkDetach(
          Effect.provideContext(Duties.use((duties) => duties.redriveStep), context)
        ).pipe(Effect.tap(Fiber.await))
      }))
      assert.strictEqual((yield* Fiber.join(fiber)).step?.moved, 2)
      yield* carryOut(Effect.void)
      const told = yield* get(id)
      assert.deepInclude(told, { state: "done", moved: 2 })
      assert.strictEqual(told.skipped.held, 2)
      assert.deepStrictEqual(yield* inState("available"), ["d10000", "d10002", "d10003"])
    }))

  it.effect("a cancel midway leaves the rest archived, and says so ever after", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(30))
      const { id } = yield* start({ ...all, batch: 10 })
      yield* step
      const cancelled = yield* Redrive.use((redrive) => redrive.cancel(id, { actor: "bob", note: "wrong queue" }))
      assert.deepInclude(cancelled, { state: "cancelled", moved: 10 })
      yield* carryOut(Effect.void)
      assert.strictEqual((yield* inState("archived")).length, 20)
      assert.deepStrictEqual(yield* Redrive.use((redrive) => redrive.cancel(id, by)), cancelled)
      const wrong = yield* Effect.flip(Redrive.use((redrive) => redrive.resume(id, by)))
      assert.deepInclude(wrong, { _tag: "WrongState", state: "cancelled", what: "redrive" })
      const { events } = yield* get(id)
      assert.deepStrictEqual(events.map(({ actor, event, note }) => [event, actor, note]), [
        ["created", "ada", "the API is back"],
        ["cancelled", "bob", "wrong queue"]
      ])
    }))

  it.effect("refuses what is not there, not in that state, or not within the limits", () =>
    Effect.gen(function*() {
      yield* empty
      const { id } = yield* start(all)
      const running = yield* Effect.flip(Redrive.use((redrive) => redrive.resume(id, by)))
      assert.deepInclude(running, { _tag: "WrongState", operation: "resume", state: "running" })
      yield* carryOut(Effect.void)
      const done = yield* Effect.flip(Redrive.use((redrive) => redrive.cancel(id, by)))
      assert.deepInclude(done, { _tag: "WrongState", operation: "cancel", state: "done" })
      for (const ask of ["get", "jobs", "cancel", "resume"] as const) {
        const refusal = yield* Effect.flip(
          Redrive.use((redrive): Effect.Effect<unknown, { readonly _tag: string; readonly message: string }> =>
            ask === "get" || ask === "jobs" ? redrive[ask]("nobody") : redrive[ask]("nobody", by)
          )
        )
        assert.deepInclude(refusal, { _tag: "NotFound", message: "there is no redrive nobody" })
      }
      const unsigned = yield* Effect.flip(Redrive.use((redrive) => redrive.cancel(id, { ...by, actor: "" })))
      assert.deepInclude(unsigned, { _tag: "Invalid", field: "actor" })
      assert.deepInclude(yield* Effect.flip(start({ ...all, batch: 1001 })), {
        field: "batch",
        limit: 1000,
        actual: 1001
      })
      assert.deepInclude(yield* Effect.flip(Redrive.use((redrive) => redrive.preview({ filter: {} }))), {
        field: "filter"
      })
      assert.deepInclude(yield* Effect.flip(Redrive.use((redrive) => redrive.list({ limit: 201 }))), { field: "limit" })
    }))

  it.effect("a request that is sent again with its id starts nothing new", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(2))
      const first = yield* start({ ...all, id: "mine" })
      assert.deepStrictEqual(yield* start({ ...all, id: "mine", note: "again" }), first)
      assert.strictEqual((yield* get("mine")).events.length, 1)
    }))

  it.effect("an id that belongs to a redrive of other jobs is refused, and nothing changes", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(3))
      const ids = ["d10000", "d10001"].map(Jobs.jobId)
      yield* start({ ...all, id: "filter" })
      yield* start({ ids, ...by, staged: false, id: "ids" })
      yield* start({ filter: { archivedWithin: "1 day" }, ...by, id: "within" })
      const before = yield* Effect.forEach(["filter", "ids", "within"], get)
      const others: ReadonlyArray<RedriveRequest> = [
        { ...all, id: "filter", filter: { archivedFromMs: 0, kind: "mail" } },
        { ...all, id: "filter", filter: { archivedFromMs: 1 } },
        { ...by, id: "filter", ids },
        { ...by, id: "ids", ids: ids.toReversed() },
        { ...by, id: "ids", ids: [...ids, Jobs.jobId("d10002")] },
        { ...all, id: "ids" },
        { ...by, id: "within", filter: { archivedWithin: "2 days" } }
      ]
      for (const request of others) {
        const refusal = yield* Effect.flip(start(request))
        assert.deepInclude(refusal, { _tag: "IdConflict", id: request.id ?? "", what: "redrive" })
      }
      assert.match((yield* Effect.flip(start(others[0]!))).message, /another filter/)
      yield* carryOut(Effect.void)
      assert.deepStrictEqual((yield* start({ ids, ...by, id: "ids" })).state, "done")
      yield* start({ filter: { archivedWithin: "24 hours" }, ...by, id: "within" })
      assert.deepStrictEqual(
        (yield* Effect.forEach(["filter", "ids", "within"], get)).map(({ filter, named }) => [filter, named]),
        before.map(({ filter, named }) => [filter, named])
      )
    }))

  it.effect("a preview groups what it found by kind, reason and error, the largest group first", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(
        ...["a", "b", "c"].map((id) => dead(id, { kind: "mail", fence: 2 })),
        dead("d", { kind: "mail", fence: 2 }),
        ...["e", "f"].map((id) => dead(id, { reason: "deadline" })),
        dead("g", { queue: "other" })
      )
      for (const [id, tag] of [["a", "ShopDown"], ["b", "ShopDown"], ["c", "ShopDown"], ["d", "Closed"]] as const) {
        for (const [fence, error] of [[1, "Older"], [2, tag]] as const) {
          yield* sql`INSERT INTO headgate.attempt (job_id, fence, started_at_ms, ended_at_ms, worker, outcome, error_tag)
            VALUES (${id}, ${fence}, 1, 1, 'w', 'retry', ${error})`
        }
      }
      const groups = (selection: RedriveSelection) =>
        Effect.map(
          Redrive.use((redrive) => redrive.preview(selection)),
          ({ groups }) => groups.map(({ errorTag, jobs, kind, reason }) => `${jobs} ${kind} ${reason} ${errorTag}`)
        )
      assert.deepStrictEqual(yield* groups({ filter: { queue: "default" } }), [
        "3 mail exhausted ShopDown",
        "2 greet deadline undefined",
        "1 mail exhausted Closed"
      ])
      assert.deepStrictEqual(yield* groups({ ids: ["d", "gone"].map(Jobs.jobId) }), ["1 mail exhausted Closed"])
      assert.deepStrictEqual(yield* groups({ filter: { kind: "nothing" } }), [])
    }))

  it.effect("a time that counts back is the store's, from the start on", () =>
    Effect.gen(function*() {
      yield* empty
      const now = yield* Time.advance("400 days")
      yield* Time.freeze()
      yield* Jobs.seed(
        dead("young", { finished_at_ms: now - 3_500_000 }),
        dead("old", { finished_at_ms: now - 3_700_000 })
      )
      const filter = { archivedWithin: "1 hour" } as const
      const preview = yield* Redrive.use((redrive) => redrive.preview({ filter }))
      assert.deepStrictEqual(preview.sample, [Jobs.jobId("young")])
      const { id } = yield* start({ filter, ...by, staged: false })
      yield* Time.resume()
      yield* Time.advance("1 hour")
      yield* carryOut(Effect.void)
      assert.deepInclude(yield* get(id), { state: "done", moved: 1, filter: { archivedWithin: 3_600_000 } })
      assert.deepStrictEqual(yield* inState("archived"), ["old"])
    }))

  it.effect("what became of the jobs is told where it is looked at, and nothing is told where it is not", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(2))
      const { id } = yield* start(all)
      yield* carryOut(work(10, () => true))
      assert.deepInclude(yield* get(id), {
        state: "done",
        moved: 2,
        ended: undefined,
        failed: undefined,
        stage: undefined
      })
    }))

  it.effect("a running redrive says what it waits for: a worker with the duty, or the end of a stage", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(3))
      const worker = Jobs.workerId("w")
      assert.strictEqual((yield* start({ ...all, id: "r", staged: true })).waitingFor, "duty")
      yield* Duties.use((duties) => duties.claimDuty("redrive", worker, 10_000))
      assert.isUndefined((yield* get("r")).waitingFor)
      yield* step
      assert.strictEqual((yield* get("r")).waitingFor, "stage")
      yield* Time.advance("11 seconds")
      assert.strictEqual((yield* get("r")).waitingFor, "duty")
      yield* Redrive.use((redrive) => redrive.cancel("r", by))
      assert.isUndefined((yield* get("r")).waitingFor)
    }))

  it.effect("awaited it is told as soon as it runs no more", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(30))
      const { id } = yield* start({ ...all, batch: 10 })
      const waiting = yield* Effect.forkChild(Redrive.await(id, { pollInterval: "10 millis" }))
      yield* step
      yield* carryOut(Effect.void)
      assert.deepInclude(yield* Effect.timeout(Fiber.join(waiting), "1 minute"), { state: "done", moved: 30 })
      assert.strictEqual((yield* Effect.flip(Redrive.await("nobody")))._tag, "NotFound")
      assert.deepInclude(yield* Effect.flip(Redrive.await(id, { pollInterval: 1 })), {
        field: "pollInterval",
        limit: 10
      })
    }))

  it.effect("the list is paged, the newest first, and may be of one state", () =>
    Effect.gen(function*() {
      yield* empty
      for (const id of ["r1", "r2", "r3"]) yield* start({ ...all, id })
      yield* Redrive.use((redrive) => redrive.cancel("r2", by))
      const list = (query: Parameters<Redrive["Service"]["list"]>[0]) =>
        Effect.map(
          Redrive.use((redrive) => redrive.list(query)),
          ({ items, next }) => [items.map(({ id }) => id), next]
        )
      const [first, next] = yield* list({ limit: 2 })
      assert.deepStrictEqual(first, ["r3", "r2"])
      assert.isNumber(next)
      assert.deepStrictEqual(yield* list({ limit: 2, after: Number(next) }), [["r1"], undefined])
      assert.deepStrictEqual(yield* list({ state: "cancelled" }), [["r2"], undefined])
      assert.deepStrictEqual(yield* list({ state: "running" }), [["r3", "r1"], undefined])
    }))

  it.effect("the record is kept for 90 days after the end", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      yield* empty
      yield* Jobs.seed(...named(12))
      const { id } = yield* redriven(all)
      const evict = (limit: number) => Duties.use((duties) => duties.evictRetained(limit))
      yield* Time.advance("89 days")
      yield* evict(100)
      assert.strictEqual((yield* get(id)).moved, 12)
      yield* Time.advance("2 days")
      yield* evict(10)
      assert.strictEqual((yield* Redrive.use((redrive) => redrive.jobs(id))).items.length, 2)
      yield* evict(10)
      assert.strictEqual((yield* Effect.flip(get(id)))._tag, "NotFound")
      assert.deepStrictEqual(yield* sql`SELECT FROM headgate.redrive_event`, [])
    }))
})

layer(Store.layer, { excludeTestServices: true })("A staged redrive", (it) => {
  const staged: RedriveRequest = { ...all, staged: true, batch: 1000, perSecond: 10_000 }
  const notes = (id: string) => Effect.map(get(id), ({ events }) => events.map(({ event }) => event))

  it.effect("moves 1, 10, 100... jobs, each stage when the one before has ended well", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(130))
      const { id } = yield* start(staged)
      const sizes: Array<number> = []
      for (let n = 0; n < 100; n++) {
        const { nextDueInMs, step: taken } = yield* step
        if (nextDueInMs === undefined) break
        if (taken !== undefined && taken.moved > 0) sizes.push(taken.moved)
        // A stage that has not ended is waited for.
        if (n % 5 === 0) yield* work(1000, () => false)
      }
      assert.deepStrictEqual(sizes, [1, 10, 100, 19])
      assert.deepInclude(yield* get(id), { state: "done", moved: 130, ended: 130, failed: 0 })
      assert.deepStrictEqual(yield* notes(id), ["created", "stage", "stage", "stage", "done"])
      const { events } = yield* get(id)
      const said = events.filter(({ event }) => event === "stage").map(({ note }) => note.slice(0, 22))
      assert.deepStrictEqual(said.slice(0, 2), ["of a stage of 1 job 1 ", "of a stage of 10 jobs "])
    }))

  it.effect("stops by itself above the bound, and resumed begins with one job again", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(60))
      const { id } = yield* start({ ...staged, maxFailureRatio: 0.3 })
      // Of the ten of the second stage four fail: d10001 to d10004.
      yield* carryOut(work(1000, (job) => /d1000[1-4]/.test(job)))
      const paused = yield* get(id)
      assert.deepInclude(paused, { state: "paused", pausedFor: "failures", moved: 11, failed: 4 })
      assert.deepInclude(paused.stage, { size: 10, moved: 10, failed: 4 })
      assert.strictEqual((yield* inState("archived")).length, 53)
      const resumed = yield* Redrive.use((redrive) => redrive.resume(id, { actor: "bob", note: "fixed" }))
      assert.deepInclude(resumed, { state: "running", pausedFor: undefined })
      assert.strictEqual((yield* step).step?.moved, 1)
      yield* carryOut(work(1000, () => false))
      assert.deepInclude(yield* get(id), { state: "done", moved: 60, ended: 60, failed: 4 })
      assert.strictEqual((yield* inState("archived")).length, 4)
      assert.deepInclude((yield* get(id)).events.find(({ event }) => event === "resumed"), {
        actor: "bob",
        note: "fixed"
      })
    }))

  it.effect("goes on at the bound", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(40))
      const { id } = yield* start({ ...staged, maxFailureRatio: 0.3 })
      yield* carryOut(work(1000, (job) => /d1000[1-3]/.test(job)))
      assert.deepInclude(yield* get(id), { state: "done", moved: 40, failed: 3 })
    }))

  it.effect("stops before the stage has ended when the bound is passed for certain", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(60))
      const { id } = yield* start(staged)
      yield* step
      yield* work(1, () => false)
      yield* Effect.repeat(step, { until: ({ step }) => step?.moved === 10 })
      yield* work(6, () => true)
      yield* carryOut(Effect.void)
      const paused = yield* get(id)
      assert.deepInclude(paused, { state: "paused", pausedFor: "failures", moved: 11 })
      assert.isBelow((yield* Time.now()) - paused.createdAtMs, 60_000)
    }))

  it.effect("waits no longer than it was told: jobs that failed and are to be retried count as failed then", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(5, { max_attempts: 20 }))
      const { id } = yield* start({ ...staged, stageWaitMs: 60_000 })
      yield* step
      const [claim] = yield* Store.admit()
      const boom = { tag: "Boom", message: "boom", text: "boom", encoded: undefined }
      yield* Store.settle(claim!.lease, Outcome.retry(3_600_000, boom))
      yield* carryOut(Effect.void)
      const paused = yield* get(id)
      assert.deepInclude(paused, { state: "paused", pausedFor: "failures", moved: 1, ended: 0, failed: 1 })
      assert.isAtLeast((yield* Time.now()) - paused.createdAtMs, 60_000)
    }))

  it.effect("pauses when no job of a stage came to an end in time", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(5))
      const { id } = yield* start({ ...staged, stageWaitMs: 60_000 })
      yield* carryOut(Effect.void)
      assert.deepInclude(yield* get(id), { state: "paused", pausedFor: "unanswered", moved: 1, failed: 0 })
      const cancelled = yield* Redrive.use((redrive) => redrive.cancel(id, by))
      assert.deepInclude(cancelled, { state: "cancelled", pausedFor: undefined })
    }))

  it.effect("goes on when the store's clock went back, and a job of the stage was archived anew before it began", () =>
    Effect.gen(function*() {
      yield* empty
      const now = yield* Time.now()
      yield* Jobs.seed(...["a", "b", "c"].map((id, n) => dead(id, { finished_at_ms: now - 60_000 + 20_000 * n })))
      const { id } = yield* start({ ...staged, batch: 1 })
      yield* step
      yield* work(1, () => false)
      yield* Effect.repeat(step, { until: ({ step }) => step?.moved === 1 })
      yield* Time.advance(-30_000)
      yield* work(1, () => true)
      yield* Time.advance(60_000)
      yield* carryOut(work(1, () => false))
      assert.deepInclude(yield* get(id), { state: "done" })
      assert.deepStrictEqual(yield* inState("archived"), [])
    }))

  it.effect("is done when its last stage has ended, whatever became of it", () =>
    Effect.gen(function*() {
      yield* empty
      yield* Jobs.seed(...named(1))
      const { id } = yield* start(staged)
      yield* step
      assert.strictEqual((yield* get(id)).state, "running")
      yield* carryOut(work(1, () => true))
      assert.deepInclude(yield* get(id), { state: "done", moved: 1, ended: 1, failed: 1 })
    }))
})
