/**
 * The one statement that stores a batch of jobs, and its parameters. A field that is equal in the whole batch travels
 * as one value beside an empty array, which the statement fills up: what does not vary costs nothing per job.
 */
import type * as PgTypes from "@effect/sql-pg/PgTypes"
import { enqueueQueue, type Envelope } from "@headgate/core/Envelope"
import { effectiveUniqueKey } from "@headgate/core/UniqueKey"
import * as Result from "effect/Result"
import * as Bind from "./Bind.ts"

/** The effective key; undefined without one. */
export const uniqueKey = ({ kind, uniqueExcludeKind, uniqueKey }: Envelope): Uint8Array | undefined =>
  uniqueKey === undefined
    ? undefined
    // Its length was checked with the batch.
    : Result.getOrThrow(effectiveUniqueKey({ kind, key: uniqueKey, excludeKind: uniqueExcludeKind }))

/** Arrays first, then the values that fill them up, then whether a part may not stay (see `insertSql`). */
export const insertParams = (batch: ReadonlyArray<Envelope>, isAllOrNothing: boolean): ReadonlyArray<unknown> => {
  const bound = columns.map((column) => column.bind(batch))
  return [...bound.map(({ array }) => array), ...bound.map(({ value }) => value), isAllOrNothing]
}

interface Column {
  readonly name: string
  readonly bind: (
    batch: ReadonlyArray<Envelope>
  ) => { readonly array: PgTypes.Parameter; readonly value: PgTypes.Parameter }
}

const column =
  <A>(array: (values: ReadonlyArray<A | null>) => PgTypes.Parameter, value: (value: A | null) => PgTypes.Parameter) =>
  (name: string, of: (envelope: Envelope) => A | null | undefined): Column => ({
    name,
    bind: (batch) => {
      const values = batch.map((envelope) => of(envelope) ?? null)
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

const columns: ReadonlyArray<Column> = [
  text("id", ({ id }) => id),
  bytea("payload", ({ payload }) => payload),
  text("kind", ({ kind }) => kind),
  text("queue", ({ queue }) => enqueueQueue(queue)),
  int("version", ({ schemaVersion }) => schemaVersion),
  text("partition_key", ({ partitionKey }) => partitionKey),
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
  bool("pending", ({ pending }) => pending)
]

const names = columns.map(({ name }) => name)
const arrays = names.map((_, index) => `$${index + 1}`)
const filled = names.map((name, index) => `coalesce(n.${name}, $${index + 1 + names.length}) as ${name}`)
const isAllOrNothing = `$${2 * names.length + 1}`

/**
 * Rows that meet a stored id or a held unique key are passed over, as are rows whose lane is missing. `stored` counts
 * the others. Where a part may not stay, the statement fails; otherwise it answers that part.
 */
export const insertSql = `with new as (
    select ${filled.join(", ")} from unnest(${arrays.join(", ")}) as n(${names.join(", ")})
  ), timed as (
    select n.*, clock.now, coalesce(n.due_at_ms, clock.now + n.delay_ms, clock.now) as at_ms
    from new n cross join (select headgate.now_ms() as now offset 0) clock
  ), stored as (
    insert into headgate.job (id, payload, kind, queue, schema_version, partition_key, fingerprint, priority,
      max_attempts, crash_limit, timeout_ms, queue_timeout_ms, retention_ms, unique_key, headers, tags, lane_id, enqueued_at_ms,
      scheduled_at_ms, deadline_at_ms, state)
    select t.id, t.payload, t.kind, t.queue, t.version, t.partition_key,
      coalesce(t.fingerprint, headgate.content_fingerprint(t.kind, t.payload)), t.priority, t.max_attempts,
      t.crash_limit, t.timeout_ms, t.queue_timeout_ms, t.retention_ms, t.unique_key, t.headers, t.tags::text[], l.id,
      t.now, t.at_ms, coalesce(t.deadline_at_ms, greatest(t.now, t.at_ms) + t.deadline_in_ms),
      case when t.pending then 'pending' when t.at_ms > t.now then 'scheduled' else 'available' end
    from timed t join headgate.lane l
      on l.queue = t.queue and l.kind = t.kind and l.version = t.version and not l.suspect
        and l.worker = '' and not l.falls_back and l.is_partitioned = (t.partition_key <> '') and l.classes = '{}' and l.limits = '{}'
    on conflict do nothing
    returning id, state
  ), counted as (
    select count(*)::int as stored, count(*) < cardinality($1) as is_partial from stored
  )
  select c.stored, array(select s.id from stored s where s.state = 'scheduled') as later,
    array(select s.id from stored s where c.is_partial) as part,
    case when c.is_partial and c.stored > 0 and ${isAllOrNothing} then headgate.refuse_partial() end as refused
  from counted c`

/** What stands in the way of a batch: its ids (\`$1\`) and its unique keys (\`$2\`). */
export const obstaclesSql = `
  select j.id, j.kind, j.queue, j.fingerprint, j.state, null::bytea as key, headgate.now_ms() - j.enqueued_at_ms as age
    from headgate.job j where j.id = any($1)
  union all
  select j.id, j.kind, j.queue, j.fingerprint, j.state, j.unique_key, headgate.now_ms() - j.enqueued_at_ms
    from headgate.job j where j.unique_key = any($2) and j.unique_key is not null
      and j.state in ('pending', 'scheduled', 'available', 'running', 'retryable')`

const encoder = new TextEncoder()
