import type * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import * as Dice from "../crash/fixtures/Dice.ts"
import * as Fixture from "../gate/Fixture.ts"

const JOBS = 1000
const CEILING = 2
const LEASE_MS = 5000
/** `HEADGATE_SLOTS_SEED` repeats the throws of an earlier run. */
const seed = Number(process.env["HEADGATE_SLOTS_SEED"] ?? 67)

interface Claim {
  readonly id: string
  readonly leaseId: string
  readonly fence: number
}

const add = (ids: ReadonlyArray<string>) =>
  Fixture.insert(
    ids.map((id) => ({ id, queue: "q", kind: "k", slots: [{ policy: "slots", key: "shop" }] })),
    1000
  )

const claim = Effect.fnUntraced(function*(capacity: number) {
  const leaseId = crypto.randomUUID()
  const request = { worker: "w", leaseId, leaseMs: LEASE_MS, queues: ["q"], capacity, quantum: undefined }
  const answers = yield* Fixture.admit(request, ["k"])
  return answers.flatMap(({ fence, id }): ReadonlyArray<Claim> => fence === null ? [] : [{ id: id!, leaseId, fence }])
})

let now = 2_000_000
/** What waits for a time is due. */
const wait = Effect.fnUntraced(function*(ms: number) {
  now += ms
  yield* Fixture.setTime(now)
  yield* Fixture.run("select * from headgate.promote_due(1000)")
})

const end = ({ fence, id, leaseId }: Claim, outcome: string) =>
  Fixture.run(
    `select * from headgate.settle(p_jobs => array[$1], p_leases => array[$2::uuid], p_fences => array[$3::text::bigint],
      p_outcomes => array[$4], p_delays => array[1000::bigint], p_reasons => array[null::text],
      p_error_tags => array[null::text], p_error_messages => array[null::text], p_error_texts => array[null::text],
      p_errors => array[null::bytea])`,
    [id, leaseId, String(fence), outcome]
  )
const succeed = (held: Claim) => Fixture.settle(held, "success", 0)
const cancel = ({ id }: Claim) => Fixture.run("select * from headgate.cancel_job($1)", [id])
const expire = Effect.andThen(wait(LEASE_MS + 1), Fixture.run("select * from headgate.reclaim_expired(1000)"))

/** How a claim can end, and how it can seem to. */
const faults: Readonly<Record<string, (held: Claim) => Effect.Effect<unknown, unknown, PgClient.PgClient>>> = {
  "its process dies before it starts": () => expire,
  "its lease runs out, and nobody has noticed": () => wait(LEASE_MS + 1),
  "its handler outlives the lease, and returns": (held) => Effect.andThen(expire, succeed(held)),
  "it is cancelled, and returns": (held) => Effect.andThen(cancel(held), succeed(held)),
  "it is cancelled twice, then deleted": (held) =>
    Effect.all([cancel(held), cancel(held), Fixture.run("delete from headgate.job where id = $1", [held.id])]),
  "its row is deleted by hand, and it returns": (held) =>
    Effect.andThen(Fixture.run("delete from headgate.job where id = $1", [held.id]), end(held, "retry")),
  "it meets a 429": (held) => end(held, "rate_limited"),
  "it is handed back twice": (held) => Effect.andThen(end(held, "released"), end(held, "released")),
  "it snoozes": (held) => end(held, "snooze"),
  "it crashes": (held) => end(held, "crashed"),
  "it fails": (held) => end(held, "retry"),
  "its settlement is rolled back, and it dies": (held) =>
    Effect.all([Fixture.run("begin"), succeed(held), Fixture.run("rollback"), expire]),
  "it succeeds twice": (held) => Effect.andThen(succeed(held), succeed(held))
}

const running = Effect.map(
  Fixture.run<{ n: number }>("select count(*)::int as n from headgate.job where state = 'running'"),
  ([row]) => row!.n
)

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("A slot", (it) => {
  it.effect(
    "is neither lost nor given twice by 1,000 jobs with random faults: then exactly the ceiling runs",
    () =>
      Effect.gen(function*() {
        const dice = Dice.make(seed)
        const kinds = Object.keys(faults)
        const met = new Set<string>()
        const shop = { scope: "key", subject: "", max: CEILING, onSaturated: "queue", isPaused: false } as const
        yield* Fixture.setTime(now)
        yield* Fixture.setLimit("slots", shop)
        yield* add(Array.from({ length: JOBS }, (_, n) => `job-${String(n).padStart(4, "0")}`))
        for (let turn = 0; turn < JOBS; turn++) {
          const claims = yield* claim(dice.between(1, 5))
          assert.isAtMost(yield* running, CEILING, `turn ${turn} of seed ${seed}`)
          if (claims.length === 0) yield* expire
          for (const held of claims) {
            const fault = dice.oneOf(kinds)!
            met.add(fault)
            yield* faults[fault]!(held)
          }
        }
        assert.strictEqual(met.size, kinds.length)

        yield* expire
        yield* Fixture.run("delete from headgate.job where state <> 'running'")
        assert.strictEqual(yield* running, 0)
        yield* add(["new-1", "new-2", "new-3", "new-4"])
        assert.strictEqual((yield* claim(10)).length, CEILING)
        assert.deepStrictEqual(yield* claim(10), [])
      }),
    240_000
  )
})
