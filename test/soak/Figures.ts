/** What the soak was made of, told from its audit. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import { SLOW } from "./Audit.ts"

export const jobs = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  const [row] = yield* sql<{ n: number }>`SELECT count(*)::int AS n FROM audit.last`
  return row!.n
})

export const faults = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  return yield* sql<{ kind: string; n: number }>`SELECT kind, count(*)::int AS n FROM audit.fault
    WHERE kind <> ${SLOW} GROUP BY kind ORDER BY n DESC, kind`
})

const lines: Readonly<Record<string, string>> = {
  "ends": `SELECT string_agg(n || ' ' || end_state, ', ' ORDER BY n DESC) AS line
    FROM (SELECT end_state, count(*) AS n FROM audit.last GROUP BY 1) e`,
  "kinds": `SELECT string_agg(n || ' ' || kind, ', ' ORDER BY n DESC) AS line
    FROM (SELECT kind, count(*) AS n FROM audit.last GROUP BY 1) k`,
  "attempts": `SELECT count(*) || ', of which ' || count(*) FILTER (WHERE attempt > from_attempt) || ' failed, '
      || count(*) FILTER (WHERE crash > from_crash AND EXISTS (SELECT FROM audit.word w WHERE w.job_id = t.job_id
        AND w.fence = t.fence AND w.what = 'die')) || ' died, '
      || count(*) FILTER (WHERE crash > from_crash AND NOT EXISTS (SELECT FROM audit.word w WHERE w.job_id = t.job_id
        AND w.fence = t.fence AND w.what = 'die')) || ' lost their lease, '
      || count(*) FILTER (WHERE to_state = 'available') || ' were handed back, '
      || count(*) FILTER (WHERE to_state = 'retryable' AND (attempt, crash) = (from_attempt, from_crash))
      || ' met an outage' AS line FROM audit.tenure t`,
  "load": `SELECT 'at most ' || max(n) || ' jobs ended in a second, on average '
      || round(sum(n) / greatest(1, max(second) - min(second) + 1), 1) AS line
    FROM (SELECT to_ms / 1000 AS second, count(*) AS n FROM audit.tenure
      WHERE to_state IN ('completed', 'deleted', 'archived', 'quarantined') GROUP BY 1) s`,
  "recovery": `SELECT 'after a fault the next job ended within ' || (
      SELECT max(next.at_ms - f.ended_ms) FROM audit.fault f CROSS JOIN LATERAL (SELECT min(t.to_ms) AS at_ms
        FROM audit.tenure t WHERE t.to_ms >= f.ended_ms AND t.to_state IN ('completed', 'deleted')) next
    ) || ' ms; a lost job was taken back within ' || coalesce((
      SELECT max(t.to_ms - t.lease_until_ms) FROM audit.tenure t
      WHERE t.crash > t.from_crash AND t.to_ms >= t.lease_until_ms), 0) || ' ms of the end of its lease' AS line`
}

export const tell = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  for (const [name, query] of Object.entries(lines)) {
    const [row] = yield* sql.unsafe<{ line: string | null }>(query)
    console.log(`${name.padEnd(9)} ${row?.line ?? "none"}`)
  }
})
