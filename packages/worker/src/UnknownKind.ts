/** What stands in for a task that this worker has no handler of. */
import type { TaskDefinition } from "@headgate/core"
import { CodecError } from "@headgate/core/Codec"
import type { Registration } from "@headgate/core/Handler"
import { defaultRetry } from "@headgate/core/Retry"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** The gate gives no kind that was not asked for; a store that does is answered like one with a payload nobody can read. */
export const unknownKind = (kind: string): Registration => {
  const unknown = Result.fail(new CodecError({ direction: "decode", message: `no handler for kind ${kind}`, kind }))
  const codec = { encode: () => unknown, decode: () => unknown }
  const definition: TaskDefinition = {
    kind,
    aliases: [],
    version: 1,
    queue: "default",
    policies: [],
    retry: defaultRetry,
    stepSet: undefined,
    steps: [],
    stepMappings: [],
    stepTimeoutMs: undefined,
    stallTimeoutMs: undefined,
    decodePayload: () => unknown,
    success: codec,
    error: codec,
    onError: () => undefined
  }
  return { definition, run: () => Effect.void, context: Context.empty() }
}
