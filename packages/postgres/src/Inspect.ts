/**
 * Reads for operators and tests, on the control path. Each is bounded: by a key, by an index of what rests, or by a
 * limit whose being met is said. Payload, result, output and cursor are read only where they are asked for.
 */
import type { JobId } from "@headgate/core/Ids"
import { Inspect, refuseJobsQuery } from "@headgate/core/Inspect"
import { NotFound } from "@headgate/core/Refusals"
import type { State } from "@headgate/core/State"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import * as CheckpointRows from "./CheckpointRows.ts"
import { ControlSql } from "./ControlSql.ts"
import * as Rows from "./InspectRows.ts"

const mostCounted = 10_000
/** Where no index knows the queue or the state, so many rows are looked at. */
const mostLookedAt = 20_000

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const job = statement<Rows.JobRow>("Inspect.job", jobSql)
  const jobs = statement<Rows.ListedRow>("Inspect.jobs", jobsSql)
  const attempts = statement<Rows.AttemptRow>("Inspect.attempts", attemptsSql)
  const exists = statement<{ id: JobId }>("Inspect.checkpoint", "select j.id from headgate.job j where j.id = $1")
  const checkpoints = CheckpointRows.reader(statement, "Inspect.checkpoint")
  const payload = statement<{ version: number; bytes: Uint8Array }>(
    "Inspect.payload",
    "select j.schema_version as version, j.payload as bytes from headgate.job j where j.id = $1"
  )
  const result = statement<Rows.OpaqueRow>(
    "Inspect.result",
    "select j.result_version as version, j.result as bytes from headgate.job j where j.id = $1"
  )
  const failure = statement<Rows.FailureRow>("Inspect.failure", failureSql)
  const progress = statement<Rows.ProgressRow>(
    "Inspect.progress",
    `select p.current, p.total, p.message, p.fence, p.updated_at_ms
    from headgate.job j left join headgate.progress p on p.job_id = j.id where j.id = $1`
  )
  const tracked = statement<Rows.TrackedRow>(
    "Inspect.tracked",
    `select t.fence, t.updated_at_ms, t.omitted, t.is_waiting, t.names, t.states, t.ages_ms from headgate.job j
    left join headgate.tracked t on t.job_id = j.id and t.fence = j.fence and j.state = 'running' where j.id = $1`
  )
  const output = statement<Rows.OpaqueRow & { fence: bigint | null; updated_at_ms: bigint | null }>(
    "Inspect.output",
    `select o.version, o.bytes, o.fence, o.updated_at_ms
    from headgate.job j left join headgate.output o on o.job_id = j.id where j.id = $1`
  )
  const counts = statement<Rows.CountRow>("Inspect.counts", countsSql)
  const workers = statement<Rows.WorkerRow>("Inspect.workers", workersSql)
  const unknownKinds = statement<{ queue: string; kind: string; version: number }>(
    "Inspect.unknownKinds",
    unknownKindsSql
  )

  const one = <Row>(id: JobId, rows: ReadonlyArray<Row>): Effect.Effect<Row, NotFound> => {
    const [row] = rows
    return row === undefined ? Effect.fail(new NotFound({ id })) : Effect.succeed(row)
  }

  return Inspect.of({
    job: Effect.fn("Inspect.job")(function*(id) {
      return Rows.toSummary(yield* one(id, yield* job([Bind.id(id)])))
    }),
    jobs: Effect.fn("Inspect.jobs")(function*(query) {
      const refusal = refuseJobsQuery(query)
      if (refusal !== undefined) return yield* refusal
      const { kind = null, limit = 50, queue = null, reason = null, state } = query
      const conditions = [state, kind, queue, reason].map((text) => Bind.text(text))
      const at = query.after ?? firstPlace(state)
      const cut = at.indexOf(" ")
      const place = [Bind.bigint(Number(at.slice(0, cut))), Bind.id(at.slice(cut + 1))]
      const rows = yield* jobs([...conditions, ...place, Bind.int(limit)])
      const [first] = rows
      return {
        items: rows.flatMap((row) => row.id === null ? [] : [Rows.toSummary(row)]),
        next: first === undefined || first.next_ms === null ? undefined : `${first.next_ms} ${first.next_id}`,
        approximate: first?.is_cut ?? false
      }
    }),
    attempts: Effect.fn("Inspect.attempts")(function*(id) {
      const rows = yield* attempts([Bind.id(id)])
      yield* one(id, rows)
      return rows.flatMap(Rows.toAttempt)
    }),
    checkpoint: Effect.fn("Inspect.checkpoint")(function*(id) {
      yield* one(id, yield* exists([Bind.id(id)]))
      return (yield* checkpoints([id])).get(id)
    }),
    payload: Effect.fn("Inspect.payload")(function*(id) {
      return yield* one(id, yield* payload([Bind.id(id)]))
    }),
    result: Effect.fn("Inspect.result")(function*(id) {
      return Rows.toOpaque(yield* one(id, yield* result([Bind.id(id)])))
    }),
    failure: Effect.fn("Inspect.failure")(function*(id) {
      const { encoded, message, tag } = yield* one(id, yield* failure([Bind.id(id)]))
      return tag === null ? undefined : { tag, message: message ?? "", encoded: encoded ?? undefined }
    }),
    progress: Effect.fn("Inspect.progress")(function*(id) {
      return Rows.toProgress(yield* one(id, yield* progress([Bind.id(id)])))
    }),
    tracked: Effect.fn("Inspect.tracked")(function*(id) {
      return Rows.toTracked(yield* one(id, yield* tracked([Bind.id(id)])))
    }),
    output: Effect.fn("Inspect.output")(function*(id) {
      const row = yield* one(id, yield* output([Bind.id(id)]))
      const opaque = Rows.toOpaque(row)
      return opaque && { ...opaque, fence: Rows.toFence(row.fence), updatedAtMs: Number(row.updated_at_ms) }
    }),
    counts: Effect.fn("Inspect.counts")(function*(queue) {
      return Rows.toCounts(
        yield* counts([
          queue === undefined ? Bind.text(null) : Bind.id(queue),
          Bind.int(mostCounted),
          Bind.int(mostLookedAt)
        ])
      )
    }),
    workers: Effect.map(workers([]), (rows) => rows.map(Rows.toWorker)).pipe(Effect.withSpan("Inspect.workers")),
    unknownKinds: unknownKinds([]).pipe(Effect.withSpan("Inspect.unknownKinds"))
  })
})

