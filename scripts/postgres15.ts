/** Where Debian puts PostgreSQL 15; installs its package when it is missing and this process may do so. */
import { execFileSync } from "node:child_process"
import { existsSync, mkdirSync, writeFileSync } from "node:fs"

const directory = "/usr/lib/postgresql/15/bin"

export const postgres15 = (): string => {
  if (!existsSync(`${directory}/postgres`)) install()
  return directory
}

const install = () => {
  if (process.getuid?.() !== 0 || !existsSync("/usr/bin/apt-get")) {
    console.error(`PostgreSQL 15 is not in ${directory}: install the package postgresql-15.`)
    process.exit(1)
  }
  // Without this the package creates and starts a cluster of its own.
  const settings = "/etc/postgresql-common/createcluster.conf"
  if (!existsSync(settings)) {
    mkdirSync("/etc/postgresql-common", { recursive: true })
    writeFileSync(settings, "create_main_cluster = false\n")
  }
  const run = (...command: ReadonlyArray<string>) =>
    execFileSync("apt-get", command, { stdio: "inherit", env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" } })
  run("update")
  run("install", "-y", "--no-install-recommends", "postgresql-15")
}
