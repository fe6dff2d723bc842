/** Commands to workers, by `tell_worker` of `0015_worker_commands.sql`. */
import { NotFound } from "@headgate/core/Refusals"
import { refuseActor, refuseCommand, WorkerControl } from "@headgate/core/WorkerControl"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const tell = statement<{ seq: bigint }>("WorkerControl.tell", "select seq from headgate.tell_worker($1, $2, $3) seq")
  return WorkerControl.of({
    tell: Effect.fn("WorkerControl.tell")(function*(worker, command, actor) {
      const refusal = refuseCommand(command) ?? (actor === undefined ? undefined : refuseActor(actor))
      if (refusal !== undefined) return yield* refusal
      const [row] = yield* tell([Bind.id(worker), Bind.text(command), Bind.text(actor ?? null)])
      if (row === undefined) return yield* new NotFound({ id: worker, what: "worker" })
      return Number(row.seq)
    })
  })
})

export const layer: Layer.Layer<WorkerControl, never, ControlSql> = Layer.effect(WorkerControl, make)
