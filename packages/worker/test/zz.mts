import { IsolatedChild } from "../src/IsolatedChild.ts"
import { settingsOf } from "../src/IsolatedOptions.ts"
import { runFrame } from "../src/IsolatedFrames.ts"
import { readFileSync } from "node:fs"
const mb = Number(process.argv[2])
const s = settingsOf({ command: process.execPath, args: ["--conditions=headgate-source", import.meta.dirname + "/fixtures/isolated-child.ts"], ...(mb ? { memoryLimit: mb * 1048576 } : {}) }) as any
const t = performance.now()
const c = new IsolatedChild("isolated", s.success, () => {})
const frame = runFrame({ facts: { headers: {} } as any, schemaVersion: 1 }, Buffer.from(JSON.stringify({ does: "answer" })))
c.run(frame, { answer: (a: any) => {
  console.log(a._tag, a.error?.message, Math.round(performance.now() - t), "ms"); const t2 = performance.now()
  if (a._tag !== "Success") return
  console.log(readFileSync(`/proc/${JSON.parse(Buffer.from(a.bytes).toString()).pid}/status`, "utf8").match(/Vm(Data|RSS|Size).*/g))
  c.run(frame, { answer: (a: any) => { console.log(a._tag, (performance.now() - t2).toFixed(2), "ms warm"); c.retire() } } as any)
} } as any)