export const layer: Layer.Layer<Inspect, never, ControlSql> = Layer.effect(Inspect, make)

const summaryColumns = `j.id, j.kind, j.schema_version, j.state, j.queue, j.partition_key, j.priority, j.attempt,
    j.max_attempts, j.crash_attempt, j.crash_limit, j.fence, j.fingerprint, j.tags, j.enqueued_at_ms, j.scheduled_at_ms,
    j.deadline_at_ms, j.claimed_at_ms, j.finished_at_ms, j.lease_expires_at_ms, j.worker, j.orphaned, j.reason`

const jobSql = `select ${summaryColumns} from headgate.job j where j.id = $1`

/** At least one row. */
const jobsSql = `select p.next_ms, p.next_id, p.is_cut, j.* from headgate.jobs_page($1, $2, $3, $4, $5, $6, $7) p
  left join lateral (
    select j.*, u.place from unnest(p.ids) with ordinality u(id, place)
      cross join lateral (select ${summaryColumns} from headgate.job j where j.id = u.id limit 1) j
  ) j on true order by j.place`

/** Before all times, or after them, as the states are listed. */
const firstPlace = (state: State): string =>
  state === "scheduled" || state === "retryable" ? "0 " : `${Number.MAX_SAFE_INTEGER} `

/** At least one row for a job that exists. Its success, if any, is the newest attempt. */
const attemptsSql =
  `select a.fence, a.worker, a.started_at_ms, a.ended_at_ms, a.outcome, a.error_tag, coalesce(a.error_text, a.error_message) as error_text, a.log
  from headgate.job j left join headgate.attempt a on a.job_id = j.id where j.id = $1 and j.state <> 'completed'
  union all
  select a.* from headgate.job j cross join lateral (
    select a.fence, a.worker, a.started_at_ms, a.ended_at_ms, a.outcome, a.error_tag, coalesce(a.error_text, a.error_message) as error_text, a.log
      from headgate.attempt a where a.job_id = j.id
    union all
    select j.fence, j.last_worker, j.claimed_at_ms, j.finished_at_ms, 'success', null, null, null
  ) a where j.id = $1 and j.state = 'completed'
  order by fence`

