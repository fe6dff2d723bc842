import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase, Time } from "@headgate/testkit"
import { Effect } from "effect"

layer(TestDatabase.layerWith({ client: { maxConnections: 1 } }), { excludeTestServices: true })(
  "Cost of a redrive",
  (it) => {
    /** Steps until it has moved so many, or once; what each of them read of the job table is bounded. */
    const steps = Effect.fnUntraced(function*(wanted: number, mostRows: number) {
      const sql = yield* PgClient.PgClient
      const reads = Effect.map(
        sql<{ scans: number; rows: number }>`SELECT seq_scan::int AS scans, coalesce(idx_tup_fetch, 0)::int AS rows
          FROM pg_stat_xact_user_tables WHERE schemaname = 'headgate' AND relname = 'job'`,
        ([read]) => read ?? { scans: 0, rows: 0 }
      )
      let moved = 0
      do {
        yield* Time.advance("1 second")
        const cost = yield* sql.withTransaction(Effect.gen(function*() {
          const before = yield* reads
          const [row] = yield* sql<{ moved: number }>`SELECT moved FROM headgate.redrive_step()`
          const after = yield* reads
          return { moved: row!.moved, scans: after.scans - before.scans, rows: after.rows - before.rows }
        }))
        assert.strictEqual(cost.scans, 0)
        assert.isBelow(cost.rows, mostRows)
        moved += cost.moved
      } while (moved < wanted)
      return moved
    })

    const fill = (kind: string, count: number) =>
      Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        yield* sql`INSERT INTO headgate.lane (queue, kind, version, suspect) VALUES ('default', ${kind}, 1, false)`
        yield* sql`INSERT INTO headgate.job (id, kind, queue, state, reason, fingerprint, payload, lane_id,
            schema_version, max_attempts, crash_limit, retention_ms, scheduled_at_ms, enqueued_at_ms, finished_at_ms)
          SELECT l.kind || n, l.kind, 'default', 'archived', 'exhausted', 'f', '{}', l.id, 1, 5, 3, 0, n, n, n
          FROM generate_series(1, ${count}) n JOIN headgate.lane l ON l.kind = ${kind}`
        yield* sql`SELECT headgate.start_redrive(${kind}, 'ada', 'why', null, ${kind}, null, null, null, null, null, null,
          null, null, ${kind === "staged"}, 0.5, 3600000, 1000, 10000, 'keep', null)`
      })

    // A look at 2,000, and a few at each of the thousand that are moved.
    const MOST_ROWS = 10_000

    it.effect(
      "50,000 archived jobs are moved by index, each step reading no more than its batch",
      () =>
        Effect.gen(function*() {
          const sql = yield* PgClient.PgClient
          yield* fill("big", 50_000)
          assert.strictEqual(yield* steps(25_000, MOST_ROWS), 25_000)
          yield* sql`ANALYZE headgate.job`
          assert.strictEqual(yield* steps(25_000, MOST_ROWS), 25_000)
          const [seen] = yield* sql`SELECT count(*)::int AS n FROM headgate.job WHERE state = 'available'`
          assert.deepStrictEqual(seen, { n: 50_000 })
        }),
      240_000
    )

    it.effect("the largest stage is judged by one look at each of its jobs", () =>
      Effect.gen(function*() {
        const sql = yield* PgClient.PgClient
        yield* fill("staged", 10_500)
        yield* sql`UPDATE headgate.redrive SET stage_size = 10000 WHERE id = 'staged'`
        assert.strictEqual(yield* steps(10_000, MOST_ROWS), 10_000)
        assert.strictEqual(yield* steps(0, 10_001), 0)
        yield* sql`UPDATE headgate.job SET state = 'completed' WHERE kind = 'staged' AND state = 'available'`
        assert.strictEqual(yield* steps(0, 10_001), 0)
        const [seen] = yield* sql`SELECT stage_moved, ended::int FROM headgate.redrive WHERE id = 'staged'`
        assert.deepStrictEqual(seen, { stage_moved: 0, ended: 10_000 })
      }), 240_000)

    it.effect(
      "what 5,000 jobs died of is found by one look at each, and one at its latest attempt",
      () =>
        Effect.gen(function*() {
          const sql = yield* PgClient.PgClient
          yield* fill("grouped", 5000)
          yield* sql`INSERT INTO headgate.attempt (job_id, fence, started_at_ms, ended_at_ms, worker, outcome, error_tag)
          SELECT j.id, f.fence, 1, 1, 'w', 'retry', 'Boom' FROM headgate.job j, (VALUES (0), (1), (2)) f(fence)
          WHERE j.kind = 'grouped'`
          const read = sql<{ scans: number; rows: number }>`SELECT sum(seq_scan)::int AS scans,
          sum(idx_tup_fetch)::int AS rows FROM pg_stat_xact_user_tables
          WHERE schemaname = 'headgate' AND relname IN ('job', 'attempt')`
          for (const statistics of ["none", "fresh"]) {
            if (statistics === "fresh") yield* sql`ANALYZE headgate.job, headgate.attempt`
            yield* sql.withTransaction(Effect.gen(function*() {
              const [before] = yield* read
              const groups = yield* sql`SELECT error_tag, jobs::int FROM headgate.death_groups(
              array(SELECT 'grouped' || n FROM generate_series(1, 5000) n))`
              const [after] = yield* read
              assert.deepStrictEqual(groups, [{ error_tag: "Boom", jobs: 5000 }])
              assert.strictEqual(after!.scans - before!.scans, 0, statistics)
              assert.isAtMost(after!.rows - before!.rows, 10_000, statistics)
            }))
          }
        }),
      240_000
    )
  }
)
