/**
 * The answers a caller must be ready for. Each is a fact about the request or the store, never a raw database error:
 * expected refusals are typed failures, and only bugs are defects.
 */
import * as Schema from "effect/Schema"

/** The input breaks a rule: which field, why, and (for limits) the limit and the actual size. Nothing was written. */
export class Invalid extends Schema.TaggedError<Invalid>()("Invalid", {
  field: Schema.String,
  message: Schema.String,
  limit: Schema.optionalKey(Schema.Number),
  actual: Schema.optionalKey(Schema.Number)
}) {}

/**
 * The id belongs to a job with other content (kind, fingerprint or queue), and `index` is its place in the batch; or, as
 * `what` says, to a redrive of other jobs. Nothing was written.
 */
export class IdConflict extends Schema.TaggedError<IdConflict>()("IdConflict", {
  id: Schema.String,
  index: Schema.optionalKey(Schema.Number),
  what: Schema.optionalKey(Schema.Literal("redrive"))
}) {
  override get message(): string {
    return this.what === "redrive"
      ? `the id ${this.id} belongs to a redrive with another filter or other ids`
      : `the id ${this.id} belongs to a job with another kind, payload or queue`
  }
}

/** An unfinished job already holds the unique key. `index` is the refused job's place in the batch. */
export class Duplicate extends Schema.TaggedError<Duplicate>()("Duplicate", {
  existingId: Schema.String,
  replaced: Schema.Boolean,
  index: Schema.Number
}) {
  override get message(): string {
    return `job ${this.existingId} holds the unique key${this.replaced ? " and was given the new values" : ""}`
  }
}

/**
 * The content of the job at `index` crashed too many workers: jobs of its fingerprint are not taken before an operator
 * releases it. Nothing of the batch was written.
 */
export class Quarantined extends Schema.TaggedError<Quarantined>()("Quarantined", {
  fingerprint: Schema.String,
  index: Schema.Number
}) {
  override get message(): string {
    return `the fingerprint ${this.fingerprint} is quarantined`
  }
}

/**
 * The queue would hold more unfinished jobs than its limit. `current` counts up to the limit, `incoming` the new jobs
 * of the batch. Nothing was written; try again later.
 */
export class Backpressure extends Schema.TaggedError<Backpressure>()("Backpressure", {
  queue: Schema.String,
  limit: Schema.Number,
  current: Schema.Number,
  incoming: Schema.Number
}) {
  override get message(): string {
    return `the queue ${this.queue} has ${this.current} unfinished jobs of at most ${this.limit}, with ${this.incoming} incoming`
  }
}

/** The lease is no longer current: another attempt may own the job. `state` is what the row had become. Stop at once. */
export class LeaseRejected extends Schema.TaggedError<LeaseRejected>()("LeaseRejected", {
  jobId: Schema.String,
  state: Schema.String
}) {
  override get message(): string {
    return `the lease on job ${this.jobId} is no longer current: the job is ${this.state}`
  }
}

/** The store cannot be reached or answered with a passing fault. Safe to retry; nothing is charged to any job. */
export class StoreUnavailable extends Schema.TaggedError<StoreUnavailable>()("StoreUnavailable", {
  operation: Schema.String,
  message: Schema.String,
  cause: Schema.optionalKey(Schema.Defect())
}) {}

/** No such job (or it was evicted); or, as `what` says, no such worker that is alive, or no such redrive. */
export class NotFound extends Schema.TaggedError<NotFound>()("NotFound", {
  id: Schema.String,
  what: Schema.optionalKey(Schema.Literals(["worker", "redrive"]))
}) {
  override get message(): string {
    return this.what === "worker" ? `no worker ${this.id} is alive` : `there is no ${this.what ?? "job"} ${this.id}`
  }
}

/** The operation does not apply to a job (or, as `what` says, a redrive) in this state; nothing changed. */
export class WrongState extends Schema.TaggedError<WrongState>()("WrongState", {
  id: Schema.String,
  operation: Schema.String,
  state: Schema.String,
  what: Schema.optionalKey(Schema.Literal("redrive"))
}) {
  override get message(): string {
    return `${this.operation} does not apply to ${this.what ?? "job"} ${this.id}, which is ${this.state}`
  }
}

/** The job cannot come back under its unique key: the job named `holderId` holds it. */
export class KeyTaken extends Schema.TaggedError<KeyTaken>()("KeyTaken", {
  id: Schema.String,
  holderId: Schema.String
}) {
  override get message(): string {
    return `job ${this.id} cannot come back: job ${this.holderId} holds its unique key`
  }
}

/** The operation was called inside an open transaction of a client other than the application's own. */
export class ForeignTransaction extends Schema.TaggedError<ForeignTransaction>()("ForeignTransaction", {
  operation: Schema.String,
  message: Schema.String
}) {}

/** One attempt used the same step identity twice. Give each call in a loop its own `key`. */
export class DuplicateStep extends Schema.TaggedError<DuplicateStep>()("DuplicateStep", {
  step: Schema.String,
  message: Schema.String
}) {}
