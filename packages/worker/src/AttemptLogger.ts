/**
 * Keeps what handlers log with their attempts. One logger serves all attempts of a task, beside the application's own: an
 * attempt that logs nothing has no log.
 */
import { type LoggedLine, logLine } from "@headgate/core/AttemptLog"
import { monotonicMs } from "@headgate/core/Heartbeat"
import * as Context from "effect/Context"
import type * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import * as LogLevel from "effect/LogLevel"
import { CurrentLogAnnotations } from "effect/References"
import type { Attempt } from "./Attempt.ts"
import { type AttemptLogSettings, isSeverity, NewestLines } from "./AttemptLog.ts"
import { Running } from "./StepRuntime.ts"

/** What was logged, and not yet when. */
type Line = Omit<LoggedLine, "afterMs">

/** How the attempts of this context keep their lines; undefined where they keep none. */
export const KeptLogs = Context.Reference<AttemptLogSettings | undefined>("@headgate/worker/KeptLogs", {
  defaultValue: () => undefined
})

/** `context` with a logger that keeps lines with the attempt whose fiber logs them. */
export const keepLogs = <R>(context: Context.Context<R>, settings: AttemptLogSettings): Context.Context<R> =>
  addLogger(Context.add(context, KeptLogs, settings), settings.level, (line, fiber) => {
    const attempt = fiber.getRef(Running)?.attempt
    if (attempt !== undefined) keepLine(attempt, settings, line)
  })

export const keepLine = (attempt: Attempt, settings: AttemptLogSettings, line: Line): void => {
  if (attempt.startedAt === undefined || isBelow(line.level, settings.level)) return
  attempt.log ??= new NewestLines(settings)
  attempt.log.add(logLine({ ...line, afterMs: monotonicMs() - attempt.startedAt }))
}

/** `context` with a logger beside those it has. */
export const addLogger = <R>(
  context: Context.Context<R>,
  level: LogLevel.LogLevel,
  keep: (line: Line, fiber: Fiber.Fiber<unknown, unknown>) => void
): Context.Context<R> => {
  const logger = Logger.make<unknown, void>(({ cause, fiber, logLevel, message }) => {
    if (!isSeverity(logLevel) || isBelow(logLevel, level)) return
    keep({ level: logLevel, message, cause, annotations: fiber.getRef(CurrentLogAnnotations) }, fiber)
  })
  const loggers = Context.get(context, Logger.CurrentLoggers)
  return Context.add(context, Logger.CurrentLoggers, new Set([...loggers, logger]))
}

const isBelow = (level: LogLevel.Severity, least: LogLevel.LogLevel): boolean => LogLevel.isGreaterThan(least, level)
