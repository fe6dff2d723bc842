/** The log of an attempt as its row holds it: JSON that `log::jsonb` takes as well, whatever was logged. */
import { type AttemptLog, type LogLine, MAX_LOG_LINES, MAX_LOG_MESSAGE_BYTES } from "@headgate/core/AttemptLog"
import { boundedText } from "@headgate/core/ErrorText"
import { toStorableText } from "@headgate/core/Text"

interface StoredLog {
  readonly dropped: number
  readonly lines: ReadonlyArray<StoredLine>
}

interface StoredLine {
  readonly after_ms: number
  readonly level: LogLine["level"]
  readonly message: string
  readonly annotations?: Readonly<Record<string, string>>
}

export const encode = ({ dropped, lines }: AttemptLog): string => {
  const stored: StoredLog = {
    dropped: dropped + Math.max(0, lines.length - MAX_LOG_LINES),
    lines: lines.slice(-MAX_LOG_LINES).map(({ afterMs, annotations, level, message }) => ({
      after_ms: afterMs,
      level,
      message: boundedText(message, MAX_LOG_MESSAGE_BYTES),
      ...(isEmpty(annotations) ? {} : { annotations: storable(annotations) })
    }))
  }
  return JSON.stringify(stored)
}

export const decode = (text: string): AttemptLog => {
  // SAFETY: only `encode` writes the column.
  const { dropped, lines } = JSON.parse(text) as StoredLog
  return {
    dropped,
    lines: lines.map(({ after_ms, annotations = {}, level, message }) => ({
      afterMs: after_ms,
      level,
      message,
      annotations
    }))
  }
}

const isEmpty = (annotations: LogLine["annotations"]): boolean => {
  for (const _ in annotations) return false
  return true
}

const storable = (annotations: LogLine["annotations"]) =>
  Object.fromEntries(Object.entries(annotations).map(([name, value]) => [toStorableText(name), toStorableText(value)]))
