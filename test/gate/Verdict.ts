/** What was wrong with an answer of the gate; the model then follows the answer. */
import {
  type Answer,
  bucketName,
  byOrder,
  charge,
  groupOf,
  holdersOf,
  isLate,
  isOpen,
  type Job,
  leave,
  needOf,
  type Request,
  type Slot,
  slotsOf,
  start,
  unitsOf,
  type World
} from "./Model.ts"

/** Judges the answer against the world before it, and makes it the world after it. */
export const follow = (world: World, request: Request, answers: ReadonlyArray<Answer>): Array<string> => {
  const claims = answers.filter(({ fence }) => fence !== null).map(({ id }) => id!)
  const ended = answers.flatMap(({ fence, id, reason }) =>
    fence === null && id !== null ? [{ id, reason: reason! }] : []
  )
  const unknown = [...claims, ...ended.map(({ id }) => id)].filter((id) => !world.jobs.has(id))
  if (unknown.length > 0) return [`answered ${unknown.join()}, which are no jobs`]
  const jobs = claims.map((id) => world.jobs.get(id)!)
  const faults = [
    ...claims.length > request.capacity ? [`gave ${claims.length} of ${request.capacity}`] : [],
    ...new Set(answers.map(({ id }) => id)).size < answers.length ? ["answered a job twice"] : [],
    ...jobs.flatMap((job) => illegal(world, request, job)),
    ...overdrawn(world, jobs),
    ...ended.flatMap((end) => wronglyEnded(world, request, world.jobs.get(end.id)!, end.reason))
  ]
  const suspect = [...world.jobs.values()].sort(byOrder).find((job) =>
    job.state === "available" && job.crashAttempt > 0 && isOpen(world, request, job)
  )
  const fromBefore = new Map(slotsNamed(world, jobs).map((slot) => [nameOf(slot), holdersOf(world, slot)]))
  for (const { id, reason } of ended) leave(world.jobs.get(id)!, endStates[reason] ?? "archived")
  for (const job of jobs) {
    charge(world, job)
    start(world, request, job)
  }
  const superseded = new Set(ended.filter(({ reason }) => reason === "superseded").map(({ id }) => id))
  return [
    ...faults,
    ...overtaken(world, jobs),
    ...slotsNamed(world, jobs).flatMap((slot) => overfull(world, slot)),
    ...slotsNamed(world, jobs).flatMap((slot) => notOldest(fromBefore.get(nameOf(slot)) ?? [], superseded)),
    ...suspectsOf(world, request) > 1 ? ["two suspects in one worker"] : [],
    ...answers.some(({ id }) => id === null) || claims.length >= request.capacity ? [] : idle(world, request, suspect)
  ]
}

const endStates: Readonly<Record<string, Job["state"]>> = {
  cancelled_incoming: "cancelled",
  superseded: "cancelled"
}

const illegal = (world: World, request: Request, job: Job): ReadonlyArray<string> => [
  ...job.state === "available" ? [] : [`${job.id} was ${job.state}`],
  ...isOpen(world, request, job) ? [] : [`${job.id} is paused, pinned or was not asked for`],
  ...isLate(world, job) ? [`${job.id} is past its deadline`] : []
]

/** What all claims of a call need of one bucket is never more than what it held. */
const overdrawn = (world: World, jobs: ReadonlyArray<Job>): ReadonlyArray<string> => {
  const needs = new Map<string, { readonly policy: string; readonly key: string; need: number }>()
  for (const one of jobs.flatMap(({ charges }) => charges)) {
    const name = bucketName(one.policy, one.key)
    const sum = needs.get(name) ?? { policy: one.policy, key: one.key, need: 0 }
    sum.need += needOf(world, one)
    needs.set(name, sum)
  }
  return [...needs].flatMap(([name, { key, need, policy }]) =>
    need > unitsOf(world, policy, key) ? [`${name} gave ${need} of ${unitsOf(world, policy, key)} units`] : []
  )
}

