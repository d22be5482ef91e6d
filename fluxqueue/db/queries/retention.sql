-- name: delete_fluxjobs
-- A FluxJob takes its allocations, slots and edges along, so a step is counted in slots. FluxJobs
-- are locked in the order of their UIDs, as everywhere. Locked ones are left for the next call.
DELETE FROM fluxjobs WHERE uid = ANY(ARRAY(
    SELECT uid FROM fluxjobs WHERE uid = ANY(ARRAY(
        SELECT uid FROM (
            SELECT uid, size, sum(size) OVER (ORDER BY ended_at, uid) AS so_far FROM (
                SELECT uid, ended_at, greatest(size, 1) AS size FROM fluxjobs
                WHERE is_gone AND ended_at < now() - make_interval(secs => :retention_s)
                ORDER BY ended_at LIMIT :step) oldest) counted
        WHERE so_far - size < :step))
    ORDER BY uid FOR UPDATE SKIP LOCKED))

-- name: delete_history
-- Lines of the audit trail are as old as their number is low, so the index of the numbers will
-- do.
DELETE FROM history WHERE id = ANY(ARRAY(
    SELECT id FROM (SELECT id, at FROM history ORDER BY id LIMIT :step) oldest
    WHERE at < now() - make_interval(secs => :retention_s)))

-- name: delete_accounting
-- Runs that ended long ago.
DELETE FROM accounting WHERE id = ANY(ARRAY(
    SELECT id FROM accounting WHERE ended_at < now() - make_interval(secs => :retention_s)
    ORDER BY ended_at LIMIT :step))

-- name: delete_run_times
-- Runs that ended long ago.
DELETE FROM run_times WHERE id = ANY(ARRAY(
    SELECT id FROM run_times WHERE ended_at < now() - make_interval(secs => :retention_s)
    ORDER BY ended_at LIMIT :step))

-- name: delete_learned
-- Learned again from the next pod of such a template.
DELETE FROM learned_sizes WHERE (namespace, template) IN (
    SELECT namespace, template FROM learned_sizes
    WHERE written_at < now() - make_interval(secs => :retention_s) LIMIT :step)

-- name: delete_node_requests
-- Requests for nodes that are over and settled.
DELETE FROM node_requests WHERE number = ANY(ARRAY(
    SELECT number FROM node_requests WHERE is_settled
      AND ended_at < now() - make_interval(secs => :retention_s) ORDER BY number LIMIT :step))

-- name: tables_without_statistics
-- Large tables that the planner knows nothing of.
SELECT s.relname FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = 'public' AND pg_has_role(c.relowner, 'USAGE')
  AND n_live_tup >= :rows AND last_analyze IS NULL AND last_autoanalyze IS NULL
ORDER BY relname
