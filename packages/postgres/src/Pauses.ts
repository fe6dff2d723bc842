/** The switches of the gate, by `set_paused` of `0008_policies_control.sql`. */
import { type Pausable, Pauses, refusePausable } from "@headgate/core/Pauses"
import { UnknownPolicy } from "@headgate/core/Policies"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Announcer } from "./Announcer.ts"
import * as Bind from "./Bind.ts"
import { ControlSql } from "./ControlSql.ts"

const make = Effect.gen(function*() {
  const { statement } = yield* ControlSql
  const { announce } = yield* Announcer
  const call = "select * from headgate.set_paused($1, $2, $3, $4)"
  const statements = {
    pause: statement<SetRow>("Pauses.pause", call),
    resume: statement<SetRow>("Pauses.resume", call)
  }
  const paused = statement<PausedRow>("Pauses.paused", pausedSql)

  const set = Effect.fnUntraced(function*(what: Pausable, operation: "pause" | "resume") {
    const refusal = refusePausable(what)
    if (refusal !== undefined) return yield* refusal
    const { name, partitionKey, policy } = named(what)
    const [row] = yield* statements[operation]([
      Bind.text(policy),
      Bind.text(name),
      Bind.text(partitionKey),
      operation === "pause"
    ])
    if (row !== undefined) return row
    // Others are there whether or not they have a row.
    return yield* new UnknownPolicy({ policy: policy === "rate_class" ? policy : "concurrency_limit", name })
  })

  return Pauses.of({
    pause: Effect.fn("Pauses.pause")(function*(what) {
      const row = yield* set(what, "pause")
      return { deadlinesWithinHour: row.expiring, isApproximate: row.is_approximate }
    }),
    resume: Effect.fn("Pauses.resume")(function*(what) {
      const row = yield* set(what, "resume")
      yield* announce(row.queues)
    }),
    paused: Effect.map(paused([]), (rows) => rows.map(toPausable)).pipe(Effect.withSpan("Pauses.paused"))
  })
})

export const layer: Layer.Layer<Pauses, never, ControlSql | Announcer> = Layer.effect(Pauses, make)

type Policy = "queue" | "partition" | "kind" | "rate_class" | "concurrency_limit"

const named = (what: Pausable): { readonly policy: Policy; readonly name: string; readonly partitionKey: string } => {
  if ("kind" in what) return { policy: "kind", name: what.kind, partitionKey: "" }
  if ("rateClass" in what) return { policy: "rate_class", name: what.rateClass, partitionKey: "" }
  if ("limit" in what) return { policy: "concurrency_limit", name: what.limit, partitionKey: "" }
  const { partitionKey, queue } = what
  return partitionKey === undefined
    ? { policy: "queue", name: queue, partitionKey: "" }
    : { policy: "partition", name: queue, partitionKey }
}

const pausedSql = `select * from (
    select 'queue' as policy, q.name, '' as partition_key from headgate.queue q where q.is_paused
    union all select 'partition', p.queue, p.partition_key from headgate.partition p where p.is_paused
    union all select 'kind', k.name, '' from headgate.kind k where k.is_paused
    union all select 'rate_class', r.name, '' from headgate.rate_class r where r.is_paused
    union all select 'concurrency_limit', c.name, '' from headgate.concurrency_limit c where c.is_paused
  ) p order by p.policy, p.name, p.partition_key limit 1000`

interface SetRow {
  readonly queues: ReadonlyArray<string>
  readonly expiring: number
  readonly is_approximate: boolean
}

interface PausedRow {
  readonly policy: Policy
  readonly name: string
  readonly partition_key: string
}

const toPausable = ({ name, partition_key, policy }: PausedRow): Pausable => {
  switch (policy) {
    case "queue":
      return { queue: name }
    case "partition":
      return { queue: name, partitionKey: partition_key }
    case "kind":
      return { kind: name }
    case "rate_class":
      return { rateClass: name }
    case "concurrency_limit":
      return { limit: name }
  }
}