const wronglyEnded = (world: World, request: Request, job: Job, reason: string): ReadonlyArray<string> => {
  const isAsExpected = (): boolean => {
    switch (reason) {
      case "deadline":
        return job.state === "available" && isLate(world, job)
      case "discarded":
      case "cancelled_incoming":
        return job.state === "available" && slotsOf(world, job).some((slot) => {
          const limit = world.limits.get(slot.policy)!
          return limit.onSaturated === (reason === "discarded" ? "discard" : "cancel_incoming") &&
            holdersOf(world, slot).length + request.capacity > limit.max
        })
      case "superseded":
        return job.state === "running" &&
          slotsOf(world, job).some(({ policy }) => world.limits.get(policy)!.onSaturated === "cancel_running")
      default:
        return false
    }
  }
  return isAsExpected() ? [] : [`${job.id}, ${job.state}, was ended as ${reason}`]
}

/** Within one group the order of the queue holds: nobody who waits on was ahead of one that was claimed. */
const overtaken = (world: World, jobs: ReadonlyArray<Job>): ReadonlyArray<string> =>
  jobs.flatMap((job) =>
    [...world.jobs.values()]
      .filter((other) => other.state === "available" && groupOf(other) === groupOf(job) && byOrder(other, job) < 0)
      .map((other) => `${job.id} went ahead of ${other.id}`)
  )

const slotsNamed = (world: World, jobs: ReadonlyArray<Job>): ReadonlyArray<Slot> => [
  ...new Map(jobs.flatMap((job) => slotsOf(world, job)).map((slot) => [nameOf(slot), slot])).values()
]

const nameOf = ({ key, policy }: Slot): string => `${policy}/${key}`

const overfull = (world: World, slot: Slot): ReadonlyArray<string> => {
  const { max } = world.limits.get(slot.policy)!
  const held = holdersOf(world, slot).length
  return held > max ? [`${nameOf(slot)} holds ${held} of ${max}`] : []
}

const notOldest = (before: ReadonlyArray<Job>, superseded: ReadonlySet<string>): ReadonlyArray<string> => {
  const age = (a: Job, b: Job) => a.claimedAt - b.claimedAt || (a.id < b.id ? -1 : 1)
  const kept = before.filter(({ id, state }) => state === "running" && !superseded.has(id)).sort(age)[0]
  const gone = before.filter(({ id }) => superseded.has(id)).sort(age).at(-1)
  return kept !== undefined && gone !== undefined && age(kept, gone) < 0
    ? [`${gone.id} made room, and ${kept.id} is older`]
    : []
}

const suspectsOf = (world: World, { worker }: Request): number =>
  [...world.jobs.values()].filter((job) => job.state === "running" && job.worker === worker && job.crashAttempt > 0)
    .length

/**
 * Jobs that could start and were left, though there was capacity. The head of a group that waits for tokens holds back
 * who comes after it in the same bucket: light jobs do not keep a heavy one waiting for ever. Of suspects only the first
 * in the queue is meant.
 */
const idle = (world: World, request: Request, suspect: Job | undefined): ReadonlyArray<string> => {
  const heads = new Map<string, Job>()
  for (const job of [...world.jobs.values()].sort(byOrder)) {
    if (job.state !== "available" || !isOpen(world, request, job) || heads.has(groupOf(job))) continue
    heads.set(groupOf(job), job)
  }
  const isShort = (job: Job) => job.charges.filter((one) => unitsOf(world, one.policy, one.key) < needOf(world, one))
  const kept = new Set(
    [...heads.values()].flatMap(isShort).filter(({ key, policy }) =>
      unitsOf(world, policy, key) >= (world.classes.get(policy)?.windowMs ?? 0)
    ).map(({ key, policy }) => bucketName(policy, key))
  )
  return [...heads.values()].filter((job) =>
    isShort(job).length === 0 && !job.charges.some(({ key, policy }) => kept.has(bucketName(policy, key))) &&
    slotsOf(world, job).every((slot) => roomOf(world, slot) > 0) &&
    (job.crashAttempt === 0 || job === suspect && suspectsOf(world, request) === 0)
  ).map(({ id }) => `${id} was left waiting`)
}

/** Newest wins: those of earlier calls make room, those claimed in this very millisecond do not. */
const roomOf = (world: World, slot: Slot): number => {
  const { max, onSaturated } = world.limits.get(slot.policy)!
  const holders = holdersOf(world, slot)
  return max -
    (onSaturated === "cancel_running"
      ? holders.filter(({ claimedAt }) => claimedAt === world.now).length
      : holders.length)
}
