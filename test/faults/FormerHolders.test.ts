import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import {
  ConcurrencyLimit,
  Control,
  Duties,
  Gate,
  LeaseId,
  type LeaseRef,
  Leases,
  type Outcome,
  Outcomes,
  Policies,
  type Producer,
  type State,
  Task,
  WorkerId
} from "@headgate/core"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase, Time } from "@headgate/testkit"
import { Effect, Layer, Schema } from "effect"
import type { SqlClient } from "effect/sql/SqlClient"
import * as Holder from "./fixtures/Holder.ts"

const payload = Schema.Void
const LEASE_MS = 30_000
const Newest = ConcurrencyLimit.make("newest", { scope: "kind", kind: "held", max: 1, onSaturated: "cancel_running" })
const Held = Task.make("held", { payload, limits: [Newest], deadline: "1 hour", crashLimit: 10 })

const claim = Effect.fnUntraced(function*(worker: string) {
  const gate = yield* Gate
  const { claims } = yield* gate.admit({
    worker: WorkerId.make(worker),
    leaseId: LeaseId.make(crypto.randomUUID()),
    queues: ["default"],
    kinds: [{ kind: "held", version: 1 }],
    capacity: 1,
    leaseMs: LEASE_MS,
    quantum: undefined
  })
  return claims[0]?.lease
})

const settle = (outcome: Outcome) => (lease: LeaseRef) => Leases.use((leases) => leases.settle([{ lease, outcome }]))

const error = { tag: "Broken", message: "", text: "" }

interface End {
  readonly state: State | "deleted"
  /** The holder ended it itself, so that what it settles again may be a repetition: it is told what the job became. */
  readonly isOwn?: boolean
  readonly end: (
    lease: LeaseRef
  ) => Effect.Effect<unknown, unknown, Control | Duties | Gate | Leases | Producer | PgClient.PgClient | SqlClient>
}

/** How a holder's ownership ends, and the state that leaves the job in. */
const ends: Readonly<Record<string, End>> = {
  "it was reclaimed": {
    state: "retryable",
    end: () => Effect.andThen(Time.advance(LEASE_MS + 1), Duties.use((duties) => duties.reclaimExpired(10)))
  },
  "it was reclaimed, and another runs it": {
    state: "running",
    end: () =>
      Effect.gen(function*() {
        const duties = yield* Duties
        yield* Time.advance(LEASE_MS + 1)
        yield* duties.reclaimExpired(10)
        yield* Time.advance(1001)
        yield* duties.promoteDue(10)
        assert.isDefined(yield* claim("second"))
      })
  },
  "it succeeded": {
    state: "completed",
    isOwn: true,
    end: settle(Outcomes.successWith(1, new TextEncoder().encode("1")))
  },
  "it failed": { state: "retryable", isOwn: true, end: settle(Outcomes.retry(60_000, error)) },
  "it was handed back": { state: "available", isOwn: true, end: settle(Outcomes.released) },
  "it was snoozed": { state: "scheduled", isOwn: true, end: settle(Outcomes.snooze(60_000)) },
  "it was skipped": { state: "archived", isOwn: true, end: settle(Outcomes.skip("enough")) },
  "it was dropped": { state: "deleted", end: settle(Outcomes.revoke) },
  "it was cancelled": {
    state: "cancelled",
    end: ({ jobId }: LeaseRef) => Control.use((control) => control.cancel(jobId))
  },
  "a newer job took its place": {
    state: "cancelled",
    end: () => Effect.andThen(Held.enqueue(undefined), claim("second"))
  },
  "its deadline passed": {
    state: "archived",
    end: () => Effect.andThen(Time.advance("1 hour"), Duties.use((duties) => duties.expireDue(10)))
  }
}

const asRepeated = { ...Holder.allRefused, settled: ["Applied", "Applied", "Applied", "Applied"] }

const live = Layer.effectDiscard(
  Effect.andThen(Holder.createMarks, Policies.use((policies) => policies.apply(Held.definition.policies)))
).pipe(Layer.provideMerge(PostgresStore.layer), Layer.provideMerge(TestDatabase.layer))

layer(live, { excludeTestServices: true })("The former holder of a job", (it) => {
  for (const [how, { end, isOwn = false, state }] of Object.entries(ends)) {
    it.effect(`writes nothing more once ${how}`, () =>
      Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        yield* sql`DELETE FROM headgate.job`
        const id = yield* Held.enqueue(undefined)
        const lease = yield* claim("first")
        assert.isDefined(lease)
        yield* end(lease!)
        const before = yield* Holder.written(id)
        assert.strictEqual(before[0]?.["state"] ?? "deleted", state)
        const answers = yield* Holder.sendAll(lease!)
        assert.deepStrictEqual(answers, isOwn ? asRepeated : Holder.allRefused)
        assert.deepStrictEqual(yield* Holder.written(id), before)
      }))
  }
})
