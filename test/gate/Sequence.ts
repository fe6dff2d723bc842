/**
 * A sequence of steps, such as `Draws` draws at random, played against the store and the model at once. `play` answers
 * everything that was wrong; a step that means nothing in the world it meets does nothing.
 */
import { Effect } from "effect"
import * as Fixture from "./Fixture.ts"
import * as Model from "./Model.ts"
import * as Turns from "./Turns.ts"
import { follow } from "./Verdict.ts"

export type Step =
  | ({ readonly step: "enqueue"; readonly times: number } & Omit<Fixture.NewJob, "id">)
  | { readonly step: "flood"; readonly queue: string; readonly partitions: number }
  | ({ readonly step: "admit" } & Pick<Model.Request, "worker" | "queues" | "capacity" | "quantum">)
  | { readonly step: "settle"; readonly nth: number; readonly end: Fixture.End; readonly delayMs: number }
  | { readonly step: "cancel"; readonly nth: number }
  | { readonly step: "reclaim" }
  | { readonly step: "advance"; readonly ms: number }
  | { readonly step: "class"; readonly name: string; readonly value: Model.RateClass }
  | { readonly step: "close"; readonly name: string; readonly ms: number }
  | { readonly step: "limit"; readonly name: string; readonly max: number; readonly isPaused: boolean }
  | { readonly step: "queue"; readonly name: string; readonly isPaused: boolean; readonly quantum: number | undefined }
  | {
    readonly step: "partition"
    readonly queue: string
    readonly name: string
    readonly isPaused: boolean
    readonly quantum: number | undefined
  }
  | { readonly step: "kind"; readonly name: string; readonly isPaused: boolean }

export interface Sequence {
  readonly strategies: Readonly<Record<string, Model.Strategy>>
  readonly steps: ReadonlyArray<Step>
}

/** Jobs of `fair` have partitions and nothing else; `plain` has not even those; `gated` has all there is. */
const KINDS = ["red", "blue", "even"]
const LEASE_MS = 5000
const START_MS = 1_000_000

export const subjects: Readonly<Record<string, Pick<Model.Limit, "scope" | "subject">>> = {
  "by-queue": { scope: "queue", subject: "gated" },
  "by-partition": { scope: "partition", subject: "gated" },
  "by-kind": { scope: "kind", subject: "blue" },
  "by-key": { scope: "key", subject: "" },
  "by-other": { scope: "key", subject: "" }
}

export const play = Effect.fnUntraced(function*({ steps, strategies }: Sequence) {
  const world = Model.empty(START_MS)
  yield* Fixture.clear
  yield* Fixture.setTime(START_MS)
  for (const [name, subject] of Object.entries(subjects)) {
    const limit = { ...subject, onSaturated: strategies[name] ?? "queue", max: 3, isPaused: false }
    world.limits.set(name, limit)
    yield* Fixture.setLimit(name, limit)
  }
  for (const name of ["calls", "tokens"]) {
    const rate = { limit: 3, windowMs: 1000, burst: 3, isPaused: false }
    world.classes.set(name, rate)
    yield* Fixture.setClass(name, rate)
  }
  for (const [index, step] of steps.entries()) {
    const told = yield* take(world, step, index)
    const faults = movesJobs.has(step.step) ? [...told, ...yield* differences(world)] : told
    if (faults.length > 0) return faults.map((fault) => `step ${index} (${step.step}): ${fault}`)
  }
  return []
})

const none: ReadonlyArray<string> = []
const movesJobs: ReadonlySet<Step["step"]> = new Set(["admit", "settle", "cancel", "reclaim", "advance"])

