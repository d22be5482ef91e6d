-- The place of a FluxJob among those of equal priority. It is the jobid, and is drawn again from the
-- same numbers when a user made the job wait outside of the order, so that it stands behind all that
-- was in the order meanwhile. A larger request does the same (fluxqueue/db/store/observations.py).
CREATE FUNCTION fluxjob_next_place() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT nextval(pg_get_serial_sequence('fluxjobs', 'jobid'))
$$;

CREATE FUNCTION fluxjob_with_place(new_row fluxjobs, old_row fluxjobs) RETURNS fluxjobs
LANGUAGE plpgsql AS $$
DECLARE
    -- What fluxqueue holds keeps its place, unless its author changes the request meanwhile.
    is_refused boolean := old_row.state = 'Unsatisfiable' OR coalesce(
        old_row.held_by IN ('queue', 'too-complex', 'quarantine', 'start'), false);
BEGIN
    IF (old_row.author_hold IS NOT NULL AND new_row.author_hold IS NULL)
       OR (old_row.state = 'Held' AND new_row.state <> 'Held' AND NOT is_refused)
       OR (old_row.state = 'Gathering' AND new_row.state = 'Pending')
       OR (old_row.blocked_by IN ('dependency', 'begin-time') AND new_row.blocked_by IS NULL)
       OR (is_refused AND new_row.request IS DISTINCT FROM old_row.request)
    THEN
        new_row.place := fluxjob_next_place();
    END IF;
    RETURN new_row;
END
$$;
