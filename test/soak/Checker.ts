/**
 * The independent checker: judges by the audit and the final rows alone. Each promise is a query for what breaks it, so
 * that a row found is a violation.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import { LEASE_MS } from "./Pace.ts"
import { METERED, NARROW } from "./Tasks.ts"

export interface Violation {
  readonly promise: string
  readonly count: number
  /** The first few. */
  readonly rows: ReadonlyArray<unknown>
  /** What happened to the job of the first. */
  readonly story: ReadonlyArray<string>
}

/** What several promises ask about, made once everything has ended. */
const findings = [
  // A job that its success deletes may be stored once more by a producer who did not hear the answer: another life.
  `CREATE TABLE audit.lived AS SELECT m.*, count(*) FILTER (WHERE m.from_state IS NULL)
    OVER (PARTITION BY m.job_id ORDER BY m.seq) AS life FROM audit.move m`,
  `CREATE INDEX ON audit.lived (job_id, seq)`,
  // A cancelled job whose retention is zero is removed in the end.
  `CREATE TABLE audit.last AS SELECT DISTINCT ON (m.job_id) m.*,
      CASE WHEN m.state = 'deleted' AND m.from_state <> 'running' THEN m.from_state ELSE m.state END AS end_state
    FROM audit.lived m ORDER BY m.job_id, m.seq DESC`,
  `CREATE UNIQUE INDEX ON audit.last (job_id)`,
  // When whose transaction committed: while a rival could not see it yet, it had not happened.
  `CREATE TABLE audit.committed AS SELECT t.xid, pg_xact_commit_timestamp(t.xid::xid) AS at
    FROM (SELECT DISTINCT xid FROM audit.move) t`,
  `CREATE UNIQUE INDEX ON audit.committed (xid)`,
  // Attempts, from the claim to the end.
  `CREATE TABLE audit.tenure AS
    SELECT e.job_id, e.life, e.fence, e.kind, e.queue, e.partition_key, e.worker, e.at_ms AS from_ms, e.seq AS from_seq,
      ce.at AS since, l.at_ms AS to_ms, cl.at AS until, l.state AS to_state, l.from_attempt, l.attempt, l.from_crash,
      l.crash, l.lease_until_ms, l.by_fence,
      exists (SELECT FROM audit.word w WHERE w.job_id = e.job_id AND w.fence = e.fence AND w.what = 'start') AS is_started
    FROM audit.lived e JOIN audit.committed ce ON ce.xid = e.xid
    LEFT JOIN LATERAL (SELECT l.* FROM audit.lived l WHERE l.job_id = e.job_id AND l.seq > e.seq ORDER BY l.seq LIMIT 1) l
      ON true
    LEFT JOIN audit.committed cl ON cl.xid = l.xid
    WHERE e.state = 'running'`,
  `CREATE INDEX ON audit.tenure (job_id, fence)`,
  `ANALYZE`
]

/** At most so many at any instant, of those that are counted together. */
const atMost = (most: number, intervals: string) => `
  SELECT * FROM (
    SELECT e.*, sum(e.step) OVER (PARTITION BY e.slot ORDER BY e.at, e.step) AS held FROM (
      SELECT i.slot, i.job_id, i.since AS at, 1 AS step FROM (${intervals}) i
      UNION ALL SELECT i.slot, i.job_id, i.until, -1 FROM (${intervals}) i WHERE i.until IS NOT NULL
    ) e
  ) e WHERE e.held > ${most} AND e.step = 1`

const narrow = (slot: string) =>
  `SELECT ${slot} AS slot, t.job_id, t.since, t.until FROM audit.tenure t WHERE t.queue = 'narrow'`

/** From the entry to the terminal state. */
const unfinished = `
  SELECT encode(m.unique_key, 'hex') AS slot, m.job_id, c.at AS since, (
    SELECT min(d.at) FROM audit.lived l JOIN audit.committed d ON d.xid = l.xid WHERE l.job_id = m.job_id AND l.life = m.life
      AND l.state IN ('completed', 'archived', 'cancelled', 'quarantined', 'undecodable', 'deleted')) AS until
  FROM audit.lived m JOIN audit.committed c ON c.xid = m.xid WHERE m.from_state IS NULL AND m.unique_key IS NOT NULL`

const said = (what: string, of: string) =>
  `EXISTS (SELECT FROM audit.word w WHERE w.job_id = ${of}.job_id AND w.fence = ${of}.fence AND w.what = '${what}')`

