/**
 * A small shell process that stands between this process and its Postgres server. It starts the server, passes signals
 * on, and when its input ends (this process closed it, exited or was killed in any way) it stops the server and removes
 * the temporary home. So clean-up takes one path, whichever way the owner ends. On Linux the server is further tied to
 * the guardian by the parent-death signal, in case the guardian itself is killed.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as ChildProcess from "node:child_process"
import * as Readline from "node:readline"
import { PostgresUnavailable } from "../PostgresUnavailable.ts"
import type { PostgresBinaries } from "./PostgresBinaries.ts"
import { serverAccount } from "./ServerAccount.ts"

const mark = "headgate-guardian:"

const script = `
home=$1 data=$2 farewell=$3 initdb=$4; shift 4
trap '' HUP INT TERM PIPE
tie=; setpriv --pdeathsig KILL true 2>/dev/null && tie='setpriv --pdeathsig'
supervise='tie=$1 file=$2; shift 2
  \${tie:+$tie INT} "$@" </dev/null & echo $! >"$file"; echo "${mark} started $!"
  wait $!; status=$?; rm -f "$file"; echo "${mark} exited $status"'
signal() { [ -s "$home/pid" ] && kill -"$1" "$(cat "$home/pid")" 2>/dev/null; }
supervisor=
while read -r verb argument; do
  case $verb in
    initialize) "$initdb" -D "$data" -U postgres -A trust --encoding=UTF8 --locale=C --no-sync --no-instructions </dev/null
      echo "${mark} initialized $?" ;;
    start) \${tie:+$tie KILL} sh -c "$supervise" supervise "$tie" "$home/pid" "$@" -D "$data" -p "$argument" </dev/null &
      supervisor=$! ;;
    signal) signal "$argument" ;;
  esac
done
tries=0
while [ -n "$supervisor" ] && kill -0 "$supervisor" 2>/dev/null && [ $tries -lt 200 ]; do
  [ $tries -lt 100 ] && signal "$farewell" || signal KILL
  sleep 0.1; tries=$((tries + 1))
done
shared=$(sed -n '7s/.* //p' "$home/data/postmaster.pid" 2>/dev/null) && [ -n "$shared" ] && ipcrm -m "$shared" 2>/dev/null
tries=0
until rm -rf "$home" 2>/dev/null || [ $tries -ge 50 ]; do sleep 0.1; tries=$((tries + 1)); done
`

export type Signal = "INT" | "QUIT" | "KILL"

export interface Options {
  readonly binaries: PostgresBinaries
  /** Removed at the end, with all it holds. */
  readonly home: string
  readonly dataDirectory: string
  /** How the server is asked to stop when this process is gone. */
  readonly farewell: Signal
  readonly arguments: ReadonlyArray<string>
  readonly startTimeoutMillis: number
}

export interface PostgresGuardian {
  readonly initialize: Effect.Effect<void, PostgresUnavailable>
  readonly start: (port: number) => Effect.Effect<void, PostgresUnavailable>
  /** Signals the server, if it runs, and waits until it has ended; after `patienceMillis` it is killed. */
  readonly end: (signal: Signal, patienceMillis: number) => Effect.Effect<void>
  readonly isRunning: () => boolean
  /** The last lines the server printed. */
  readonly output: () => string
}

interface Run {
  pid: number
  readonly ready: Deferred.Deferred<void>
  readonly ended: Deferred.Deferred<number>
}

