/** The statements of one measurement that took most of the server's time, those inside functions among them. */
import type * as Pg from "pg"

/** The server must load these for `Statements` to work. */
export const serverSettings: Readonly<Record<string, string>> = {
  shared_preload_libraries: "pg_stat_statements",
  "pg_stat_statements.track": "all",
  "pg_stat_statements.track_utility": "off",
  track_io_timing: "on"
}

export const install = async (client: Pg.Client): Promise<void> => {
  await client.query("create extension if not exists pg_stat_statements")
  await client.query("select pg_stat_statements_reset()")
}

export const top = async (client: Pg.Client): Promise<string> => {
  const { rows } = await client.query<{ line: string }>(`
    select format('%s ms total, %s calls, %s ms each, %s rows, %s hits, %s dirtied, wal %s: %s%s',
      round(total_exec_time::numeric, 1), calls, round(mean_exec_time::numeric, 2), rows, shared_blks_hit,
      shared_blks_dirtied, pg_size_pretty(wal_bytes), case when toplevel then '' else '(nested) ' end,
      left(regexp_replace(query, '\\s+', ' ', 'g'), 160)) as line
    from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database())
    order by total_exec_time desc limit 12`)
  return rows.map(({ line }) => `    ${line}`).join("\n")
}
