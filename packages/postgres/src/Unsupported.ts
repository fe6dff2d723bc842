/** Fields of an envelope that this store cannot honour: refused, since a job stored without them would not be the job asked for. */
import type { Envelope } from "@headgate/core/Envelope"
import { Invalid } from "@headgate/core/Refusals"

export const refuseUnsupported = (batch: ReadonlyArray<Envelope>): Invalid | undefined => {
  for (const job of batch) {
    const field = unsupportedField(job)
    if (field !== undefined) return new Invalid({ field, message: `this store does not support ${field}` })
  }
  return undefined
}

const unsupportedField = (job: Envelope): keyof Envelope | undefined => {
  if (job.uniqueStates !== undefined) return "uniqueStates"
  if (job.uniqueWindowMs !== undefined) return "uniqueWindowMs"
  if (job.periodicOrigin !== undefined) return "periodicOrigin"
  return undefined
}
