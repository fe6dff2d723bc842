/** The answer to "why is it not running?" in one sentence. */
import type { AdmissionExplain, Cause } from "./Explain.ts"
import { isTerminal, type State } from "./State.ts"

export const explainText = (
  { admissible, cause, estimatedAdmissionMs, state }: {
    readonly state: State
    readonly admissible: boolean
    readonly cause: Cause
    readonly estimatedAdmissionMs: AdmissionExplain["estimatedAdmissionMs"]
  }
): string => {
  const reason = reasonOf(cause)
  if (reason !== undefined) return `${reason}${inTime(estimatedAdmissionMs)}.`
  if (state === "running") return "It is running."
  if (isTerminal(state)) return `It is ${state}: it has ended.`
  return admissible ? "Nothing holds it: it is admitted in its turn, when a worker has room." : "It waits for its turn."
}

const reasonOf = (cause: Cause): string | undefined => {
  switch (cause.blockedBy) {
    case "rate_class": {
      const { ahead, class: name, closedUntilMs, isAtLeast, key, needed, tokens } = cause.detail
      const before = ahead === 0
        ? ""
        : ` after ${atLeast(ahead, isAtLeast)} ${ahead === 1 ? "job that comes" : "jobs that come"} first`
      const held = closedUntilMs === null ? `has ${tokens} left and it needs ${needed}` : "was pushed back"
      return `The rate class ${named(name, key)} ${held}${before}`
    }
    case "concurrency_limit": {
      const { inUse, key, limit, max, strategy } = cause.detail
      return `The limit ${named(limit, key)} is full, ${inUse} of ${max} in use${saturated[strategy]}`
    }
    case "fairness": {
      const { groups, isAtLeast, isGroupsAtLeast, position, suspectWaits } = cause.detail
      if (suspectWaits && position === 1) {
        return "It crashed before, and each worker that could take it runs such a job already"
      }
      return `Others come first: it is number ${atLeast(position, isAtLeast)} of its group, and ${
        atLeast(groups, isGroupsAtLeast)
      } ${groups === 1 ? "group waits" : "groups wait"} in its queue`
    }
    case "quarantine": {
      const { crashes, fingerprint, limit } = cause.detail
      if (crashes < limit) return "It was quarantined, and waits for its release, though its content may run again"
      const whose = fingerprint === null ? "It" : `Jobs with its content (fingerprint ${fingerprint})`
      return `${whose} crashed ${
        crashes === 1 ? "once" : `${crashes} times`
      }, and ${limit} is the limit: an operator must release ${fingerprint === null ? "it" : "them"}`
    }
    case "schedule": {
      const { dueAtMs, lastErrorTag } = cause.detail
      if (dueAtMs === null) return "It is pending until an operator promotes it"
      return lastErrorTag === null ? "It is not due yet" : `It failed with ${lastErrorTag} and is not due yet`
    }
    case "queue_paused":
      return `The queue ${cause.detail.name} is paused`
    case "paused":
      return `The ${cause.detail.switch.replace("_", " ")} ${cause.detail.name} is paused`
    case "sticky_worker": {
      const { capacity, isAlive, running, serves, worker } = cause.detail
      const why = !isAlive
        ? "is not alive"
        : serves
        ? `is full (${running} of ${capacity})`
        : "takes no work of its kind and queue"
      return `It is pinned to the worker ${worker}, which ${why}`
    }
    case "no_worker": {
      const { drainingWorkers, queue, quietWorkers } = cause.detail
      if (quietWorkers > 0) return `${serving(quietWorkers, queue)} quiet`
      if (drainingWorkers > 0) return `${serving(drainingWorkers, queue)} draining`
      return `No live worker takes work from the queue ${queue}`
    }
    case "unknown_kind":
      return `No live worker of the queue ${cause.detail.queue} knows the kind ${cause.detail.kind}`
    case "version": {
      const { highestLive, kind, needed } = cause.detail
      return `It needs version ${needed} of ${kind}, and live workers know ${highestLive} at most`
    }
    case null:
      return cause.detail === null ? undefined : ended[cause.detail.endsAs]
  }
}

const named = (name: string, key: string): string => key === "" ? name : `${name} (${key})`

const atLeast = (count: number, isAtLeast: boolean): string => isAtLeast ? `at least ${count}` : `${count}`

const serving = (workers: number, queue: string): string =>
  workers === 1 ? `1 live worker serves ${queue}, but is` : `${workers} live workers serve ${queue}, but are`

const inTime = (millis: number | null): string => millis === null ? "" : `: in about ${readable(millis)}`

/** In the largest unit of which there are two or more; below 10 s to a tenth. */
const readable = (millis: number): string => {
  if (millis < 1000) return `${millis} ms`
  if (millis < 10_000) return `${Math.round(millis / 100) / 10} s`
  const unit = units.find(({ ms }) => millis >= 2 * ms) ?? { name: "s", ms: 1000 }
  return `${Math.round(millis / unit.ms)} ${unit.name}`
}

const units = [
  { name: "days", ms: 86_400_000 },
  { name: "h", ms: 3_600_000 },
  { name: "min", ms: 60_000 }
]

const saturated = {
  queue: "",
  discard: ": it will be discarded",
  cancel_incoming: ": it will be cancelled",
  // Only a limit of none is full: else the oldest goes.
  cancel_running: ""
} as const

const ended = {
  deadline: "Its deadline has passed: it will be archived",
  queue_timeout: "It waited longer than it allows: it will be archived"
} as const
