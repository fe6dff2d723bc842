/** Writes a CPU profile of a part of a process's life, where a file was named for it. */
import * as Fs from "node:fs"
import { Session } from "node:inspector/promises"

export class Profiler {
  private readonly path: string | undefined
  private session: Session | undefined

  constructor(path: string | undefined) {
    this.path = path
  }

  async start(): Promise<void> {
    if (this.path === undefined) return
    this.session = new Session()
    this.session.connect()
    await this.session.post("Profiler.enable")
    await this.session.post("Profiler.setSamplingInterval", { interval: 200 })
    await this.session.post("Profiler.start")
  }

  async stop(): Promise<void> {
    if (this.session === undefined || this.path === undefined) return
    const { profile } = await this.session.post("Profiler.stop")
    Fs.writeFileSync(this.path, JSON.stringify(profile))
    this.session = undefined
  }
}
