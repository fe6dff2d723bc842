/**
 * The one statement that stores a batch of jobs, and its parameters. A field that is equal in the whole batch travels
 * as one value beside an empty array, which the statement fills up: what does not vary costs nothing per job.
 */
import type * as PgTypes from "@effect/sql-pg/PgTypes"
import type { Envelope } from "@headgate/core/Envelope"
import { byCodePoint } from "@headgate/core/Text"
import { effectiveUniqueKey } from "@headgate/core/UniqueKey"
import { effectiveWeight } from "@headgate/core/Weight"
import * as Result from "effect/Result"
import * as Bind from "./Bind.ts"
import * as Lanes from "./Lanes.ts"

/** The effective key; undefined without one. */
export const uniqueKey = ({ kind, uniqueExcludeKind, uniqueKey }: Envelope): Uint8Array | undefined =>
  uniqueKey === undefined
    ? undefined
    // Its length was checked with the batch.
    : Result.getOrThrow(effectiveUniqueKey({ kind, key: uniqueKey, excludeKind: uniqueExcludeKind }))

/** The bytes as a string of the same length, to compare by. */
export const keyText = (bytes: Uint8Array): string => {
  let text = ""
  for (const byte of bytes) text += String.fromCharCode(byte)
  return text
}

/**
 * Of `plainSql`: arrays first, then the values that fill them up, then the different lanes, then how long to wait for what
 * others hold. `lanes` are those of the jobs, in order.
 */
export const plainParams = (
  batch: ReadonlyArray<Envelope>,
  lanes: ReadonlyArray<Lanes.Lane>,
  patience: string | null
): ReadonlyArray<unknown> => {
  const places = new Map<Lanes.Lane, number>()
  for (const lane of lanes) if (!places.has(lane)) places.set(lane, places.size + 1)
  const rows = batch.map((job, n): Row => ({ job, place: places.get(lanes[n]!)! }))
  const bound = columns.map((column) => column.bind(rows))
  const different = [...places.keys()]
  return [
    ...bound.map(({ array }) => array),
    ...bound.map(({ value }) => value),
    Bind.ints(different.map(({ id }) => id)),
    ...Lanes.params(different),
    Bind.text(patience)
  ]
}

/** Of `insertSql`: the same, then whether a part may not stay. */
export const insertParams = (
  batch: ReadonlyArray<Envelope>,
  lanes: ReadonlyArray<Lanes.Lane>,
  isAllOrNothing: boolean,
  patience: string | null = null
): ReadonlyArray<unknown> => [...plainParams(batch, lanes, patience), isAllOrNothing]

interface Row {
  readonly job: Envelope
  /** Of its lane, from 1. */
  readonly place: number
}

interface Column {
  readonly name: string
  readonly bind: (rows: ReadonlyArray<Row>) => { readonly array: PgTypes.Parameter; readonly value: PgTypes.Parameter }
}

const column =
  <A>(array: (values: ReadonlyArray<A | null>) => PgTypes.Parameter, value: (value: A | null) => PgTypes.Parameter) =>
  (name: string, of: (job: Envelope, place: number) => A | null | undefined): Column => ({
    name,
    bind: (rows) => {
      const values = rows.map(({ job, place }) => of(job, place) ?? null)
      const [first = null] = values
      // The ids are as long as the batch, always.
      const isUniform = name !== "id" && values.every((value) => value === first)
      return { array: array(isUniform ? [] : values), value: value(isUniform ? first : null) }
    }
  })

const text = column<string>(Bind.texts, Bind.text)
const int = column<number>(Bind.ints, Bind.int)
const bigint = column<number>(Bind.bigints, Bind.bigint)
const bool = column<boolean>(Bind.bools, Bind.bool)
const bytea = column<Uint8Array>(Bind.bytes, Bind.bytea)

const headerBytes = (headers: Readonly<Record<string, string>>): Uint8Array | null => {
  const json = JSON.stringify(headers)
  return json === "{}" ? null : encoder.encode(json)
}

/** In the order of the lane's classes: by class, then by key. */
const sortedRates = ({ rates }: Envelope): Envelope["rates"] =>
  rates.length < 2 ? rates : rates.toSorted((a, b) => byCodePoint(a.class, b.class) || byCodePoint(a.key, b.key))

