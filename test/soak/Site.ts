/** What the soak runs on: a server of its own, and processes that each reach it through a proxy of their own. */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as PostgresStore from "@headgate/postgres/PostgresStore"
import { EmbeddedPostgres, TcpProxy } from "@headgate/testkit"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Dice from "../crash/fixtures/Dice.ts"
import * as Fleet from "../crash/fixtures/Fleet.ts"
import * as AuditSchema from "./AuditSchema.ts"
import { PRODUCERS, WORKERS } from "./Pace.ts"

export type Role = "worker" | "producer"

export interface Place {
  readonly role: Role
  readonly fleet: Fleet.Fleet
  readonly proxy: TcpProxy.TcpProxy
  /** Its process, or undefined while that is not up. */
  readonly pid: () => number | undefined
}

export interface Site {
  readonly server: EmbeddedPostgres.Server
  readonly fleets: ReadonlyArray<Fleet.Fleet>
  readonly places: ReadonlyArray<Place>
  /** Processes that were given a reason to end. */
  readonly doomed: Set<number>
  /** Held by whoever takes the server away. */
  readonly serverLock: Semaphore.Semaphore
  /** No more orders. */
  readonly dismissProducers: Effect.Effect<void>
  /** Nothing moves any more. */
  readonly dismissWorkers: Effect.Effect<void>
}

/** Connections of this process, straight to the server; no fault ends them but the server's own. */
export const WATCHER = "soak watcher"
export const watcher = (url: string) =>
  PgClient.layer({ url: Redacted.make(url), maxConnections: 5, applicationName: WATCHER })

/** Of no machine's clock: an hour and more off. */
const SKEWS_MS = [0, 7_200_000, -5_400_000, 90_000]
const JUMP_MS = 3_600_000

export const startServer = EmbeddedPostgres.start({
  isDurable: true,
  // Which of two transactions committed first is read from the server after the end.
  settings: { track_commit_timestamp: "on", max_connections: "200" }
})

export const prepare = (url: string) =>
  Effect.scoped(Effect.gen(function*() {
    const client = watcher(url)
    yield* Layer.build(PostgresStore.layer.pipe(Layer.provide(client)))
    yield* Effect.provide(AuditSchema.install, client)
  }))

export const open = Effect.fnUntraced(function*(server: EmbeddedPostgres.Server, seed: number) {
  const dice = Dice.make(seed)
  const staff = (role: Role, size: number) =>
    Effect.gen(function*() {
      const proxies = yield* Effect.forEach(Array.from({ length: size }), () => TcpProxy.make(server.url))
      const programs = proxies.map(({ url }, index) => program(role, index, url, server.url, dice.between(1, 2 ** 31)))
      const fleet = yield* Fleet.start(programs, true)
      const places = proxies.map((proxy, index): Place => ({ role, proxy, fleet, pid: () => fleet.up()[index] }))
      return { fleet, places }
    })
  const around = yield* Effect.scope
  const hire = Effect.fnUntraced(function*(role: Role, size: number) {
    const scope = yield* Scope.fork(around)
    return { ...yield* Scope.provide(staff(role, size), scope), dismiss: Scope.close(scope, Exit.void) }
  })
  const producers = yield* hire("producer", PRODUCERS)
  const workers = yield* hire("worker", WORKERS)
  const site: Site = {
    server,
    fleets: [producers.fleet, workers.fleet],
    places: [...workers.places, ...producers.places],
    doomed: new Set(),
    serverLock: Semaphore.makeUnsafe(1),
    dismissProducers: producers.dismiss,
    dismissWorkers: workers.dismiss
  }
  return site
})

const program = (role: Role, index: number, databaseUrl: string, auditUrl: string, seed: number): Fleet.Program => ({
  entry: new URL(`./${role}.ts`, import.meta.url),
  databaseUrl,
  env: {
    AUDIT_URL: auditUrl,
    SOAK_SEED: String(seed),
    CLOCK_SKEW_MS: String(SKEWS_MS[index % SKEWS_MS.length]),
    CLOCK_JUMP_MS: String(index % 2 === 0 ? JUMP_MS : -JUMP_MS)
  },
  nodeArguments: role === "worker"
    ? [`--import=${new URL("../crash/fixtures/skewed-clock.ts", import.meta.url).href}`]
    : []
})