const take = Effect.fnUntraced(function*(world: Model.World, step: Step, index: number) {
  switch (step.step) {
    case "enqueue": {
      const { step: _, times, ...job } = step
      return yield* enqueue(world, Array.from({ length: times }, (_, n) => ({ ...job, id: `${index}-${n}` })))
    }
    case "flood": {
      const kind = step.queue === "fair" ? "even" : "red"
      const jobs = Array.from({ length: step.partitions }, (_, n) => ({
        id: `${index}-${n}`,
        queue: step.queue,
        kind,
        partition: `p${String(n).padStart(2, "0")}`
      }))
      return yield* enqueue(world, jobs)
    }
    case "admit":
      return yield* admit(world, { ...step, leaseMs: LEASE_MS, leaseId: crypto.randomUUID() })
    case "settle":
      return yield* settle(world, step)
    case "cancel": {
      const job = nth([...world.jobs.values()].filter(({ state }) => isUnfinished(state)), step.nth)
      if (job === undefined) return none
      Model.leave(job, "cancelled")
      yield* Fixture.run(`select * from headgate.cancel_job($1)`, [job.id])
      return none
    }
    case "reclaim":
      for (const job of world.jobs.values()) {
        if (job.state === "running" && job.leaseExpiresAt <= world.now) Model.crash(world, job)
      }
      yield* Fixture.run(`select * from headgate.reclaim_expired(1000)`)
      return none
    case "advance":
      world.now += step.ms
      for (const job of world.jobs.values()) {
        if (job.state === "retryable" && job.scheduledAt <= world.now) job.state = "available"
      }
      yield* Fixture.setTime(world.now)
      yield* Fixture.run(`select * from headgate.promote_due(1000)`)
      return none
    default:
      yield* edit(world, step)
      return none
  }
})

const edit = (
  world: Model.World,
  step: Extract<Step, { readonly step: "class" | "close" | "limit" | "queue" | "partition" | "kind" }>
) => {
  switch (step.step) {
    case "class":
      world.classes.set(step.name, step.value)
      return Fixture.setClass(step.name, step.value)
    case "close":
      for (const [name, bucket] of world.buckets) {
        if (name.startsWith(`${step.name}/`)) world.buckets.set(name, { ...bucket, closedUntil: world.now + step.ms })
      }
      return Fixture.run(`update headgate.bucket set closed_until_ms = $2::text::bigint where class = $1`, [
        step.name,
        String(world.now + step.ms)
      ])
    case "limit": {
      const limit = { ...world.limits.get(step.name)!, max: step.max, isPaused: step.isPaused }
      world.limits.set(step.name, limit)
      return Fixture.setLimit(step.name, limit)
    }
    case "queue":
      pause(world, `queue ${step.name}`, step.isPaused)
      setQuantum(world, step.name, step.quantum)
      return Fixture.setQueue(step.name, step.isPaused, step.quantum)
    case "partition": {
      const name = Model.partitionName(step.queue, step.name)
      pause(world, name, step.isPaused)
      setQuantum(world, name, step.quantum)
      return Fixture.setPartition(step.queue, step.name, step.isPaused, step.quantum)
    }
    case "kind":
      pause(world, `kind ${step.name}`, step.isPaused)
      return Fixture.setKind(step.name, step.isPaused)
  }
}

const pause = (world: Model.World, name: string, isPaused: boolean): void => {
  if (isPaused) world.paused.add(name)
  else world.paused.delete(name)
}

const setQuantum = (world: Model.World, name: string, quantum: number | undefined): void => {
  if (quantum === undefined) world.quanta.delete(name)
  else world.quanta.set(name, quantum)
}

const enqueue = Effect.fnUntraced(function*(world: Model.World, jobs: ReadonlyArray<Fixture.NewJob>) {
  for (const [n, job] of jobs.entries()) {
    world.jobs.set(job.id, {
      partition: "",
      priority: 0,
      charges: [],
      slots: [],
      pin: "",
      ...job,
      deadlineAt: job.deadlineAt === undefined ? undefined : world.now + job.deadlineAt,
      state: "available",
      scheduledAt: world.now + n,
      fence: 0,
      attempt: 0,
      crashAttempt: 0,
      worker: undefined,
      leaseId: undefined,
      leaseExpiresAt: 0,
      claimedAt: 0
    })
  }
  const stored = yield* Fixture.insert(
    jobs.map((job) => job.deadlineAt === undefined ? job : { ...job, deadlineAt: world.now + job.deadlineAt }),
    world.now
  )
  return stored.length === jobs.length ? none : [`stored ${stored.length} of ${jobs.length}`]
})

