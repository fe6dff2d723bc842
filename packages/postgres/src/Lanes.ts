/**
 * Lanes that new jobs need, by id. They are never deleted, so each process looks for each of them once; on the control
 * path, since a lane made inside a long transaction of the application would block other producers.
 */
import { enqueueQueue, type Envelope } from "@headgate/core/Envelope"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import { effectiveWeight } from "@headgate/core/Weight"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import type { ControlSql } from "./ControlSql.ts"

/** A lane for jobs that never crashed. */
export interface Lane {
  readonly id: number
  readonly queue: string
  readonly kind: string
  readonly version: number
  readonly worker: string
  readonly fallsBack: boolean
  readonly isPartitioned: boolean
  /** Its jobs have keys, or cost other than 1. */
  readonly varies: boolean
  readonly classes: ReadonlyArray<string>
  readonly limits: ReadonlyArray<string>
}

export interface Lanes {
  /** The lane of each job, in order. One that a rival makes at the same moment has no id yet: 0. */
  readonly ensure: (jobs: ReadonlyArray<Envelope>) => Effect.Effect<ReadonlyArray<Lane>, StoreUnavailable>
  /** Lanes can be missing all the same after the database was restored from an older state. */
  readonly forget: (jobs: ReadonlyArray<Envelope>) => void
}

export const columns = "queue, kind, version, worker, falls_back, is_partitioned, varies, classes, limits" as const

/** Whether `l`, a lane, is the one of which `w` holds the columns; the arrays are text there. */
export const isSame = `l.queue = w.queue and l.kind = w.kind and l.version = w.version and not l.suspect
  and l.worker = w.worker and l.falls_back = w.falls_back and l.is_partitioned = w.is_partitioned
  and l.varies = w.varies and l.classes = w.classes::text[] and l.limits = w.limits::text[]`

/** The columns of lanes, as `unnest` takes them. */
export const params = (lanes: ReadonlyArray<Omit<Lane, "id">>): ReadonlyArray<unknown> => [
  Bind.texts(lanes.map(({ queue }) => queue)),
  Bind.texts(lanes.map(({ kind }) => kind)),
  Bind.ints(lanes.map(({ version }) => version)),
  Bind.texts(lanes.map(({ worker }) => worker)),
  Bind.bools(lanes.map(({ fallsBack }) => fallsBack)),
  Bind.bools(lanes.map(({ isPartitioned }) => isPartitioned)),
  Bind.bools(lanes.map(({ varies }) => varies)),
  Bind.texts(lanes.map(({ classes }) => Bind.textArrayLiteral(classes))),
  Bind.texts(lanes.map(({ limits }) => Bind.textArrayLiteral(limits)))
]

/** The columns of one lane, each a value. */
export const values = (lane: Omit<Lane, "id">): ReadonlyArray<unknown> => [
  Bind.text(lane.queue),
  Bind.text(lane.kind),
  Bind.int(lane.version),
  Bind.text(lane.worker),
  lane.fallsBack,
  lane.isPartitioned,
  lane.varies,
  Bind.text(Bind.textArrayLiteral(lane.classes)),
  Bind.text(Bind.textArrayLiteral(lane.limits))
]

export const make = (statement: ControlSql["Service"]["statement"]): Lanes => {
  const known = new Map<string, Lane>()
  const find = statement<{ readonly place: number; readonly id: number }>(
    "Producer.enqueue",
    `with w as materialized (
      select * from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9) with ordinality as w(${columns}, place)
    ), made as (
      insert into headgate.lane as l (suspect, ${columns})
      select false, queue, kind, version, worker, falls_back, is_partitioned, varies, classes::text[], limits::text[] from w
      where not exists (select from headgate.lane l where ${isSame})
      order by w.queue, w.kind, w.version, w.worker, w.varies, w.classes, w.limits on conflict do nothing
      returning l.*
    )
    select w.place::int, l.id from w join headgate.lane l on ${isSame}
    union all
    select w.place::int, l.id from w join made l on ${isSame}`
  )
  const learn = Effect.fnUntraced(function*(missing: ReadonlyMap<string, Envelope>) {
    const names = [...missing.keys()]
    const lanes = [...missing.values()].map(laneOf)
    if (known.size + names.length > MAX_KNOWN) known.clear()
    for (const { id, place } of yield* find(params(lanes))) {
      known.set(names[place - 1]!, { ...lanes[place - 1]!, id })
    }
  })
  return {
    ensure: (jobs) => {
      const missing = new Map<string, Envelope>()
      let last: Envelope | undefined
      let lane: Lane | undefined
      const lanes = jobs.map((job) => {
        if (last !== undefined && isAlike(job, last)) return lane
        const name = nameOf(job)
        last = job
        lane = known.get(name)
        if (lane === undefined) missing.set(name, job)
        return lane
      })
      return missing.size === 0
        // SAFETY: none of them is missing.
        ? Effect.succeed(lanes as ReadonlyArray<Lane>)
        : Effect.map(
          learn(missing),
          () => jobs.map((job, n) => lanes[n] ?? known.get(nameOf(job)) ?? { ...laneOf(job), id: 0 })
        )
    },
    forget: (jobs) => {
      for (const job of jobs) known.delete(nameOf(job))
    }
  }
}

const laneOf = (job: Envelope): Omit<Lane, "id"> => ({
  queue: enqueueQueue(job.queue),
  kind: job.kind,
  version: job.schemaVersion,
  worker: job.stickyWorker ?? "",
  fallsBack: job.stickyFallbackMs !== undefined,
  isPartitioned: job.partitionKey !== "",
  varies: job.rates.some(({ key, weight }) => key !== "" || effectiveWeight(weight) !== 1) ||
    job.limits.some(({ key }) => key !== ""),
  classes: job.rates.map((rate) => rate.class).sort(),
  limits: job.limits.map(({ limit }) => limit).sort()
})

/** Whether they have the same lane, as most of one batch have; where it takes a longer look, the answer is no. */
const isAlike = (a: Envelope, b: Envelope): boolean =>
  a.kind === b.kind && a.queue === b.queue && a.schemaVersion === b.schemaVersion &&
  (a.partitionKey === "") === (b.partitionKey === "") && isBare(a) && isBare(b)

const isBare = ({ limits, rates, stickyWorker }: Envelope): boolean =>
  rates.length === 0 && limits.length === 0 && stickyWorker === undefined

/** No name of a queue, kind, class or limit holds a space or a comma. */
const nameOf = (job: Envelope): string => {
  const name = `${enqueueQueue(job.queue)} ${job.kind} ${job.schemaVersion} ${job.partitionKey !== ""}`
  if (isBare(job)) return name
  const { classes, fallsBack, limits, varies, worker } = laneOf(job)
  return `${name} ${varies} ${classes.join()} ${limits.join()} ${fallsBack} ${worker}`
}

const MAX_KNOWN = 10_000
