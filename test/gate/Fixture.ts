/** Lanes, jobs and policies as rows, for tests of the gate's SQL. One frozen clock. */
import * as PgClient from "@effect/sql-pg/PgClient"
import { Effect } from "effect"
import type { Answer, Charge, Job, Limit, RateClass, Request, Slot } from "./Model.ts"

/** What a test says of a job; the rest is that of a plain one. */
export interface NewJob {
  readonly id: string
  readonly queue: string
  readonly kind: string
  readonly partition?: string
  readonly priority?: number
  readonly charges?: ReadonlyArray<Charge>
  readonly slots?: ReadonlyArray<Slot>
  readonly pin?: string
  readonly deadlineAt?: number | undefined
}

export const run = Effect.fnUntraced(
  function*<A extends object>(text: string, parameters: ReadonlyArray<unknown> = []) {
    const sql = yield* PgClient.PgClient
    return yield* sql.unsafe<A>(text, parameters)
  }
)

/** Statements that all travel as JSON: numbers stay numbers, and rows come in one answer. */
const json = Effect.fnUntraced(function*<A>(text: string, parameter: unknown) {
  const rows = yield* run<{ json: string }>(text, [JSON.stringify(parameter)])
  const read: A = JSON.parse(rows[0]!.json)
  return read
})

/** In the order given, one millisecond after another from `atMs` on. */
export const insert = (jobs: ReadonlyArray<NewJob>, atMs: number) => {
  const rows = jobs.map(({ charges = [], slots = [], ...job }, n) => ({
    partition: "",
    priority: 0,
    pin: "",
    deadlineAt: null,
    ...job,
    at: atMs + n,
    classes: charges.map(({ policy }) => policy),
    limits: slots.map(({ policy }) => policy),
    keys: [...charges, ...slots].every(({ key }) => key === "")
      ? ""
      : [...charges, ...slots].map(({ key }) => key).join(SEPARATOR),
    weights: charges.every(({ weight }) => weight === 1) ? null : charges.map(({ weight }) => weight)
  }))
  return json<ReadonlyArray<string>>(insertSql, rows)
}

const SEPARATOR = "\u001f"

const insertSql = `with given as materialized (
    select g.*, coalesce(g.classes, '{}') as class_names, coalesce(g.limits, '{}') as limit_names,
      g.keys <> '' or g.weights is not null as varies
    from json_to_recordset($1::text::json) as g(id text, queue text, kind text, partition text, priority int, pin text,
      "deadlineAt" bigint, at bigint, classes text[], limits text[], keys text, weights int[])
  ), made as (
    insert into headgate.lane (queue, kind, version, suspect, worker, is_partitioned, varies, classes, limits)
    select distinct g.queue, g.kind, 1, false, g.pin, g.partition <> '', g.varies, g.class_names, g.limit_names from given g
    on conflict do nothing returning *
  ), lane as (
    select * from made union all select l.* from headgate.lane l where not l.suspect and l.version = 1
  ), stored as (
    insert into headgate.job (id, queue, kind, state, partition_key, priority, lane_id, keys, weights, deadline_at_ms,
      scheduled_at_ms, enqueued_at_ms, retention_ms, schema_version, max_attempts, crash_limit, fingerprint, payload)
    select g.id, g.queue, g.kind, 'available', g.partition, g.priority, l.id, g.keys, g.weights, g."deadlineAt",
      g.at, g.at, 0, 1, 3, 3, g.id, 'null'
    from given g join lane l on l.queue = g.queue and l.kind = g.kind and l.worker = g.pin
      and l.is_partitioned = (g.partition <> '') and l.varies = g.varies and l.classes = g.class_names and l.limits = g.limit_names
    returning id
  ) select coalesce(json_agg(s.id), '[]')::text as json from stored s`

export const setClass = (name: string, { burst, isPaused, limit, windowMs }: RateClass) =>
  run(
    `insert into headgate.rate_class (name, rate_limit, window_ms, burst, is_paused)
      values ($1, $2::text::bigint, $3::text::bigint, $4::text::bigint, $5)
      on conflict (name) do update set rate_limit = excluded.rate_limit, window_ms = excluded.window_ms,
        burst = excluded.burst, is_paused = excluded.is_paused`,
    [name, String(limit), String(windowMs), String(burst), isPaused]
  )

export const setLimit = (name: string, { isPaused, max, onSaturated, scope, subject }: Limit) =>
  run(
    `insert into headgate.concurrency_limit (name, scope, subject, max_concurrent, on_saturated, is_paused)
      values ($1, $2, $3, $4::text::int, $5, $6)
      on conflict (name) do update set max_concurrent = excluded.max_concurrent, is_paused = excluded.is_paused`,
    [name, scope, subject, String(max), onSaturated, isPaused]
  )

