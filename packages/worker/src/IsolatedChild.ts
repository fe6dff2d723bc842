/**
 * One child process as its worker sees it: started in a process group of its own, given one job at a time, told to stop,
 * killed with all that it started. It never throws; whatever becomes of the process is the answer to its job.
 */
import type { LogLine } from "@headgate/core/AttemptLog"
import type { StoredError } from "@headgate/core/ErrorText"
import type { InterruptionReason } from "@headgate/core/Leases"
import type { ProgressUpdate } from "@headgate/core/Progress"
import type { Invalid } from "@headgate/core/Refusals"
import type { TrackedReport } from "@headgate/core/TrackedWork"
import * as Effect from "effect/Effect"
import { type ChildProcess, spawn } from "node:child_process"
import { Socket } from "node:net"
import type { Readable } from "node:stream"
import { crashOf, type IsolatedCrash, OutputTail } from "./IsolatedCrash.ts"
import {
  type AskedExtension,
  CHANNEL_FD,
  type ChosenEnding,
  Frame,
  FrameReader,
  jsonFrame,
  LIFELINE_FD,
  PROTOCOL,
  readJson,
  type SaidCharge
} from "./IsolatedFrames.ts"
import type { IsolatedSettings } from "./IsolatedOptions.ts"

export type Answer =
  | { readonly _tag: "Success" | "Failure"; readonly bytes: Uint8Array }
  | { readonly _tag: "Defect"; readonly error: StoredError }
  | { readonly _tag: "Unencodable"; readonly message: string; readonly path?: string | undefined }
  /** The fields of an `Invalid`. */
  | { readonly _tag: "Refused"; readonly refusal: ConstructorParameters<typeof Invalid>[0] }
  | { readonly _tag: "Interrupted" }
  | { readonly _tag: "Ending"; readonly ending: ChosenEnding }
  | { readonly _tag: "Crash"; readonly error: IsolatedCrash }

/** Whom the child's words of one job are for. */
export interface Listener {
  readonly answer: (answer: Answer) => void
  readonly progress: (update: ProgressUpdate) => void
  readonly charge: (said: SaidCharge) => void
  readonly extend: (asked: AskedExtension) => void
  readonly log: (line: LogLine) => void
  readonly tracked: (report: TrackedReport) => void
}

export class IsolatedChild {
  served = 0
  isEnded = false
  private isReady = false
  private isRetired = false
  private isExited = false
  private listener: Listener | undefined = undefined
  private fault: Parameters<typeof crashOf>[0]["fault"] = undefined
  private startTimer: ReturnType<typeof setTimeout> | undefined = undefined
  private killTimer: ReturnType<typeof setTimeout> | undefined = undefined
  private endTimer: ReturnType<typeof setTimeout> | undefined = undefined
  private process: ChildProcess | undefined = undefined
  private channel: Socket | undefined = undefined
  private readonly stdout: OutputTail
  private readonly stderr: OutputTail
  private readonly settings: IsolatedSettings
  private readonly kind: string
  private readonly onEnd: (child: IsolatedChild) => void

  constructor(kind: string, settings: IsolatedSettings, onEnd: (child: IsolatedChild) => void) {
    this.kind = kind
    this.settings = settings
    this.onEnd = onEnd
    this.stdout = new OutputTail(settings.maxOutput)
    this.stderr = new OutputTail(settings.maxOutput)
    this.start()
  }

  get isFree(): boolean {
    return this.listener === undefined && !this.isEnded && !this.isRetired && !this.isExited
  }

  /** Gives it a job; what it says goes to `listener`, until its answer. */
  run(request: Buffer, listener: Listener): void {
    this.served++
    this.listener = listener
    this.stdout.clear()
    this.stderr.clear()
    if (this.isEnded) this.answer({ _tag: "Crash", error: this.crash(null, null) })
    else this.channel?.write(request)
  }

  /** Tells it why its job has to stop; kills it when it does not. Answers when it stopped, or is gone. */
  stop(reason: InterruptionReason | undefined): Effect.Effect<void> {
    return Effect.callback<void>((resume) => {
      if (this.listener === undefined) return resume(Effect.void)
      this.listener = { ...this.listener, answer: () => resume(Effect.void) }
      this.channel?.write(jsonFrame(Frame.interrupt, { reason }))
      this.killAfter()
    })
  }

  /** Tells it that the lease of its job was extended as it asked. */
  extended(id: number): void {
    this.channel?.write(jsonFrame(Frame.extended, { id }))
  }

  /** Lets it end by itself, which it does when its channel closes; kills it when it does not. */
  retire(): void {
    if (this.isRetired) return
    this.isRetired = true
    this.channel?.end()
    this.killAfter()
  }

  private killAfter(): void {
    this.killTimer ??= setTimeout(this.kill, this.settings.killAfterMs)
  }

  /** It, and all that it started in its process group. */
  private readonly kill = (): void => {
    const pid = this.process?.pid
    if (pid === undefined) return
    try {
      process.kill(-pid, "SIGKILL")
    } catch {
      // Nothing of the group is left.
    }
  }

  private start(): void {
    const { echo, startTimeoutMs } = this.settings
    try {
      this.process = spawnChild(this.settings)
    } catch (error) {
      return this.failToStart(error)
    }
    this.process.once("error", (error) => this.failToStart(error))
    this.process.once("exit", this.onExit)
    this.process.once("close", this.finish)
    // Undefined where the process has no descriptors left for them.
    const [, stdout, stderr, channel, lifeline] = this.process.stdio ?? []
    drain(stdout, this.stdout, echo ? process.stdout : undefined)
    drain(stderr, this.stderr, echo ? process.stderr : undefined)
    lifeline?.on("error", () => {})
    if (channel instanceof Socket) this.open(channel)
    const late = `the child did not serve within ${startTimeoutMs} ms of its start`
    this.startTimer = setTimeout(() => this.refuse("not_started", late), startTimeoutMs)
  }

