/** The Postgres store in a database of its own, at a clock that stands still. */
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase, Time } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import type * as SqlClient from "effect/sql/SqlClient"
import { Stage } from "./Stage.ts"

/** Far from the time of the machine, so that a store that asks any other clock is found out. */
const START_MS = Date.UTC(2040, 0, 1)

const stage = Layer.effect(
  Stage,
  Effect.gen(function*() {
    const context = yield* Effect.context<SqlClient.SqlClient>()
    return Stage.of({
      start: Effect.orDie(Effect.provide(Time.freeze(START_MS), context)),
      advance: (ms) => Effect.orDie(Effect.asVoid(Effect.provide(Time.advance(ms), context)))
    })
  })
)

export const layer = Layer.merge(PostgresStore.layerWith({ migrate: false, listen: false, controlConnections: 1 }), stage)
  .pipe(Layer.provide(TestDatabase.layerWith({ client: { maxConnections: 1 } })))
