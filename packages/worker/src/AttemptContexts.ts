/** What a handler runs with: the services its layer captured, those of its attempt, its scope, and a span if traced. */
import type { Checkpoint, Registration } from "@headgate/core"
import type { WorkerId } from "@headgate/core/Ids"
import { type AttemptServices, Job } from "@headgate/core/Job"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import { CurrentLogAnnotations } from "effect/References"
import * as Scope from "effect/Scope"
import { AheadMark } from "./AheadMark.ts"
import type { LocalAttempt } from "./Attempt.ts"
import type { AttemptLogSettings } from "./AttemptLog.ts"
import { keepLogs } from "./AttemptLogger.ts"
import { inAttemptSpan } from "./AttemptSpan.ts"
import { JobOfAttempt } from "./JobService.ts"
import { prepareResume } from "./Resume.ts"
import { Running, RunningAttempt, stepServices } from "./StepRuntime.ts"
import type { StepStores } from "./StepStores.ts"

type Program = Effect.Effect<unknown, unknown>

/** What all attempts of a task share of their services. */
type Services = Exclude<AttemptServices, Job | Scope.Scope>

export interface Prepared {
  readonly program: Program
  readonly context: Context.Context<never>
}

export class AttemptContexts {
  private readonly worker: WorkerId
  private readonly stores: StepStores
  private readonly logs: AttemptLogSettings | undefined
  private readonly bases = new WeakMap<Registration, Context.Context<Services>>()

  constructor(worker: WorkerId, stores: StepStores, logs: AttemptLogSettings | undefined) {
    this.worker = worker
    this.stores = stores
    this.logs = logs
  }

  /** The attempt is next to start. */
  expect(attempt: LocalAttempt): void {
    attempt.ahead = new AheadMark(attempt, this.stores)
  }

  /** The handler, and all it needs; a job with a checkpoint is resumed first. */
  prepare(attempt: LocalAttempt, payload: unknown, scope: Scope.Closeable): Prepared {
    const { registration } = attempt
    const base = this.base(registration)
    const handle = Effect.suspend(() => registration.run(payload))
    if (attempt.claim.checkpoint === undefined) {
      const context = this.complete(base, attempt, scope, undefined)
      // SAFETY: `complete` adds the attempt's services, which is all the handler still asked for.
      return { program: inAttemptSpan(attempt, base, handle as Program), context }
    }
    const resumed = Effect.flatMap(
      prepareResume(attempt, this.stores),
      (checkpoint) => Effect.provideContext(handle, this.complete(base, attempt, scope, checkpoint))
    )
    return { program: inAttemptSpan(attempt, base, resumed), context: base }
  }

  /** Services are added one by one on top: merging would copy all that the handler's layer captured, for each job. */
  private complete(
    base: Context.Context<Services>,
    attempt: LocalAttempt,
    scope: Scope.Closeable,
    checkpoint: Checkpoint | undefined
  ): Context.Context<AttemptServices> {
    const { kind, lease } = attempt.claim
    const annotations = { ...Context.get(base, CurrentLogAnnotations), jobId: lease.jobId, kind }
    return base.pipe(
      Context.add(CurrentLogAnnotations, annotations),
      Context.add(Running, new RunningAttempt(attempt, this.stores, checkpoint)),
      Context.add(Scope.Scope, scope),
      Context.add(Job, new JobOfAttempt(attempt, this.worker, this.stores))
    )
  }

  private base(registration: Registration): Context.Context<Services> {
    const known = this.bases.get(registration)
    if (known !== undefined) return known
    const merged = Context.merge(registration.context, stepServices)
    const services = this.logs === undefined ? merged : keepLogs(merged, this.logs)
    // Flat, with room on top for what an attempt adds.
    const base = Context.makeUnsafe<Services>(services.mapUnsafe, { maxDepth: MAX_ADDED })
    this.bases.set(registration, base)
    return base
  }
}

const MAX_ADDED = 16
