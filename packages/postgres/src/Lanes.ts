/**
 * Lanes that new jobs need. They are never deleted, so each process makes sure of each of them once; on the control
 * path, since a lane made inside a long transaction of the application would block other producers.
 */
import type { Envelope } from "@headgate/core/Envelope"
import { enqueueQueue } from "@headgate/core/Envelope"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import type { ControlSql } from "./ControlSql.ts"

export interface Lanes {
  readonly ensure: (jobs: ReadonlyArray<Envelope>) => Effect.Effect<void, StoreUnavailable>
  /** Lanes can be missing all the same after the database was restored from an older state. */
  readonly forget: (jobs: ReadonlyArray<Envelope>) => void
}

export const make = (statement: ControlSql["Service"]["statement"]): Lanes => {
  const known = new Set<string>()
  const insert = statement(
    "Producer.enqueue",
    `insert into headgate.lane (queue, kind, version, suspect, is_partitioned)
    select n.queue, n.kind, n.version, false, n.is_partitioned
    from unnest($1, $2, $3, $4) as n(queue, kind, version, is_partitioned)
    where not exists (select from headgate.lane l
      where l.queue = n.queue and l.kind = n.kind and l.version = n.version and l.is_partitioned = n.is_partitioned
        and not l.suspect)
    order by 1, 2, 3 on conflict do nothing`
  )
  return {
    ensure: (jobs) => {
      const missing = new Map<string, Envelope>()
      for (const job of jobs) if (!known.has(nameOf(job))) missing.set(nameOf(job), job)
      if (missing.size === 0) return Effect.void
      const lanes = [...missing.values()]
      return Effect.map(
        insert([
          Bind.texts(lanes.map(({ queue }) => enqueueQueue(queue))),
          Bind.texts(lanes.map(({ kind }) => kind)),
          Bind.ints(lanes.map(({ schemaVersion }) => schemaVersion)),
          Bind.bools(lanes.map(({ partitionKey }) => partitionKey !== ""))
        ]),
        () => {
          if (known.size + missing.size > MAX_KNOWN) known.clear()
          for (const name of missing.keys()) known.add(name)
        }
      )
    },
    forget: (jobs) => {
      for (const job of jobs) known.delete(nameOf(job))
    }
  }
}

/** Neither a queue nor a kind holds a space. */
const nameOf = ({ kind, partitionKey, queue, schemaVersion }: Envelope): string =>
  `${enqueueQueue(queue)} ${kind} ${schemaVersion} ${partitionKey !== ""}`

const MAX_KNOWN = 10_000
