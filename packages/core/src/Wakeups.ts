/**
 * Push wake-ups: new work is announced, so an idle worker need not wait for its next poll. A missed or spurious one
 * costs latency, never correctness, and a store without them leaves polling to do the work.
 */
import * as Context from "effect/Context"
import type * as Stream from "effect/Stream"
import type { StoreUnavailable } from "./Refusals.ts"

export class Wakeups extends Context.Service<Wakeups, {
  /**
   * Emits whenever there may be new work in one of `queues`, and once after every (re)connection, since whatever came
   * in between was not heard. Never fails and never ends. `noteFault` is told when it can no longer hear, once an outage,
   * and undefined when it hears again; without it both are logged.
   */
  readonly subscribe: (
    queues: ReadonlyArray<string>,
    noteFault?: (fault: StoreUnavailable | undefined) => void
  ) => Stream.Stream<void>
}>()("@headgate/core/Wakeups") {}