  private open(channel: Socket): void {
    this.channel = channel
    const reader = new FrameReader((kind, body) => this.onFrame(kind, body))
    channel.on("error", () => {})
    channel.on("data", (chunk: Buffer) => {
      try {
        reader.push(chunk)
      } catch (error) {
        this.refuse("protocol", `the child wrote what its worker does not understand: ${String(error)}`)
      }
    })
    // One that hangs up is ending, or it will never answer.
    channel.on("close", () => this.killAfter())
  }

  private onFrame(kind: number, body: Buffer): void {
    switch (kind) {
      case Frame.ready:
        return this.onReady(readJson(body))
      case Frame.progress:
        return this.listener?.progress(readJson(body))
      case Frame.charge:
        return this.listener?.charge(readJson(body))
      case Frame.extend:
        return this.listener?.extend(readJson(body))
      case Frame.log:
        return this.listener?.log(readJson(body))
      case Frame.tracked:
        return this.listener?.tracked(readJson(body))
      case Frame.success:
        return this.answer({ _tag: "Success", bytes: new Uint8Array(body) })
      case Frame.failure:
        return this.answer({ _tag: "Failure", bytes: new Uint8Array(body) })
      case Frame.defect:
        return this.answer({ _tag: "Defect", error: readJson(body) })
      case Frame.unencodable:
        return this.answer({ _tag: "Unencodable", ...readJson<{ message: string; path?: string }>(body) })
      case Frame.refused:
        return this.answer({ _tag: "Refused", refusal: readJson(body) })
      case Frame.interrupted:
        return this.answer({ _tag: "Interrupted" })
      case Frame.ending:
        return this.answer({ _tag: "Ending", ending: readJson(body) })
      default:
        throw new Error(`a frame of kind ${kind}`)
    }
  }

  private onReady({ kind, protocol }: { readonly kind: string; readonly protocol: number }): void {
    if (protocol !== PROTOCOL) throw new Error(`protocol ${protocol}, not ${PROTOCOL}`)
    if (kind !== this.kind) throw new Error(`it serves ${kind}, not ${this.kind}`)
    this.isReady = true
    clearTimeout(this.startTimer)
  }

  private answer(answer: Answer): void {
    const { listener } = this
    this.listener = undefined
    if (!this.isRetired && !this.isExited && this.fault === undefined) {
      clearTimeout(this.killTimer)
      this.killTimer = undefined
    }
    listener?.answer(answer)
  }

  private refuse(reason: "not_started" | "protocol", message: string): void {
    this.fault ??= { reason, message }
    this.channel?.destroy()
    this.kill()
  }

  private failToStart(error: unknown): void {
    this.fault ??= { reason: "not_started", message: `${this.settings.command} did not start: ${String(error)}` }
    this.finish()
  }

  private readonly onExit = (): void => {
    this.isExited = true
    // What it started must not outlive it, nor keep its pipes.
    this.kill()
    // A process that left the group may still hold them.
    this.endTimer = setTimeout(this.finish, PIPES_MS)
  }

  /** The process is gone and all that it said was read. */
  private readonly finish = (): void => {
    if (this.isEnded) return
    this.isEnded = true
    for (const timer of [this.startTimer, this.killTimer, this.endTimer]) clearTimeout(timer)
    const { exitCode = null, signalCode = null } = this.process ?? {}
    if (this.listener !== undefined) this.answer({ _tag: "Crash", error: this.crash(exitCode, signalCode) })
    for (const stream of this.process?.stdio ?? []) stream?.destroy()
    this.onEnd(this)
  }

  /** It got as far as to serve. */
  get hasServed(): boolean {
    return this.isReady && this.served > 0
  }

  private crash(exitCode: number | null, signal: NodeJS.Signals | null): IsolatedCrash {
    const { fault, settings: { memoryLimit }, stderr, stdout } = this
    return crashOf({ exitCode, signal, fault, memoryLimit, stdout, stderr })
  }
}

const spawnChild = ({ args, command, cwd, env, memoryLimit }: IsolatedSettings): ChildProcess => {
  // RLIMIT_DATA, not the address space: V8 reserves far more of that than it uses. The shell replaces itself.
  const limited = memoryLimit === undefined
    ? { file: command, argv: args }
    : { file: "/bin/sh", argv: ["-c", LIMIT, String(Math.floor(memoryLimit / 1024)), command, ...args] }
  const stdio: Array<"ignore" | "pipe"> = ["ignore", "pipe", "pipe"]
  for (const fd of [CHANNEL_FD, LIFELINE_FD]) stdio[fd] = "pipe"
  return spawn(limited.file, limited.argv, { env, cwd, stdio, detached: true })
}

const drain = (from: unknown, tail: OutputTail, echo: NodeJS.WriteStream | undefined): void => {
  // SAFETY: the streams of piped stdout and stderr are readable.
  const stream = from as Readable | null | undefined
  stream?.on("error", () => {}).on("data", (chunk: Buffer) => {
    tail.push(chunk)
    echo?.write(chunk)
  })
}

/** What the shell adds to the environment is taken away again. */
const LIMIT = "ulimit -d \"$0\" || exit 126; unset PWD OLDPWD SHLVL _; exec \"$@\""
const PIPES_MS = 500
