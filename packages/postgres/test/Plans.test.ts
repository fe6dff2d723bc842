import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"

const fill = (rows: number) =>
  Effect.gen(function*() {
    const sql = yield* PgClient.PgClient
    yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect)
      SELECT 'default', 'k' || n, 1, false FROM generate_series(0, 9) n ON CONFLICT DO NOTHING`
    yield* sql`INSERT INTO headgate.job (id, kind, queue, state, fingerprint, payload, lane_id, schema_version, max_attempts,
        crash_limit, retention_ms, scheduled_at_ms, enqueued_at_ms)
      SELECT 'j' || n, l.kind, 'default', 'available', 'f', '{}', l.id, 1, 5, 3, (n % 2) * 1000, n, n
      FROM generate_series(1, ${rows}) n JOIN headgate.lane l ON l.kind = 'k' || (n % 10)`
  })

interface Claimed {
  readonly ids: ReadonlyArray<string>
  readonly fences: ReadonlyArray<bigint>
}

/** One round of what a worker does all day, and what it read of the job table: whole scans, and rows by index. */
const round = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  // The counts of a session's earlier transactions stand beside those of this one.
  const reads = Effect.map(
    sql<{ scans: number; rows: number }>`SELECT seq_scan::int AS scans, idx_tup_fetch::int AS rows
      FROM pg_stat_xact_user_tables WHERE relname = 'job'`,
    ([read]) => ({ scans: read?.scans ?? 0, rows: read?.rows ?? 0 })
  )
  return yield* sql.withTransaction(Effect.gen(function*() {
    const before = yield* reads
    const lease = "6c1d6d0a-0c61-4d0c-9a2f-0f4b7f1f5a11"
    const [claimed] = yield* sql<
      Claimed
    >`SELECT coalesce(array_agg(a.id), '{}') AS ids, coalesce(array_agg(a.fence), '{}') AS fences
      FROM headgate.admit('w', ${lease}, array['default'],
        array(SELECT 'k' || n FROM generate_series(0, 9) n), array(SELECT 1 FROM generate_series(0, 9)), 1000, 30000) a`
    const ids = claimed?.ids ?? []
    const held = sql`${ids}::text[], array_fill(${lease}::uuid, array[${ids.length}::int]), ${
      claimed?.fences ?? []
    }::bigint[]`
    const nulls = sql`array_fill(null::text, array[${ids.length}::int])`
    yield* sql`SELECT * FROM headgate.renew(${held}, 30000)`
    const half =
      sql`array_fill('retry'::text, array[${ids.length}::int]), array_fill(1::bigint, array[${ids.length}::int])`
    yield* sql`SELECT * FROM headgate.succeed((${sql`${ids}::text[]`})[1:500], array_fill(${lease}::uuid, array[500]),
      (${claimed?.fences ?? []}::bigint[])[1:500], '{}', '{}')`
    yield* sql`SELECT * FROM headgate.settle(${held}, ${half}, ${nulls}, ${nulls}, ${nulls}, ${nulls}, '{}')`
    yield* sql`SELECT * FROM headgate.reclaim_expired(100)`
    const after = yield* reads
    return { claimed: ids.length, scans: after.scans - before.scans, rows: after.rows - before.rows }
  }))
})

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("Plans", (it) => {
  it.effect(
    "a thousand jobs are claimed, renewed and settled by index, among 200,000, on plans made while there were none",
    () =>
      Effect.gen(function*() {
        yield* round
        yield* fill(200_000)
        for (const statistics of ["none", "fresh"]) {
          if (statistics === "fresh") yield* (yield* PgClient.PgClient)`ANALYZE headgate.job`
          const { claimed, rows, scans } = yield* round
          assert.strictEqual(claimed, 1000)
          assert.strictEqual(scans, 0, statistics)
          // Several looks at each job, the dead versions among them; far from all jobs.
          assert.isBelow(rows, 40_000, statistics)
        }
      }),
    240_000
  )
})

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("Settings", (it) => {
  it.effect("a session that has none of the store's claims from one lane by index as well", () =>
    Effect.gen(function*() {
      const sql = yield* PgClient.PgClient
      const claims = sql<{ n: number }>`SELECT count(a.fence)::int AS n
        FROM headgate.admit('w', gen_random_uuid(), '{default}', '{k0}', '{1}', 100, 30000) a`
      const scans = sql<{ n: number }>`SELECT seq_scan::int AS n FROM pg_stat_xact_user_tables WHERE relname = 'job'`
      const claimed = sql.withTransaction(Effect.gen(function*() {
        const [before] = yield* scans
        const [found] = yield* claims
        const [after] = yield* scans
        return { jobs: found?.n, scans: (after?.n ?? 0) - (before?.n ?? 0) }
      }))
      // Enough calls for a plan to be kept, while the table is known to be small.
      yield* fill(20)
      yield* sql`ANALYZE headgate.job`
      for (let n = 0; n < 10; n++) yield* claimed
      yield* sql`DELETE FROM headgate.job`
      yield* fill(20_000)
      assert.deepStrictEqual(yield* claimed, { jobs: 100, scans: 0 })
    }))
})

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })("Lists", (it) => {
  /** What one page reads of the job table. */
  const page = Effect.fnUntraced(function*(state: string, atMs: string, id: string) {
    const sql = yield* PgClient.PgClient
    const read = sql<{ scans: number; rows: number }>`SELECT seq_scan::int AS scans, idx_tup_fetch::int AS rows
      FROM pg_stat_xact_user_tables WHERE relname = 'job'`
    return yield* sql.withTransaction(Effect.gen(function*() {
      const [before] = yield* read
      const [found] = yield* sql<
        { ids: ReadonlyArray<string> }
      >`SELECT ids FROM headgate.jobs_page(${state}, null, null,
        null, ${atMs}::bigint, ${id}, 50)`
      const [after] = yield* read
      return {
        listed: found?.ids.length,
        scans: (after?.scans ?? 0) - (before?.scans ?? 0),
        rows: (after?.rows ?? 0) - (before?.rows ?? 0)
      }
    }))
  })

  it.effect(
    "a page of jobs of any state reads no more than 10,000 of 60,000, with and without statistics",
    () =>
      Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        for (
          const state of ["archived", "completed", "retryable", "quarantined"]
        ) {
          yield* sql`TRUNCATE headgate.job`
          yield* sql`INSERT INTO headgate.job (id, kind, queue, state, fingerprint, payload, lane_id, schema_version,
            max_attempts, crash_limit, retention_ms, scheduled_at_ms, enqueued_at_ms, finished_at_ms, evict_at_ms)
          SELECT 'j' || n, 'greet', 'default', ${state}, 'f' || n, '{}', 0, 1, 5, 3, 1, n / 10, n / 10, n / 10, n / 10
          FROM generate_series(1, 60000) n`
          for (const statistics of ["none", "fresh"]) {
            if (statistics === "fresh") yield* sql`ANALYZE headgate.job`
            for (
              const [at, id] of [
                ["3000", "j30005"],
                state === "scheduled" || state === "retryable" ? ["0", ""] : ["99999", ""]
              ] as const
            ) {
              const { listed, rows, scans } = yield* page(state, at, id)
              assert.deepStrictEqual([listed, scans], [50, 0], `${state}, statistics: ${statistics}`)
              assert.isBelow(rows, 10_100, `${state}, statistics: ${statistics}`)
            }
          }
        }
      }),
    240_000
  )
})
