/**
 * The account that the checker judges: a schema of its own, to whose tables rows are only ever added.
 *
 *   intent, answer, cancelling   what producers are about to store or cancel, and what they were told
 *   word, effect, family         what handlers are about to do and were told; what is written inside transactions
 *   move, record, ending         what the store's tables went through, from triggers, in the transactions that did it
 *   fault                        what was done to the processes, the connections and the server, and when they were slow
 *   pulse                        written to find out whether the server is slow
 *
 * Handlers put their fence into every value they store, so that a row tells whose write it was, whatever the store took
 * it for. Times are of the server's clock, read without the store's own function.
 */
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"

const tables = [
  `CREATE SCHEMA audit`,
  `CREATE FUNCTION audit.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint'`,
  `CREATE TABLE audit.intent (job_id text PRIMARY KEY, kind text NOT NULL, failures int NOT NULL, deaths int NOT NULL,
    max_attempts int NOT NULL, crash_limit int NOT NULL, is_kept boolean NOT NULL, unique_key text, family text,
    at_ms bigint NOT NULL DEFAULT audit.now_ms())`,
  `CREATE TABLE audit.answer (job_id text NOT NULL, said text NOT NULL, holder text,
    at_ms bigint NOT NULL DEFAULT audit.now_ms())`,
  `CREATE TABLE audit.cancelling (job_id text NOT NULL, said text, at_ms bigint NOT NULL DEFAULT audit.now_ms())`,
  // No key: a second write would show.
  `CREATE TABLE audit.effect (job_id text NOT NULL, step text NOT NULL, fence bigint NOT NULL)`,
  `CREATE TABLE audit.family (name text NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id())`,
  `CREATE TABLE audit.word (token uuid PRIMARY KEY, seq bigint GENERATED ALWAYS AS IDENTITY, job_id text NOT NULL,
    fence bigint NOT NULL, what text NOT NULL, step text, nonce text, at_ms bigint NOT NULL DEFAULT audit.now_ms())`,
  `CREATE INDEX ON audit.word (job_id, fence, what)`,
  `CREATE TABLE audit.fault (kind text NOT NULL, pids int[], began_ms bigint NOT NULL, ended_ms bigint NOT NULL)`,
  `CREATE TABLE audit.pulse AS SELECT 0 AS beats`,
  `CREATE TABLE audit.move (seq bigint GENERATED ALWAYS AS IDENTITY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at_ms bigint NOT NULL DEFAULT audit.now_ms(), job_id text NOT NULL, kind text NOT NULL, queue text NOT NULL,
    partition_key text NOT NULL, unique_key bytea, worker text, lease_id uuid, from_state text, state text NOT NULL,
    from_fence bigint, fence bigint, from_attempt int, attempt int, from_crash int, crash int, from_due_ms bigint,
    due_ms bigint, lease_until_ms bigint, by_fence bigint)`,
  `CREATE INDEX ON audit.move (job_id, seq)`,
  `CREATE TABLE audit.record (job_id text NOT NULL, step text NOT NULL, fence bigint NOT NULL, by_fence bigint,
    nonce text, at_ms bigint NOT NULL DEFAULT audit.now_ms())`,
  `CREATE INDEX ON audit.record (job_id, step)`,
  `CREATE TABLE audit.ending (job_id text NOT NULL, fence bigint NOT NULL, outcome text NOT NULL, by_fence bigint,
    error text, at_ms bigint NOT NULL DEFAULT audit.now_ms())`
]

