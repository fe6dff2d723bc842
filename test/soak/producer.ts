/**
 * A producer process of the soak. It says what it is about to store, stores it, again until there is an answer, and
 * records the answer. At SIGUSR2 it kills itself between the two at its next order.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Cause from "effect/Cause"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { isSqlError } from "effect/sql/SqlError"
import { Control, JobId, launch, PostgresStore } from "headgate"
import * as Dice from "../crash/fixtures/Dice.ts"
import { toldToGo, UP } from "../crash/fixtures/Up.ts"
import { Audit } from "./Audit.ts"
import { child, draw, enqueue, type Order } from "./Orders.ts"
import { MOST_UNFINISHED, ORDERING, PAUSE_MS } from "./Pace.ts"

await toldToGo()

const dice = Dice.make(Number(process.env["SOAK_SEED"]) ^ process.pid)

let isDoomed = false
process.on("SIGUSR2", () => void (isDoomed = true))
const dieIfDoomed = Effect.sync(() => isDoomed && process.kill(process.pid, "SIGKILL"))

/** Again while the database is out of reach: every other refusal is an answer. */
const untilAnswered = <A, E extends { readonly _tag: string }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.retry(effect, {
    schedule: Schedule.spaced("100 millis"),
    while: (error: E) => error._tag === "StoreUnavailable" || isSqlError(error)
  })

const place = Effect.fnUntraced(function*(order: Order) {
  const audit = yield* Audit
  yield* audit.intend([order])
  const refusal = yield* Effect.matchEffect(untilAnswered(enqueue(order)), {
    onSuccess: () => Effect.undefined,
    onFailure: (error) => error._tag === "Duplicate" ? Effect.succeed(error) : Effect.die(error)
  })
  yield* dieIfDoomed
  yield* refusal === undefined
    ? audit.answered(order.id, "accepted")
    : audit.answered(order.id, "duplicate", refusal.existingId)
  if (refusal === undefined && dice.between(1, 25) === 1) yield* cancel(order.id)
})

const cancel = Effect.fnUntraced(function*(id: string) {
  const audit = yield* Audit
  yield* Effect.sleep(dice.between(0, 300))
  yield* audit.cancelling(id)
  const said = yield* untilAnswered(Control.use((control) => control.cancel(JobId.make(id)))).pipe(
    Effect.catchTag("NotFound", () => Effect.succeed("not_found"))
  )
  yield* audit.cancelling(id, said)
})

/** Orders that stand and fall with the application's own row. */
const placeFamily = Effect.gen(function*() {
  const audit = yield* Audit
  const sql = yield* PgClient.PgClient
  const name = `family-${crypto.randomUUID().slice(0, 13)}`
  const children = [0, 1, 2].map((n) => child(name, n, dice.between(5, 50)))
  yield* audit.intend(children)
  const isMeantToFail = dice.between(1, 4) === 1
  const transaction = sql.withTransaction(Effect.gen(function*() {
    yield* sql`INSERT INTO audit.family (name) VALUES (${name})`
    for (const order of children) yield* enqueue(order)
    if (isMeantToFail) return yield* Effect.fail({ _tag: "MeantToFail" as const })
    yield* dieIfDoomed
  }))
  // Not again after a lost answer, and a rollback on a lost connection dies: the audit's own row tells what was committed.
  yield* Effect.exit(transaction)
})

let isFull = false
const watchBacklog = Effect.gen(function*() {
  const audit = yield* Audit
  while (true) {
    isFull = (yield* audit.backlog) > MOST_UNFINISHED
    yield* Effect.sleep("1 second")
  }
})

const takeOrders = Effect.gen(function*() {
  while (true) {
    yield* Effect.sleep(dice.between(...PAUSE_MS))
    if (isFull) continue
    yield* dice.between(1, 20) === 1 ? placeFamily : place(draw(dice))
  }
})

/** Whatever is no answer to an order ends the process, which nobody did to it. */
const produce = Effect.gen(function*() {
  console.log(UP)
  yield* Effect.all([watchBacklog, ...Array.from({ length: ORDERING }, () => takeOrders)], {
    concurrency: "unbounded",
    discard: true
  })
}).pipe(
  Effect.tapCause((cause) =>
    Cause.hasInterruptsOnly(cause)
      ? Effect.void
      : Effect.andThen(
        Effect.logError(cause.reasons.map(({ _tag }) => _tag), cause),
        Effect.sync(() => process.exit(1))
      )
  )
)

launch(
  Layer.effectDiscard(Effect.forkScoped(produce)).pipe(
    Layer.provide(Audit.layer),
    Layer.provide(PostgresStore.layerWith({ migrate: false })),
    Layer.provide(PgClient.layerConfig({
      url: Config.Redacted("DATABASE_URL"),
      applicationName: Config.succeed("soak producer"),
      maxConnections: Config.succeed(4)
    }))
  )
)
