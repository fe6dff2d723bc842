/** The outcomes of a worker, from their names in the corpus. */
import type { Outcome, OutcomeError, OutcomeName } from "@headgate/core/Outcome"
import type { SettlementArguments } from "./Scenario.ts"
import { bytesOf } from "./World.ts"

export const outcomeOf = (settlement: SettlementArguments): Outcome => outcomes[settlement.outcome](settlement)

const outcomes: { readonly [Name in OutcomeName]: (settlement: SettlementArguments) => Outcome } = {
  success: ({ result }) => ({
    _tag: "Success",
    result: result === undefined ? undefined : { version: 1, bytes: bytesOf(result) }
  }),
  retry: (settlement) => ({ _tag: "Retry", delayMs: settlement.delay_ms ?? 0, error: errorOf(settlement) }),
  timed_out: (settlement) => ({ _tag: "TimedOut", delayMs: settlement.delay_ms ?? 0, error: errorOf(settlement) }),
  fatal: (settlement) => ({ _tag: "Fatal", error: errorOf(settlement) }),
  not_a_failure: (settlement) => ({
    _tag: "NotAFailure",
    delayMs: settlement.delay_ms ?? 0,
    error: errorOf(settlement)
  }),
  rate_limited: (settlement) => ({
    _tag: "RateLimited",
    delayMs: settlement.delay_ms,
    pushBackMs: settlement.push_back_ms,
    rateClass: settlement.push_back_class,
    error: errorOf(settlement)
  }),
  snooze: ({ delay_ms }) => ({ _tag: "Snooze", delayMs: delay_ms ?? 0 }),
  skip: ({ reason }) => ({ _tag: "Skip", reason: reason ?? "" }),
  revoke: () => ({ _tag: "Revoke" }),
  undecodable: ({ reason }) => ({ _tag: "Undecodable", reason: reason ?? "" }),
  checkpoint_stale: ({ reason }) => ({ _tag: "CheckpointStale", reason: reason ?? "" }),
  released: () => ({ _tag: "Released" }),
  crashed: (settlement) => ({ _tag: "Crashed", delayMs: settlement.delay_ms, error: errorOf(settlement) }),
  deadline_passed: () => ({ _tag: "DeadlinePassed" })
}

const errorOf = ({ error = "boom" }: SettlementArguments): OutcomeError => ({
  tag: "Boom",
  message: error,
  text: error
})