/**
 * Its last renewal was one lease before it ran out, and the next one did not come through. Or the worker had given the
 * job up, in a fault that took almost a lease, when a write that was still on its way gave it one more lease. A claim that
 * was on its way when its worker died is that worker's all the same.
 */
const isExplained = `EXISTS (SELECT FROM audit.fault f
  WHERE (f.pids IS NULL OR split_part(t.worker, '-', 2)::int = ANY(f.pids))
    AND f.began_ms <= t.lease_until_ms
    AND (f.ended_ms >= t.lease_until_ms - ${2 * LEASE_MS} OR f.kind IN ('worker killed', 'worker replaced')))`

export const promises: Readonly<Record<string, string>> = {
  "an accepted job is stored": `
    SELECT a.* FROM audit.answer a WHERE a.said = 'accepted' AND NOT EXISTS (
      SELECT FROM audit.last l WHERE l.job_id = a.job_id)`,
  "a refused job is not stored, and its key was held by a job of the same key": `
    SELECT a.* FROM audit.answer a JOIN audit.intent i USING (job_id)
    LEFT JOIN audit.intent h ON h.job_id = a.holder
    WHERE a.said = 'duplicate' AND (h.unique_key IS DISTINCT FROM i.unique_key
      OR EXISTS (SELECT FROM audit.last l WHERE l.job_id = a.job_id))`,
  "a stored job was asked for": `
    SELECT l.job_id FROM audit.last l WHERE NOT EXISTS (SELECT FROM audit.intent i WHERE i.job_id = l.job_id)`,
  "jobs of a transaction are stored if and only if it was committed, and by it": `
    SELECT i.job_id, f.xid, m.xid AS stored_by FROM audit.intent i LEFT JOIN audit.family f ON f.name = i.family
    LEFT JOIN audit.move m ON m.job_id = i.job_id AND m.from_state IS NULL
    WHERE i.family IS NOT NULL AND f.xid IS DISTINCT FROM m.xid`,
  "a job is stored once, unless its success has deleted it": `
    SELECT l.job_id, l.life FROM audit.last l JOIN audit.intent i USING (job_id) WHERE l.life > 1 AND i.is_kept`,
  "every job reaches the end that it must": `
    SELECT l.job_id, l.end_state, i.failures, i.deaths FROM audit.last l JOIN audit.intent i USING (job_id)
    WHERE l.end_state NOT IN ('pending', 'scheduled', 'available', 'running', 'retryable') AND l.end_state <> CASE
      WHEN l.end_state = 'cancelled' AND EXISTS (SELECT FROM audit.cancelling c WHERE c.job_id = l.job_id) THEN 'cancelled'
      WHEN i.deaths >= i.crash_limit THEN 'quarantined'
      WHEN i.failures >= i.max_attempts THEN 'archived'
      WHEN i.is_kept THEN 'completed' ELSE 'deleted' END`,
  "a cancel is told what became of the job": `
    SELECT c.*, l.end_state FROM audit.cancelling c JOIN audit.last l USING (job_id)
    WHERE c.said IS NOT NULL AND l.life = 1 AND l.end_state <> CASE c.said
      WHEN 'cancelled' THEN 'cancelled' WHEN 'not_found' THEN 'deleted' ELSE substring(c.said FROM 'already_(.*)') END`,
  "what has ended stays as it is": `
    SELECT m.job_id, m.from_state, m.state FROM audit.move m
    WHERE m.from_state IN ('completed', 'archived', 'cancelled', 'quarantined', 'undecodable') AND m.state <> 'deleted'`,
  "the final row is what its last move left": `
    SELECT l.job_id, l.state, j.state AS row_state FROM audit.last l LEFT JOIN headgate.job j ON j.id = l.job_id
    WHERE (coalesce(j.state, 'deleted'), j.fence, j.attempt, j.crash_attempt)
      IS DISTINCT FROM (l.state, l.fence, l.attempt, l.crash)`,
  "a job is claimed only while it is available; its fence rises by one each time and never otherwise": `
    SELECT m.job_id, m.from_state, m.state, m.from_fence, m.fence FROM audit.move m
    WHERE m.from_state IS NOT NULL AND m.state <> 'deleted' AND CASE WHEN m.state = 'running'
      THEN m.from_state <> 'available' OR m.fence <> m.from_fence + 1 ELSE m.fence <> m.from_fence END`,
  "each move starts where the one before ended": `
    SELECT * FROM (SELECT m.job_id, m.seq, m.from_state, m.from_fence, lag(m.state) OVER w AS state, lag(m.fence) OVER w AS fence
      FROM audit.lived m WINDOW w AS (PARTITION BY m.job_id, m.life ORDER BY m.seq)) m
    WHERE m.state IS NOT NULL AND (m.from_state, m.from_fence) IS DISTINCT FROM (m.state, m.fence)`,
  "no lease id holds a job twice": `
    SELECT e.job_id, e.lease_id FROM audit.move e WHERE e.state = 'running' GROUP BY 1, 2 HAVING count(*) > 1`,
  "an attempt starts once, and only under its claim": `
    SELECT w.job_id, w.fence, count(*) FROM audit.word w WHERE w.what = 'start' GROUP BY 1, 2
    HAVING count(*) <> (SELECT count(*) FROM audit.tenure t WHERE t.job_id = w.job_id AND t.fence = w.fence AND t.is_started)`,
  "nothing starts before its time": `
    SELECT m.job_id, m.from_state, m.at_ms, m.from_due_ms FROM audit.move m
    WHERE m.from_state IN ('scheduled', 'retryable') AND m.state = 'available' AND m.at_ms < m.from_due_ms`,
  "a success is settled for an attempt that has finished": `
    SELECT t.job_id, t.fence, t.to_state FROM audit.tenure t
    WHERE t.to_state IN ('completed', 'deleted') AND NOT ${said("finish", "t")}`,
  "a result is accepted from the current holder only": `
    SELECT t.job_id, t.fence, t.by_fence FROM audit.tenure t WHERE t.to_state = 'completed' AND t.by_fence IS DISTINCT FROM t.fence`,
  "a step, a cursor and a transactional step are accepted from the current holder only": `
    SELECT r.* FROM audit.record r WHERE r.by_fence <> r.fence`,
  "a failure and a crash are accepted from the current holder only": `
    SELECT e.* FROM audit.ending e WHERE e.by_fence <> e.fence`,
  "a step that answered is durable": `
    SELECT w.* FROM audit.word w WHERE w.what = 'durable' AND NOT EXISTS (SELECT FROM audit.record r
      WHERE r.job_id = w.job_id AND r.step = w.step AND r.nonce = w.nonce)`,
  "a step does not run again once it is durable": `
    SELECT w.* FROM audit.word w JOIN audit.record r ON r.job_id = w.job_id AND r.step = w.step
    WHERE w.what = 'body' AND w.fence > r.fence`,
  "a transactional effect of a job that succeeded is there exactly once, and never twice": `
    SELECT l.job_id, l.end_state, k.step, count(e.step) FROM audit.last l
    JOIN (VALUES ('steps', 'publish'), ('complete', 'complete')) k(kind, step) ON k.kind = l.kind
    LEFT JOIN audit.effect e ON e.job_id = l.job_id AND e.step = k.step
    GROUP BY 1, 2, 3 HAVING count(e.step) > 1 OR (l.end_state = 'completed' AND count(e.step) <> 1)`,
  "what a completion writes is there if and only if the job succeeded": `
    SELECT e.* FROM audit.effect e JOIN audit.last l USING (job_id)
    WHERE e.step = 'complete' AND (l.end_state <> 'completed' OR e.fence <> l.fence)`,
  "an attempt is charged for a failure of its handler alone, by one": `
    SELECT t.job_id, t.fence, t.from_attempt, t.attempt FROM audit.tenure t
    WHERE t.to_state <> 'deleted' AND t.attempt <> t.from_attempt
      AND (t.attempt <> t.from_attempt + 1 OR NOT ${said("fail", "t")})`,
  "a crash is charged for a death, or a lease that ran out, by one": `
    SELECT t.job_id, t.fence, t.from_crash, t.crash, t.to_ms - t.lease_until_ms AS late_ms FROM audit.tenure t
    WHERE t.to_state <> 'deleted' AND t.crash <> t.from_crash
      AND (t.crash <> t.from_crash + 1 OR (NOT ${said("die", "t")} AND t.to_ms < t.lease_until_ms))`,
  "a lease runs out only where a fault explains it": `
    SELECT t.job_id, t.fence, t.worker, t.is_started, t.lease_until_ms - t.from_ms AS held_ms, (
      SELECT string_agg(f.kind || coalesce(' ' || f.pids::text, '') || ' ' || f.began_ms - t.from_ms || '..'
        || f.ended_ms - t.from_ms, ', ' ORDER BY f.began_ms) FROM audit.fault f
      WHERE f.ended_ms BETWEEN t.from_ms - 10000 AND t.lease_until_ms + 10000) AS faults_since_claim_ms
    FROM audit.tenure t
    WHERE t.to_state <> 'deleted' AND t.crash > t.from_crash AND NOT ${said("die", "t")} AND NOT ${isExplained}`,
  "counters move at the end of an attempt alone": `
    SELECT m.job_id, m.from_state, m.state FROM audit.move m WHERE m.from_state <> 'running' AND m.state <> 'deleted'
      AND (m.attempt, m.crash) <> (m.from_attempt, m.from_crash)`,
  "failures are counted exactly": `
    SELECT l.job_id, l.attempt, i.failures FROM audit.last l JOIN audit.intent i USING (job_id)
    WHERE (l.end_state = 'completed' AND l.attempt <> i.failures) OR l.attempt > i.failures OR l.attempt > i.max_attempts`,
  "the queue runs no more jobs than its ceiling at any instant": atMost(NARROW.queue, narrow("t.queue")),
  "a partition runs no more jobs than its ceiling at any instant": atMost(NARROW.partition, narrow("t.partition_key")),
  "one unfinished job holds a unique key at any instant": atMost(1, unfinished),
  // A claim whose answer was lost, and which was handed back, has its charge back.
  "a rate class admits no more than its budget": `
    WITH spent AS (
      SELECT t.job_id, max(t.from_ms) OVER w AS at_ms, row_number() OVER w AS n FROM audit.tenure t
      WHERE t.kind = 'metered' AND (t.is_started OR t.to_state <> 'available')
      WINDOW w AS (ORDER BY t.since, t.from_seq)
    )
    SELECT a.job_id, b.n - a.n + 1 AS spent, b.at_ms - a.at_ms AS within_ms FROM spent a JOIN spent b ON b.n >= a.n
    WHERE b.n - a.n + 1 > ${METERED.burst} + ${METERED.limit} * (b.at_ms - a.at_ms)::numeric / ${METERED.windowMs} + 1e-9`
}

