/**
 * The statements that store a batch of jobs, and those that look at what stood in their way. Their texts follow from which
 * columns vary (see `bindRows`); the parameters are those of the columns, of the lanes, then the statement's own.
 */
import type { Envelope } from "@headgate/core/Envelope"
import { channelOf } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { inSchema } from "./ControlSql.ts"
import { bindRows, columns } from "./EnqueueRows.ts"
import * as Lanes from "./Lanes.ts"

/** A statement and its parameters. */
export type Bound = readonly [text: string, params: ReadonlyArray<unknown>]

export interface EnqueueSql {
  /**
   * Stores all of the jobs. Or none of them: it fails where an id or a key is taken, and does not fail where a queue has a
   * limit, any fingerprint is closed or a lane is missing. It saves what `insert` spends on telling more. It can announce
   * the only lane's queue.
   */
  readonly plain: (
    jobs: ReadonlyArray<Envelope>,
    lanes: ReadonlyArray<Lanes.Lane>,
    patience: string | undefined,
    announces: boolean
  ) => Bound
  /**
   * Rows that meet a stored id or a held unique key are passed over, as are rows whose lane is missing or whose
   * fingerprint is closed. `stored` counts the others. Where a part may not stay, the statement fails; otherwise it
   * answers that part. With a `pressure` nothing is stored.
   */
  readonly insert: (
    jobs: ReadonlyArray<Envelope>,
    lanes: ReadonlyArray<Lanes.Lane>,
    isAllOrNothing: boolean,
    patience?: string
  ) => Bound
}

/**
 * `lanes` are those of the jobs, in order. With a patience, as `20ms`, a statement fails when it has to wait longer for
 * what others hold; outside of transactions only, since that lasts to the transaction's end.
 */
export const make = (schema: string): EnqueueSql => {
  const plainText = texts(schema, (varying) => plainSql(varying, "null"))
  const announcingText = texts(
    schema,
    (varying) => plainSql(varying, `pg_notify('${channelOf(schema)}', hashtext(l.queue)::text)`)
  )
  const insertText = texts(schema, insertSql)
  return {
    plain: (jobs, lanes, patience, announces) => {
      const { params, varying } = bindRows(jobs, lanes)
      const text = announces ? announcingText : plainText
      return [text(varying), [...params, Bind.text(patience ?? null)]]
    },
    insert: (jobs, lanes, isAllOrNothing, patience = undefined) => {
      const { params, varying } = bindRows(jobs, lanes)
      return [insertText(varying), [...params, Bind.text(patience ?? null), isAllOrNothing]]
    }
  }
}

/** An application uses few of the many texts there could be; the connections keep as few prepared. */
const texts = (schema: string, build: (varying: number) => string): (varying: number) => string => {
  const known = new Map<number, string>()
  return (varying) => {
    const built = known.get(varying)
    if (built !== undefined) return built
    if (known.size === MAX_TEXTS) known.clear()
    const text = inSchema(schema, build(varying))
    known.set(varying, text)
    return text
  }
}

const MAX_TEXTS = 100
const names = columns.map(({ name }) => name)
const laneNames = ["id", ...Lanes.columns.split(", ")]
const laneParams = laneNames.map((_, index) => `$${names.length + 1 + index}`)
const [, queueParam] = laneParams
const [patience, isAllOrNothing] = [1, 2].map((n) => `$${names.length + laneNames.length + n}`)

const isVarying = (varying: number, index: number): boolean => (varying >> index & 1) === 1
const hasSeveralLanes = (varying: number): boolean => isVarying(varying, names.indexOf("lane"))

const sought = (varying: number): string =>
  hasSeveralLanes(varying)
    ? `unnest(${laneParams.join(", ")}) with ordinality as w(${laneNames.join(", ")}, place)`
    : `(select ${laneNames.map((name, index) => `${laneParams[index]} as ${name}`).join(", ")}, 1 as place) w`

/**
 * Lanes that are there, each with its place in the parameters; and, so that it happens once and not for each row, the time,
 * the patience for locks, which lasts to the transaction's end, and what else there is to do.
 */
const withLanes = (varying: number, also = "null"): string =>
  `with lane as materialized (
    select w.place, l.id, l.queue, l.kind, l.version, headgate.now_ms() as now,
      case when ${patience}::text is not null then set_config('lock_timeout', ${patience}, true) end as patience,
      ${also} as also
    from ${sought(varying)} join headgate.lane l on l.id = w.id and ${Lanes.isSame}
  )`

/** Whether any of the queues has a limit of unfinished jobs. */
const hasLimit = (varying: number): string =>
  `exists (select from headgate.queue q where q.name = ${hasSeveralLanes(varying) ? `any(${queueParam})` : queueParam}
    and q.max_unfinished_jobs is not null)`

/** By its order it goes by index, also before statistics tell that hardly any is closed: a scan would pass all strikes. */
const hasClosed = `(select s.closed_at_ms from headgate.strike s where s.closed_at_ms is not null
    order by s.closed_at_ms limit 1) is not null`

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

/** The jobs' own columns. */
const given = (varying: number): string => {
  const arrays = names.flatMap((_, index) => isVarying(varying, index) ? [`$${index + 1}`] : [])
  const elements = names.filter((_, index) => isVarying(varying, index))
  const all = names.map((name, index) => isVarying(varying, index) ? `n.${name}` : `$${index + 1} as ${name}`)
  return `(select ${all.join(", ")} from unnest(${arrays.join(", ")}) as n(${elements.join(", ")}))`
}

/** Jobs with their lanes, times and fingerprints. */
const timed = (varying: number): string =>
  `select n.*, l.id as lane_id, l.kind, l.queue, l.version, l.now,
      coalesce(n.due_at_ms, l.now + n.delay_ms, l.now) as at_ms,
      coalesce(n.fingerprint, headgate.content_fingerprint(l.kind, n.payload)) as print
    from ${given(varying)} n join lane l on l.place = n.lane`

const plainSql = (varying: number, also: string): string =>
  `${withLanes(varying, also)}
  insert into ${target}
  select ${row} from (${timed(varying)}) t
  where not ${hasLimit(varying)} and not ${hasClosed}${
    hasSeveralLanes(varying) ? ` and (select count(*) from lane) = cardinality(${laneParams[0]})` : ""
  }`

const insertSql = (varying: number): string =>
  `${withLanes(varying)}, guard as materialized (
    select ${hasClosed} as has_closed,
      case when ${hasLimit(varying)}
        then (select headgate.backpressure(array_agg(n.id), array_agg(l.queue))
          from ${given(varying)} n join lane l on l.place = n.lane)
      end as pressure
  ), stored as (
    insert into ${target}
    select ${row}
    -- Its own level, so that the fingerprint is computed once.
    from (${timed(varying)} offset 0) t
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
 * What stands in the way of a batch: jobs with its ids (`$1`), holders of its unique keys (`$2`), and whether any
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
    from headgate.strike s where s.closed_at_ms is not null order by s.closed_at_ms limit 1)`

export const closedSql = `select p.fingerprint from unnest($1) p(fingerprint) where headgate.is_closed(p.fingerprint)`
