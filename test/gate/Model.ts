/**
 * The gate without a store: plain data, and what one call of it may do to that data. It does not choose jobs. It is told
 * which ones the real gate chose, says what is wrong with the choice, and follows it. Only the order in which partitions
 * take turns is a choice of its own (`Turns`), for queues that have no other policy.
 */
export interface Charge {
  readonly policy: string
  readonly key: string
  readonly weight: number
}

export interface Slot {
  readonly policy: string
  readonly key: string
}

export interface Job {
  readonly id: string
  readonly queue: string
  readonly kind: string
  readonly partition: string
  readonly priority: number
  /** By class, then key. */
  readonly charges: ReadonlyArray<Charge>
  /** The keyed limits it names, by limit. */
  readonly slots: ReadonlyArray<Slot>
  readonly pin: string
  readonly deadlineAt: number | undefined
  state: "available" | "scheduled" | "running" | "retryable" | "archived" | "cancelled" | "quarantined"
  scheduledAt: number
  fence: number
  attempt: number
  crashAttempt: number
  worker: string | undefined
  leaseId: string | undefined
  leaseExpiresAt: number
  claimedAt: number
}

export interface RateClass {
  limit: number
  windowMs: number
  burst: number
  isPaused: boolean
}

export type Strategy = "queue" | "discard" | "cancel_incoming" | "cancel_running"

export interface Limit {
  readonly scope: "queue" | "partition" | "kind" | "key"
  readonly subject: string
  readonly onSaturated: Strategy
  max: number
  isPaused: boolean
}

export interface Bucket {
  readonly units: number
  readonly atMs: number
  readonly closedUntil: number
}

export interface World {
  now: number
  readonly jobs: Map<string, Job>
  readonly classes: Map<string, RateClass>
  readonly limits: Map<string, Limit>
  /** By class and key (`bucketName`). */
  readonly buckets: Map<string, Bucket>
  /** Of queues, kinds, and partitions of the gated queue, as `kind name`. */
  readonly paused: Set<string>
  /** Of queues and of partitions (`partitionName`). */
  readonly quanta: Map<string, number>
  readonly turns: Map<string, { readonly partition: string; readonly remaining: number }>
}

export const empty = (now: number): World => ({
  now,
  jobs: new Map(),
  classes: new Map(),
  limits: new Map(),
  buckets: new Map(),
  paused: new Set(),
  quanta: new Map(),
  turns: new Map()
})

export interface Request {
  readonly worker: string
  readonly leaseId: string
  readonly leaseMs: number
  readonly queues: ReadonlyArray<string>
  readonly capacity: number
  readonly quantum: number | undefined
}

/** A row of the gate's answer. */
export interface Answer {
  readonly id: string | null
  readonly fence: number | null
  readonly reason: string | null
}

export const bucketName = (policy: string, key: string): string => `${policy}/${key}`
export const partitionName = (queue: string, partition: string): string => `partition ${queue}/${partition}`
export const groupOf = ({ charges, crashAttempt, kind, partition, pin, queue, slots }: Job): string =>
  JSON.stringify([queue, kind, partition, pin, crashAttempt > 0, charges.map((c) => [c.policy, c.key]), slots])

export const byOrder = (a: Job, b: Job): number =>
  b.priority - a.priority || a.scheduledAt - b.scheduledAt || (a.id < b.id ? -1 : 1)

/** A unit is 1 / windowMs of a token. */
export const unitsOf = (world: World, policy: string, key: string): number => {
  const rate = world.classes.get(policy)
  if (rate === undefined) return Infinity
  const full = rate.burst * rate.windowMs
  const bucket = world.buckets.get(bucketName(policy, key))
  if (bucket === undefined) return full
  if (bucket.closedUntil > world.now) return Math.min(0, bucket.units)
  return storedUnits(world, rate, bucket)
}

const storedUnits = (world: World, rate: RateClass, { atMs, units }: Bucket): number =>
  Math.min(rate.burst * rate.windowMs, units + Math.max(world.now - atMs, 0) * rate.limit)

