-- name: connected_parts
-- Which parts of fluxqueue are connected beside this one, of whatever cluster.
SELECT DISTINCT split_part(application_name, '/', 1) AS part FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
AND application_name ~ '^fluxqueue-(controller|worker)/'

-- name: bind_cluster
-- Binds the database to a cluster, unless it is bound already.
INSERT INTO cluster (uid, server) VALUES (:uid, :server) ON CONFLICT DO NOTHING

-- name: bound_cluster
-- The cluster that the rows are about. No row before the first start.
SELECT uid, server, bound_at FROM cluster

-- name: lock_cluster
-- Keeps others from binding the database while it is moved to another cluster.
LOCK TABLE cluster IN EXCLUSIVE MODE

-- name: rebind_cluster
-- Binds the database to another cluster.
UPDATE cluster SET uid = :uid, server = :server, bound_at = now()

-- name: end_terms
-- Begins a new term of each role: a process with an older term can commit nothing more.
UPDATE leadership SET term = term + 1, expires_at = now()
