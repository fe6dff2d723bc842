import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Control } from "@headgate/core/Control"
import {
  type CallEnd,
  type ClaimedDeath,
  DeathCallbacks,
  type DeathList,
  type DeathRequest
} from "@headgate/core/DeathCallbacks"
import { Duties } from "@headgate/core/Duties"
import { JobId, WorkerId } from "@headgate/core/Ids"
import * as Outcome from "@headgate/core/Outcome"
import { Policies } from "@headgate/core/Policies"
import { Time } from "@headgate/testkit"
import { Effect, Fiber } from "effect"
import { readdirSync, readFileSync } from "node:fs"
import * as Jobs from "./Jobs.ts"
import * as Store from "./Store.ts"

const declare = (...kinds: ReadonlyArray<string>) => DeathCallbacks.use((callbacks) => callbacks.declare(kinds))

const claim = (kind: string, request: Partial<DeathRequest> & { readonly worker?: string } = {}) =>
  DeathCallbacks.use((callbacks) =>
    callbacks.claim(WorkerId.make(request.worker ?? "w1"), [
      { version: 1, most: 100, leaseMs: 30_000, maxCalls: 25, ...request, kind }
    ])
  )

const claimed = (kind: string, request?: Parameters<typeof claim>[1]) =>
  Effect.map(claim(kind, request), ({ claims }) => claims)

const settle = ({ death: { key }, fence }: ClaimedDeath, end: CallEnd) =>
  DeathCallbacks.use((callbacks) => Effect.map(callbacks.settle([{ key, fence, end }]), ([isSettled]) => isSettled))

const recorded = Effect.fnUntraced(function*(jobId: string) {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ key: string; reason: string; state: string }>`SELECT key, reason, state FROM headgate.callback
    WHERE job_id = ${jobId} ORDER BY key`
})

const reasons = (jobId: string) => Effect.map(recorded(jobId), (rows) => rows.map(({ reason }) => reason))

const error = { tag: "Broken", message: "it broke", text: "Broken: it broke", encoded: Store.bytes("\"e\"") }
const fault = { tag: "Down", message: "no answer" }

/** A job of a kind of its own that has died. */
const dead = Effect.fnUntraced(function*(id: string, outcome: Outcome.Outcome = Outcome.fatal(error)) {
  yield* declare(`k-${id}`)
  const lease = yield* Store.running({ id, kind: `k-${id}` }, { kinds: { [`k-${id}`]: 1 } })
  yield* Store.settle(lease, outcome)
  return `k-${id}`
})

const firstClaim = Effect.fnUntraced(function*(kind: string, request?: Parameters<typeof claim>[1]) {
  const [first] = yield* claimed(kind, request)
  return first ?? (yield* Effect.die(new Error(`no death of ${kind} was given out`)))
})