export const judge = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  for (const statement of findings) yield* sql.unsafe(statement)
  const found: Array<Violation> = []
  for (const [promise, query] of Object.entries(promises)) {
    const [seen] = yield* sql.unsafe<{ count: number; rows: ReadonlyArray<unknown> }>(
      `SELECT count(*)::int AS count, coalesce(jsonb_agg(to_jsonb(b)) FILTER (WHERE b.place <= 3), '[]') AS rows
      FROM (SELECT *, row_number() OVER () AS place FROM (${query}) q) b`
    )
    if (seen !== undefined && seen.count > 0) found.push({ promise, ...seen, story: yield* story(seen.rows[0]) })
  }
  return found
})

/** All that the audit knows of the job in the row, in order, milliseconds after its enqueue. */
const story = Effect.fnUntraced(function*(row: unknown) {
  if (typeof row !== "object" || row === null || !("job_id" in row)) return []
  const sql = yield* PgClient.PgClient
  const lines = yield* sql<{ line: string }>`
    SELECT (e.at_ms - min(e.at_ms) OVER ())::text || ' ' || e.line AS line FROM (
      SELECT at_ms, seq, concat_ws(' ', from_state, '->', state, 'fence', fence, 'worker', worker, 'attempt', attempt,
        'crash', crash, 'lease until', lease_until_ms - at_ms, 'due', due_ms - at_ms) AS line
        FROM audit.move WHERE job_id = ${String(row.job_id)}
      UNION ALL SELECT at_ms, seq, concat_ws(' ', 'said', what, step, 'fence', fence) FROM audit.word
        WHERE job_id = ${String(row.job_id)}
      UNION ALL SELECT at_ms, 0, concat_ws(' ', 'recorded', step, 'fence', fence, 'by', by_fence) FROM audit.record
        WHERE job_id = ${String(row.job_id)}
      UNION ALL SELECT at_ms, 0, concat_ws(' ', 'ended', outcome, 'fence', fence, error) FROM audit.ending
        WHERE job_id = ${String(row.job_id)}
    ) e ORDER BY e.at_ms, e.seq LIMIT 60`
  return lines.map(({ line }) => line)
})