/** What was no error, as a payload that cannot be read, goes by the name of its outcome. */
const failureSql = `select coalesce(a.error_tag, case when a.error_message is not null then a.outcome end) as tag,
    a.error_message as message, a.error as encoded
  from headgate.job j left join headgate.attempt a on a.job_id = j.id and a.fence = j.fence where j.id = $1`

/**
 * Available jobs by their lanes, waiting ones by due time, running ones by worker, completed and cancelled ones by
 * eviction, the rest by the index of what rests: each up to a limit. is_cut: there may be more.
 */
const countsSql = `with delayed as (
    select j.state, j.queue from headgate.job j
    where j.state in ('scheduled', 'retryable') order by j.scheduled_at_ms limit $3
  ), running as (
    select j.queue from headgate.job j where j.state = 'running' order by j.lane_id, j.partition_key limit $3
  ), kept as (
    select j.state, j.queue from headgate.job j where j.evict_at_ms is not null order by j.evict_at_ms desc limit $3
  ), counted as (
    select 'available' as state, count(*) as rows, false as is_cut from (
      select from headgate.lane l cross join lateral (
        select from headgate.job j where j.lane_id = l.id and j.state = 'available' limit $2
      ) a where $1 is null or l.queue = $1 limit $2
    ) a
    union all
    select d.state, count(*) filter (where $1 is null or d.queue = $1), (select count(*) from delayed) = $3
      from delayed d group by d.state
    union all
    select 'running', count(*) filter (where $1 is null or r.queue = $1), count(*) = $3 from running r
    union all
    select k.state, count(*) filter (where $1 is null or k.queue = $1), (select count(*) from kept) = $3
      from kept k where k.state in ('completed', 'cancelled') group by k.state
    union all
    select s.state, r.rows, false
      from unnest(array['pending', 'archived', 'quarantined', 'undecodable']) s(state) cross join lateral (
        select count(*) as rows from (
          select from headgate.job j where j.state = s.state
            and j.state in ('pending', 'archived', 'quarantined', 'undecodable') and ($1 is null or j.queue = $1) limit $2
        ) j
      ) r
  )
  select c.state, least(c.rows, $2)::int as count, c.is_cut or c.rows >= $2 as is_cut from counted c`

const workersSql = `select w.id, w.queues, w.kinds, w.versions, w.capacity, w.running, w.started_at_ms, w.seen_at_ms,
    w.seen_at_ms + w.lease_ms > headgate.now_ms() as is_live, w.is_quiet, w.is_resigned, w.is_draining, w.command,
    w.command_actor, w.command_at_ms, w.command_seq, w.applied_seq
  from headgate.worker w order by w.id limit 10000`

/** Lanes are few; each is asked for one available job. */
const unknownKindsSql = `select distinct l.queue, l.kind, l.version from headgate.lane l
  where exists (select from headgate.job j where j.lane_id = l.id and j.state = 'available')
    and not exists (
      select from headgate.worker w cross join unnest(w.kinds, w.versions) known(kind, version)
      where w.seen_at_ms + w.lease_ms > (select headgate.now_ms()) and l.queue = any(w.queues)
        and known.kind = l.kind and known.version >= l.version
    )
  order by l.queue, l.kind, l.version limit 1000`
