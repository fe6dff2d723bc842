/**
 * Policies written and read. Each edit is a function of `0008_policies_control.sql`, and is announced to the queues where
 * it may have let work free; a list reads one page, with the live state of what it lists.
 */
import {
  type ConcurrencyLimitConfig,
  type LimitScope,
  refuseConcurrencyLimit,
  type SaturationStrategy
} from "@headgate/core/ConcurrencyLimit"
import { refuseName } from "@headgate/core/Kind"
import {
  type ConcurrencyLimitChange,
  type ConcurrencyLimitState,
  distinctDefinitions,
  Policies,
  type PolicyDefinition,
  type PolicyPage,
  type QueueChange,
  type RateClassChange,
  type RateClassState,
  refusePage,
  refusePartition,
  refuseSetting,
  UnknownPolicy
} from "@headgate/core/Policies"
import { type QueueConfig, refuseQueue } from "@headgate/core/Queue"
import { refuseRateClass } from "@headgate/core/RateClass"
import { Invalid } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"
import * as PartitionRows from "./PartitionRows.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const { announce } = yield* Announcer
  const edit = (name: string, call: string) => statement<EditedRow>(`Policies.${name}`, `select ${call} as queues`)
  const setRateClass = edit("setRateClass", "headgate.set_rate_class($1, $2, $3, $4, $5, $6)")
  const removeRateClass = edit("removeRateClass", "headgate.remove_rate_class($1)")
  const setLimit = edit("setLimit", "headgate.set_limit($1, $2, $3, $4, $5, $6, $7)")
  const removeLimit = edit("removeLimit", "headgate.remove_limit($1)")
  const setQueue = edit("setQueue", "headgate.set_queue($1, $2, $3, $4, $5, $6, $7)")
  const setPartition = edit("setPartition", "headgate.set_partition($1, $2, $3, $4)")
  const removePartition = edit("removePartition", "headgate.remove_partition($1, $2)")
  const setSetting = statement("Policies.setSetting", setSettingSql)
  const settings = statement<{ strike_limit: bigint }>(
    "Policies.settings",
    "select headgate.setting('strike_limit', 3) as strike_limit"
  )
  const declared = statement<DeclaredRow>("Policies.apply", declaredSql)
  const rateClasses = statement<RateClassRow>("Policies.rateClasses", rateClassesSql)
  const limits = statement<LimitRow>("Policies.limits", limitsSql)
  const queues = statement<QueueRow>("Policies.queues", queuesSql)
  const partitions = statement<PartitionRows.PartitionRow>("Policies.partitions", PartitionRows.listSql)

  /** False when there was nothing to write. */
  const edited = Effect.fnUntraced(function*([row]: ReadonlyArray<EditedRow>) {
    const isWritten = row !== undefined && row.queues !== null
    if (isWritten) yield* announce(row.queues)
    return isWritten
  })
  const removed = (policy: UnknownPolicy["policy"], name: string, rows: ReadonlyArray<EditedRow>) =>
    Effect.flatMap(
      edited(rows),
      (isWritten) => isWritten ? Effect.void : Effect.fail(new UnknownPolicy({ policy, name }))
    )

  const write = (definition: PolicyDefinition) => {
    const said = Bind.text(declaredJson(definition))
    switch (definition._tag) {
      case "RateClass":
        return setRateClass([...rateClassParams(definition), said])
      case "ConcurrencyLimit":
        return setLimit([...limitParams(definition), said])
      case "Queue":
        return setQueue([...queueParams(whole(definition)), said])
    }
  }

  /** What code says now and did not say last. The functions look again, under the lock of each policy. */
  const changed = Effect.fnUntraced(function*(definitions: ReadonlyArray<PolicyDefinition>) {
    const rows = yield* declared([
      Bind.texts(definitions.map(({ _tag }) => _tag)),
      Bind.texts(definitions.map(({ name }) => name))
    ])
    const last = new Map(rows.map((row) => [`${row.tag} ${row.name}`, row.declared]))
    return definitions.filter((definition) =>
      last.get(`${definition._tag} ${definition.name}`) !== declaredJson(definition)
    )
  })

  return Policies.of({
    apply: Effect.fn("Policies.apply")(function*(input) {
      const definitions = distinctDefinitions(input, declaredJson)
      if (definitions instanceof Invalid) return yield* definitions
      if (definitions.length === 0) return []
      for (const definition of definitions) yield* check(refuseDefinition(definition))
      const written: Array<string> = []
      for (const definition of yield* changed(definitions)) {
        if (yield* edited(yield* write(definition))) written.push(definition.name)
      }
      return written
    }),

    setRateClass: Effect.fn("Policies.setRateClass")(function*(change) {
      const { burst = change.limit, limit, name, paused = false, windowMs } = change
      yield* check(refuseRateClass({ name, limit, windowMs, burst, paused }))
      yield* edited(yield* setRateClass([...rateClassParams(change), Bind.text(null)]))
    }),
    removeRateClass: Effect.fn("Policies.removeRateClass")(function*(name) {
      yield* removed("rate_class", name, yield* removeRateClass([Bind.id(name)]))
    }),
    rateClasses: Effect.fn("Policies.rateClasses")(function*(page = {}) {
      yield* check(refusePage(page))
      return list(page, yield* rateClasses(pageParams(page)), toRateClass)
    }),

    setLimit: Effect.fn("Policies.setLimit")(function*(change) {
      const { onSaturated = "queue", paused = false } = change
      yield* check(refuseConcurrencyLimit({ ...change, onSaturated, paused }))
      yield* edited(yield* setLimit([...limitParams(change), Bind.text(null)]))
    }),
    removeLimit: Effect.fn("Policies.removeLimit")(function*(name) {
      yield* removed("concurrency_limit", name, yield* removeLimit([Bind.id(name)]))
    }),
    limits: Effect.fn("Policies.limits")(function*(page = {}) {
      yield* check(refusePage(page))
      return list(page, yield* limits(pageParams(page)), toLimit)
    }),

    setQueue: Effect.fn("Policies.setQueue")(function*(change) {
      yield* check(refuseQueue({
        name: change.name,
        weight: change.weight ?? 1,
        strict: change.strict ?? false,
        quantum: change.quantum ?? undefined,
        paused: change.paused ?? false,
        maxUnfinishedJobs: change.maxUnfinishedJobs ?? undefined
      }))
      yield* edited(yield* setQueue([...queueParams(change), Bind.text(null)]))
    }),
    queues: Effect.fn("Policies.queues")(function*(page = {}) {
      yield* check(refusePage(page))
      return list(page, yield* queues(pageParams(page)), toQueue)
    }),

    setPartition: Effect.fn("Policies.setPartition")(function*(change) {
      yield* check(refusePartition(change))
      const { partitionKey, paused, quantum, queue } = change
      yield* edited(
        yield* setPartition([
          Bind.text(queue),
          Bind.text(partitionKey),
          Bind.int(cleared(quantum, 0)),
          Bind.bool(paused ?? null)
        ])
      )
    }),
    removePartition: Effect.fn("Policies.removePartition")(function*({ partitionKey, queue }) {
      // A key that no column can hold must not be taken for the empty one.
      const isNone = refusePartition({ queue, partitionKey }) !== undefined
      const rows = isNone ? [] : yield* removePartition([Bind.text(queue), Bind.text(partitionKey)])
      yield* removed("partition", `${queue}/${partitionKey}`, rows)
    }),

    partitions: Effect.fn("Policies.partitions")(function*(page) {
      yield* check(refusePage(page) ?? refuseName("queue", page.queue))
      return PartitionRows.toList(page, yield* partitions(PartitionRows.params(page)))
    }),

    setSetting: Effect.fn("Policies.setSetting")(function*(name, value) {
      yield* check(refuseSetting(name, value))
      yield* setSetting([Bind.text(settingNames[name]), Bind.bigint(value)])
    }),
    settings: Effect.map(settings([]), ([row]) => ({ strikeLimit: Number(row?.strike_limit) })).pipe(
      Effect.withSpan("Policies.settings")
    )
  })
})

