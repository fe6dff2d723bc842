/**
 * Whose turn it is in a queue without other policies: deficit round-robin over its partitions (Shreedhar and Varghese
 * 1995), one job after another. A turn that the capacity cut short goes on with the next call; that of a partition which
 * has run empty is over.
 */
import { byOrder, type Job, partitionName, type Request, type World } from "./Model.ts"

export interface Turn {
  readonly partition: string
  readonly remaining: number
}

/**
 * The ids that one call takes, and the turn afterwards where the capacity ended it. Undefined where that is not promised to
 * the last job: quanta are automatic, or what is left of a turn is more than its quantum, which was lowered since.
 */
export const take = (world: World, queue: string, { capacity, quantum: asked }: Request) => {
  const ready = readyOf(world, queue)
  const base = asked ?? world.quanta.get(queue)
  if (base === undefined) return undefined
  let { partition, remaining } = world.turns.get(queue) ?? { partition: "", remaining: 0 }
  if (remaining > (world.quanta.get(partitionName(queue, partition)) ?? base)) return undefined
  const ids: Array<string> = []
  while (ids.length < capacity && ready.size > 0) {
    const next = remaining > 0 && ready.has(partition) ? partition : after(partition, [...ready.keys()])
    const quantum = world.quanta.get(partitionName(queue, next)) ?? base
    let allowed = next === partition && remaining > 0 ? remaining : quantum
    const jobs = ready.get(next)!
    for (; allowed > 0 && jobs.length > 0 && ids.length < capacity; allowed--) ids.push(jobs.shift()!.id)
    if (jobs.length === 0) ready.delete(next)
    partition = next
    remaining = ids.length < capacity ? 0 : allowed
  }
  const turn: Turn | undefined = ids.length < capacity ? undefined : { partition, remaining }
  return { ids, turn }
}

const readyOf = (world: World, queue: string): Map<string, Array<Job>> => {
  const ready = new Map<string, Array<Job>>()
  for (const job of [...world.jobs.values()].sort(byOrder)) {
    if (job.queue !== queue || job.state !== "available") continue
    ready.set(job.partition, [...ready.get(job.partition) ?? [], job])
  }
  return ready
}

/** In the order of their keys, round and round. */
const after = (partition: string, ready: ReadonlyArray<string>): string => {
  const sorted = [...ready].sort()
  return sorted.find((one) => one > partition) ?? sorted[0]!
}