/** Of the lane's classes, then of its limits. */
const keysOf = (job: Envelope): string => {
  if (job.rates.length === 0 && job.limits.length === 0) return ""
  const limits = job.limits.toSorted((a, b) => byCodePoint(a.limit, b.limit))
  const keys = [...sortedRates(job), ...limits].map(({ key }) => key)
  return keys.every((key) => key === "") ? "" : keys.join("\u001f")
}

const weightsOf = (job: Envelope): string | null =>
  job.rates.every(({ weight }) => effectiveWeight(weight) === 1)
    ? null
    : `{${sortedRates(job).map(({ weight }) => effectiveWeight(weight)).join()}}`

const columns: ReadonlyArray<Column> = [
  text("id", ({ id }) => id),
  bytea("payload", ({ payload }) => payload),
  int("lane", (_, place) => place),
  text("partition_key", ({ partitionKey }) => partitionKey),
  text("keys", (job) => keysOf(job)),
  text("weights", (job) => weightsOf(job)),
  text("fingerprint", ({ fingerprint }) => fingerprint),
  int("priority", ({ priority }) => priority),
  int("max_attempts", ({ maxAttempts }) => maxAttempts),
  int("crash_limit", ({ crashLimit }) => crashLimit),
  bigint("due_at_ms", ({ scheduledAtMs }) => scheduledAtMs),
  bigint("delay_ms", ({ delayMs }) => delayMs),
  bigint("timeout_ms", ({ timeoutMs }) => timeoutMs),
  bigint("queue_timeout_ms", ({ queueTimeoutMs }) => queueTimeoutMs),
  bigint("deadline_at_ms", ({ deadlineAtMs }) => deadlineAtMs),
  bigint("deadline_in_ms", ({ deadlineInMs }) => deadlineInMs),
  bigint("retention_ms", ({ retentionMs }) => retentionMs),
  bytea("unique_key", uniqueKey),
  bytea("headers", ({ headers }) => headerBytes(headers)),
  text("tags", ({ tags }) => tags.length === 0 ? null : Bind.textArrayLiteral(tags)),
  bool("pending", ({ pending }) => pending),
  bigint("fall_back_ms", ({ stickyFallbackMs }) => stickyFallbackMs)
]

const names = columns.map(({ name }) => name)
const arrays = names.map((_, index) => `$${index + 1}`)
const filled = names.map((name, index) => `coalesce(n.${name}, $${index + 1 + names.length}) as ${name}`)
const lanePlace = names.indexOf("lane") + 1
const afterRows = 2 * names.length
/** The parameters of the lanes: ids, then columns, of which queues are the first. */
const lanes = Array.from({ length: 10 }, (_, index) => `$${afterRows + 1 + index}`)
const patience = `$${afterRows + lanes.length + 1}`
const isAllOrNothing = `$${afterRows + lanes.length + 2}`

/**
 * Lanes that are there, each with its place in the parameters; and, so that both happen once and not for each row, the time
 * and the patience for locks, which lasts to the transaction's end.
 */
const withLanes = `with lane as materialized (
    select w.place, l.id, l.queue, l.kind, l.version, headgate.now_ms() as now,
      case when ${patience}::text is not null then set_config('lock_timeout', ${patience}, true) end as patience
    from unnest(${lanes.join(", ")}) with ordinality as w(id, ${Lanes.columns}, place)
    join headgate.lane l on l.id = w.id and ${Lanes.isSame}
  )`

/** Whether any of the queues has a limit of unfinished jobs. */
const hasLimit = `exists (select from headgate.queue q
    where q.name = any(${lanes[1]}) and q.max_unfinished_jobs is not null)`

const hasClosed = "exists (select from headgate.strike s where s.closed_at_ms is not null)"

const target =
  `headgate.job (id, payload, kind, queue, schema_version, partition_key, keys, weights, fingerprint, priority,
      max_attempts, crash_limit, timeout_ms, queue_timeout_ms, retention_ms, unique_key, headers, tags, lane_id, enqueued_at_ms,
      scheduled_at_ms, deadline_at_ms, fall_back_at_ms, state)`

