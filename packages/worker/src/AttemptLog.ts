/** What one attempt keeps of the lines its handler logs, and what a worker can be told about that. */
import { type AttemptLog, type LogLine, logLineBytes, MAX_LOG_BYTES, MAX_LOG_LINES } from "@headgate/core/AttemptLog"
import { refuseInteger } from "@headgate/core/Millis"
import { Invalid } from "@headgate/core/Refusals"
import type { Severity } from "effect/LogLevel"
import * as Result from "effect/Result"

export interface AttemptLogOptions {
  /** The least level kept. Default `Info`. Effect's own `MinimumLogLevel` stands before it. */
  readonly level?: Severity | undefined
  /** The newest lines of an attempt that are kept, 1 to 1000. Default 100. */
  readonly maxLines?: number | undefined
  /** What they may take together, in bytes, 1 kB to 64 kB. Default 16 kB. A line alone takes 4 kB at most. */
  readonly maxBytes?: number | undefined
}

export interface AttemptLogSettings {
  readonly level: Severity
  readonly maxLines: number
  readonly maxBytes: number
}

/** Undefined: nothing is kept. */
export const logSettingsOf = (
  options: AttemptLogOptions | false = {}
): Result.Result<AttemptLogSettings | undefined, Invalid> => {
  if (options === false) return Result.succeed(undefined)
  const { level = "Info", maxBytes = 16_384, maxLines = 100 } = options
  if (!isSeverity(level)) {
    const message = `attemptLogs.level is one of ${[...SEVERITIES].join(", ")}`
    return Result.fail(new Invalid({ field: "attemptLogs.level", message }))
  }
  const refusal = refuseInteger("attemptLogs.maxLines", maxLines, 1, MAX_LOG_LINES) ??
    refuseInteger("attemptLogs.maxBytes", maxBytes, MIN_LOG_BYTES, MAX_LOG_BYTES, " bytes")
  return refusal === undefined ? Result.succeed({ level, maxLines, maxBytes }) : Result.fail(refusal)
}

/** The newest lines within the limits. */
export class NewestLines implements AttemptLog {
  readonly lines: Array<LogLine> = []
  dropped = 0
  private bytes = 0
  private readonly settings: AttemptLogSettings

  constructor(settings: AttemptLogSettings) {
    this.settings = settings
  }

  add(line: LogLine): void {
    const { maxBytes, maxLines } = this.settings
    this.lines.push(line)
    this.bytes += logLineBytes(line)
    // The newest line is kept, whatever it takes.
    while (this.lines.length > maxLines || (this.bytes > maxBytes && this.lines.length > 1)) {
      this.bytes -= logLineBytes(this.lines.shift()!)
      this.dropped++
    }
  }
}

/** Whatever it is: from a caller without types, or another process. */
export const isSeverity = (level: string): level is Severity => SEVERITIES.has(level)

const SEVERITIES: ReadonlySet<string> = new Set<Severity>(["Trace", "Debug", "Info", "Warn", "Error", "Fatal"])
const MIN_LOG_BYTES = 1024
