/**
 * Moves the store's clock. The store asks one SQL function for the time; `install` replaces it by one that reads a
 * one-row table, so every session and every prepared statement follows at its next statement. Databases of
 * `TestDatabase` have it installed, showing real time until told otherwise.
 *
 * Call these outside an open transaction: nobody else sees the new time before it commits.
 */
import { PostgresSettings } from "@headgate/postgres/Settings"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as SqlClient from "effect/sql/SqlClient"

/** Once per database, after the migrations. */
export const install = Effect.fn("Time.install")(function*() {
  const sql = yield* SqlClient.SqlClient
  const schema = sql((yield* PostgresSettings).schema)
  yield* sql`CREATE TABLE IF NOT EXISTS ${schema}.test_clock (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), offset_ms bigint NOT NULL, frozen_at_ms bigint)`
  yield* sql`INSERT INTO ${schema}.test_clock (offset_ms) VALUES (0) ON CONFLICT DO NOTHING`
  // As STABLE as the real one: a VOLATILE clock would change the plans under test.
  yield* sql`CREATE OR REPLACE FUNCTION ${schema}.now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(frozen_at_ms, (extract(epoch FROM statement_timestamp()) * 1000)::bigint) + offset_ms
    FROM ${schema}.test_clock $$`
})

/** The store's time in epoch milliseconds. */
export const now = Effect.fn("Time.now")(function*() {
  const sql = yield* SqlClient.SqlClient
  const rows = yield* sql<{ now: bigint }>`SELECT ${sql((yield* PostgresSettings).schema)}.now_ms() AS now`
  return Number(rows[0]?.now)
})

/** Moves the clock on, whether it runs or is frozen; a negative duration moves it back. Returns the new time. */
export const advance = Effect.fn("Time.advance")(function*(duration: Duration.Input) {
  const sql = yield* SqlClient.SqlClient
  const millis = BigInt(Math.round(Duration.toMillis(duration)))
  yield* sql`UPDATE ${sql((yield* PostgresSettings).schema)}.test_clock SET offset_ms = offset_ms + ${millis}`
  return yield* now()
})

/** Stops the clock at the given epoch milliseconds, or where it is. `advance` still moves it. Returns the frozen time. */
export const freeze = Effect.fn("Time.freeze")(function*(atMillis?: number) {
  const sql = yield* SqlClient.SqlClient
  const schema = sql((yield* PostgresSettings).schema)
  const at = atMillis === undefined ? sql`${schema}.now_ms()` : sql`${BigInt(atMillis)}::bigint`
  yield* sql`UPDATE ${schema}.test_clock SET frozen_at_ms = ${at}, offset_ms = 0`
  return yield* now()
})

/** Lets a frozen clock run on from where it stands. */
export const resume = Effect.fn("Time.resume")(function*() {
  const sql = yield* SqlClient.SqlClient
  yield* sql`UPDATE ${sql((yield* PostgresSettings).schema)}.test_clock SET frozen_at_ms = NULL,
    offset_ms = frozen_at_ms + offset_ms - (extract(epoch FROM statement_timestamp()) * 1000)::bigint
    WHERE frozen_at_ms IS NOT NULL`
})