export const layer: Layer.Layer<Policies, never, ControlSql | Announcer> = Layer.effect(Policies, make)

const check = (refusal: Invalid | undefined): Effect.Effect<void, Invalid> =>
  refusal === undefined ? Effect.void : Effect.fail(refusal)

const settingNames = { strikeLimit: "strike_limit" } as const

const setSettingSql = `insert into headgate.setting (name, value) values ($1, $2)
  on conflict (name) do update set value = excluded.value`

/** What the function takes for a value that is to be cleared; null leaves it as it is. */
const cleared = (value: number | null | undefined, clear: number): number | null =>
  value === null ? clear : value ?? null

const rateClassParams = ({ burst, limit, name, paused, windowMs }: RateClassChange) => [
  Bind.text(name),
  Bind.bigint(limit),
  Bind.bigint(windowMs),
  Bind.bigint(burst ?? null),
  Bind.bool(paused ?? null)
]

const limitParams = ({ max, name, onSaturated, paused, scope, subject }: ConcurrencyLimitChange) => [
  Bind.text(name),
  Bind.text(scope),
  Bind.text(subject),
  Bind.int(max),
  Bind.text(onSaturated ?? "queue"),
  Bind.bool(paused ?? null)
]

const queueParams = ({ maxUnfinishedJobs, name, paused, quantum, strict, weight }: QueueChange) => [
  Bind.text(name),
  Bind.int(weight ?? null),
  Bind.bool(strict ?? null),
  Bind.int(cleared(quantum, 0)),
  Bind.bool(paused ?? null),
  Bind.bigint(cleared(maxUnfinishedJobs, -1))
]