const triggers = [
  `CREATE FUNCTION audit.read(p_bytes bytea) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN RETURN convert_from(p_bytes, 'UTF8')::jsonb; EXCEPTION WHEN others THEN RETURN NULL; END $$`,
  `CREATE FUNCTION audit.on_job() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF tg_op = 'DELETE' THEN
        INSERT INTO audit.move (job_id, kind, queue, partition_key, unique_key, worker, lease_id, from_state, state,
            from_fence, from_attempt, from_crash, from_due_ms, lease_until_ms)
          VALUES (old.id, old.kind, old.queue, old.partition_key, old.unique_key, old.worker, old.lease_id, old.state,
            'deleted', old.fence, old.attempt, old.crash_attempt, old.scheduled_at_ms, old.lease_expires_at_ms);
      ELSIF tg_op = 'INSERT' THEN
        INSERT INTO audit.move (job_id, kind, queue, partition_key, unique_key, state, fence, attempt, crash, due_ms)
          VALUES (new.id, new.kind, new.queue, new.partition_key, new.unique_key, new.state, new.fence, new.attempt,
            new.crash_attempt, new.scheduled_at_ms);
      ELSE
        INSERT INTO audit.move (job_id, kind, queue, partition_key, unique_key, worker, lease_id, from_state, state,
            from_fence, fence, from_attempt, attempt, from_crash, crash, from_due_ms, due_ms, lease_until_ms, by_fence)
          VALUES (new.id, new.kind, new.queue, new.partition_key, new.unique_key, coalesce(old.worker, new.worker),
            coalesce(old.lease_id, new.lease_id), old.state, new.state, old.fence, new.fence, old.attempt, new.attempt,
            old.crash_attempt, new.crash_attempt, old.scheduled_at_ms, new.scheduled_at_ms, old.lease_expires_at_ms,
            CASE WHEN new.state = 'completed' THEN (audit.read(new.result) ->> 'fence')::bigint END);
      END IF;
      RETURN NULL;
    END $$`,
  `CREATE FUNCTION audit.on_cursor() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO audit.record (job_id, step, fence, by_fence, nonce)
        SELECT new.id, new.cursor_step, new.fence, (value ->> 'fence')::bigint, value ->> 'nonce'
        FROM audit.read(new.cursor) value;
      RETURN NULL;
    END $$`,
  `CREATE FUNCTION audit.on_step() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO audit.record (job_id, step, fence, by_fence, nonce)
        SELECT new.job_id, new.step, (SELECT j.fence FROM headgate.job j WHERE j.id = new.job_id),
          (value ->> 'fence')::bigint, value ->> 'nonce' FROM audit.read(new.result) value;
      RETURN NULL;
    END $$`,
  `CREATE FUNCTION audit.on_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO audit.ending (job_id, fence, outcome, error, by_fence)
        VALUES (new.job_id, new.fence, new.outcome, new.error_text, coalesce(
          (audit.read(new.error) ->> 'fence')::bigint,
          substring(new.error_message FROM 'death at fence (\\d+)')::bigint));
      RETURN NULL;
    END $$`,
  `CREATE TRIGGER audit_job AFTER INSERT OR DELETE ON headgate.job FOR EACH ROW EXECUTE FUNCTION audit.on_job()`,
  `CREATE TRIGGER audit_move AFTER UPDATE ON headgate.job FOR EACH ROW WHEN ((new.state, new.fence, new.lease_id,
      new.attempt, new.crash_attempt) IS DISTINCT FROM (old.state, old.fence, old.lease_id, old.attempt,
      old.crash_attempt)) EXECUTE FUNCTION audit.on_job()`,
  `CREATE TRIGGER audit_cursor AFTER UPDATE ON headgate.job FOR EACH ROW
    WHEN (new.cursor IS NOT NULL AND new.cursor IS DISTINCT FROM old.cursor) EXECUTE FUNCTION audit.on_cursor()`,
  `CREATE TRIGGER audit_step AFTER INSERT ON headgate.step FOR EACH ROW EXECUTE FUNCTION audit.on_step()`,
  `CREATE TRIGGER audit_attempt AFTER INSERT ON headgate.attempt FOR EACH ROW EXECUTE FUNCTION audit.on_attempt()`
]

/**
 * What the harness changes of the store itself. However often their workers are killed, no contents are held to be the
 * culprit; and a job that crashed is back in time for the soak's end.
 */
const concessions = [
  `INSERT INTO headgate.setting (name, value) VALUES ('strike_limit', 1000000)`,
  `CREATE OR REPLACE FUNCTION headgate.crash_backoff_ms(p_crash_attempt int) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 300::bigint'`
]

/** Once, after the migrations. */
export const install = Effect.gen(function*() {
  const sql = yield* PgClient.PgClient
  for (const statement of [...tables, ...triggers, ...concessions]) yield* sql.unsafe(statement)
})
