/**
 * Push wake-ups: new work is announced, so an idle worker need not wait for its next poll. A missed or spurious one
 * costs latency, never correctness, and a store without them leaves polling to do the work.
 */
import * as Context from "effect/Context"
import type * as Stream from "effect/Stream"

export class Wakeups extends Context.Service<Wakeups, {
  /**
   * Emits whenever there may be new work in one of `queues`, and once after every (re)connection, since whatever came
   * in between was not heard. Never fails and never ends.
   */
  readonly subscribe: (queues: ReadonlyArray<string>) => Stream.Stream<void>
}>()("@headgate/core/Wakeups") {}