/** Code that names no value for a queue asks for the default. */
const whole = (queue: QueueConfig): QueueChange => ({
  ...queue,
  quantum: queue.quantum ?? null,
  maxUnfinishedJobs: queue.maxUnfinishedJobs ?? null
})

/** What code says of a policy; the key of a pause is known to the store's functions. */
const declaredJson = (definition: PolicyDefinition): string => {
  switch (definition._tag) {
    case "RateClass": {
      const { burst, limit, paused, windowMs } = definition
      return JSON.stringify({ limit, window_ms: windowMs, burst, paused })
    }
    case "ConcurrencyLimit": {
      const { max, onSaturated, paused, scope, subject } = definition
      return JSON.stringify({ scope, subject, max_concurrent: max, on_saturated: onSaturated, paused })
    }
    case "Queue": {
      const { maxUnfinishedJobs = null, paused, quantum = null, strict, weight } = definition
      return JSON.stringify({ weight, strict, quantum, max_unfinished_jobs: maxUnfinishedJobs, paused })
    }
  }
}

/** Definitions are values that anybody may have made. */
const refuseDefinition = (definition: PolicyDefinition): Invalid | undefined => {
  switch (definition._tag) {
    case "RateClass":
      return refuseRateClass(definition)
    case "ConcurrencyLimit":
      return refuseConcurrencyLimit(definition)
    case "Queue":
      return refuseQueue(definition)
  }
}

const declaredSql = `select a.tag, a.name, coalesce(
    (select r.declared from headgate.rate_class r where a.tag = 'RateClass' and r.name = a.name),
    (select c.declared from headgate.concurrency_limit c where a.tag = 'ConcurrencyLimit' and c.name = a.name),
    (select q.declared from headgate.queue q where a.tag = 'Queue' and q.name = a.name)) as declared
  from unnest($1::text[], $2::text[]) a(tag, name)`

const rateClassesSql = `select r.name, r.rate_limit, r.window_ms, r.burst, r.is_paused,
    headgate.refilled(b.units, b.at_ms, n.now, r.rate_limit, r.window_ms, r.burst)::float8 / r.window_ms as tokens,
    case when b.closed_until_ms > n.now then b.closed_until_ms end as closed_until_ms,
    (select count(*)::int from
      (select from headgate.bucket k where k.class = r.name and k.key > '' limit 10000) k) as keyed_buckets
  from headgate.rate_class r
  cross join (select headgate.now_ms() as now) n
  left join headgate.bucket b on b.class = r.name and b.key = ''
  where r.name > $1 order by r.name limit $2`

