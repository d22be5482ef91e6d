-- name: open_requests
-- Open requests, whether their jobs have started, and the nodes that came for them. Epoch
-- seconds.
SELECT r.number, r.pool, r.uid, r.queue, r.count AS nodes, r.price, r.asked_at, r.ready_at, r.kept,
       r.refused,
       coalesce(f.state IN ('Allocated', 'Running'), false) AS is_running,
       ARRAY(SELECT n.node FROM pool_nodes n WHERE n.request = r.number ORDER BY n.node) AS arrived
FROM node_requests r LEFT JOIN fluxjobs f ON f.uid = r.uid
WHERE r.ended IS NULL ORDER BY r.number

-- name: spent_by_queue
-- What the nodes of running jobs cost for an hour, by queue.
SELECT r.queue, sum(r.price * r.count) AS price
FROM node_requests r JOIN fluxjobs f ON f.uid = r.uid
WHERE r.ended = 'used' AND f.state IN ('Allocated', 'Running') GROUP BY r.queue

-- name: unsettled_requests
-- Requests that are open, or that ended and were not taken back yet.
SELECT r.number, r.pool, r.count, r.ended IS NOT NULL AS is_ended, r.pool_spec,
       coalesce(f.namespace || '/' || f.workload_name, '') AS job,
       ARRAY(SELECT n.node FROM pool_nodes n WHERE n.request = r.number ORDER BY n.node) AS arrived
FROM node_requests r LEFT JOIN fluxjobs f ON f.uid = r.uid
WHERE r.ended IS NULL OR NOT r.is_settled ORDER BY r.number

-- name: labelled_nodes
-- The nodes with some labels.
SELECT name FROM nodes WHERE fact -> 'labels' @> CAST(:labels AS jsonb) ORDER BY name

-- name: pool_nodes
-- The pool of each known node.
SELECT node, pool FROM pool_nodes

-- name: returning_nodes
-- Nodes that their providers must take back.
SELECT node FROM pool_nodes WHERE returned_at IS NOT NULL

-- name: return_nodes
-- Records that the providers must take nodes back.
UPDATE pool_nodes SET returned_at = :now WHERE node = ANY(CAST(:nodes AS text[]))

-- name: delete_pool_nodes
-- Forgets nodes that are gone.
DELETE FROM pool_nodes WHERE node = ANY(CAST(:gone AS text[]))

-- name: save_pool_nodes
-- Writes the nodes that pools have, each with the request that it came for.
INSERT INTO pool_nodes (node, pool, request)
SELECT node, pool, request FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    node text, pool text, request bigint)
ON CONFLICT (node) DO UPDATE SET pool = excluded.pool, request = excluded.request

-- name: end_requests
-- Ends requests that are open.
UPDATE node_requests SET ended = :ended, reason = :reason, ended_at = now()
WHERE number = ANY(CAST(:numbers AS bigint[])) AND ended IS NULL

-- name: move_request
-- Gives a request to another job.
UPDATE node_requests SET uid = :uid, kept = '[]',
    queue = coalesce((SELECT queue FROM fluxjobs WHERE uid = :uid), queue)
WHERE number = :number AND ended IS NULL

-- name: add_request
-- Adds a request, and returns its number.
INSERT INTO node_requests (pool, uid, queue, count, price, asked_at, ready_at, kept, pool_spec)
VALUES (:pool, :uid, :queue, :count, :price, :now, :ready_at, CAST(:kept AS jsonb),
    coalesce((SELECT spec FROM rules WHERE kind = 'pool' AND name = :pool), '{}'))
RETURNING number

-- name: settle_requests
-- Records that the provider has taken requests back.
UPDATE node_requests SET is_settled = true
WHERE number = ANY(CAST(:numbers AS bigint[])) AND ended IS NOT NULL

-- name: refuse_request
-- Records why the provider refuses a request for good.
UPDATE node_requests SET refused = :why
WHERE number = :number AND ended IS NULL AND refused IS NULL

-- name: starting_jobs
-- Jobs that have nodes, but no pod of which runs yet.
SELECT uid FROM fluxjobs WHERE state = 'Allocated'
