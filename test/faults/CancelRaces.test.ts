import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { type CancelAnswer, Job, Retry, type State, Task } from "@headgate/core"
import { TcpProxy, TestDatabase } from "@headgate/testkit"
import { Deferred, Effect, Fiber, Layer, Option, Schema } from "effect"
import * as Barrier from "./fixtures/Barrier.ts"
import * as Figure from "./fixtures/Figure.ts"
import * as Site from "./fixtures/Site.ts"
import * as Watch from "./fixtures/Watch.ts"

const REPEATS = 50
/** Outlasts a stall of a busy machine. */
const LEASE_MS = 10_000
/** A worker renews each quarter of a lease. */
const RENEWAL_MS = LEASE_MS / 4

const Race = Task.make("race", {
  payload: Schema.Literals(["hang", "succeed", "fail"]),
  success: Schema.String,
  error: Schema.TaggedStruct("Failed", {}),
  retry: Retry.fixed("10 millis"),
  queue: "races"
})

/** What handlers saw, by job. */
class Seen {
  readonly starts = new Map<string, number>()
  readonly interruptions = new Map<string, { readonly at: number; readonly reason: string }>()

  readonly handler = Race.toLayer((how) =>
    Effect.gen({ self: this }, function*() {
      const { id } = yield* Job.facts
      this.starts.set(id, (this.starts.get(id) ?? 0) + 1)
      if (how === "succeed") return "done"
      if (how === "fail") return yield* Effect.fail({ _tag: "Failed" as const })
      return yield* Effect.onInterrupt(Effect.never, () =>
        Effect.map(Job.interruption, (reason) => {
          const found = Option.getOrElse(reason, () => "none")
          this.interruptions.set(id, { at: performance.now(), reason: found })
        }))
    })
  )
}

interface Ask {
  readonly id: string
  readonly answer: CancelAnswer
  readonly askedAt: number
}

/** Asked again where the wait for somebody else's transaction was given up. */
const cancel = (id: string) =>
  Effect.map(
    Effect.retry(Watch.cancel(id), { while: ({ _tag }) => _tag === "StoreUnavailable" }),
    (answer): Ask => ({ id, answer, askedAt: performance.now() })
  )

const settings = { lease: LEASE_MS, pollInterval: "50 millis" as const, concurrency: 2 * REPEATS }

const rows = Effect.fnUntraced(function*(ids: ReadonlyArray<string>) {
  const sql = yield* PgClient.PgClient
  const all = yield* sql<
    { id: string; state: State; attempt: number; crash_attempt: number; fence: bigint; result: Uint8Array | null }
  >`
    SELECT id, state, attempt, crash_attempt, fence, result FROM headgate.job WHERE id = ANY(${ids}) ORDER BY id`
  return new Map(all.map((row) => [row.id, row]))
})

/** Each answer names the state its job is in now and two renewals later, and no cancelled job counts anything. */
const answersHold = Effect.fnUntraced(function*(asks: ReadonlyArray<Ask>) {
  const ids = asks.map(({ id }) => id)
  const before = yield* rows(ids)
  for (const { answer, id } of asks) {
    const row = before.get(id)
    assert.strictEqual(answer, row?.state === "cancelled" ? "cancelled" : `already_${row?.state}`, id)
    if (row?.state === "cancelled") assert.deepInclude(row, { attempt: 0, crash_attempt: 0 }, id)
  }
  yield* Effect.sleep(2 * RENEWAL_MS)
  assert.deepStrictEqual(yield* rows(ids), before)
})

/** The handlers of those jobs that were started at all are told why, within a renewal's time of the answer. */
const areTold = Effect.fnUntraced(function*(seen: Seen, asks: ReadonlyArray<Ask>) {
  const started = asks.filter(({ id }) => seen.starts.has(id))
  yield* Watch.untilTrue(() => started.every(({ id }) => seen.interruptions.has(id)), "all handlers to be told")
  const told = started.map(({ askedAt, id }) => ({ ...seen.interruptions.get(id), askedAt }))
  assert.deepStrictEqual([...new Set(told.map(({ reason }) => reason))], ["operator_cancel"])
  const waits = told.map(({ askedAt, at = Infinity }) => at - askedAt)
  // As good as at once beside a renewal.
  Figure.within(`${told.length} handlers were told of a cancel`, Math.max(...waits), RENEWAL_MS + 500)
})

