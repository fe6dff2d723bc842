/**
 * The worker's own row in the registry: written when it starts and at each heartbeat, removed when it ends. The statement
 * that marks it seen carries what it has become, and answers what operators have told it.
 */
import type { HeartbeatOptions } from "@headgate/core/Heartbeat"
import type { StoreUnavailable } from "@headgate/core/Refusals"
import type { WorkerCommand, WorkerOrders, WorkerStanding } from "@headgate/core/WorkerControl"
import * as Effect from "effect/Effect"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

export interface WorkerRegistry {
  /** Once, at its start: what was told to another under this id is forgotten. Answers the number to count commands from. */
  readonly enter: Effect.Effect<number, StoreUnavailable>
  /** Undefined when nothing was told yet. */
  readonly seen: (
    running: number,
    standing: WorkerStanding
  ) => Effect.Effect<WorkerOrders | undefined, StoreUnavailable>
  readonly remove: Effect.Effect<void, StoreUnavailable>
}

export const make = Effect.fnUntraced(function*(
  { capacity, kinds, leaseMs, queues, worker }: HeartbeatOptions
): Effect.fn.Return<WorkerRegistry, never, ControlSql> {
  const { statement } = yield* ControlSql
  const enter = statement<{ command_seq: bigint }>(
    "Heartbeat.enter",
    `insert into headgate.worker as w (id, queues, kinds, versions, capacity, lease_ms, running, started_at_ms, seen_at_ms)
    select $1, $2, $3, $4, $5, $6, 0, t.now, t.now from (select headgate.now_ms() as now) t
    on conflict (id) do update set queues = excluded.queues, kinds = excluded.kinds, versions = excluded.versions,
      capacity = excluded.capacity, lease_ms = excluded.lease_ms, running = 0, started_at_ms = excluded.started_at_ms,
      seen_at_ms = excluded.seen_at_ms, command = null, command_actor = null, command_at_ms = null,
      applied_seq = w.command_seq, wants_quiet = false, wants_resigned = false, wants_end = null, is_quiet = false,
      is_resigned = false, is_draining = false
    returning w.command_seq`
  )
  // A row that was removed meanwhile is written again, and counts on from what the worker has heard.
  const write = statement<OrdersRow>(
    "Heartbeat.seen",
    `insert into headgate.worker as w (id, queues, kinds, versions, capacity, lease_ms, running, started_at_ms, seen_at_ms,
      command_seq, applied_seq, is_quiet, is_resigned, is_draining)
    select $1, $2, $3, $4, $5, $6, $7, t.now, t.now, $8, $8, $9, $10, $11 from (select headgate.now_ms() as now) t
    on conflict (id) do update set queues = excluded.queues, kinds = excluded.kinds, versions = excluded.versions,
      capacity = excluded.capacity, lease_ms = excluded.lease_ms, running = excluded.running,
      seen_at_ms = excluded.seen_at_ms, applied_seq = greatest(w.applied_seq, excluded.applied_seq),
      is_quiet = excluded.is_quiet, is_resigned = excluded.is_resigned, is_draining = excluded.is_draining
    returning w.command_seq, w.command, w.command_actor, w.wants_quiet, w.wants_resigned, w.wants_end`
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
    enter: Effect.map(enter(constant), ([row]) => Number(row?.command_seq ?? 0)),
    seen: (running, { appliedSeq, isDraining, isQuiet, isResigned }) =>
      Effect.map(
        write([...constant, Bind.int(running), Bind.bigint(appliedSeq), isQuiet, isResigned, isDraining]),
        ([row]) => row === undefined || row.command === null ? undefined : toOrders(row, row.command)
      ),
    remove: Effect.asVoid(remove([Bind.text(worker)]))
  }
})

interface OrdersRow {
  readonly command_seq: bigint
  readonly command: WorkerCommand | null
  readonly command_actor: string | null
  readonly wants_quiet: boolean
  readonly wants_resigned: boolean
  readonly wants_end: "restart" | "terminate" | null
}

const toOrders = (row: OrdersRow, command: WorkerCommand): WorkerOrders => ({
  seq: Number(row.command_seq),
  command,
  actor: row.command_actor ?? undefined,
  isQuiet: row.wants_quiet,
  isResigned: row.wants_resigned,
  end: row.wants_end ?? undefined
})