layer(Store.layer, { excludeTestServices: true })("DeathCallbacks records", (it) => {
  it.effect("what a settlement archives, with its reason, once, however often it is repeated", () =>
    Effect.gen(function*() {
      yield* declare("greet")
      const now = yield* Time.now()
      const cases = {
        exhausted: [Outcome.retry(1000, error), { maxAttempts: 1 }],
        fatal: [Outcome.fatal(error), {}],
        skipped: [Outcome.skip("no need"), {}],
        deadline: [Outcome.retry(60_000, error), { deadlineAtMs: now + 30_000 }]
      } as const
      for (const [reason, [outcome, input]] of Object.entries(cases)) {
        const lease = yield* Store.running({ id: `s-${reason}`, ...input })
        yield* Store.settle(lease, outcome)
        yield* Store.settle(lease, outcome)
        assert.deepStrictEqual(yield* reasons(`s-${reason}`), [reason])
      }
      const retried = yield* Store.running({ id: "s-retry" })
      yield* Store.settle(retried, Outcome.retry(1000, error))
      const done = yield* Store.running({ id: "s-done" })
      yield* Store.settle(done, Outcome.success)
      assert.deepStrictEqual([yield* reasons("s-retry"), yield* reasons("s-done")], [[], []])
    }))

  it.effect("a job put to sleep past its deadline", () =>
    Effect.gen(function*() {
      yield* declare("greet")
      const lease = yield* Store.running({ id: "sleeper", deadlineAtMs: (yield* Time.now()) + 30_000 })
      const state = yield* Checkpoints.use((checkpoints) =>
        checkpoints.sleep({ lease, step: "s", position: 0, until: { delayMs: 60_000 }, open: undefined })
      )
      assert.strictEqual(state, "archived")
      assert.deepStrictEqual(yield* reasons("sleeper"), ["deadline"])
    }))

  it.effect("a job whose worker died and that would be tried again past its deadline", () =>
    Effect.gen(function*() {
      yield* declare("greet")
      const lease = yield* Store.running({ id: "reclaimed", deadlineAtMs: (yield* Time.now()) + 900 })
      yield* Store.loseLease(lease)
      assert.deepStrictEqual(yield* reasons("reclaimed"), ["deadline"])
    }))

  it.effect("what the sweep finds past its deadline, waiting or running, or past its time in the queue", () =>
    Effect.gen(function*() {
      yield* declare("greet")
      const past = (yield* Time.now()) - 1
      yield* Jobs.seed(
        { id: "e-waiting", deadline_at_ms: past },
        { id: "e-running", state: "running", deadline_at_ms: past },
        { id: "e-late", queue_timeout_ms: 1000, scheduled_at_ms: past - 1000 }
      )
      yield* Duties.use((duties) => duties.expireDue(100))
      const found = yield* Effect.forEach(["e-waiting", "e-running", "e-late"], reasons)
      assert.deepStrictEqual(found, [["deadline"], ["deadline"], ["queue_timeout"]])
    }))

  it.effect("what the gate meets too late, and what it discards", () =>
    Effect.gen(function*() {
      yield* declare("greet")
      const past = (yield* Time.now()) - 1
      yield* Jobs.seed(
        { id: "g-deadline", queue: "late", deadline_at_ms: past },
        { id: "g-timeout", queue: "late", queue_timeout_ms: 1000, scheduled_at_ms: past - 1000 }
      )
      yield* Store.admit({ queues: ["late"] })
      yield* Policies.use((policies) =>
        policies.setLimit({ name: "one", scope: "queue", subject: "full", max: 1, onSaturated: "discard" })
      )
      yield* Store.enqueue({ id: "g-runs", queue: "full" }, { id: "g-discarded", queue: "full", priority: -1 })
      yield* Store.admit({ queues: ["full"] })
      const found = yield* Effect.forEach(["g-deadline", "g-timeout", "g-runs", "g-discarded"], reasons)
      assert.deepStrictEqual(found, [["deadline"], ["queue_timeout"], [], ["discarded"]])
    }))

  it("every statement that archives jobs", () => {
    const root = new URL("../", import.meta.url)
    const texts = ["migrations/", "src/"].flatMap((folder) =>
      readdirSync(new URL(folder, root)).filter((name) => /\.(sql|ts)$/.test(name))
        .map((name) => readFileSync(new URL(folder + name, root), "utf8"))
    )
    const statements = texts.flatMap((text) => text.split(/\n(?=create function|const \w+Sql)/))
    const archiving = statements.filter((text) =>
      text.includes("update headgate.job") && /(set state = |then )'archived'|set state = p_to,/.test(text)
    )
    assert.isAbove(archiving.length, 4)
    assert.deepStrictEqual(archiving.filter((text) => !/headgate\.record_callbacks?\(/.test(text)), [])
  })

  it.effect("all that a handler is told, whatever becomes of the job", () =>
    Effect.gen(function*() {
      yield* declare("told")
      const input = {
        id: "told",
        kind: "told",
        payload: Store.bytes("\"ada\""),
        partitionKey: "acme",
        tags: ["blue"],
        headers: { trace: "t" },
        maxAttempts: 1
      }
      const lease = yield* Store.running(input, { kinds: { told: 1 } })
      yield* Store.settle(lease, Outcome.retry(1000, error))
      yield* Control.use((control) => control.remove(JobId.make("told")))
      const { death } = yield* firstClaim("told")
      const { archivedAtMs, key, ...rest } = death
      assert.match(key, /^told:\d+$/)
      assert.isAbove(archivedAtMs, 0)
      assert.deepStrictEqual(rest, {
        jobId: JobId.make("told"),
        kind: "told",
        queue: "q-told",
        partitionKey: "acme",
        reason: "exhausted",
        error: { tag: "Broken", message: "it broke" },
        encodedError: Store.bytes("\"e\""),
        payload: Store.bytes("\"ada\""),
        schemaVersion: 1,
        attempt: 1,
        crashAttempt: 0,
        tags: ["blue"],
        headers: { trace: "t" },
        call: 1
      })
    }))

  it.effect("nothing of a transaction that is rolled back, and nothing of kinds nobody has declared", () =>
    Effect.gen(function*() {
      yield* declare("greet")
      const sql = yield* PgClient.PgClient
      yield* Jobs.seed({ id: "rolled-back", deadline_at_ms: 1 }, { id: "unknown", kind: "unknown", deadline_at_ms: 1 })
      const rollback = sql`SELECT * FROM headgate.expire_due(100)`.pipe(
        Effect.andThen(recorded("rolled-back")),
        Effect.flatMap((rows) => Effect.fail(rows.length))
      )
      assert.strictEqual(yield* Effect.flip(sql.withTransaction(rollback)), 1)
      assert.deepStrictEqual(yield* recorded("rolled-back"), [])
      yield* Duties.use((duties) => duties.expireDue(100))
      assert.deepStrictEqual([yield* reasons("rolled-back"), yield* reasons("unknown")], [["deadline"], []])
    }))

  it.effect("another death, under another key, of a job that is brought back and dies again", () =>
    Effect.gen(function*() {
      const kind = yield* dead("twice")
      const first = yield* firstClaim(kind)
      yield* settle(first, { _tag: "delivered" })
      yield* Control.use((control) => control.retry(JobId.make("twice")))
      const [again] = yield* Store.admit({ queues: ["q-twice"], kinds: { [kind]: 1 } })
      yield* Store.settle(again!.lease, Outcome.skip("enough"))
      const second = yield* firstClaim(kind)
      assert.notStrictEqual(second.death.key, first.death.key)
      assert.deepStrictEqual([first.death.reason, second.death.reason], ["fatal", "skipped"])
      assert.deepStrictEqual(second.death.error, { tag: "skip", message: "enough" })
    }))
})

layer(Store.layer, { excludeTestServices: true })("DeathCallbacks", (it) => {
  it.effect("a death is given to one worker at a time, and to the next under the same key when its claim has run out", () =>
    Effect.gen(function*() {
      const kind = yield* dead("lost")
      const first = yield* firstClaim(kind)
      assert.deepStrictEqual(yield* claimed(kind, { worker: "w2" }), [])
      yield* Time.advance("31 seconds")
      const second = yield* firstClaim(kind, { worker: "w2" })
      assert.deepInclude(second.death, { key: first.death.key, call: 2 })
      assert.strictEqual(yield* settle(first, { _tag: "delivered" }), false)
      assert.strictEqual(yield* settle(second, { _tag: "delivered" }), true)
      yield* Time.advance("31 seconds")
      assert.deepStrictEqual(yield* claimed(kind), [])
    }))

  it.effect("twenty claims at once give each death out once", () =>
    Effect.gen(function*() {
      yield* declare("crowd")
      const ids = Array.from({ length: 50 }, (_, n) => `c${n}`)
      yield* Jobs.seed(...ids.map((id) => ({ id, kind: "crowd", deadline_at_ms: 1 })))
      yield* Duties.use((duties) => duties.expireDue(100))
      const claims = yield* Effect.all(
        Array.from({ length: 20 }, (_, n) => claimed("crowd", { worker: `w${n}`, most: 5 })),
        { concurrency: "unbounded" }
      )
      const rest = yield* claimed("crowd")
      assert.deepStrictEqual([...claims.flat(), ...rest].map(({ death }) => death.jobId).sort(), [...ids].sort())
    }))

  it.effect("a claim waits for nobody, and passes over what another has just claimed", () =>
    Effect.gen(function*() {
      const kind = yield* dead("held")
      const sql = yield* PgClient.PgClient
      const fiber = yield* sql.withTransaction(Effect.gen(function*() {
        yield* sql`SELECT * FROM headgate.callback WHERE kind = ${kind} FOR UPDATE`
        const rival = yield* Effect.forkDetach(claimed(kind))
        return yield* Effect.timeout(Fiber.join(rival), "1 minute")
      }))
      assert.deepStrictEqual(fiber, [])
      assert.lengthOf(yield* claimed(kind), 1)
    }))

  it.effect("a worker is given no death whose payload is of a version above its own", () =>
    Effect.gen(function*() {
      yield* declare("newer")
      yield* Jobs.seed({ id: "newer", kind: "newer", schema_version: 2, deadline_at_ms: 1 })
      yield* Duties.use((duties) => duties.expireDue(100))
      assert.deepStrictEqual(yield* claimed("newer"), [])
      assert.lengthOf(yield* claimed("newer", { version: 2 }), 1)
    }))

  it.effect("a call that failed is made again after its delay; one that was handed back at once, and does not count", () =>
    Effect.gen(function*() {
      const kind = yield* dead("again")
      yield* settle(yield* firstClaim(kind), { _tag: "retry", delayMs: 60_000, fault })
      assert.deepStrictEqual(yield* claimed(kind), [])
      yield* Time.advance("61 seconds")
      const second = yield* firstClaim(kind)
      yield* settle(second, { _tag: "handed_back" })
      const third = yield* firstClaim(kind)
      assert.deepStrictEqual([second.death.call, third.death.call], [2, 2])
    }))

  it.effect("what was called often enough is given up, seen, and called again when an operator says so", () =>
    Effect.gen(function*() {
      const callbacks = yield* DeathCallbacks
      const kind = yield* dead("given-up")
      yield* settle(yield* firstClaim(kind), { _tag: "given_up", fault })
      assert.deepStrictEqual(yield* claimed(kind), [])
      const { items } = yield* callbacks.list({ kind })
      assert.deepInclude(items[0], { state: "failed", calls: 1, fault, reason: "fatal", worker: undefined })
      const { counts } = yield* callbacks.counts
      assert.deepInclude(counts, { kind, state: "failed", count: 1 })
      assert.strictEqual(yield* callbacks.retry({ key: items[0]!.key }), 1)
      assert.deepInclude((yield* firstClaim(kind)).death, { key: items[0]!.key, call: 1 })
    }))

  it.effect("a call that no worker survives is given up as well, and told", () =>
    Effect.gen(function*() {
      const kind = yield* dead("deadly")
      const { death: { key, jobId } } = yield* firstClaim(kind, { maxCalls: 2 })
      yield* Time.advance("31 seconds")
      yield* firstClaim(kind, { maxCalls: 2 })
      yield* Time.advance("31 seconds")
      assert.deepStrictEqual(yield* claim(kind, { maxCalls: 2 }), { claims: [], givenUp: [{ key, jobId, kind }] })
      const { items } = yield* DeathCallbacks.use((callbacks) => callbacks.list({ kind }))
      assert.deepInclude(items[0]!.fault, { tag: "CallLost" })
    }))

  it.effect("a death that may be what ends its workers is given up after five of them", () =>
    Effect.gen(function*() {
      const kind = yield* dead("poison")
      for (let n = 1; n <= 5; n++) {
        yield* firstClaim(kind)
        yield* Time.advance("31 seconds")
      }
      const { claims, givenUp } = yield* claim(kind)
      assert.deepStrictEqual([claims.length, givenUp.length], [0, 1])
    }))

  it.effect("the list pages through kinds and keys, and all of a kind can be retried or removed", () =>
    Effect.gen(function*() {
      const callbacks = yield* DeathCallbacks
      yield* declare("page-a", "page-b")
      const ids = ["p1", "p2", "p3"]
      yield* Jobs.seed(
        ...ids.map((id) => ({ id: `a-${id}`, kind: "page-a", deadline_at_ms: 1 })),
        ...ids.map((id) => ({ id: `b-${id}`, kind: "page-b", deadline_at_ms: 1 }))
      )
      yield* Duties.use((duties) => duties.expireDue(100))
      const keys: Array<string> = []
      for (let after: string | undefined = "page- ";;) {
        const page: DeathList = yield* callbacks.list({ state: "waiting", limit: 2, after })
        keys.push(...page.items.filter(({ kind }) => kind.startsWith("page-")).map(({ jobId }) => jobId))
        if (page.next === undefined) break
        after = page.next
      }
      assert.deepStrictEqual(keys, [...ids.map((id) => `a-${id}`), ...ids.map((id) => `b-${id}`)])
      for (const one of yield* claimed("page-a")) yield* settle(one, { _tag: "given_up", fault })
      assert.strictEqual(yield* callbacks.retry({ kind: "page-a" }), 3)
      assert.lengthOf(yield* claimed("page-a", { most: 1 }), 1)
      assert.strictEqual(yield* callbacks.remove({ kind: "page-a" }), 2)
      // What no column can hold is the state of none.
      assert.deepStrictEqual((yield* callbacks.list({ state: "fail\0ed" as never })).items, [])
      const refused = yield* Effect.flip(callbacks.list({ limit: 201 }))
      assert.deepInclude(refused, { _tag: "Invalid", field: "limit", limit: 200, actual: 201 })
    }))

  it.effect("what was delivered is forgotten a day later, what failed is kept, and so is a kind while it is declared", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const delivered = yield* dead("delivered")
      yield* settle(yield* firstClaim(delivered), { _tag: "delivered" })
      const [row] = yield* sql<{ has_payload: boolean }>`SELECT payload IS NOT NULL AS has_payload
        FROM headgate.callback WHERE kind = ${delivered}`
      assert.isFalse(row!.has_payload)
      const failed = yield* dead("failed")
      yield* settle(yield* firstClaim(failed), { _tag: "given_up", fault })
      const evict = Duties.use((duties) => duties.evictRetained(1000))
      yield* Time.advance("23 hours")
      yield* evict
      assert.lengthOf(yield* recorded("delivered"), 1)
      yield* Time.advance("2 hours")
      yield* evict
      assert.deepStrictEqual([yield* recorded("delivered"), (yield* recorded("failed")).length], [[], 1])
      yield* Time.advance("20 days")
      yield* declare(failed)
      yield* Time.advance("20 days")
      yield* evict
      const kinds = yield* sql<{ kind: string }>`SELECT kind FROM headgate.callback_kind
        WHERE kind IN (${delivered}, ${failed})`
      assert.deepStrictEqual(kinds, [{ kind: failed }])
    }))
})
