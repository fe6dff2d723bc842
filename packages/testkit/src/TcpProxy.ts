/**
 * A TCP proxy in front of Postgres, for tests of what a client does when the network fails: cut, black hole, delay, and
 * a connection lost right before or right after the server ran a given statement.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Net from "node:net"
import * as PostgresWire from "./internal/PostgresWire.ts"

export interface TcpProxy {
  /** The target's URL with the proxy's address. */
  readonly url: string
  readonly port: number
  /** How many clients are connected now. */
  readonly connections: Effect.Effect<number>
  /** Destroys every connection, and every new one as it comes. */
  readonly cut: Effect.Effect<void>
  /** Connections stay open and new ones are accepted, but what is sent vanishes, both ways, without an error. */
  readonly blackhole: Effect.Effect<void>
  /** Ends `cut` and `blackhole`. Connections that lost bytes in the black hole are destroyed, the others go on. */
  readonly heal: Effect.Effect<void>
  /** Holds back whatever passes for so long, each way; 0 ends it. */
  readonly delay: (millis: number) => Effect.Effect<void>
  /** New connections go to this server; those there are go on to the one they reach, as when an address moves. */
  readonly redirect: (targetUrl: string) => Effect.Effect<void>
  /** Destroys, once, the connection on which the next matching statement is run. Completes `fired` when it has. */
  readonly dropOn: (rule: DropRule) => Effect.Effect<{ readonly fired: Effect.Effect<void> }>
}

export interface DropRule {
  readonly sql: RegExp
  /** `before`: the server never gets it. `after`: the server has run it, the client never gets the answer. */
  readonly moment: "before" | "after"
}

/** A proxy on a free loopback port, for the scope. */
export const make = Effect.fn("TcpProxy.make")(function*(targetUrl: string) {
  const target = new URL(targetUrl)
  const state: State = { target, mode: "open", delayMillis: 0, links: new Set(), drop: undefined }
  const port = yield* listen((client) => connect(state, client))
  yield* Effect.addFinalizer(() => Effect.sync(() => state.links.forEach(destroy)))
  return proxy(state, targetUrl, port)
})

type Mode = "open" | "cut" | "blackhole"

interface State {
  target: URL
  mode: Mode
  delayMillis: number
  readonly links: Set<Link>
  drop: (DropRule & { readonly fired: Deferred.Deferred<void> }) | undefined
}

interface Link {
  readonly client: Net.Socket
  readonly server: Net.Socket
  hasLostBytes: boolean
  /** Requests sent and answered; the start-up is the first. */
  sent: number
  answered: number
  /** Set when the answer to request number `at` must not reach the client. */
  doom: { readonly at: number; readonly fired: Deferred.Deferred<void> } | undefined
}

const proxy = (state: State, targetUrl: string, port: number): TcpProxy => {
  const url = new URL(targetUrl)
  url.hostname = "127.0.0.1"
  url.port = String(port)
  const change = (mode: Mode, affected: (link: Link) => boolean) =>
    Effect.sync(() => {
      state.mode = mode
      for (const link of [...state.links].filter(affected)) destroy(link)
    })
  return {
    url: url.href,
    port,
    connections: Effect.sync(() => state.links.size),
    cut: change("cut", () => true),
    blackhole: change("blackhole", () => false),
    heal: change("open", (link) => link.hasLostBytes),
    delay: (millis) => Effect.sync(() => void (state.delayMillis = millis)),
    redirect: (targetUrl) => Effect.sync(() => void (state.target = new URL(targetUrl))),
    dropOn: (rule) =>
      Effect.sync(() => {
        const fired = Deferred.makeUnsafe<void>()
        state.drop = { ...rule, fired }
        return { fired: Deferred.await(fired) }
      })
  }
}

const listen = (onClient: (client: Net.Socket) => void): Effect.Effect<number, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.callback<Net.Server>((resume) => {
      const server = Net.createServer(onClient)
      server.listen(0, "127.0.0.1", () => resume(Effect.succeed(server)))
    }),
    (server) => Effect.callback<void>((resume) => void server.close(() => resume(Effect.void)))
  ).pipe(Effect.map((server) => {
    const address = server.address()
    return typeof address === "object" && address !== null ? address.port : 0
  }))

const connect = (state: State, client: Net.Socket): void => {
  if (state.mode === "cut") return void client.destroy()
  const server = Net.connect(Number(state.target.port || 5432), state.target.hostname)
  const link: Link = { client, server, hasLostBytes: false, sent: 1, answered: 0, doom: undefined }
  state.links.add(link)
  const inspect = inspector(state, link)
  forward(state, link, client, server, inspect.fromClient)
  forward(state, link, server, client, inspect.fromServer)
}

/** Passes bytes on in order, each when its delay is over. `sift` keeps what may pass; it may destroy the link. */
const forward = (
  state: State,
  link: Link,
  from: Net.Socket,
  to: Net.Socket,
  sift: (chunk: Buffer) => Buffer
): void => {
  let queue = Promise.resolve()
  const pass = (act: () => void) => {
    const due = performance.now() + state.delayMillis
    queue = queue.then(() => delayed(due - performance.now())).then(act)
  }
  from.setNoDelay(true)
  from.on("data", (chunk: Buffer) => {
    pass(() => {
      if (state.mode === "blackhole") return void (link.hasLostBytes = true)
      const passing = sift(chunk)
      if (passing.length > 0 && !to.destroyed) to.write(passing)
    })
  })
  // A black hole hides the other side's end as well.
  from.on("end", () => pass(() => state.mode === "blackhole" ? void (link.hasLostBytes = true) : void to.end()))
  from.on("error", () => {})
  from.on("close", () => {
    if (state.mode === "blackhole" && from === link.server) return void (link.hasLostBytes = true)
    pass(() => {
      destroy(link)
      state.links.delete(link)
    })
  })
}

const delayed = (millis: number): Promise<void> | undefined =>
  millis <= 0 ? undefined : new Promise((resolve) => setTimeout(resolve, millis))

const nothing = Buffer.alloc(0)

const inspector = (state: State, link: Link) => {
  const readClient = PostgresWire.clientReader()
  const readServer = PostgresWire.serverReader()
  const fire = (fired: Deferred.Deferred<void>) => {
    destroy(link)
    Deferred.doneUnsafe(fired, Effect.void)
    return nothing
  }
  const fromClient = (chunk: Buffer): Buffer => {
    for (const event of readClient(chunk)) {
      if (event.event === "sync") link.sent++
      else if (state.drop !== undefined && event.sql.search(state.drop.sql) >= 0) {
        const { fired, moment } = state.drop
        state.drop = undefined
        if (moment === "before") return fire(fired)
        link.doom = { at: link.sent + 1, fired }
      }
    }
    return chunk
  }
  /** Lets the answers to earlier requests pass, and holds back the doomed one until it is complete. */
  const fromServer = (chunk: Buffer): Buffer => {
    const ends = readServer(chunk)
    link.answered += ends.length
    if (link.doom === undefined) return chunk
    if (link.answered >= link.doom.at) return fire(link.doom.fired)
    return link.answered < link.doom.at - 1 ? chunk : chunk.subarray(0, ends.at(-1) ?? 0)
  }
  return { fromClient, fromServer }
}

const destroy = (link: Link): void => {
  link.client.destroy()
  link.server.destroy()
}
