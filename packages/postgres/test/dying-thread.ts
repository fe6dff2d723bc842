/** Lives up to a beat as often as it is told, counted in shared memory, and dies before one otherwise. */
import { parentPort, workerData } from "node:worker_threads"

const lives = new Int32Array(workerData.memory as SharedArrayBuffer)
const life = Atomics.add(lives, 0, 1)
if (life < Number(workerData.options.capacity)) parentPort?.postMessage({ _tag: "Beating" })
setTimeout(() => {
  throw new Error(`death ${life}`)
}, 5)
