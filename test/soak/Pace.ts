/** How fast the soak goes. */
export const WORKERS = 4
export const PRODUCERS = 2
/** Of each worker. */
export const CONCURRENCY = 10
/** Short, so that many leases run out. */
export const LEASE_MS = 2500
/** Loops of each producer, and the pause between two orders of one. */
export const ORDERING = 4
export const PAUSE_MS = [100, 300] as const
/** Producers wait while more jobs are unfinished. */
export const MOST_UNFINISHED = 200
/** Between two faults. */
export const CALM_MS = [300, 1500] as const
/** Faults that go on at the same time. */
export const FAULTS_AT_ONCE = 2
/** After the last fault everything ends by then, and never for so long nothing. */
export const DRAIN_MS = 240_000
export const STUCK_MS = 45_000
