/** The operations of the corpus on what the gate obeys, and the question why a job does not run. */
import { Duties } from "@headgate/core/Duties"
import { Explain } from "@headgate/core/Explain"
import { JobId } from "@headgate/core/Ids"
import { Pauses } from "@headgate/core/Pauses"
import { Policies } from "@headgate/core/Policies"
import { Quarantine } from "@headgate/core/Quarantine"
import { Effect } from "effect"
import type { Operation } from "./Operations.ts"
import type { Answers, OperationName, Switch } from "./Scenario.ts"
import { Stage } from "./Stage.ts"
import * as World from "./World.ts"

const setRateClass: Operation<"set_rate_class"> = (_, { window_ms: windowMs, ...change }) =>
  nothing(Policies.use((policies) => policies.setRateClass({ ...change, windowMs })))

const setLimit: Operation<"set_limit"> = (_, { kind, max, name, on_saturated: onSaturated, queue, scope }) =>
  nothing(
    Policies.use((policies) => policies.setLimit({ name, scope, subject: queue ?? kind ?? "", max, onSaturated }))
  )

const setQueue: Operation<"set_queue"> = (_, { max_unfinished_jobs: maxUnfinishedJobs, ...change }) =>
  nothing(Policies.use((policies) => policies.setQueue({ ...change, maxUnfinishedJobs })))

const setPartition: Operation<"set_partition"> = (_, { partition, quantum, queue = "default" }) =>
  nothing(Policies.use((policies) => policies.setPartition({ queue, partitionKey: partition, quantum })))

const pause: Operation<"pause"> = (_, what) => nothing(Pauses.use((pauses) => pauses.pause(switchOf(what))))

const resume: Operation<"resume"> = (_, what) => nothing(Pauses.use((pauses) => pauses.resume(switchOf(what))))

const heartbeat: Operation<"heartbeat"> = (world, { lease_ms: leaseMs = 30_000, worker }) =>
  nothing(
    Stage.use((stage) => stage.seen({ worker, leaseMs, kinds: World.kindsOf(world), queues: World.queuesOf(world) }))
  )

const quarantineSweep: Operation<"quarantine_sweep"> = (_, { limit }) =>
  Effect.map(Duties.use((duties) => duties.quarantineSweep(limit)), ({ jobIds }) => ({ jobs: jobIds }))

const releaseFingerprint: Operation<"release_fingerprint"> = (_, { fingerprint, limit }) =>
  Effect.map(
    Quarantine.use((quarantine) => quarantine.release(fingerprint, { limit })),
    ({ released }) => ({ released })
  )

const explain: Operation<"explain"> = (_, { job }) =>
  Effect.map(Explain.use((explain) => explain.job(JobId.make(job))), ({ admissible, blockedBy, detail }) => ({
    admissible,
    blocked_by: blockedBy,
    policy: detail !== null && "class" in detail
      ? detail.class
      : detail !== null && "limit" in detail && typeof detail.limit === "string"
      ? detail.limit
      : null
  }))

export const policyOperations = {
  set_rate_class: setRateClass,
  set_limit: setLimit,
  set_queue: setQueue,
  set_partition: setPartition,
  pause,
  resume,
  heartbeat,
  quarantine_sweep: quarantineSweep,
  release_fingerprint: releaseFingerprint,
  explain
} satisfies { readonly [Name in OperationName]?: Operation<Name> }

const switchOf = ({ class: rateClass, kind, limit, partition, queue = "default" }: Switch) => {
  if (kind !== undefined) return { kind }
  if (rateClass !== undefined) return { rateClass }
  if (limit !== undefined) return { limit }
  return partition === undefined ? { queue } : { queue, partitionKey: partition }
}

const nothing = <E, R>(effect: Effect.Effect<unknown, E, R>): Effect.Effect<Answers, E, R> => Effect.as(effect, {})