const limitsSql = `select c.name, c.scope, c.subject, c.max_concurrent, c.on_saturated, c.is_paused,
    slots.keys, slots.running
  from (select * from headgate.concurrency_limit where name > $1 order by name limit $2) c
  cross join lateral (
    select array_agg(s.key order by s.running desc, s.key) as keys,
      array_agg(s.running order by s.running desc, s.key) as running
    from (
      select h.key, count(*)::int as running from (
        select case c.scope when 'partition' then j.partition_key
          when 'key' then headgate.key_at(j.keys, cardinality(l.classes) + array_position(l.limits, c.name))
          else '' end as key
        from headgate.lane l join headgate.job j on j.lane_id = l.id and j.state = 'running'
        where c.scope in ('queue', 'partition') and l.queue = c.subject or c.scope = 'kind' and l.kind = c.subject
          or c.scope = 'key' and c.name = any(l.limits)
        limit 20000
      ) h group by h.key order by count(*) desc, h.key limit 100
    ) s
  ) slots
  order by c.name`

const queuesSql = `select q.name, q.weight, q.is_strict, q.quantum, q.is_paused, q.max_unfinished_jobs
  from headgate.queue q where q.name > $1 order by q.name limit $2`

const defaultPage = 50

/** One more than asked for says whether there is a next page. */
const pageParams = ({ after = "", limit = defaultPage }: PolicyPage) => [Bind.id(after), Bind.int(limit + 1)]

const list = <Row, A extends { readonly name: string }>(
  { limit = defaultPage }: PolicyPage,
  rows: ReadonlyArray<Row>,
  to: (row: Row) => A
) => {
  const items = rows.slice(0, limit).map(to)
  return { items, next: rows.length > limit ? items.at(-1)?.name : undefined }
}

interface EditedRow {
  readonly queues: ReadonlyArray<string> | null
}

interface DeclaredRow {
  readonly tag: string
  readonly name: string
  readonly declared: string | null
}

interface RateClassRow {
  readonly name: string
  readonly rate_limit: bigint
  readonly window_ms: bigint
  readonly burst: bigint
  readonly is_paused: boolean
  readonly tokens: number
  readonly closed_until_ms: bigint | null
  readonly keyed_buckets: number
}

const toRateClass = (row: RateClassRow): RateClassState => ({
  name: row.name,
  limit: Number(row.rate_limit),
  windowMs: Number(row.window_ms),
  burst: Number(row.burst),
  paused: row.is_paused,
  tokens: row.tokens,
  keyedBuckets: row.keyed_buckets,
  closedUntilMs: row.closed_until_ms === null ? undefined : Number(row.closed_until_ms)
})

interface LimitRow {
  readonly name: string
  readonly scope: LimitScope
  readonly subject: string
  readonly max_concurrent: number
  readonly on_saturated: SaturationStrategy
  readonly is_paused: boolean
  readonly keys: ReadonlyArray<string> | null
  readonly running: ReadonlyArray<number> | null
}

const toLimit = (row: LimitRow): ConcurrencyLimitState => {
  const config: ConcurrencyLimitConfig = {
    name: row.name,
    scope: row.scope,
    subject: row.subject,
    max: row.max_concurrent,
    onSaturated: row.on_saturated,
    paused: row.is_paused
  }
  return { ...config, slots: (row.keys ?? []).map((key, n) => ({ key, running: row.running?.[n] ?? 0 })) }
}

interface QueueRow {
  readonly name: string
  readonly weight: number
  readonly is_strict: boolean
  readonly quantum: number | null
  readonly is_paused: boolean
  readonly max_unfinished_jobs: bigint | null
}

const toQueue = (row: QueueRow): QueueConfig => ({
  name: row.name,
  weight: row.weight,
  strict: row.is_strict,
  quantum: row.quantum ?? undefined,
  paused: row.is_paused,
  maxUnfinishedJobs: row.max_unfinished_jobs === null ? undefined : Number(row.max_unfinished_jobs)
})