/** Asks again while the gate says that it would see more, as a worker does. */
const admit = Effect.fnUntraced(function*(world: Model.World, request: Model.Request) {
  let capacity = request.capacity
  for (let call = 1; call <= MOST_CALLS; call++) {
    const asked = { ...request, capacity }
    const expected = isFairAlone(world, asked) ? Turns.take(world, "fair", asked) : undefined
    const answers = yield* Fixture.admit(asked, KINDS)
    const claims = answers.filter(({ fence }) => fence !== null).map(({ id }) => id!)
    const faults = follow(world, asked, answers)
    if (asked.queues.includes("fair")) faults.push(...yield* unlike(world, expected, claims))
    capacity -= claims.length
    if (faults.length > 0 || capacity <= 0 || claims.length + answers.length === 2 * claims.length) return faults
    if (!answers.some(({ id }) => id === null)) return faults
  }
  return [`answered "more" ${MOST_CALLS} times`]
})

const MOST_CALLS = 8

const isFairAlone = (world: Model.World, { queues }: Model.Request): boolean =>
  queues.join() === "fair" && !world.paused.has("queue fair") &&
  ![...world.jobs.values()].some(({ crashAttempt, queue }) => queue === "fair" && crashAttempt > 0)

const unlike = Effect.fnUntraced(function*(
  world: Model.World,
  expected: ReturnType<typeof Turns.take>,
  claims: ReadonlyArray<string>
) {
  const { turns } = yield* Fixture.state()
  const turn = turns.find(({ queue }) => queue === "fair")
  if (turn !== undefined) world.turns.set("fair", { partition: turn.partition, remaining: turn.remaining })
  if (expected === undefined) return none
  const [wanted, given] = [[...expected.ids].sort().join(" "), [...claims].sort().join(" ")]
  if (wanted !== given) return [`gave "${given}", and it was the turn of "${wanted}"`]
  const stands = world.turns.get("fair")
  return expected.turn === undefined || JSON.stringify(expected.turn) === JSON.stringify(stands)
    ? none
    : [`the turn is ${JSON.stringify(stands)}, not ${JSON.stringify(expected.turn)}`]
})

const settle = Effect.fnUntraced(function*(world: Model.World, step: Extract<Step, { readonly step: "settle" }>) {
  const job = nth([...world.jobs.values()].filter(({ state }) => state === "running"), step.nth)
  if (job === undefined) return none
  const { fence, id, leaseId } = job
  switch (step.end) {
    case "success":
      world.jobs.delete(id)
      break
    case "retry":
      Model.retry(world, job, step.delayMs)
      break
    case "crashed":
      Model.crash(world, job)
      break
    case "released":
      Model.release(world, job)
  }
  yield* Fixture.settle({ id, leaseId, fence }, step.end, step.delayMs)
  return none
})

const nth = <A>(list: ReadonlyArray<A>, n: number): A | undefined =>
  list.length === 0 ? undefined : list[n % list.length]

const isUnfinished = (state: Model.Job["state"]): boolean => ["available", "running", "retryable"].includes(state)

/** Where rows and model have come apart: states, counters, places in the queue, and units to the last one. */
const differences = Effect.fnUntraced(function*(world: Model.World) {
  const { buckets, jobs } = yield* Fixture.state()
  const rows = new Map<string, string>([
    ...jobs.map((job): [string, string] => [`job ${job.id}`, facts(job)]),
    ...buckets.map((bucket): [string, string] => [
      `bucket ${Model.bucketName(bucket.policy, bucket.key)}`,
      `${bucket.units} units at ${bucket.atMs}`
    ])
  ])
  const expected = new Map<string, string>([
    ...[...world.jobs.values()].map((job): [string, string] => [`job ${job.id}`, facts(job)]),
    ...[...world.buckets].map((
      [name, { atMs, units }]
    ): [string, string] => [`bucket ${name}`, `${units} units at ${atMs}`])
  ])
  return [...new Set([...rows.keys(), ...expected.keys()])]
    .filter((name) => rows.get(name) !== expected.get(name))
    .map((name) => `${name} is ${rows.get(name)}, not ${expected.get(name)}`)
})

const facts = ({ attempt, crashAttempt, fence, scheduledAt, state }: Pick<
  Model.Job,
  "attempt" | "crashAttempt" | "fence" | "scheduledAt" | "state"
>): string => `${state} at ${scheduledAt}, fence ${fence}, ${attempt} failures, ${crashAttempt} crashes`
