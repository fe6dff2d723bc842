/** Finds the tenants whose work crowds out their neighbours, from what is in flight now. */

export interface PartitionLoad {
  readonly key: string
  /** Jobs of the partition that are running. */
  readonly inFlight: number
}

/**
 * Keys of the partitions of one queue that hold at least 2 running jobs and more than twice the mean of their peers, in
 * the order given. A partition alone is never noisy. Exact: no division, no rounding.
 */
export const noisyPartitionKeys = (partitions: ReadonlyArray<PartitionLoad>): ReadonlyArray<string> => {
  const peers = BigInt(partitions.length - 1)
  let total = 0n
  for (const { inFlight } of partitions) total += BigInt(inFlight)
  return partitions
    .filter(({ inFlight }) => {
      const held = BigInt(inFlight)
      return held >= 2n && held * peers > 2n * (total - held)
    })
    .map(({ key }) => key)
}
