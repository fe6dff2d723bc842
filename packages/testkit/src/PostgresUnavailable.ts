/**
 * The one failure of the embedded server: it could not be found, initialised, started or stopped.
 * Names the program and carries the end of what the server printed.
 */
import * as Schema from "effect/Schema"

export class PostgresUnavailable extends Schema.TaggedError<PostgresUnavailable>()("PostgresUnavailable", {
  problem: Schema.String,
  /** The program concerned, "" when none was found. */
  binary: Schema.String,
  /** The last lines the server printed. */
  output: Schema.String
}) {
  override get message(): string {
    const output = this.output.trim()
    return [
      this.problem,
      ...(this.binary === "" ? [] : [`  program: ${this.binary}`]),
      ...(output === "" ? [] : ["  the server said:", ...output.split("\n").map((line) => `    ${line}`)])
    ].join("\n")
  }
}
