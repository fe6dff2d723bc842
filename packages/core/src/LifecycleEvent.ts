/**
 * What moves a job other than the worker that runs it: producers, the gate, sweeps and operators.
 * `deadline_passed` is also an outcome, for the worker that stops its handler at the deadline.
 */
import * as Schema from "effect/Schema"

export const LifecycleEvent = Schema.Literals([
  "enqueued",
  "operator_promote",
  "schedule_due",
  "backoff_due",
  "admitted",
  "lease_lost",
  "superseded",
  "deadline_passed",
  "queue_timeout",
  "operator_cancel",
  "operator_retry",
  "operator_release",
  "discarded",
  "cancelled_incoming",
  "fingerprint_quarantined",
  "replaced",
  "rescheduled",
  "edited",
  "operator_delete",
  "evicted"
])
export type LifecycleEvent = typeof LifecycleEvent.Type
