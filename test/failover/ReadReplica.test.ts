import { assert, it } from "@effect/vitest"
import {
  ConcurrencyLimit,
  DeathCallbacks,
  Explain,
  Inspect,
  JobId,
  Pauses,
  Policies,
  Quarantine,
  RateClass,
  Redrive,
  Task
} from "@headgate/core"
import { Effect, Schedule, Schema } from "effect"
import * as Site from "../faults/fixtures/Site.ts"
import * as Pair from "./fixtures/Pair.ts"

const Api = RateClass.make("api", { limit: 1, window: "1 hour" })
const One = ConcurrencyLimit.make("one", { scope: "key", max: 1, onSaturated: "cancel_running" })
const Import = Task.make("import", {
  payload: Schema.Struct({ shop: Schema.String }),
  partitionKey: ({ shop }) => shop,
  rates: [Api],
  limits: [One]
})

const prepare = (url: string) =>
  Effect.scoped(Effect.gen(function*() {
    const site = yield* Site.open(url, { settings: { migrate: true } })
    yield* site.use(Policies.use((policies) => policies.apply([Api, One])))
    yield* site.use(Import.enqueue({ shop: "apple" }, { id: "first" }))
  })).pipe(Effect.orDie)

/** All that reports and a console ask. */
const reads = (id: JobId) =>
  Effect.all([
    Inspect.use((inspect) => inspect.job(id)),
    Inspect.use((inspect) => inspect.jobs({ state: "running" })),
    Inspect.use((inspect) => inspect.attempts(id)),
    Inspect.use((inspect) => inspect.checkpoint(id)),
    Inspect.use((inspect) => inspect.payload(id)),
    Inspect.use((inspect) => inspect.result(id)),
    Inspect.use((inspect) => inspect.failure(id)),
    Inspect.use((inspect) => inspect.progress(id)),
    Inspect.use((inspect) => inspect.tracked(id)),
    Inspect.use((inspect) => inspect.output(id)),
    Inspect.use((inspect) => inspect.counts()),
    Inspect.use((inspect) => inspect.workers),
    Inspect.use((inspect) => inspect.unknownKinds),
    Explain.use((explain) => explain.job(id)),
    Explain.use((explain) => explain.fleet),
    Explain.use((explain) => explain.holds(id)),
    Policies.use((policies) => policies.rateClasses()),
    Policies.use((policies) => policies.limits()),
    Policies.use((policies) => policies.queues()),
    Policies.use((policies) => policies.partitions({ queue: "default" })),
    Pauses.use((pauses) => pauses.paused),
    Quarantine.use((quarantine) => quarantine.list()),
    Redrive.use((redrive) => redrive.preview({ filter: { kind: Import.kind } })),
    Redrive.use((redrive) => redrive.list()),
    DeathCallbacks.use((callbacks) => callbacks.list()),
    DeathCallbacks.use((callbacks) => callbacks.counts)
  ])

it.live(
  "a store on a streaming standby answers every read, hears of what comes later, and stores nothing",
  () =>
    Effect.gen(function*() {
      const pair = yield* Pair.start(prepare)
      const standby = yield* Site.open(pair.standby.url, { settings: { listen: false } })
      const [{ id }] = yield* standby.use(reads(JobId.make("first")))
      assert.strictEqual(id, "first")

      const primary = yield* Site.open(pair.primary.url)
      const later = yield* primary.use(Import.enqueue({ shop: "pear" }))
      const seen = Inspect.use((inspect) => inspect.job(later))
      const { state } = yield* Effect.retry(standby.use(seen), Schedule.spaced(50)).pipe(Effect.timeout("10 seconds"))
      assert.strictEqual(state, "available")

      const refused = yield* Effect.flip(standby.use(Import.enqueue({ shop: "plum" })))
      assert.strictEqual(refused._tag, "StoreUnavailable")
    }).pipe(Effect.scoped),
  60_000
)