export const setQueue = (name: string, isPaused: boolean, quantum: number | undefined) =>
  run(
    `insert into headgate.queue (name, is_paused, quantum) values ($1, $2, nullif($3::text, '')::int)
      on conflict (name) do update set is_paused = excluded.is_paused, quantum = excluded.quantum`,
    [name, isPaused, String(quantum ?? "")]
  )

export const setPartition = (queue: string, partition: string, isPaused: boolean, quantum: number | undefined) =>
  run(
    `insert into headgate.partition (queue, partition_key, is_paused, quantum)
      values ($1, $2, $3, nullif($4::text, '')::int)
      on conflict (queue, partition_key) do update set is_paused = excluded.is_paused, quantum = excluded.quantum`,
    [queue, partition, isPaused, String(quantum ?? "")]
  )

export const setKind = (name: string, isPaused: boolean) =>
  run(
    `insert into headgate.kind (name, is_paused) values ($1, $2)
      on conflict (name) do update set is_paused = excluded.is_paused`,
    [name, isPaused]
  )

/** The clock stands at these epoch milliseconds. */
export const setTime = (atMs: number) =>
  run(`update headgate.test_clock set frozen_at_ms = $1::text::bigint, offset_ms = 0`, [String(atMs)])

export const admit = ({ capacity, leaseId, leaseMs, quantum, queues, worker }: Request, kinds: ReadonlyArray<string>) =>
  json<ReadonlyArray<Answer>>(
    `select coalesce(json_agg(json_build_object('id', a.id, 'fence', a.fence, 'reason', a.reason)), '[]')::text as json
      from (select $1::text::json as given offset 0) g cross join lateral headgate.admit(
        given ->> 'worker', (given ->> 'leaseId')::uuid, array(select json_array_elements_text(given -> 'queues')),
        array(select json_array_elements_text(given -> 'kinds')),
        array(select 1 from json_array_elements(given -> 'kinds')), (given ->> 'capacity')::int,
        (given ->> 'leaseMs')::bigint, (given ->> 'quantum')::int) a`,
    { capacity, leaseId, leaseMs, quantum, queues, worker, kinds }
  )

/** How an attempt ends. */
export type End = "success" | "retry" | "released" | "crashed"

export const settle = (job: Pick<Job, "id" | "leaseId" | "fence">, end: End, delayMs: number) =>
  end === "success"
    ? run(
      `select * from headgate.succeed(array[$1], array[$2::uuid], array[$3::text::bigint], '{}', '{}')`,
      [job.id, job.leaseId, String(job.fence)]
    )
    : run(
      `select * from headgate.settle(array[$1], array[$2::uuid], array[$3::text::bigint], array[$4],
        array[nullif($5::text, '')::bigint], array[null::text], array[null::text], array[null::text], array[null::text],
        array[null::bytea])`,
      [job.id, job.leaseId, String(job.fence), end, end === "retry" ? String(delayMs) : ""]
    )

/** What there is, and where the turns stand. */
export const state = () =>
  json<{
    readonly jobs: ReadonlyArray<Pick<Job, "id" | "state" | "fence" | "attempt" | "crashAttempt" | "scheduledAt">>
    readonly buckets: ReadonlyArray<
      { readonly policy: string; readonly key: string; readonly units: number; readonly atMs: number }
    >
    readonly turns: ReadonlyArray<{ readonly queue: string; readonly partition: string; readonly remaining: number }>
  }>(
    `select json_build_object(
      'jobs', (select coalesce(json_agg(json_build_object('id', j.id, 'state', j.state, 'fence', j.fence,
        'attempt', j.attempt, 'crashAttempt', j.crash_attempt, 'scheduledAt', j.scheduled_at_ms) order by j.id), '[]')
        from headgate.job j),
      'buckets', (select coalesce(json_agg(json_build_object('policy', b.class, 'key', b.key, 'units', b.units,
        'atMs', b.at_ms) order by b.class, b.key), '[]') from headgate.bucket b),
      'turns', (select coalesce(json_agg(json_build_object('queue', t.queue, 'partition', t.partition_key,
        'remaining', t.remaining)), '[]') from headgate.queue_turn t))::text as json from (select $1::text) unused`,
    null
  )

/** As after the migrations. */
export const clear = Effect.gen(function*() {
  const tables = [
    "job",
    "lane",
    "attempt",
    "queue",
    "partition",
    "kind",
    "rate_class",
    "concurrency_limit",
    "queue_turn",
    "bucket",
    "strike"
  ]
  yield* run(`with ${tables.map((table) => `d_${table} as (delete from headgate.${table})`).join(", ")} select 1`)
})
