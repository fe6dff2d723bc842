/** Partitions of a queue as `Policies.partitions` lists them: those with a policy, with ready work, or with jobs that run. */
import type { PartitionPage, PartitionState, PolicyList } from "@headgate/core/Policies"
import * as Bind from "./Bind.ts"

const MAX_WAITING = 1000

/** `$2`: the first key that may be on the page. A partition is noisy as the gate's draw would say it of these. */
export const listSql = `with queue as materialized (
    select array(select l.id from headgate.lane l where l.queue = $1) as lanes
  ), held as materialized (
    select r.partition_key, count(*) as jobs from (
      select j.partition_key from queue q join headgate.job j on j.lane_id = any(q.lanes) and j.state = 'running' limit 20000
    ) r group by r.partition_key
  ), page as materialized (
    select * from (
      (select p.partition_key from headgate.partition p where p.queue = $1 and p.partition_key >= $2
        order by p.partition_key limit $3)
      union select h.partition_key from held h where h.partition_key >= $2
      union select w.partition_key from queue q
        cross join lateral headgate.waiting_partitions(
          $1, q.lanes, q.lanes, $2, headgate.behind_all(), $3, false, false) w
    ) n order by n.partition_key limit $3
  ), peer as (
    select count(*) as partitions, (select coalesce(sum(h.jobs), 0) from held h) as jobs
    from (select h.partition_key from held h union select p.partition_key from page p) n
  )
  select p.partition_key, o.quantum, coalesce(o.is_paused, false) as is_paused, w.jobs::int as waiting,
    coalesce(h.jobs, 0)::int as in_flight, coalesce(t.remaining, 0) as deficit,
    coalesce(h.jobs >= 2 and h.jobs * (peer.partitions - 1) > 2 * (peer.jobs - h.jobs), false) as is_noisy
  from page p cross join peer
  left join headgate.partition o on o.queue = $1 and o.partition_key = p.partition_key
  left join held h on h.partition_key = p.partition_key
  left join headgate.queue_turn t on t.queue = $1 and t.partition_key = p.partition_key
  cross join lateral (
    select count(*) as jobs from (
      select from queue q cross join unnest(q.lanes) l(id) cross join lateral (
        select from headgate.job j
        where j.lane_id = l.id and j.partition_key = p.partition_key and j.state = 'available' limit ${MAX_WAITING}
      ) j limit ${MAX_WAITING}
    ) j
  ) w
  order by p.partition_key`

const DEFAULT_PAGE = 50

/** One more than asked for says whether there is a next page. */
export const params = ({ after, limit = DEFAULT_PAGE, queue }: PartitionPage): ReadonlyArray<unknown> => [
  Bind.id(queue),
  // The next key there can be.
  Bind.id(after === undefined ? "" : `${after}\u0001`),
  Bind.int(limit + 1)
]

export const toList = (
  { limit = DEFAULT_PAGE, queue }: PartitionPage,
  rows: ReadonlyArray<PartitionRow>
): PolicyList<PartitionState> => {
  const items = rows.slice(0, limit).map((row) => toPartition(queue, row))
  return { items, next: rows.length > limit ? items.at(-1)?.partitionKey : undefined }
}

export interface PartitionRow {
  readonly partition_key: string
  readonly quantum: number | null
  readonly is_paused: boolean
  readonly waiting: number
  readonly in_flight: number
  readonly deficit: number
  readonly is_noisy: boolean
}

const toPartition = (queue: string, row: PartitionRow): PartitionState => ({
  queue,
  partitionKey: row.partition_key,
  quantum: row.quantum ?? undefined,
  paused: row.is_paused,
  waiting: row.waiting,
  isAtLeast: row.waiting === MAX_WAITING,
  inFlight: row.in_flight,
  deficit: row.deficit,
  noisy: row.is_noisy
})
