/** A worker process that stops at a place its job names, says so in the database, and waits there to be killed. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Step, Task } from "@headgate/core"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { Effect, Layer, Redacted, Schema } from "effect"
import { Worker } from "../src/Worker.ts"

const steps = ["s0", "s1", "s2", "s3", "s4"] as const

const handle = <E, R, E2, R2>(
  body: (step: string) => Effect.Effect<void, E, R>,
  at: (place: string) => Effect.Effect<void, E2, R2>
) =>
  Effect.forEach(steps, (step, n) =>
    Effect.tap(
      Step.run(step, Effect.as(Effect.andThen(body(step), at(`body ${step}`)), n), { result: Schema.Int }),
      at(`after ${step}`)
    ))

export const KilledTask = {
  ...Task.make("killed", {
    payload: Schema.Struct({ stopAt: Schema.String }),
    success: Schema.Array(Schema.Int),
    steps
  }),
  handle
}

const main = (url: string) => {
  const say = (what: string) =>
    Effect.flatMap(PgClient.PgClient, (sql) => sql`INSERT INTO bodies VALUES (${what}, ${process.pid})`)
  const handler = KilledTask.toLayer(({ stopAt }) =>
    handle(
      (step) => Effect.asVoid(say(step)),
      (place) => place === stopAt ? Effect.andThen(say(`stopped ${stopAt}`), Effect.never) : Effect.void
    )
  )
  return Worker.layer({ concurrency: 1, duties: false }).pipe(
    Layer.provide(handler),
    Layer.provide(PostgresStore.layerWith({ migrate: false })),
    Layer.provide(PgClient.layer({ url: Redacted.make(url) })),
    Layer.launch,
    Effect.runPromise
  )
}

if (import.meta.main) await main(process.argv[2]!)
