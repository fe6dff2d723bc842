/** Operator moves, by the functions of `0007_control.sql`: the job is locked, its state checked, and written. */
import { Control, type Moved } from "@headgate/core/Control"
import { MAX_PAYLOAD_BYTES } from "@headgate/core/EnqueueGuard"
import type { JobId } from "@headgate/core/Ids"
import { MAX_TIME_MS, refuseInteger } from "@headgate/core/Millis"
import { MAX_OPAQUE_SCHEMA_VERSION, refuseBytes } from "@headgate/core/Output"
import { Invalid, KeyTaken, NotFound, WrongState } from "@headgate/core/Refusals"
import type { State } from "@headgate/core/State"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const { announce } = yield* Announcer
  const promote = statement<MovedRow>("Control.promote", movedSql("headgate.promote_job(j.id)"))
  const cancel = statement<CancelledRow>("Control.cancel", "select * from headgate.cancel_job($1)")
  const retry = statement<RetriedRow>("Control.retry", returnedSql("headgate.retry_job(j.id, $2, $3)"))
  const release = statement<ReturnedRow>("Control.release", returnedSql("headgate.release_job(j.id)"))
  const reschedule = statement<MovedRow>("Control.reschedule", movedSql("headgate.reschedule_job(j.id, $2)"))
  const edit = statement<MovedRow>("Control.edit", movedSql("headgate.edit_job(j.id, $2, $3)"))
  const remove = statement<MovedRow>("Control.remove", movedSql("headgate.remove_job(j.id)"))

  /** The move, or what the row had become instead. Announces a job that can be taken from now on. */
  const moved = Effect.fnUntraced(function*(operation: string, id: JobId, rows: ReadonlyArray<MovedRow>) {
    const [row] = rows
    if (row === undefined) return yield* new NotFound({ id })
    if (row.to_state === null) return yield* new WrongState({ id, operation, state: row.from_state })
    if (row.to_state === "available") yield* announce([row.queue])
    return { id, from: row.from_state, to: row.to_state } satisfies Moved
  })
  const returned = Effect.fnUntraced(function*(operation: string, id: JobId, rows: ReadonlyArray<ReturnedRow>) {
    const holderId = rows[0]?.holder_id
    if (holderId !== undefined && holderId !== null) return yield* new KeyTaken({ id, holderId })
    return yield* moved(operation, id, rows)
  })

  return Control.of({
    promote: Effect.fn("Control.promote")(function*(id) {
      return yield* moved("promote", id, yield* promote([Bind.id(id)]))
    }),
    cancel: Effect.fn("Control.cancel")(function*(id) {
      const [row] = yield* cancel([Bind.id(id)])
      if (row === undefined) return yield* new NotFound({ id })
      const isCancelled = row.to_state !== null || (row.from_state === "cancelled" && row.reason === "operator_cancel")
      return isCancelled ? "cancelled" : `already_${row.from_state}` as const
    }),
    retry: Effect.fn("Control.retry")(function*(id, options) {
      const deadline = options?.deadlineAtMs
      yield* checkTime("deadline", deadline ?? 0)
      const rows = yield* retry([Bind.id(id), deadline !== undefined, Bind.bigint(deadline ?? null)])
      if (rows[0]?.is_late) return yield* new Invalid({ field: "deadline", message: deadlineRule })
      return yield* returned("retry", id, rows)
    }),
    release: Effect.fn("Control.release")(function*(id) {
      return yield* returned("release", id, yield* release([Bind.id(id)]))
    }),
    reschedule: Effect.fn("Control.reschedule")(function*(id, to) {
      const atMs = "atMs" in to ? to.atMs : undefined
      yield* checkTime("atMs", atMs ?? 0)
      return yield* moved("reschedule", id, yield* reschedule([Bind.id(id), Bind.bigint(atMs ?? null)]))
    }),
    edit: Effect.fn("Control.edit")(function*(id, { bytes, schemaVersion }) {
      const refusal = refuseInteger("schemaVersion", schemaVersion, 1, MAX_OPAQUE_SCHEMA_VERSION) ??
        refuseBytes("payload", bytes, MAX_PAYLOAD_BYTES)
      if (refusal !== undefined) return yield* refusal
      return yield* moved("edit", id, yield* edit([Bind.id(id), Bind.bytea(bytes), Bind.int(schemaVersion)]))
    }),
    remove: Effect.fn("Control.remove")(function*(id) {
      return yield* moved("remove", id, yield* remove([Bind.id(id)]))
    })
  })
})

export const layer: Layer.Layer<Control, never, ControlSql | Announcer> = Layer.effect(Control, make)

const movedSql = (move: string) =>
  `select j.state as from_state, ${move} as to_state, j.queue from headgate.lock_job($1) j`

const returnedSql = (move: string) =>
  `select j.state as from_state, j.queue, m.* from headgate.lock_job($1) j cross join lateral ${move} m`

const deadlineRule = "the deadline has passed: give a later one, or null for none"

const checkTime = (field: string, ms: number): Effect.Effect<void, Invalid> => {
  const refusal = refuseInteger(field, ms, 0, MAX_TIME_MS, " ms")
  return refusal === undefined ? Effect.void : Effect.fail(refusal)
}

interface MovedRow {
  readonly from_state: State
  readonly to_state: State | "deleted" | null
  readonly queue: string
}

interface CancelledRow extends MovedRow {
  readonly reason: string | null
}

interface ReturnedRow extends MovedRow {
  readonly holder_id: string | null
}

interface RetriedRow extends ReturnedRow {
  readonly is_late: boolean | null
}
