/** Each operation of the corpus as a call of the store's contracts: accepted with what it answers, or refused. */
import { Checkpoints } from "@headgate/core/Checkpoints"
import { Control } from "@headgate/core/Control"
import { Duties } from "@headgate/core/Duties"
import { Envelope } from "@headgate/core/Envelope"
import { Gate } from "@headgate/core/Gate"
import { JobId, LeaseId, WorkerId } from "@headgate/core/Ids"
import { Leases } from "@headgate/core/Leases"
import { Producer } from "@headgate/core/Producer"
import { LeaseRejected } from "@headgate/core/Refusals"
import {
  UNIQUE_REPLACE_MAX_ATTEMPTS,
  UNIQUE_REPLACE_PAYLOAD,
  UNIQUE_REPLACE_PRIORITY,
  UNIQUE_REPLACE_SCHEDULED_AT
} from "@headgate/core/UniqueKey"
import { Clock, Effect } from "effect"
import { outcomeOf } from "./Outcomes.ts"
import { policyOperations } from "./PolicyOperations.ts"
import { type Answers, type Arguments, listOf, type NewJob, type OperationName } from "./Scenario.ts"
import { Stage, type StoreUnderTest } from "./Stage.ts"
import * as World from "./World.ts"

/** A refusal as a store gives it. Any error with another name than the step expects makes the scenario fail. */
export interface Refusal {
  readonly _tag: string
}

export type Operation<Name extends OperationName> = (
  world: World.World,
  given: Arguments[Name]
) => Effect.Effect<Answers, Refusal, StoreUnderTest>

const advance: Operation<"advance_ms"> = (_, ms) => nothing(Stage.use((stage) => stage.advance(ms)))

const enqueue: Operation<"enqueue"> = Effect.fnUntraced(function*(world, given) {
  const jobs = yield* Producer.use((producer) =>
    producer.enqueue(
      listOf(given).flatMap((job) => World.copiesOf(job).map((copy) => envelopeOf(world, copy)))
    )
  )
  const [only] = jobs
  return only !== undefined && jobs.length === 1 ? { status: only.status } : {}
})

const admit: Operation<"admit"> = Effect.fnUntraced(function*(world, given) {
  const { capacity = 1, kinds = World.kindsOf(world), lease_ms = LEASE_MS, quantum, queues = ["default"], worker } =
    given
  const gate = yield* Gate
  const request = {
    worker: WorkerId.make(worker),
    queues,
    kinds: Object.entries(kinds).map(([kind, version]) => ({ kind, version })),
    leaseMs: lease_ms,
    quantum
  }
  world.admitted = []
  const ended: Record<string, string> = {}
  for (let more = true; more && world.admitted.length < capacity;) {
    const leaseId = LeaseId.make(crypto.randomUUID())
    const admission = yield* gate.admit({ ...request, leaseId, capacity: capacity - world.admitted.length })
    const claimed = admission.claims.map((claim) => ({ claim, version: kinds[claim.kind] ?? claim.schemaVersion }))
    world.admitted = [...world.admitted, ...claimed]
    for (const { jobId, reason } of admission.ended) ended[jobId] = reason
    more = admission.more
  }
  return {
    jobs: world.admitted.map(({ claim }) => claim.lease.jobId),
    count: world.admitted.length,
    partitions: countsOf(world.admitted.map(({ claim }) => claim.partitionKey)),
    queues: countsOf(world.admitted.map(({ claim }) => claim.queue)),
    ended
  }
}, (effect, _world, { clock_ahead_ms: ahead = 0 }) => Effect.updateService(effect, Clock.Clock, shifted(ahead)))

const settle: Operation<"settle"> = Effect.fnUntraced(function*(world, given) {
  const batch = listOf(given).map((item) => ({
    lease: World.held(world, item.claim).claim.lease,
    outcome: outcomeOf(item),
    charges: item.charges
  }))
  const settled = yield* Leases.use((leases) => leases.settle(batch))
  const [only] = settled
  if (only === undefined || Array.isArray(given)) {
    return { rejected: settled.filter(({ _tag }) => _tag === "Rejected").map(({ jobId }) => jobId) }
  }
  const { jobId, state } = only
  return only._tag === "Applied" ? { state } : yield* new LeaseRejected({ jobId, state })
})

const abandon: Operation<"abandon"> = (world, { claim }) =>
  nothing(Gate.use((gate) => gate.abandon(World.held(world, claim).claim.lease.leaseId)))

const renew: Operation<"renew"> = Effect.fnUntraced(function*(world, { claims, lease_ms = LEASE_MS }) {
  const refs = claims.map((name) => World.held(world, name).claim.lease)
  const { lost } = yield* Leases.use((leases) => leases.renew(refs, lease_ms))
  return { lost: lost.map(({ jobId }) => jobId) }
})

const checkpoint: Operation<"checkpoint"> = Effect.fnUntraced(function*(world, given) {
  const holder = World.held(world, given.claim)
  const { claim: { lease }, hasWritten, version } = holder
  const [isAccepted] = yield* Checkpoints.use((checkpoints) =>
    checkpoints.write([{
      lease,
      leaseMs: given.lease_ms ?? LEASE_MS,
      record: given.record && {
        step: given.record.step,
        kind: "step",
        position: holder.position,
        result: given.record.result === undefined ? undefined : World.bytesOf(given.record.result),
        wakeAtMs: undefined
      },
      mark: given.mark,
      cursor: given.cursor && { step: given.cursor.step, bytes: World.bytesOf(given.cursor.bytes) },
      open: hasWritten ? undefined : { stepSet: undefined, version }
    }])
  )
  if (isAccepted !== true) return yield* new LeaseRejected({ jobId: lease.jobId, state: "unknown" })
  holder.hasWritten = true
  if (given.record !== undefined) holder.position++
  return {}
})

