/**
 * What an operator may tell one live worker. It learns it in the answer to its next heartbeat, which is a quarter of a
 * lease away at most, and says in the one after that it has taken it up; `Inspect.workers` shows both. A command is for
 * that worker's life only: whatever starts in its place begins anew.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { refuseText } from "./EnqueueGuard.ts"
import type { WorkerId } from "./Ids.ts"
import { Invalid, type NotFound, type StoreUnavailable } from "./Refusals.ts"

/**
 * `quiet`: takes no more work and hands back what has not started; what runs goes on, and its leases are kept.
 * `resign`: gives up its duties to other workers.
 * `resume`: takes work and duties again.
 * `restart`: drains for as long as its handlers take, then ends.
 * `terminate`: drains within its `shutdownGrace`, then ends; also one that is draining already.
 */
export const WorkerCommand = Schema.Literals(["quiet", "resume", "restart", "terminate", "resign"])
export type WorkerCommand = typeof WorkerCommand.Type

/** What all commands to a worker come to. `command` and `actor` are the last one's. */
export interface WorkerOrders {
  /** Rises with each command. */
  readonly seq: number
  readonly command: WorkerCommand
  readonly actor: string | undefined
  readonly isQuiet: boolean
  readonly isResigned: boolean
  readonly end: "restart" | "terminate" | undefined
}

/** What a worker says it has become. */
export interface WorkerStanding {
  /** Of the last command it has taken up; 0 before any. */
  readonly appliedSeq: number
  readonly isQuiet: boolean
  readonly isResigned: boolean
  readonly isDraining: boolean
}

/** Why it is none that a worker knows, whatever it is: from a caller without types. */
export const refuseCommand = (command: string): Invalid | undefined =>
  COMMANDS.has(command)
    ? undefined
    : new Invalid({ field: "command", message: `command is one of ${[...COMMANDS].join(", ")}` })

const COMMANDS: ReadonlySet<string> = new Set(WorkerCommand.literals)

/** Of the name of whoever gives a command or signs an operation, in UTF-8 bytes. */
export const MAX_ACTOR_BYTES = 256

/** Why a store should not note who gave a command. */
export const refuseActor = (actor: string): Invalid | undefined => refuseText("actor", actor, 0, MAX_ACTOR_BYTES)

export class WorkerControl extends Context.Service<WorkerControl, {
  /**
   * Answers the command's number. `NotFound`: no worker of this id is alive. `actor` says who gave it, for
   * `Inspect.workers` and the worker's log.
   */
  readonly tell: (
    worker: WorkerId,
    command: WorkerCommand,
    actor?: string
  ) => Effect.Effect<number, NotFound | Invalid | StoreUnavailable>
}>()("@headgate/core/WorkerControl") {}
