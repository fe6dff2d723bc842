/** What a handler runs with: the services its layer captured, those of its attempt, its scope, and a span if traced. */
import type { Checkpoint } from "@headgate/core"
import { type AttemptServices, Job } from "@headgate/core/Job"
import type { WorkerId } from "@headgate/core/Ids"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import type { LocalAttempt } from "./Attempt.ts"
import { inAttemptSpan } from "./AttemptSpan.ts"
import { completeWith } from "./Completion.ts"
import { JobOfAttempt } from "./JobService.ts"
import { prepareResume } from "./Resume.ts"
import { attemptServices } from "./StepRuntime.ts"
import type { StepStores } from "./StepStores.ts"

type Program = Effect.Effect<unknown, unknown>

export class AttemptContexts {
  private readonly worker: WorkerId
  private readonly stores: StepStores

  constructor(worker: WorkerId, stores: StepStores) {
    this.worker = worker
    this.stores = stores
  }

  /** The handler with all it needs; a job with a checkpoint is resumed first. */
  program(attempt: LocalAttempt, payload: unknown, scope: Scope.Closeable): Program {
    const { context, run } = attempt.registration
    const handle = (checkpoint: Checkpoint | undefined): Program =>
      Effect.provideContext(
        Effect.suspend(() => run(payload)),
        this.context(attempt, scope, checkpoint)
      )
    const program = attempt.claim.checkpoint === undefined
      ? handle(undefined)
      : Effect.flatMap(prepareResume(attempt, this.stores), handle)
    return inAttemptSpan(attempt, context, program)
  }

  private context(
    attempt: LocalAttempt,
    scope: Scope.Closeable,
    checkpoint: Checkpoint | undefined
  ): Context.Context<AttemptServices> {
    return attempt.registration.context.pipe(
      Context.add(Job, new JobOfAttempt(attempt, this.worker, completeWith(attempt))),
      Context.add(Scope.Scope, scope),
      Context.merge(attemptServices(attempt, this.stores, checkpoint))
    )
  }
}