export const make = Effect.fnUntraced(function*(options: Options) {
  const lines: Array<string> = []
  const initialized = Deferred.makeUnsafe<number>()
  let run: Run | undefined

  const onLine = (line: string) => {
    if (line.startsWith(mark)) return onEvent(line.slice(mark.length + 1).split(" "))
    if (lines.push(line) > 60) lines.shift()
    // A standby takes read-only ones.
    if (run && /database system is ready to accept (read-only )?connections/.test(line)) succeed(run.ready, undefined)
  }
  const onEvent = ([event, argument]: ReadonlyArray<string>) => {
    if (event === "initialized") succeed(initialized, Number(argument))
    if (event === "started" && run) run.pid = Number(argument)
    if (event === "exited") onEnded(Number(argument))
  }
  const onEnded = (status: number) => {
    const ended = run
    run = undefined
    if (ended) succeed(ended.ended, status)
  }
  /** The guardian was killed: on Linux its server follows, elsewhere it is told here. */
  const onGone = () => {
    succeed(initialized, -1)
    if (run && run.pid > 0) {
      try {
        process.kill(run.pid, `SIG${options.farewell}`)
      } catch {
        // Gone already.
      }
    }
    onEnded(-1)
  }

  const child = yield* Effect.acquireRelease(
    spawn(options).pipe(Effect.tap((child) =>
      Effect.sync(() => {
        Readline.createInterface({ input: child.stdout }).on("line", onLine)
        child.once("exit", onGone)
        child.stdin.on("error", () => {}) // a killed guardian; `exit` tells it
      })
    )),
    (child) => Effect.andThen(end(options.farewell, 15_000), closed(child))
  )
  const send = (line: string) => Effect.sync(() => void child.stdin.write(`${line}\n`))
  const refuse = (problem: string, binary: string) =>
    new PostgresUnavailable({ problem, binary, output: lines.slice(-20).join("\n") })

  const end = (signal: Signal, patienceMillis: number): Effect.Effect<void> =>
    Effect.suspend(() => {
      const ending = run
      if (ending === undefined) return Effect.void
      const killed = pause(patienceMillis).pipe(
        Effect.andThen(send("signal KILL")),
        Effect.andThen(Deferred.await(ending.ended))
      )
      return send(`signal ${signal}`).pipe(
        Effect.andThen(Effect.raceFirst(Deferred.await(ending.ended), killed)),
        Effect.asVoid
      )
    })

  const initialize = Effect.gen(function*() {
    yield* send("initialize")
    const status = yield* Deferred.await(initialized)
    if (status !== 0) return yield* refuse(`initdb failed (status ${status}).`, options.binaries.initdb)
  })

  const start = Effect.fnUntraced(function*(port: number) {
    if (run !== undefined) return
    const mine: Run = { pid: 0, ready: Deferred.makeUnsafe(), ended: Deferred.makeUnsafe() }
    run = mine
    lines.length = 0
    yield* send(`start ${port}`)
    const status = yield* Effect.raceAllFirst([
      Effect.as(Deferred.await(mine.ready), "ready" as const),
      Effect.map(Deferred.await(mine.ended), (status) => `it ended with status ${status}`),
      Effect.as(pause(options.startTimeoutMillis), `not ready within ${options.startTimeoutMillis} ms`)
    ])
    if (status === "ready") return
    yield* end("KILL", 1_000)
    return yield* refuse(`Postgres did not start on port ${port}: ${status}.`, options.binaries.postgres)
  })

  const guardian: PostgresGuardian = {
    initialize,
    start,
    end,
    isRunning: () => run !== undefined,
    output: () => lines.join("\n")
  }
  return guardian
})

type Shell = ChildProcess.ChildProcessByStdio<import("node:stream").Writable, import("node:stream").Readable, null>

/** A session of its own, so that a Ctrl-C in the terminal reaches the owner alone and finalizers still have a server. */
const spawn = (options: Options): Effect.Effect<Shell, PostgresUnavailable> =>
  Effect.callback((resume) => {
    const { binaries, dataDirectory, farewell, home } = options
    const argv = [home, dataDirectory, farewell, binaries.initdb, binaries.postgres, ...options.arguments]
    const child: Shell = ChildProcess.spawn("sh", ["-c", `exec 2>&1\n${script}`, "headgate-guardian", ...argv], {
      cwd: home,
      detached: true,
      env: { PATH: process.env["PATH"], LC_ALL: "C", TZ: "UTC" },
      stdio: ["pipe", "pipe", "ignore"],
      ...serverAccount
    })
    child.once("spawn", () => resume(Effect.succeed(child)))
    child.once("error", (error) =>
      resume(Effect.fail(
        new PostgresUnavailable({
          problem: `The shell that guards the server did not start: ${error.message}`,
          binary: "sh",
          output: ""
        })
      )))
  })

const closed = (child: Shell): Effect.Effect<void> =>
  Effect.callback((resume) => {
    if (child.exitCode !== null || child.signalCode !== null) return resume(Effect.void)
    child.once("exit", () => resume(Effect.void))
    child.stdin.end()
  })

/** In real time, whatever clock the caller's program runs on. */
export const pause = (millis: number): Effect.Effect<void> =>
  Effect.callback((resume) => {
    const timer = setTimeout(() => resume(Effect.void), millis)
    return Effect.sync(() => clearTimeout(timer))
  })

const succeed = <A>(deferred: Deferred.Deferred<A>, value: A) =>
  void Deferred.doneUnsafe(deferred, Effect.succeed(value))
