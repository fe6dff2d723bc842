/**
 * The mark of a job's first step, written while the claim still waits for its slot. It rides with the writes of others
 * and makes none of its own, so that a handler that begins as those before it did begins at once. What waits for long is
 * marked again, since a mark is trusted for a moment only; what is handed back unstarted is unmarked by that.
 */
import { monotonicMs } from "@headgate/core/Heartbeat"
import type { LocalAttempt } from "./Attempt.ts"
import { guessFor, START } from "./StepGuess.ts"
import type { StepStores } from "./StepStores.ts"

export class AheadMark {
  /** Monotonic: when it was durable last; undefined before, and once the store has refused it. */
  markedAt: number | undefined = undefined
  /** Undefined where nothing is marked: it is not known what comes first, or a checkpoint says where to go on. */
  readonly step: string | undefined
  private readonly attempt: LocalAttempt
  private readonly stores: StepStores
  private withdraw: () => void = () => {}

  /** For a claim that is next to start. */
  constructor(attempt: LocalAttempt, stores: StepStores) {
    const { claim: { checkpoint, schemaVersion }, definition } = attempt
    this.attempt = attempt
    this.stores = stores
    // The checkpoint of a newer version would keep the job from the workers that may have it until it starts.
    const isUntouched = checkpoint === undefined && schemaVersion >= definition.version
    this.step = isUntouched ? guessFor(definition).after(START) : undefined
    this.ride(0)
  }

  get isMarking(): boolean {
    return this.step !== undefined
  }

  /**
   * The attempt starts, and what is not durable by now is written by its first step; or its lease has ended. Left among
   * the writes of this job, it would keep the job's next attempt here waiting for others to write.
   */
  end(): void {
    this.withdraw()
  }

  private ride(from: number): void {
    const { attempt, step, stores: { checkpointer, settings } } = this
    if (step === undefined) return
    const { claim: { lease }, definition: { stepSet, version }, leaseMs } = attempt
    const write = { lease, leaseMs, record: undefined, mark: step, cursor: undefined, open: { stepSet, version } }
    this.withdraw = checkpointer.ride(write, from, ({ isAccepted, sentAt }) => {
      this.markedAt = isAccepted ? monotonicMs() : undefined
      if (this.markedAt === undefined) return
      attempt.tracked.extended(sentAt)
      this.ride(this.markedAt + settings.guessMs / 2)
    })
  }
}