const repeat = <A, E, R>(once: (n: number) => Effect.Effect<A, E, R>) =>
  Effect.forEach(Array.from({ length: REPEATS }, (_, n) => n), once)

const live = Layer.effectDiscard(Barrier.install).pipe(Layer.provideMerge(TestDatabase.layer))

layer(live, { excludeTestServices: true })("A cancel", (it) => {
  it.effect(
    "of a job whose claim is not committed yet waits for it, and ends the job all the same",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const claims = yield* Barrier.make(url, "claimed")
        const site = yield* Site.open(url)
        const seen = new Seen()
        const worker = yield* site.work(seen.handler, settings)
        const asks = yield* repeat(Effect.fnUntraced(function*() {
          yield* claims.lower
          const id = yield* site.use(Race.enqueue("hang"))
          yield* claims.isReached
          const asking = yield* Effect.forkChild(site.use(cancel(id)))
          yield* Barrier.isWaiting("cancel_job")
          yield* claims.raise
          return yield* Fiber.join(asking)
        }))
        yield* areTold(seen, asks)
        yield* answersHold(asks)
        assert.deepStrictEqual([...new Set(asks.map(({ answer }) => answer))], ["cancelled"])
        assert.isAtMost(Math.max(0, ...seen.starts.values()), 1)
        assert.deepStrictEqual(worker.told("JobEnded"), [])
        yield* worker.stop
      }).pipe(Effect.scoped),
    240_000
  )

  it.effect(
    "of a claimed job that waits for its slot ends it before its handler starts, or stops the handler",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const site = yield* Site.open(url)
        const seen = new Seen()
        const isFree = yield* Deferred.make<void>()
        const Busy = Task.make("busy", { payload: Schema.Void, queue: "races", priority: 1 })
        const handlers = Layer.merge(seen.handler, Busy.toLayer(() => Deferred.await(isFree)))
        yield* site.use(Busy.enqueue(undefined))
        const ids = yield* site.use(Race.enqueueAll(Array.from({ length: REPEATS }, () => "hang" as const)))
        const worker = yield* site.work(handlers, { ...settings, concurrency: 1, prefetch: REPEATS })
        yield* Watch.until(
          Effect.map(
            rows(ids),
            (all) => [...all.values()].every(({ state }) => state === "running") ? Option.some(0) : Option.none()
          ),
          "all jobs to be claimed"
        )
        assert.strictEqual(seen.starts.size, 0)
        const half = REPEATS / 2
        const early = yield* site.use(Effect.forEach(ids.slice(0, half), cancel))
        yield* Watch.untilTrue(() => worker.told("LeaseLost").length === half, "the worker to let go of the first half")
        const late = yield* site.use(Effect.forEach(ids.slice(half), cancel))
        yield* Deferred.succeed(isFree, undefined)
        const asks = [...early, ...late]
        yield* Watch.untilTrue(() => worker.told("LeaseLost").length === REPEATS, "the worker to let go of all of them")
        yield* answersHold(asks)
        assert.deepStrictEqual([...new Set(asks.map(({ answer }) => answer))], ["cancelled"])
        for (const { id } of early) assert.isFalse(seen.starts.has(id), "the worker was told before there was a slot")
        for (const [id, { reason }] of seen.interruptions) assert.strictEqual(reason, "operator_cancel", id)
        assert.strictEqual(seen.interruptions.size, seen.starts.size)
      }).pipe(Effect.scoped),
    240_000
  )

  it.effect(
    "of a running job ends it at once, and its handler is told why within one renewal",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const site = yield* Site.open(url)
        const seen = new Seen()
        const worker = yield* site.work(seen.handler, settings)
        const ids = yield* site.use(Race.enqueueAll(Array.from({ length: REPEATS }, () => "hang" as const)))
        yield* Watch.untilTrue(() => seen.starts.size === REPEATS, "all handlers to run")
        const asks = yield* Effect.forEach(ids, (id) => Effect.delay(site.use(cancel(id)), 10))
        yield* areTold(seen, asks)
        yield* answersHold(asks)
        assert.deepStrictEqual([...new Set(asks.map(({ answer }) => answer))], ["cancelled"])
        assert.strictEqual(seen.interruptions.size, REPEATS)
        const lost = worker.told("LeaseLost").map((event) => "reason" in event ? event.reason : "")
        assert.deepStrictEqual(lost, Array.from({ length: REPEATS }, () => "operator_cancel"))
      }).pipe(Effect.scoped),
    240_000
  )

  it.effect(
    "that comes while the end is being committed answers that end, or cancels the retry that it led to",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const ends = yield* Barrier.make(url, "ended")
        const site = yield* Site.open(url)
        const seen = new Seen()
        yield* site.work(seen.handler, settings)
        const asks = yield* repeat(Effect.fnUntraced(function*(n) {
          const how = n % 2 === 0 ? "succeed" : "fail"
          yield* ends.lower
          const id = yield* site.use(Race.enqueue(how))
          yield* ends.isReached
          const asking = yield* Effect.forkChild(site.use(cancel(id)))
          yield* Barrier.isWaiting("cancel_job")
          yield* ends.raise
          const ask = yield* Fiber.join(asking)
          assert.strictEqual(ask.answer, how === "succeed" ? "already_completed" : "cancelled")
          return ask
        }))
        // A failure that was stored counts, and is the last thing that happened to the job.
        yield* Effect.sleep(RENEWAL_MS)
        const now = yield* rows(asks.map(({ id }) => id))
        for (const { answer, id } of asks) {
          const expected = answer === "cancelled"
            ? { state: "cancelled" as const, attempt: 1 }
            : { state: "completed" as const, attempt: 0 }
          assert.deepInclude({ ...now.get(id) }, { ...expected, fence: 1n, crash_attempt: 0 })
          assert.strictEqual(seen.starts.get(id), 1)
        }
      }).pipe(Effect.scoped),
    240_000
  )

  it.effect("that comes before the end is stored wins: the end is refused", () =>
    Effect.gen(function*() {
      const { url } = yield* TestDatabase.TestDatabase
      const proxy = yield* TcpProxy.make(url)
      const workerSite = yield* Site.open(proxy.url)
      const site = yield* Site.open(url)
      const seen = new Seen()
      const worker = yield* workerSite.work(seen.handler, settings)
      const asks = yield* repeat(Effect.fnUntraced(function*(n) {
        // The first try of the settlement never arrives; there is time for an operator before the next.
        const { fired } = yield* proxy.dropOn({ sql: /"headgate"\.(succeed|settle)\(/, moment: "before" })
        const id = yield* site.use(Race.enqueue(n % 2 === 0 ? "succeed" : "fail"))
        yield* Effect.timeout(fired, "1 minute")
        const ask = yield* site.use(cancel(id))
        yield* Watch.untilTrue(
          () => worker.told("LeaseLost", id).length + worker.told("JobEnded", id).length > 0,
          "the end"
        )
        return ask
      }))
      const won = asks.filter(({ answer, id }) => answer === "cancelled" && worker.told("LeaseLost", id).length === 1)
      assert.isAbove(won.length, REPEATS / 2)
      yield* answersHold(won)
      for (const { id } of won) assert.deepStrictEqual(worker.told("JobEnded", id), [])
      for (const { id } of won) assert.deepInclude({ ...(yield* rows([id])).get(id) }, { result: null })
    }).pipe(Effect.scoped), 240_000)

  it.effect(
    "given twice at once is answered twice alike, and one of a completed job says so, as often as asked",
    () =>
      Effect.gen(function*() {
        const { url } = yield* TestDatabase.TestDatabase
        const site = yield* Site.open(url)
        const seen = new Seen()
        yield* site.work(seen.handler, settings)
        const twice = (id: string) => site.use(Effect.all([Watch.cancel(id), Watch.cancel(id)], { concurrency: 2 }))
        yield* repeat(Effect.fnUntraced(function*(n) {
          const isRunning = n % 2 === 0
          const id = yield* site.use(Race.enqueue("hang", isRunning ? {} : { delay: "1 hour" }))
          if (isRunning) yield* Watch.untilTrue(() => seen.starts.has(id), "the handler to run")
          assert.deepStrictEqual(yield* twice(id), ["cancelled", "cancelled"])
          assert.deepStrictEqual(yield* twice(id), ["cancelled", "cancelled"])
        }))
        const id = yield* site.use(Race.enqueue("succeed"))
        yield* site.use(Watch.reaches(id, "completed"))
        const before = yield* rows([id])
        assert.deepStrictEqual(yield* twice(id), ["already_completed", "already_completed"])
        assert.deepStrictEqual(yield* rows([id]), before)
      }).pipe(Effect.scoped),
    240_000
  )
})
