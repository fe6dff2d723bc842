/** The worker's own row in the registry: written when it starts and at each heartbeat, removed when it ends. */
import type { HeartbeatOptions } from "@headgate/core/Heartbeat"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

export interface WorkerRegistry {
  readonly seen: (running: number) => Effect.Effect<void, StoreUnavailable>
  readonly remove: Effect.Effect<void, StoreUnavailable>
}

export const make = Effect.fnUntraced(function*(
  { capacity, kinds, leaseMs, queues, worker }: HeartbeatOptions
): Effect.fn.Return<WorkerRegistry, never, ControlSql> {
  const { statement } = yield* ControlSql
  const write = statement(
    "Heartbeat.seen",
    `insert into headgate.worker as w (id, queues, kinds, versions, capacity, lease_ms, running, started_at_ms, seen_at_ms)
    select $1, $2, $3, $4, $5, $6, $7, t.now, t.now from (select headgate.now_ms() as now) t
    on conflict (id) do update set queues = excluded.queues, kinds = excluded.kinds, versions = excluded.versions,
      capacity = excluded.capacity, lease_ms = excluded.lease_ms, running = excluded.running,
      seen_at_ms = excluded.seen_at_ms`
  )
  const remove = statement("Heartbeat.remove", "delete from headgate.worker w where w.id = $1")
  const constant = [
    Bind.text(worker),
    Bind.texts(queues),
    Bind.texts(kinds.map(({ kind }) => kind)),
    Bind.ints(kinds.map(({ version }) => version)),
    Bind.int(capacity),
    Bind.bigint(leaseMs)
  ]
  return {
    seen: (running) => Effect.asVoid(write([...constant, Bind.int(running)])),
    remove: Effect.asVoid(remove([Bind.text(worker)]))
  }
})