/** Every slot the job counts in: of its keyed limits, its queue, its partition and its kind. */
export const slotsOf = (world: World, job: Job): ReadonlyArray<Slot> =>
  [...world.limits].flatMap(([policy, limit]): ReadonlyArray<Slot> => {
    switch (limit.scope) {
      case "queue":
        return limit.subject === job.queue ? [{ policy, key: "" }] : []
      case "partition":
        return limit.subject === job.queue ? [{ policy, key: job.partition }] : []
      case "kind":
        return limit.subject === job.kind ? [{ policy, key: "" }] : []
      case "key":
        return job.slots.filter((slot) => slot.policy === policy)
    }
  })

export const holdersOf = (world: World, slot: Slot): ReadonlyArray<Job> =>
  [...world.jobs.values()].filter((job) =>
    job.state === "running" && slotsOf(world, job).some(({ key, policy }) => policy === slot.policy && key === slot.key)
  )

/** Whether the switches let this worker have it. */
export const isOpen = (world: World, request: Request, job: Job): boolean =>
  request.queues.includes(job.queue) && (job.pin === "" || job.pin === request.worker) &&
  !world.paused.has(`queue ${job.queue}`) && !world.paused.has(`kind ${job.kind}`) &&
  !world.paused.has(partitionName(job.queue, job.partition)) &&
  !job.charges.some(({ policy }) => world.classes.get(policy)?.isPaused) &&
  !slotsOf(world, job).some(({ policy }) => world.limits.get(policy)!.isPaused)

export const isLate = (world: World, job: Job): boolean => job.deadlineAt !== undefined && job.deadlineAt <= world.now

/** What a job needs of a bucket before it starts: a weight beyond the burst waits for a full one. */
export const needOf = (world: World, { policy, weight }: Charge): number => {
  const rate = world.classes.get(policy)
  return rate === undefined ? 0 : Math.min(weight, rate.burst) * rate.windowMs
}

export const charge = (world: World, { charges }: Job): void => {
  for (const { key, policy, weight } of charges) {
    const rate = world.classes.get(policy)
    if (rate === undefined) continue
    const bucket = world.buckets.get(bucketName(policy, key))
    const units = bucket === undefined ? rate.burst * rate.windowMs : storedUnits(world, rate, bucket)
    world.buckets.set(bucketName(policy, key), {
      units: units - weight * rate.windowMs,
      atMs: world.now,
      closedUntil: bucket?.closedUntil ?? 0
    })
  }
}

export const start = (world: World, { leaseId, leaseMs, worker }: Request, job: Job): void => {
  job.state = "running"
  job.fence++
  job.worker = worker
  job.leaseId = leaseId
  job.leaseExpiresAt = world.now + leaseMs
  job.claimedAt = world.now
}

export const leave = (job: Job, state: Job["state"]): void => {
  job.state = state
  job.worker = undefined
  job.leaseId = undefined
}

/** One crash more: behind the work that waits, and suspect from now on. */
export const crash = (world: World, job: Job): void => {
  job.crashAttempt++
  const dueAt = world.now + (job.crashAttempt === 1 ? 1000 : 5000)
  if (job.crashAttempt >= CRASH_LIMIT) leave(job, "quarantined")
  else waitUntil(world, job, dueAt, "retryable")
}

export const retry = (world: World, job: Job, delayMs: number): void => {
  job.attempt++
  if (job.attempt >= MAX_ATTEMPTS) leave(job, "archived")
  else waitUntil(world, job, world.now + delayMs, "retryable")
}

export const release = (world: World, job: Job): void => waitUntil(world, job, job.scheduledAt, "available")

/** What would fall due at its deadline or later is not due again. */
const waitUntil = (world: World, job: Job, dueAt: number, state: "retryable" | "available"): void => {
  if (job.deadlineAt !== undefined && job.deadlineAt <= Math.max(dueAt, world.now)) return leave(job, "archived")
  job.scheduledAt = dueAt
  leave(job, state)
}

export const CRASH_LIMIT = 3
export const MAX_ATTEMPTS = 3
