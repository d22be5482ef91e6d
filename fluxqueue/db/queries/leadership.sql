-- name: count_commit
-- Locks the row of a role, counts the transaction in it, and returns the marks of all roles.
UPDATE leadership l SET commits = l.commits + 1 WHERE l.role = :role
RETURNING l.term, (SELECT last_value FROM fluxjobs_jobid_seq) AS jobid,
    -- Its own count without this transaction: a single lost commit would hide behind that.
    jsonb_build_object(l.role, jsonb_build_array(l.term, l.commits - 1)) || coalesce(
        (SELECT jsonb_object_agg(o.role, jsonb_build_array(o.term, o.commits)) FROM leadership o
         WHERE o.role <> :role), '{}') AS roles,
    coalesce((SELECT w.timeline = fluxqueue_timeline() FROM leadership w
              WHERE w.role = 'controller'), true) AS is_same_timeline,
    coalesce((SELECT w.expires_at > now() FROM leadership w
              WHERE w.role = 'controller'), true) AS is_observed

-- name: acquire_term
-- Begins a term of a role that is free, expired, or held under the same name. No row otherwise.
INSERT INTO leadership AS l (role, term, holder, expires_at)
VALUES (:role, 1, :holder, now() + make_interval(secs => :duration_s))
ON CONFLICT (role) DO UPDATE SET
    term = l.term + 1,
    holder = excluded.holder,
    expires_at = excluded.expires_at
WHERE l.holder = excluded.holder OR l.expires_at < now()
RETURNING term

-- name: renew_term
-- Keeps a term for another time, as long as no other one has begun.
UPDATE leadership SET expires_at = now() + make_interval(secs => :duration_s)
WHERE role = :role AND holder = :holder AND term = :term

-- name: seize_term
-- Begins a new term at once. It keeps the expiry time of its predecessor, or is expired.
INSERT INTO leadership AS l (role, term, holder, expires_at, timeline)
VALUES (:role, 1, :holder, now(), fluxqueue_timeline())
ON CONFLICT (role) DO UPDATE SET term = l.term + 1, holder = excluded.holder,
    timeline = excluded.timeline,
    expires_at = CASE WHEN l.expires_at < 'infinity' THEN l.expires_at ELSE now() END
RETURNING term

-- name: confirm_term
-- Records that a term compares the rows with the cluster. Returns whether that had lapsed.
UPDATE leadership l SET expires_at = now() + make_interval(secs => :duration_s),
    since = CASE WHEN old.expires_at <= now() THEN now() ELSE l.since END
FROM (SELECT expires_at FROM leadership WHERE role = :role AND term = :term FOR UPDATE) old
WHERE l.role = :role RETURNING old.expires_at <= now() AS had_lapsed

-- name: doubt_term
-- Takes back that the rows match the cluster.
UPDATE leadership SET expires_at = least(expires_at, now()) WHERE role = :role AND term = :term

-- name: is_observed
-- Whether a controller compares the rows with the cluster. No row where none ever led.
SELECT expires_at > now() AND coalesce(timeline = fluxqueue_timeline(), true) AS is_held
FROM leadership WHERE role = :role

-- name: resign_term
-- Ends a term at once: a successor then need not wait for the time to run out.
UPDATE leadership SET expires_at = now() - interval '1 second'
WHERE role = :role AND holder = :holder AND term = :term

-- name: hold_decisions
-- Keeps cycles out until this transaction ends.
SELECT FROM leadership WHERE role = 'matcher' FOR UPDATE

-- name: roles
-- All roles that were ever held.
SELECT role, term, holder, expires_at > now() AS held FROM leadership
