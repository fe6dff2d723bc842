/** What is measured: each workload over the settings that take part in it, with its sizes, full or quick. */
import type { Child } from "./Children.ts"
import type { Measurement, Subject } from "./Measurement.ts"
import type { Options } from "./Options.ts"
import type { Database, Ground } from "./Server.ts"
import type { Setting, System, WorkloadName } from "./System.ts"
import { drain, type DrainOptions } from "./workloads/Drain.ts"
import { enqueue } from "./workloads/Enqueue.ts"
import { latency } from "./workloads/Latency.ts"
import { memory } from "./workloads/Memory.ts"
import { snapshot } from "./workloads/Snapshot.ts"
import { steps } from "./workloads/Steps.ts"

export interface Measure {
  readonly subject: Subject
  readonly system: System
  readonly ground?: Ground
  /** Given up then. Default two minutes. */
  readonly timeoutMs?: number
  /** Of so long a measurement fewer rounds are made. */
  readonly maxRounds?: number
  readonly run: (database: Database, children: Array<Child>, round: number) => Promise<ReadonlyArray<Measurement>>
}

export const planOf = (systems: ReadonlyArray<System>, options: Options): ReadonlyArray<Measure> =>
  options.workloads.flatMap((workload) => systems.flatMap((system) => measuresOf(workload, system, options)))

const measuresOf = (workload: WorkloadName, system: System, options: Options): ReadonlyArray<Measure> =>
  system.settings
    .filter((setting) => setting.workloads.includes(workload))
    .filter(({ onlyInFull }) => !(options.isQuick && onlyInFull?.includes(workload) === true))
    .filter(({ name }) => options.setting === undefined || name.includes(options.setting))
    .flatMap((setting) => planners[workload]({ workload, system, setting, options }))

interface Candidate {
  readonly workload: WorkloadName
  readonly system: System
  readonly setting: Setting
  readonly options: Options
}

type Planner = (candidate: Candidate) => ReadonlyArray<Measure>

const ofOneProcess = (
  candidate: Candidate,
  run: Measure["run"],
  extra: Partial<Measure> = {}
): ReadonlyArray<Measure> => [{ system: candidate.system, subject: subjectOf(candidate, 1), run, ...extra }]

const enqueues: Planner = (candidate) => {
  const { options: { isQuick }, setting, system } = candidate
  const size = (jobs: number) => most(candidate, isQuick ? jobs / 2 : jobs)
  const shapes = [
    { batch: 1, callers: 16, jobs: size(10_000) },
    ...isQuick ? [] : [{ batch: 100, callers: 1, jobs: size(20_000) }],
    { batch: 1000, callers: 1, jobs: size(50_000) }
  ]
  return shapes.map(({ batch, callers, jobs }) => ({
    system,
    subject: { ...subjectOf(candidate, 1), concurrency: callers },
    run: (database, children, round) =>
      enqueue(system, setting, database, children, {
        batch,
        callers,
        jobs,
        profile: profileName(candidate, `${batch}-${round}`)
      })
  }))
}

const drainOf = (
  candidate: Candidate,
  processes: number,
  options: Omit<DrainOptions, "processes" | "profile">,
  ground?: Ground
): Measure => ({
  system: candidate.system,
  subject: subjectOf(candidate, processes),
  timeoutMs: 300_000,
  ...ground === undefined ? {} : { ground },
  run: (database, children, round) =>
    drain(candidate.system, candidate.setting, database, children, {
      ...options,
      processes,
      profile: profileName(candidate, `${processes}-${round}`)
    })
})

const drains: Planner = (candidate) =>
  candidate.options.processes.map((processes) => {
    const jobs = most(candidate, candidate.options.jobs)
    return drainOf(candidate, processes, { metric: "drain", jobs, warmup: (jobs >> 1) * processes })
  })

const latencies: Planner = (candidate) =>
  ofOneProcess(candidate, (database, children) =>
    latency(candidate.system, candidate.setting, database, children, {
      jobs: candidate.options.isQuick ? 60 : 300,
      warmup: candidate.options.isQuick ? 5 : 20
    }))

const depths: Planner = (candidate) => {
  const { options: { isQuick, jobs }, setting, system } = candidate
  const warmup = jobs >> 1
  const beside = system.fillFinished === undefined ? [] : isQuick ? [1000, 100_000] : [1000, 100_000, 1_000_000]
  const waitings = isQuick ? [100_000] : [200_000, 1_000_000]
  return [
    ...beside.map((finished) =>
      drainOf(candidate, 1, { metric: `drain beside ${shown(finished)} finished`, jobs, warmup, finished }, {
        key: `${setting.name}, ${finished} finished`,
        lay: async (client, url) => system.fillFinished?.(client, url, setting, finished)
      })
    ),
    ...waitings.map((waiting) =>
      drainOf(candidate, 1, { metric: `drain of ${shown(waiting)} waiting`, jobs, warmup, waiting }, {
        key: `${setting.name}, ${waiting} waiting`,
        lay: (_client, url) => system.fill(url, setting, waiting)
      })
    )
  ]
}

const workflows: Planner = (candidate) => {
  const { options: { isQuick }, setting, system } = candidate
  const full = setting.concurrency === 1 ? 400 : 60 * setting.concurrency
  const count = most(candidate, isQuick ? full >> 2 : full)
  return ofOneProcess(candidate, (database, children, round) =>
    steps(system, setting, database, children, {
      workflows: count,
      profile: profileName(candidate, `${setting.concurrency}-${round}`)
    }))
}

const fleets: Planner = (candidate) => {
  const { options: { isQuick, jobs } } = candidate
  return (isQuick ? [2, 16] : [2, 4, 8, 16]).map((processes) =>
    drainOf(candidate, processes, {
      metric: "drain",
      jobs: 2 * jobs,
      warmup: (jobs >> 2) * processes,
      tellsShares: true
    })
  )
}

const memories: Planner = (candidate) =>
  ofOneProcess(candidate, (database, children) => {
    const count = candidate.options.isQuick ? 20_000 : 200_000
    return memory(candidate.system, candidate.setting, database, children, { jobs: count, polls: count })
  }, { timeoutMs: 900_000, maxRounds: 2 })

const snapshots: Planner = (candidate) =>
  ofOneProcess(candidate, (database, children) =>
    snapshot(
      candidate.system,
      candidate.setting,
      database,
      children,
      candidate.options.isQuick ? { heldMs: 20_000, windowMs: 2500 } : { heldMs: 300_000, windowMs: 5000 }
    ), { timeoutMs: 600_000, maxRounds: 2 })

/** W6 has no processes to measure and a run of its own: see `Gate`. */
const planners: Readonly<Record<WorkloadName, Planner>> = {
  W1: enqueues,
  W2: drains,
  W3: latencies,
  W4: depths,
  W5: workflows,
  W6: () => [],
  W7: fleets,
  W8: memories,
  W9: snapshots
}

const most = ({ options: { isQuick }, setting }: Candidate, count: number): number =>
  Math.min(count, setting.most === undefined ? count : isQuick ? setting.most / 2 : setting.most)

const shown = (count: number): string => count >= 1_000_000 ? `${count / 1_000_000}M` : `${count / 1000}k`

const subjectOf = ({ setting, system, workload }: Candidate, processes: number): Subject => ({
  workload,
  system: system.name,
  setting: setting.name,
  processes,
  concurrency: setting.concurrency
})

const profileName = ({ options: { profile }, setting, system, workload }: Candidate, suffix: string) =>
  profile === undefined
    ? undefined
    : `${profile}${workload}-${system.name}-${setting.name.replaceAll(/\W+/g, "_")}-${suffix}`
