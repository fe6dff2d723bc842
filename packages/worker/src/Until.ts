/** Waits for what nobody announces. */
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as Effect from "effect/Effect"

/** Ends once `isDone`, or at `end`: monotonic, and asked for at each look, since it may be brought forward. */
export const until = (isDone: () => boolean, end: () => number): Effect.Effect<void> =>
  Effect.suspend(() =>
    isDone() || monotonicMs() >= end() ? Effect.void : Effect.andThen(Effect.sleep(LOOK_MS), until(isDone, end))
  )

const LOOK_MS = 10
