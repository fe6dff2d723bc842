/**
 * The bundle of contracts a full store provides. Narrower stores provide a subset: what they lack they do not provide,
 * and a program that asks for it does not compile.
 */
import type { Checkpoints } from "./Checkpoints.ts"
import type { Control } from "./Control.ts"
import type { DeathCallbacks } from "./DeathCallbacks.ts"
import type { Duties } from "./Duties.ts"
import type { Explain } from "./Explain.ts"
import type { Gate } from "./Gate.ts"
import type { Heartbeat } from "./Heartbeat.ts"
import type { Inspect } from "./Inspect.ts"
import type { Leases } from "./Leases.ts"
import type { Pauses } from "./Pauses.ts"
import type { Policies } from "./Policies.ts"
import type { Producer } from "./Producer.ts"
import type { Quarantine } from "./Quarantine.ts"
import type { Redrive } from "./Redrive.ts"
import type { OutputStore, ProgressStore } from "./Reports.ts"
import type { Transactional } from "./Transactional.ts"
import type { Wakeups } from "./Wakeups.ts"
import type { WorkerControl } from "./WorkerControl.ts"

/** What a worker needs of a store. */
export type WorkerStore =
  | Gate
  | Leases
  | Checkpoints
  | Heartbeat
  | Wakeups
  | Duties
  | DeathCallbacks
  | ProgressStore
  | OutputStore
  | Policies

/** Every capability. */
export type Store =
  | WorkerStore
  | Producer
  | Transactional
  | Control
  | Pauses
  | Quarantine
  | Redrive
  | Inspect
  | Explain
  | WorkerControl