/** The columns of `target`, of one row of `timed`. */
const row =
  `t.id, t.payload, t.kind, t.queue, t.version, t.partition_key, t.keys, t.weights::int[], t.print, t.priority,
      t.max_attempts, t.crash_limit, t.timeout_ms, t.queue_timeout_ms, t.retention_ms, t.unique_key, t.headers,
      t.tags::text[], t.lane_id, t.now, t.at_ms,
      coalesce(t.deadline_at_ms, greatest(t.now, t.at_ms) + t.deadline_in_ms),
      greatest(t.now, t.at_ms) + t.fall_back_ms,
      case when t.pending then 'pending' when t.at_ms > t.now then 'scheduled' else 'available' end`

/** Jobs with their lanes, times and fingerprints. */
const timed = `select n.*, l.id as lane_id, l.kind, l.queue, l.version, l.now,
      coalesce(n.due_at_ms, l.now + n.delay_ms, l.now) as at_ms,
      coalesce(n.fingerprint, headgate.content_fingerprint(l.kind, n.payload)) as print
    from (select ${filled.join(", ")} from unnest(${arrays.join(", ")}) as n(${names.join(", ")})) n
    join lane l on l.place = n.lane`

/**
 * Stores all of the jobs. Or none of them: it fails where an id or a key is taken, and does not fail where a queue has a
 * limit, any fingerprint is closed or a lane is missing. It saves what `insertSql` spends on telling more.
 */
export const plainSql = `${withLanes}
  insert into ${target}
  select ${row} from (${timed}) t
  where not ${hasLimit} and not ${hasClosed} and (select count(*) from lane) = cardinality(${lanes[0]})`

/**
 * Rows that meet a stored id or a held unique key are passed over, as are rows whose lane is missing or whose
 * fingerprint is closed. `stored` counts the others. Where a part may not stay, the statement fails; otherwise it answers
 * that part. With a `pressure` nothing is stored. A patience is for statements outside of a transaction.
 */
export const insertSql = `${withLanes}, guard as materialized (
    select ${hasClosed} as has_closed,
      case when ${hasLimit}
        then (select headgate.backpressure(array_agg(n.id), array_agg(l.queue))
          from unnest($1, $${lanePlace}) n(id, lane) join lane l on l.place = coalesce(n.lane, $${
  names.length + lanePlace
}))
      end as pressure
  ), stored as (
    insert into ${target}
    select ${row}
    -- Its own level, so that the fingerprint is computed once.
    from (${timed} offset 0) t
    where (select g.pressure from guard g) is null
      and case when (select g.has_closed from guard g) then not headgate.is_closed(t.print) else true end
    on conflict do nothing
    returning id, state
  ), counted as (
    select count(*)::int as stored, count(*) < cardinality($1) as is_partial from stored
  )
  select c.stored, array(select s.id from stored s where s.state = 'scheduled') as later,
    array(select s.id from stored s where c.is_partial) as part, g.pressure,
    case when c.is_partial and c.stored > 0 and ${isAllOrNothing} then headgate.refuse_partial() end as refused
  from counted c cross join guard g`

/**
 * What stands in the way of a batch: jobs with its ids (\`$1\`), holders of its unique keys (\`$2\`), and whether any
 * fingerprint is closed.
 */
export const obstaclesSql = `
  select 'id' as what, j.id, j.kind, j.queue, j.fingerprint, j.state, null::bytea as key,
      headgate.now_ms() - j.enqueued_at_ms as age
    from headgate.job j where j.id = any($1)
  union all
  select 'key', j.id, j.kind, j.queue, j.fingerprint, j.state, j.unique_key, headgate.now_ms() - j.enqueued_at_ms
    from headgate.job j where j.unique_key = any($2) and j.unique_key is not null
      and j.state in ('pending', 'scheduled', 'available', 'running', 'retryable')
  union all
  (select 'closed', '', '', '', s.fingerprint, '', null, 0::bigint
    from headgate.strike s where s.closed_at_ms is not null limit 1)`

export const closedSql = `select p.fingerprint from unnest($1) p(fingerprint) where headgate.is_closed(p.fingerprint)`

const encoder = new TextEncoder()
