/**
 * The account the server runs under. Postgres refuses to run as root, so root hands it to the unprivileged id 65534,
 * and everything the server touches must be reachable by that id.
 */
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"

export interface Account {
  readonly uid: number
  readonly gid: number
}

/** `undefined` means: the account of this process. */
export const serverAccount: Account | undefined = process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : undefined

/** A temporary directory in which the server's account may create and remove directories of its own. */
export const temporaryDirectory = (): string => {
  const preferred = Os.tmpdir()
  if (serverAccount === undefined) return preferred
  return [preferred, "/tmp", "/var/tmp"].find(isOpenToEverybody) ?? preferred
}

const isOpenToEverybody = (directory: string): boolean => {
  try {
    if ((Fs.statSync(directory).mode & 0o003) !== 0o003) return false
    for (let at = Fs.realpathSync(directory);; at = Path.dirname(at)) {
      if ((Fs.statSync(at).mode & 0o001) === 0) return false
      if (at === Path.dirname(at)) return true
    }
  } catch {
    return false
  }
}
