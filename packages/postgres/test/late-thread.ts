/** Beats at once and dies in its first life; in its second it lives on, and beats only after a while. */
import { parentPort, workerData } from "node:worker_threads"

const life = Atomics.add(new Int32Array(workerData.memory as SharedArrayBuffer), 0, 1)
const beat = () => parentPort?.postMessage({ _tag: "Beating" })
if (life === 0) {
  beat()
  setTimeout(() => process.exit(), 5)
} else {
  setTimeout(beat, 200)
}
parentPort?.once("message", () => process.exit())
