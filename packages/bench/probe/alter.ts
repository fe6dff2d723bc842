import * as EmbeddedPostgres from "@headgate/testkit/EmbeddedPostgres"
import * as Effect from "effect/Effect"
import * as Server from "../src/Server.ts"
import { systems } from "../src/systems/index.ts"
import { median } from "../src/Measurement.ts"
import { successSql } from "@headgate/postgres/Leases"
import * as Pg from "pg"
import * as Fs from "node:fs"

// variants: file with { name: [sql...] , settle?: string }
const variants: Record<string, { sql?: string[]; settle?: string; kept?: boolean }> = JSON.parse(Fs.readFileSync(process.argv[2]!, "utf8"))
const N = 20000, B = 1000, rounds = Number(process.argv[3] ?? 3)
const typed = (s: string) => s.replace("unnest($1, $2, $3, $4, $5)", "unnest($1::text[], $2::uuid[], $3::bigint[], $4::int[], $5::bytea[])")
await Effect.runPromise(Effect.scoped(Effect.gen(function*() {
  const url = yield* EmbeddedPostgres.url({ isDurable: true, settings: Server.serverSettings })
  yield* Effect.promise(async () => {
    const server = await Server.connect(url)
    const hg = await systems["headgate"]!()
    const out: Record<string, { a: number[]; s: number[] }> = {}
    for (let r = 0; r < rounds; r++) for (const [name, v] of Object.entries(variants)) {
      const db = await server.fresh(hg)
      const setting = hg.settings[v.kept ? 1 : 0]!
      for (const q of v.sql ?? []) await db.client.query(q)
      await hg.fill(db.url, setting, N)
      await db.settle()
      const c = new Pg.Client({ connectionString: db.url }); await c.connect()
      const a: number[] = [], s: number[] = []
      for (let i = 0; i < N / B; i++) {
        const lease = crypto.randomUUID()
        const t0 = performance.now()
        const { rows } = await c.query<{ id: string; fence: string }>({ name: "a", text: "select * from headgate.admit($1, $2, $3, $4, $5, $6, $7)", values: ["w1", lease, ["default"], [v.kept ? "no-op-kept" : "no-op"], [1], B, 30000] })
        const t1 = performance.now(); a.push(t1 - t0)
        const n = rows.length
        const res = await c.query({ name: "s", text: typed(v.settle ?? successSql), values: [rows.map((r) => r.id), Array(n).fill(lease), rows.map((r) => r.fence), [], []] })
        s.push(performance.now() - t1)
        if (n !== B || res.rowCount !== B) throw new Error(`${name}: ${n} ${res.rowCount}`)
      }
      const o = out[name] ??= { a: [], s: [] }
      o.a.push(median(a)); o.s.push(median(s))
      await c.end(); await db.drop()
    }
    for (const [name, o] of Object.entries(out)) console.log(`${name.padEnd(40)} admit ${median(o.a).toFixed(1)} (min ${Math.min(...o.a).toFixed(1)})  settle ${median(o.s).toFixed(1)} (min ${Math.min(...o.s).toFixed(1)}) ms per 1000`)
    await server.close()
  })
})))
