/** What a scenario has learned so far: when it began, what it enqueued, and the claims it has given names to. */
import type { Claim } from "@headgate/core/Claim"
import { listOf, type NewJob, type Scenario } from "./Scenario.ts"

export interface Held {
  readonly claim: Claim
  /** Of the task, as the worker that claimed the job knows it. */
  readonly version: number
  /** Position of the next step record. */
  position: number
  hasWritten: boolean
}

export interface World {
  readonly startMs: number
  /** Every job the scenario ever enqueues; of many copies the first and the last. */
  readonly jobs: ReadonlyArray<NewJob>
  readonly claims: Map<string, Held>
  /** What the latest admit claimed. */
  admitted: ReadonlyArray<Pick<Held, "claim" | "version">>
}

export const make = (scenario: Scenario, startMs: number): World => {
  const steps = [...scenario.given ?? [], ...scenario.when]
  const jobs = steps.flatMap(({ enqueue }) => enqueue === undefined ? [] : listOf(enqueue))
    .flatMap((job) =>
      job.many === undefined ? [job] : copiesOf(job).filter((_, at, all) => at === 0 || at === all.length - 1)
    )
  return { startMs, jobs, claims: new Map(), admitted: [] }
}

/** The jobs that one entry of a scenario stands for. */
export const copiesOf = ({ many, ...job }: NewJob): ReadonlyArray<NewJob> =>
  many === undefined
    ? [job]
    : Array.from(
      { length: many },
      (_, at) => ({ ...job, id: job.id + String(at + 1).padStart(String(many).length, "0") })
    )

/** What a worker of the scenario knows unless it says otherwise: every kind at the highest version enqueued. */
export const kindsOf = ({ jobs }: World): Readonly<Record<string, number>> => {
  const versions: Record<string, number> = {}
  for (const { kind, version = 1 } of jobs) versions[kind] = Math.max(version, versions[kind] ?? 1)
  return versions
}

/** Every queue of the scenario. */
export const queuesOf = ({ jobs }: World): ReadonlyArray<string> => [
  ...new Set(jobs.map(({ queue = "default" }) => queue))
]

/** The claim behind `$name`. */
export const held = (world: World, reference: string): Held => {
  const found = world.claims.get(reference.slice(1))
  if (found === undefined) throw new Error(`no claim has the name ${reference}`)
  return found
}

/** Gives the latest claims their names; false when there are not exactly so many. */
export const nameClaims = (world: World, names: ReadonlyArray<string>): boolean => {
  if (names.length !== world.admitted.length) return false
  world.admitted.forEach(({ claim, version }, index) => {
    const last = claim.checkpoint?.records.at(-1)
    const position = last === undefined ? 0 : last.position + 1
    world.claims.set(names[index] ?? "", { claim, version, position, hasWritten: false })
  })
  return true
}

export const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text)

export const textOf = (bytes: Uint8Array): string => new TextDecoder().decode(bytes)
