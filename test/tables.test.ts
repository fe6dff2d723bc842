import * as PgClient from "@effect/sql-pg/PgClient"
import { assert, layer } from "@effect/vitest"
import { TestDatabase } from "@headgate/testkit"
import { Effect } from "effect"
import { readFileSync } from "node:fs"
import { join } from "node:path"

const page = readFileSync(join(import.meta.dirname, "..", "docs", "tables.md"), "utf8")

const queries = [...page.matchAll(/^## (.+)\n[^#]*?```sql\n([^`]+);\n```/gm)].map(([, title = "", sql = ""]) => ({
  title,
  sql
}))

layer(TestDatabase.layer, { excludeTestServices: true })("docs/tables.md", (it) => {
  it.effect("every query runs, and finds its jobs by an index", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      assert.strictEqual(queries.length, page.split("```sql").length - 1)
      yield* pg`INSERT INTO headgate.lane (queue, kind, version, suspect) VALUES ('q', 'k', 1, false)`
      yield* pg`INSERT INTO headgate.job (id, kind, queue, state, fingerprint, payload, lane_id, schema_version,
          max_attempts, crash_limit, retention_ms, scheduled_at_ms, enqueued_at_ms, finished_at_ms, lease_id,
          lease_expires_at_ms, worker)
        SELECT s.state || n, 'k', 'q', s.state, 'f' || n, '{}', l.id, 1, 5, 3, 1, n, n, n, r.lease, r.ms, r.worker
        FROM headgate.lane l CROSS JOIN unnest(array['available', 'running', 'completed', 'archived', 'quarantined']) s(state)
        CROSS JOIN generate_series(1, 1000) n
        CROSS JOIN LATERAL (SELECT gen_random_uuid() AS lease, 1 AS ms, 'w' AS worker) v
        LEFT JOIN LATERAL (SELECT v.*) r ON s.state = 'running'`
      yield* pg`ANALYZE headgate.job`
      for (const { sql, title } of queries) {
        const answer = yield* pg.withTransaction(Effect.gen(function*() {
          yield* pg`SET LOCAL transaction_read_only = on`
          // On a table of this size a scan is no fault of a query that could do without.
          yield* pg`SET LOCAL enable_seqscan = off`
          yield* pg.unsafe(sql)
          return yield* pg.unsafe<{ "QUERY PLAN": string }>(`EXPLAIN ${sql}`)
        }))
        const plan = answer.map((row) => row["QUERY PLAN"]).join("\n")
        assert.notMatch(plan, /Seq Scan on job\b/, `${title}\n${plan}`)
      }
    }))

  it.effect("every table and column it names exists", () =>
    Effect.gen(function*() {
      const pg = yield* PgClient.PgClient
      const known = yield* pg<{ table: string; column: string }>`SELECT table_name AS table, column_name AS column
        FROM information_schema.columns WHERE table_schema = 'headgate'`
      const rows = [...page.matchAll(/^\| (`[^|]+) \| [^|]+ \| ([^|]+) \|$/gm)]
      assert.isAbove(rows.length, 10)
      for (const [, tables = "", columns = ""] of rows) {
        const named: ReadonlyArray<string> = tables.match(/\w+/g) ?? []
        const of = new Set(known.filter(({ table }) => named.includes(table)).map(({ column }) => column))
        for (const table of named) assert.isTrue(known.some((one) => one.table === table), table)
        for (const [, column = ""] of columns.replaceAll(/\([^)]*\)/g, "").matchAll(/`(\w+)`/g)) {
          assert.isTrue(of.has(column), `${tables}: ${column}`)
        }
      }
    }))
})
