/** The Postgres store in a database of its own, at a clock that stands still. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { TestDatabase, Time } from "@headgate/testkit"
import { Effect, Layer } from "effect"
import type * as SqlClient from "effect/sql/SqlClient"
import { Stage } from "./Stage.ts"

/** Far from the machine's own time, so that a store that asks another clock is found out. */
const START_MS = Date.UTC(2040, 0, 1)

/** The clock is set apart. */
const kept = ["test_clock"]

const IDLE = { started_at_ms: 0, seen_at_ms: 0, lease_ms: 0, capacity: 9, running: 0 }

const stage = Layer.effect(
  Stage,
  Effect.gen(function*() {
    const pg = yield* PgClient.PgClient
    const context = yield* Effect.context<SqlClient.SqlClient>()
    const { schema } = yield* TestDatabase.TestDatabase
    // A hint that is believed for a second of real time, in which a scenario has added jobs that come before it.
    yield* pg`CREATE OR REPLACE FUNCTION ${pg(schema)}.remember_head(p_lane int, p_taken tid[], p_until timestamptz)
      RETURNS void LANGUAGE sql AS 'SELECT'`
    const names = yield* pg<{ name: string }>`SELECT tablename AS name FROM pg_tables
      WHERE schemaname = ${schema} AND NOT tablename = ANY(${kept})`
    const tables = yield* Effect.forEach(names, ({ name }) =>
      Effect.map(
        pg<{ rows: ReadonlyArray<unknown> }>`SELECT coalesce(jsonb_agg(t), '[]') AS rows FROM ${pg(schema)}.${
          pg(name)
        } t`,
        ([fresh]) => ({ name, rows: fresh?.rows ?? [] })
      ))
    const restore = Effect.fnUntraced(function*({ name, rows }: (typeof tables)[number]) {
      const table = pg`${pg(schema)}.${pg(name)}`
      yield* pg`DELETE FROM ${table}`
      yield* pg`INSERT INTO ${table} OVERRIDING SYSTEM VALUE
        SELECT * FROM jsonb_populate_recordset(NULL::${table}, ${pg.json(rows)})`
    })
    const deletions = tables.filter(({ rows }) => rows.length === 0)
      .map(({ name }, index) => `t${index} AS (DELETE FROM "${schema}"."${name}")`)
    const clear = pg.withTransaction(Effect.andThen(
      pg.unsafe(`WITH ${deletions.join(", ")} SELECT 1`),
      Effect.forEach(tables.filter(({ rows }) => rows.length > 0), restore, { discard: true })
    ))
    return Stage.of({
      clear: Effect.orDie(Effect.andThen(clear, Effect.provide(Time.freeze(START_MS), context))),
      advance: (ms) => Effect.orDie(Effect.asVoid(Effect.provide(Time.advance(ms), context))),
      seen: ({ kinds, leaseMs, queues, worker }) =>
        Effect.orDie(Effect.asVoid(
          pg`INSERT INTO ${pg(schema)}.worker ${
            pg.insert({ id: worker, queues, kinds: Object.keys(kinds), versions: Object.values(kinds), ...IDLE })
          } ON CONFLICT DO NOTHING`.pipe(Effect.andThen(
            pg`UPDATE ${pg(schema)}.worker SET seen_at_ms = ${pg(schema)}.now_ms(), lease_ms = ${leaseMs}::bigint
              WHERE id = ${worker}`
          ))
        ))
    })
  })
)

export const layer = Layer.merge(PostgresStore.layerWith({ migrate: false, listen: false }), stage)
  .pipe(Layer.provide(TestDatabase.layer))
