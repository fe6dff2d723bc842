/**
 * Tracked work of an attempt that somebody looks at: tells its state, a moment after the first change and then at most
 * once a second, so that short work costs nothing.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { ProgressStore } from "@headgate/core/Reports"
import type { TrackedReport } from "@headgate/core/TrackedWork"
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import type { Attempt, LocalAttempt } from "./Attempt.ts"
import { loseLease } from "./Ownership.ts"
import { Tracked, type TrackingHost } from "./Tracked.ts"

interface ReportingHost extends Pick<TrackingHost, "hasEnded" | "failed"> {
  readonly send: (report: TrackedReport) => Effect.Effect<void>
}

/** The work of an attempt of this worker, from the first call on. What fails of it ends the attempt. */
export const trackedOf = (attempt: LocalAttempt, store: ProgressStore["Service"]): Tracked =>
  attempt.work ??= reported({
    hasEnded: () => attempt.ending !== undefined || attempt.endedAt !== undefined,
    failed: (cause) => void attempt.interrupt({ _tag: "Failed", cause }),
    send: (report) => writeTracked(attempt, store, report)
  })

/** Status, not data: what an outage swallows is told with the next change. */
export const writeTracked = (
  attempt: Attempt,
  store: ProgressStore["Service"],
  report: TrackedReport
): Effect.Effect<void> =>
  Effect.catch(
    store.track(attempt.claim.lease, report),
    (error) => error._tag === "LeaseRejected" ? loseLease(attempt) : Effect.void
  )

export const reported = (host: ReportingHost): Tracked => new TrackedReports(host).work

class TrackedReports implements TrackingHost {
  readonly work: Tracked = new Tracked(this)
  readonly now = monotonicMs
  private isDue = false
  private isChanged = false
  private readonly host: ReportingHost

  constructor(host: ReportingHost) {
    this.host = host
  }

  hasEnded(): boolean {
    return this.host.hasEnded()
  }

  failed(cause: Cause.Cause<unknown>): void {
    this.host.failed(cause)
  }

  changed(): void {
    this.isChanged = true
    if (!this.isDue) this.tellIn(FIRST_MS)
  }

  private tellIn(ms: number): void {
    this.isDue = true
    setTimeout(this.tell, ms).unref()
  }

  private readonly tell = (): void => {
    this.isDue = false
    if (!this.isChanged || this.hasEnded()) return
    this.isChanged = false
    this.isDue = true
    Effect.runFork(Effect.suspend(() => this.host.send(this.work.report))).addObserver(() => this.tellIn(PAUSE_MS))
  }
}

const FIRST_MS = 200
const PAUSE_MS = 1000
