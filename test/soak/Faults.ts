/**
 * What can go wrong. Each fault is begun, lasts, and is over; it answers which processes it touched, so that a lease that
 * ran out can be explained.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"
import { once } from "node:events"
import type * as Dice from "../crash/fixtures/Dice.ts"
import { LEASE_MS } from "./Pace.ts"
import { type Place, type Site, WATCHER } from "./Site.ts"

/** The processes that a fault touched; `all` of them, or none that it could have touched was up. */
export type Touched = ReadonlyArray<number> | "all" | "none"

export interface Fault {
  readonly kind: string
  /** How often it is drawn, beside the others. */
  readonly share: number
  readonly inject: (site: Site, dice: Dice.Dice) => Effect.Effect<Touched, unknown, PgClient.PgClient>
}

const moveClock = (pid: number, { fleet }: Place) => Effect.sync(() => fleet.signal(pid, "SIGUSR2"))

const isWorker = ({ role }: Place): boolean => role === "worker"
const isProducer = ({ role }: Place): boolean => role === "producer"

const onProcess = (
  which: (place: Place) => boolean,
  act: (pid: number, place: Place, site: Site, dice: Dice.Dice) => Effect.Effect<unknown>
): Fault["inject"] =>
  Effect.fnUntraced(function*(site, dice) {
    const place = dice.oneOf(site.places.filter(which))
    const pid = place?.pid()
    if (place === undefined || pid === undefined || site.doomed.has(pid)) return "none"
    yield* act(pid, place, site, dice)
    return [pid]
  })

const kill = (signal: NodeJS.Signals) => (pid: number, { fleet }: Place, { doomed }: Site) =>
  Effect.sync(() => {
    doomed.add(pid)
    fleet.signal(pid, signal)
  })

/** A shell sees to it that the process goes on, also when this one is gone by then. */
const stop = (pid: number, _place: Place, _site: Site, dice: Dice.Dice) =>
  Effect.promise(() => {
    const seconds = dice.between(200, 2.2 * LEASE_MS) / 1000
    const shell = spawn("sh", ["-c", "kill -STOP $0; sleep $1; kill -CONT $0", String(pid), String(seconds)], {
      stdio: "ignore",
      detached: true
    })
    return once(shell, "exit")
  })

/** Something is wrong with the network of these places for a while. */
const onNetwork = Effect.fnUntraced(function*(
  places: ReadonlyArray<Place>,
  millis: number,
  begin: (place: Place) => Effect.Effect<void>,
  end: (place: Place) => Effect.Effect<void>
) {
  const processes = () => places.flatMap((place) => place.pid() ?? [])
  const before = processes()
  yield* Effect.forEach(places, begin, { discard: true })
  yield* Effect.ensuring(Effect.sleep(millis), Effect.forEach(places, end, { discard: true }))
  // One that came up meanwhile is touched as well.
  return [...new Set([...before, ...processes()])]
})

const someOf = ({ places }: Site, dice: Dice.Dice): ReadonlyArray<Place> =>
  dice.between(1, 5) === 1 ? places : [dice.oneOf(places)!]

const broken = (longest: number, begin: (place: Place) => Effect.Effect<void>): Fault["inject"] => (site, dice) =>
  onNetwork(someOf(site, dice), dice.between(100, longest), begin, ({ proxy }) => proxy.heal)

/** Mostly by more than a lease: what was sent arrives when somebody else has the job. */
const slow: Fault["inject"] = Effect.fnUntraced(function*({ places }, dice) {
  const millis = dice.between(1, 4) > 1 ? dice.between(1.8 * LEASE_MS, 3 * LEASE_MS) : dice.between(10, LEASE_MS / 2)
  const touched = yield* onNetwork(
    [dice.oneOf(places.filter(isWorker))!],
    2000,
    ({ proxy }) => proxy.delay(millis),
    ({ proxy }) => proxy.delay(0)
  )
  // What is on its way still takes its time.
  yield* Effect.sleep(millis)
  return touched
})

const restart = (how: "fast" | "immediate" | "kill"): Fault["inject"] =>
  Effect.fnUntraced(function*({ server, serverLock }, dice) {
    const down = how === "kill" ? server.kill : server.stop(how)
    yield* serverLock.withPermits(1)(
      Effect.ensuring(Effect.andThen(down, Effect.sleep(dice.between(0, 800))), Effect.orDie(server.start))
    )
    return "all" as const
  })

const terminate: Fault["inject"] = Effect.fnUntraced(function*(_site, dice) {
  const sql = yield* PgClient.PgClient
  const share = dice.between(10, 60) / 100
  yield* sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND application_name <> ${WATCHER} AND random() < ${share}`
  return "all" as const
})

const statements: Readonly<Record<Place["role"], ReadonlyArray<RegExp>>> = {
  worker: [
    /"headgate"\.admit\w*\(/,
    /"headgate"\.(succeed|settle)\(/,
    /"headgate"\.renew\(/,
    /insert into "headgate"\.step/,
    /"headgate"\.reclaim_expired\(/,
    /^COMMIT/i
  ],
  producer: [/insert into "headgate"\.job/, /"headgate"\.cancel_job\(/, /^COMMIT/i]
}

/** The connection ends right before, or right after, the server has run a statement: nobody hears the answer. */
const lose = (moment: "before" | "after"): Fault["inject"] =>
  Effect.fnUntraced(function*({ places }, dice) {
    const { pid, proxy, role } = dice.oneOf(places)!
    const { fired } = yield* proxy.dropOn({ sql: dice.oneOf(statements[role])!, moment })
    const isLost = yield* Effect.timeoutOption(fired, "3 seconds")
    // It must not fire at another time.
    yield* proxy.dropOn({ sql: /(?!)/, moment })
    const touched = pid()
    return isLost._tag === "None" || touched === undefined ? "none" : [touched]
  })

export const faults: ReadonlyArray<Fault> = [
  { kind: "worker killed", share: 10, inject: onProcess(isWorker, kill("SIGKILL")) },
  { kind: "worker stopped and continued", share: 10, inject: onProcess(isWorker, stop) },
  { kind: "worker replaced", share: 3, inject: onProcess(isWorker, kill("SIGTERM")) },
  { kind: "worker's clock moved by an hour", share: 4, inject: onProcess(isWorker, moveClock) },
  { kind: "producer killed", share: 3, inject: onProcess(isProducer, kill("SIGKILL")) },
  { kind: "producer killed between store and record", share: 5, inject: onProcess(isProducer, kill("SIGUSR2")) },
  { kind: "producer stopped and continued", share: 2, inject: onProcess(isProducer, stop) },
  { kind: "connections cut", share: 5, inject: broken(2000, ({ proxy }) => proxy.cut) },
  {
    kind: "connections gone silent",
    share: 6,
    inject: broken(1.6 * LEASE_MS, ({ proxy }) => proxy.blackhole)
  },
  { kind: "network slowed", share: 16, inject: slow },
  { kind: "answer lost", share: 12, inject: lose("after") },
  { kind: "request lost", share: 4, inject: lose("before") },
  { kind: "sessions terminated", share: 6, inject: terminate },
  { kind: "server restarted", share: 2, inject: restart("fast") },
  { kind: "server restarted at once", share: 2, inject: restart("immediate") },
  { kind: "server killed", share: 1, inject: restart("kill") }
]
