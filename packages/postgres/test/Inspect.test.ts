import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { WorkerId } from "@headgate/core/Ids"
import { Inspect, type JobsQuery } from "@headgate/core/Inspect"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import { isTerminal, State } from "@headgate/core/State"
import { Time } from "@headgate/testkit"
import { Effect, Option, Stream } from "effect"
import * as Jobs from "./Jobs.ts"

const id = Jobs.jobId

const worker = Effect.fnUntraced(
  function*(name: string, seenAtMs: number, known: Record<string, number>, queues = ["default"]) {
    const pg = yield* PgClient.PgClient
    yield* pg`INSERT INTO headgate.worker (started_at_ms, seen_at_ms, lease_ms, capacity, running, id, queues, kinds, versions)
    VALUES (1, ${BigInt(seenAtMs)}, 1000, 10, 2, ${name}, ${queues}, ${Object.keys(known)}, ${Object.values(known)})`
  }
)

const listed = State.literals.filter((state) => state !== "available")

/** The ids of all pages, and how many pages there were. */
const pages = Effect.fnUntraced(function*(query: JobsQuery) {
  const inspect = yield* Inspect
  const found = yield* Stream.paginate(undefined, (after: string | undefined) =>
    Effect.map(
      inspect.jobs({ ...query, after }),
      ({ items, next }) => [[items.map(({ id }) => String(id))], next === undefined ? Option.none() : Option.some(next)]
    )).pipe(Stream.runCollect)
  return { ids: found.flat(), pages: found.length }
})

