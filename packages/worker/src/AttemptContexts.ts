/** What a handler runs with: the services its layer captured, those of its attempt, its scope, and a span if traced. */
import type { Checkpoint, Registration } from "@headgate/core"
import type { WorkerId } from "@headgate/core/Ids"
import { type AttemptServices, Job } from "@headgate/core/Job"
import type { Outcome } from "@headgate/core/Outcome"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import { CurrentLogAnnotations } from "effect/References"
import * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"
import { AheadMark } from "./AheadMark.ts"
import type { LocalAttempt } from "./Attempt.ts"
import type { AttemptLogSettings } from "./AttemptLog.ts"
import { keepLogs } from "./AttemptLogger.ts"
import { AttemptTracer } from "./AttemptSpan.ts"
import { JobOfAttempt } from "./JobService.ts"
import { prepareResume } from "./Resume.ts"
import { Running, RunningAttempt, stepServices } from "./StepRuntime.ts"
import type { StepStores } from "./StepStores.ts"

type Program = Effect.Effect<unknown, unknown>

/** The services of an attempt that are the same for all of them. */
type Services = Exclude<AttemptServices, Job | Scope.Scope>

export interface Prepared {
  readonly program: Program
  readonly context: Context.Context<never>
}

/** What all attempts of a task share. */
interface Base {
  readonly services: Context.Context<Services>
  readonly tracer: AttemptTracer | undefined
}

export class AttemptContexts {
  private readonly worker: WorkerId
  private readonly stores: StepStores
  private readonly logs: AttemptLogSettings | undefined
  private readonly bases = new WeakMap<Registration, Base>()

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
    const { services, tracer } = this.base(registration)
    const span = tracer?.start(attempt)
    if (span?.sampled === true) attempt.span = span
    const traced = span === undefined ? services : Context.add(services, Tracer.ParentSpan, span)
    const handle = Effect.suspend(() => registration.run(payload))
    if (attempt.claim.checkpoint === undefined) {
      // SAFETY: `complete` adds the attempt's services, which is all the handler still asked for.
      return { program: handle as Program, context: this.complete(traced, attempt, scope, undefined) }
    }
    const program = Effect.flatMap(
      prepareResume(attempt, this.stores),
      (checkpoint) => Effect.provideContext(handle, this.complete(traced, attempt, scope, checkpoint))
    )
    return { program, context: traced }
  }

  /** Ends the span of an attempt that has one, once: what was given up may end later. */
  endSpan(attempt: LocalAttempt, exit: Exit.Exit<unknown, unknown>, outcome: Outcome | undefined): void {
    const { registration, span } = attempt
    if (span === undefined) return
    attempt.span = undefined
    this.base(registration).tracer?.end(attempt, span, exit, outcome)
  }

  /** Services are added one by one on top: merging would copy all that the handler's layer captured, for each job. */
  private complete(
    base: Context.Context<Services>,
    attempt: LocalAttempt,
    scope: Scope.Closeable,
    checkpoint: Checkpoint | undefined
  ): Context.Context<AttemptServices> {
    const { claim: { kind, lease }, span } = attempt
    const ids = span === undefined
      ? { jobId: lease.jobId, kind }
      : { jobId: lease.jobId, kind, traceId: span.traceId, spanId: span.spanId }
    return base.pipe(
      Context.add(CurrentLogAnnotations, { ...Context.get(base, CurrentLogAnnotations), ...ids }),
      Context.add(Running, new RunningAttempt(attempt, this.stores, checkpoint)),
      Context.add(Scope.Scope, scope),
      Context.add(Job, new JobOfAttempt(attempt, this.worker, this.stores))
    )
  }

  private base(registration: Registration): Base {
    const known = this.bases.get(registration)
    if (known !== undefined) return known
    const merged = Context.merge(registration.context, stepServices)
    const services = this.logs === undefined ? merged : keepLogs(merged, this.logs)
    // Flat, with room on top for what an attempt adds.
    const flat = Context.makeUnsafe<Services>(services.mapUnsafe, { maxDepth: MAX_ADDED })
    const base = { services: flat, tracer: AttemptTracer.of(flat, registration.definition.kind, this.worker) }
    this.bases.set(registration, base)
    return base
  }
}

const MAX_ADDED = 16