const promoteDue: Operation<"promote_due"> = (_, { limit }) => nothing(Duties.use((duties) => duties.promoteDue(limit)))

const reclaim: Operation<"reclaim"> = (_, { limit }) =>
  Effect.map(Duties.use((duties) => duties.reclaimExpired(limit)), (jobs) => ({ jobs: jobs.map(({ jobId }) => jobId) }))

const expire: Operation<"expire"> = (_, { limit }) =>
  Effect.map(Duties.use((duties) => duties.expireDue(limit)), (jobs) => ({ jobs }))

const evict: Operation<"evict"> = (_, { limit }) => nothing(Duties.use((duties) => duties.evictRetained(limit)))

const promote: Operation<"promote"> = (_, { job }) =>
  nothing(Control.use((control) => control.promote(JobId.make(job))))

const cancel: Operation<"cancel"> = (_, { job }) =>
  Effect.map(Control.use((control) => control.cancel(JobId.make(job))), (answer) => ({ cancel: answer }))

const retry: Operation<"retry"> = ({ startMs }, { deadline_at_ms: at, job }) =>
  nothing(
    Control.use((control) =>
      control.retry(JobId.make(job), { deadlineAtMs: at === undefined || at === null ? at : startMs + at })
    )
  )

const release: Operation<"release"> = (_, { job }) =>
  nothing(Control.use((control) => control.release(JobId.make(job))))

const remove: Operation<"delete"> = (_, { job }) => nothing(Control.use((control) => control.remove(JobId.make(job))))

const reschedule: Operation<"reschedule"> = ({ startMs }, { at_ms: at, job }) =>
  nothing(
    Control.use((control) =>
      control.reschedule(JobId.make(job), at === undefined ? { behind: true } : { atMs: startMs + at })
    )
  )

const edit: Operation<"edit"> = ({ jobs }, { job, payload }) => {
  const schemaVersion = jobs.find(({ id }) => id === job)?.version ?? 1
  const bytes = World.bytesOf(payload)
  return nothing(Control.use((control) => control.edit(JobId.make(job), { bytes, schemaVersion })))
}

export const operations: { readonly [Name in OperationName]: Operation<Name> } = {
  advance_ms: advance,
  enqueue,
  admit,
  settle,
  abandon,
  renew,
  checkpoint,
  promote_due: promoteDue,
  reclaim,
  expire,
  evict,
  promote,
  cancel,
  retry,
  release,
  delete: remove,
  reschedule,
  edit,
  ...policyOperations
}

const LEASE_MS = 30_000

const REPLACE = {
  payload: UNIQUE_REPLACE_PAYLOAD,
  scheduled_at: UNIQUE_REPLACE_SCHEDULED_AT,
  priority: UNIQUE_REPLACE_PRIORITY,
  max_attempts: UNIQUE_REPLACE_MAX_ATTEMPTS
} as const

/** The clock of a worker whose machine shows another time. */
const shifted = (byMs: number) => (clock: Clock.Clock): Clock.Clock => ({
  ...clock,
  sleep: clock.sleep.bind(clock),
  currentTimeMillisUnsafe: () => clock.currentTimeMillisUnsafe() + byMs,
  currentTimeMillis: Effect.map(clock.currentTimeMillis, (ms) => ms + byMs),
  currentTimeNanosUnsafe: () => clock.currentTimeNanosUnsafe() + BigInt(byMs) * 1_000_000n,
  currentTimeNanos: Effect.map(clock.currentTimeNanos, (nanos) => nanos + BigInt(byMs) * 1_000_000n),
  monotonicTimeNanosUnsafe: () => clock.monotonicTimeNanosUnsafe(),
  monotonicTimeNanos: clock.monotonicTimeNanos
})

const countsOf = (names: ReadonlyArray<string>): Readonly<Record<string, number>> => {
  const counts: Record<string, number> = {}
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

const nothing = <E, R>(effect: Effect.Effect<unknown, E, R>): Effect.Effect<Answers, E, R> => Effect.as(effect, {})

const envelopeOf = ({ startMs }: World.World, job: NewJob): Envelope => {
  const at = (ms: number | undefined) => ms === undefined ? undefined : startMs + ms
  return Envelope.make({
    id: job.id,
    kind: job.kind,
    schemaVersion: job.version,
    payload: World.bytesOf(job.payload ?? ""),
    queue: job.queue,
    partitionKey: job.partition,
    fingerprint: job.fingerprint,
    rates: job.rates?.map(({ key = "", weight = 1, ...rate }) => ({ ...rate, key, weight })),
    limits: job.limits,
    stickyWorker: job.sticky_worker,
    stickyFallbackMs: job.sticky_fallback_ms,
    priority: job.priority,
    pending: job.pending,
    scheduledAtMs: at(job.scheduled_at_ms),
    deadlineAtMs: at(job.deadline_at_ms),
    queueTimeoutMs: job.queue_timeout_ms,
    maxAttempts: job.max_attempts ?? 3,
    crashLimit: job.crash_limit ?? 3,
    retentionMs: job.retention_ms ?? 3_600_000,
    uniqueKey: job.unique && World.bytesOf(job.unique.key),
    uniqueReplace: job.unique?.replace?.reduce((bits, field) => bits | REPLACE[field], 0),
    uniqueDebounceMs: job.unique?.debounce_ms,
    uniqueExcludeKind: job.unique?.exclude_kind
  })
}