layer(Jobs.layer, { excludeTestServices: true })("Inspect", (it) => {
  it.effect("reading a job that does not exist says so, whatever is read", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const reads: ReadonlyArray<Effect.Effect<unknown, StoreUnavailable | { readonly _tag: "NotFound" }>> = [
        inspect.job(id("nobody")),
        inspect.attempts(id("nobody")),
        inspect.checkpoint(id("nobody")),
        inspect.payload(id("nobody")),
        inspect.result(id("nobody")),
        inspect.progress(id("nobody")),
        inspect.output(id("nobody"))
      ]
      for (const read of reads) assert.strictEqual((yield* Effect.flip(read))._tag, "NotFound")
    }))

  it.effect("a job that wrote nothing has no attempts, checkpoint, result, progress or output", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      yield* Jobs.seed({ id: "bare" })
      assert.deepStrictEqual(yield* inspect.attempts(id("bare")), [])
      for (const read of [inspect.checkpoint, inspect.result, inspect.progress, inspect.output]) {
        assert.strictEqual(yield* read(id("bare")), undefined)
      }
    }))

  it.effect("a summary tells where the job stands, and no payload", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const now = yield* Time.freeze()
      yield* Jobs.seed({
        id: "sum",
        state: "running",
        payload: "\\x736563726574",
        partition_key: "p",
        priority: 3,
        attempt: 1,
        crash_attempt: 2,
        fence: 6,
        tags: ["a", "b"],
        deadline_at_ms: now + 9,
        orphaned: true
      })
      assert.deepStrictEqual(yield* inspect.job(id("sum")), {
        id: id("sum"),
        kind: "greet",
        schemaVersion: 1,
        state: "running",
        queue: "default",
        partitionKey: "p",
        priority: 3,
        attempt: 1,
        maxAttempts: 5,
        crashAttempt: 2,
        crashLimit: 3,
        fence: 6,
        fingerprint: "sum",
        tags: ["a", "b"],
        enqueuedAtMs: now,
        scheduledAtMs: now,
        deadlineAtMs: now + 9,
        claimedAtMs: now,
        finishedAtMs: undefined,
        leaseExpiresAtMs: now + 30_000,
        worker: "w1",
        orphaned: true,
        reason: undefined
      })
    }))

  it.effect("attempts are told oldest first, and a success is the last of them", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      const now = yield* Time.freeze()
      for (const [name, state] of [["done", "completed"], ["failed", "archived"]] as const) {
        yield* Jobs.seed({ id: name, state, fence: 12, last_worker: "w3", claimed_at_ms: now - 5, finished_at_ms: now })
        for (const fence of [10, 2, 9]) {
          yield* pg`INSERT INTO headgate.attempt (fence, started_at_ms, ended_at_ms, job_id, worker, outcome, error_tag, error_text)
            VALUES (${fence}, 1, 2, ${name}, 'w2', 'retry', 'Boom', 'Boom: x')`
        }
      }
      const failure = (fence: number) => ({
        fence,
        worker: "w2",
        startedAtMs: 1,
        endedAtMs: 2,
        outcome: "retry",
        errorTag: "Boom",
        errorText: "Boom: x",
        log: undefined
      })
      const success = {
        fence: 12,
        worker: "w3",
        startedAtMs: now - 5,
        endedAtMs: now,
        outcome: "success",
        errorTag: undefined,
        errorText: undefined,
        log: undefined
      }
      assert.deepStrictEqual(yield* inspect.attempts(id("failed")), [2, 9, 10].map(failure))
      assert.deepStrictEqual(yield* inspect.attempts(id("done")), [...[2, 9, 10].map(failure), success])
    }))

  it.effect("a checkpoint is told with its steps in order", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      yield* Jobs.seed({
        id: "steps",
        has_steps: true,
        step_set: ["a", "b", "c"],
        checkpoint_version: 2,
        in_progress_step: "c",
        cursor_step: "c",
        cursor: "\\x07",
        crashes_by_step: { c: 1 }
      })
      yield* pg`INSERT INTO headgate.step (recorded_at_ms, fence, position, job_id, step, kind, result, wake_at_ms) VALUES
        (0, 1, 1, 'steps', 'b', 'sleep', null, 77), (0, 1, 0, 'steps', 'a', 'step', '\\x01', null)`
      assert.deepStrictEqual(yield* inspect.checkpoint(id("steps")), {
        stepSet: ["a", "b", "c"],
        version: 2,
        records: [
          { step: "a", kind: "step", position: 0, result: Uint8Array.of(1), wakeAtMs: undefined },
          { step: "b", kind: "sleep", position: 1, result: undefined, wakeAtMs: 77 }
        ],
        inProgress: "c",
        cursor: { step: "c", bytes: Uint8Array.of(7) },
        crashesByStep: { c: 1 }
      })
    }))

  it.effect("a payload and a result are told with their versions", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const payload = { schema_version: 7, payload: "\\x03" }
      yield* Jobs.seed({ id: "result", state: "completed", result_version: 4, result: "\\x0102", ...payload })
      assert.deepStrictEqual(yield* inspect.payload(id("result")), { version: 7, bytes: Uint8Array.of(3) })
      assert.deepStrictEqual(yield* inspect.result(id("result")), { version: 4, bytes: Uint8Array.of(1, 2) })
    }))

  it.effect("jobs of each state are listed page by page, the newest or the first due first, each once", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      yield* pg`DELETE FROM headgate.job`
      const now = yield* Time.freeze()
      // Two of each time.
      const times = Array.from({ length: 10 }, (_, n) => now + 1000 * Math.floor(n / 2))
      yield* Jobs.seed(...State.literals.flatMap((state) =>
        times.map((at, n) => ({
          id: `${state} ${n}`,
          state,
          enqueued_at_ms: at,
          scheduled_at_ms: at,
          claimed_at_ms: at,
          ...(isTerminal(state) ? { finished_at_ms: at } : {}),
          ...(state === "completed" || state === "cancelled" ? { evict_at_ms: at } : {})
        }))
      ))
      for (const state of listed) {
        const ids = times.map((_, n) => `${state} ${n}`)
        const wanted = state === "scheduled" || state === "retryable" ? ids : ids.toReversed()
        for (const limit of [1, 3, 1000]) {
          assert.deepStrictEqual((yield* pages({ state, limit })).ids, wanted, `${state} by ${limit}`)
        }
        const { approximate, items: [first], next } = yield* inspect.jobs({ state, limit: 10 })
        assert.deepStrictEqual([approximate, next], [false, undefined], state)
        assert.deepStrictEqual(first, yield* inspect.job(id(String(wanted[0]))))
      }
    }))

  it.effect("a list may be of one kind, one queue and one reason", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      yield* pg`DELETE FROM headgate.job`
      for (const state of listed) {
        yield* Jobs.seed(
          { id: `${state} all`, state, kind: "mail", queue: "slow", reason: "fatal" },
          { id: `${state} kind`, state, kind: "mail" },
          { id: `${state} queue`, state, queue: "slow" },
          { id: `${state} reason`, state, reason: "fatal" }
        )
        const found = (query: Omit<JobsQuery, "state">) =>
          Effect.map(pages({ state, ...query }), ({ ids }) => ids.map((id) => id.slice(state.length + 1)).sort())
        assert.deepStrictEqual(yield* found({ kind: "mail" }), ["all", "kind"], state)
        assert.deepStrictEqual(yield* found({ queue: "slow", limit: 1 }), ["all", "queue"], state)
        assert.deepStrictEqual(yield* found({ reason: "fatal" }), ["all", "reason"], state)
        assert.deepStrictEqual(yield* found({ kind: "mail", queue: "slow", reason: "fatal" }), ["all"], state)
        assert.deepStrictEqual(yield* found({ kind: "nothing" }), [], state)
      }
    }))

  it.effect("what cannot be listed by an index is refused", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const refused: ReadonlyArray<readonly [Record<string, unknown>, string]> = [
        [{ state: "available" }, "state"],
        [{ state: "lost" }, "state"],
        [{ reason: "tired" }, "reason"],
        [{ kind: "no kind" }, "kind"],
        [{ queue: "" }, "queue"],
        [{ after: "yesterday" }, "after"],
        [{ limit: 1001 }, "limit"],
        [{ limit: 0 }, "limit"]
      ]
      for (const [part, field] of refused) {
        // SAFETY: what a caller without types may send.
        const refusal = yield* Effect.flip(inspect.jobs({ state: "archived", ...part } as JobsQuery))
        assert.deepInclude(refusal, { _tag: "Invalid", field })
      }
    }))

  it.effect("a page looks at 10,000 jobs at most, and says where to go on, or that there are more", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      const many = (state: State) =>
        Effect.gen(function*() {
          yield* pg`DELETE FROM headgate.job`
          yield* Jobs.seed({ id: "j", state }, { id: "rare", state, kind: "rare", finished_at_ms: 1 })
          yield* pg`INSERT INTO headgate.job SELECT r.* FROM headgate.job j CROSS JOIN generate_series(1, 10000) n
            CROSS JOIN LATERAL jsonb_populate_record(j, jsonb_build_object('id', n::text)) r WHERE j.id = 'j'`
        })
      yield* many("archived")
      const { items, next } = yield* inspect.jobs({ state: "archived", kind: "rare" })
      assert.deepStrictEqual(items, [])
      assert.isDefined(next)
      assert.deepStrictEqual(yield* pages({ state: "archived", kind: "rare" }), { ids: ["rare"], pages: 2 })
      yield* many("quarantined")
      const resting = yield* inspect.jobs({ state: "quarantined", limit: 1 })
      assert.isTrue(resting.approximate)
      assert.isFalse((yield* inspect.jobs({ state: "quarantined", queue: "elsewhere" })).approximate)
      yield* pg`DELETE FROM headgate.job`
    }))

  it.effect("jobs are counted by state, for one queue or all", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      yield* pg`DELETE FROM headgate.job`
      const queues = { one: 1, two: 2 }
      yield* Jobs.seed(
        ...Object.entries(queues).flatMap(([queue, count]) =>
          State.literals.flatMap((state) =>
            Array.from({ length: count }, (_, n) => ({ id: `${queue} ${state} ${n}`, state, queue }))
          )
        )
      )
      const all = (count: number) => Object.fromEntries(State.literals.map((state) => [state, count]))
      assert.deepStrictEqual(yield* inspect.counts("two"), { counts: all(2), approximate: false })
      assert.deepStrictEqual(yield* inspect.counts(), { counts: all(3), approximate: false })
      assert.deepStrictEqual(yield* inspect.counts("nobody"), { counts: all(0), approximate: false })
    }))

  it.effect("counting stops at 10,000 a state and says so", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      yield* pg`DELETE FROM headgate.job`
      for (const state of ["available", "archived", "scheduled", "completed"] as const) {
        yield* pg`DELETE FROM headgate.job`
        yield* Jobs.seed({ id: state, state })
        yield* pg`INSERT INTO headgate.job SELECT r.* FROM headgate.job j
          CROSS JOIN generate_series(1, 10000) n
          CROSS JOIN LATERAL jsonb_populate_record(j, jsonb_build_object('id', n::text)) r`
        const { approximate, counts } = yield* inspect.counts()
        assert.deepStrictEqual([counts[state], approximate], [10_000, true], state)
      }
      yield* pg`DELETE FROM headgate.job`
    }))

  it.effect("a worker is live as long as it was seen within its lease", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const now = yield* Time.freeze()
      yield* worker("w1", now - 999, { greet: 2 })
      yield* worker("w2", now - 1000, {})
      const standing = { status: "working", isResigned: false, command: undefined } as const
      const common = { queues: ["default"], capacity: 10, running: 2, startedAtMs: 1, ...standing }
      assert.deepStrictEqual(yield* inspect.workers, [
        {
          id: WorkerId.make("w1"),
          kinds: [{ kind: "greet", version: 2 }],
          seenAtMs: now - 999,
          isLive: true,
          ...common
        },
        { id: WorkerId.make("w2"), kinds: [], seenAtMs: now - 1000, isLive: false, ...common }
      ])
    }))

  it.effect("a kind that waits and no live worker of its queue knows at its version is named", () =>
    Effect.gen(function*() {
      const inspect = yield* Inspect
      const pg = yield* PgClient.PgClient
      yield* pg`DELETE FROM headgate.job`
      yield* pg`DELETE FROM headgate.worker`
      const now = yield* Time.freeze()
      yield* worker("w1", now, { greet: 2 }, ["q"])
      yield* worker("dead", now - 5000, { greet: 9, other: 9 }, ["q"])
      yield* Jobs.seed(
        { id: "u1", queue: "q", schema_version: 2 },
        { id: "u2", queue: "q", schema_version: 3 },
        { id: "u3", queue: "q", kind: "other" },
        { id: "u4", queue: "elsewhere" },
        { id: "u5", queue: "q", kind: "finished", state: "completed" }
      )
      assert.deepStrictEqual(yield* inspect.unknownKinds, [
        { queue: "elsewhere", kind: "greet", version: 1 },
        { queue: "q", kind: "greet", version: 3 },
        { queue: "q", kind: "other", version: 1 }
      ])
    }))
})
