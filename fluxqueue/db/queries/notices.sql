-- name: leave_notices
-- Writes notices into the audit trail and the rows. A status update emits the Events.
WITH news AS (
    SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, event text, message text, key text, is_warning bool)
), noted AS (
    INSERT INTO history (uid, jobid, actor, event, detail)
    SELECT f.uid, f.jobid,
           coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
           news.event, jsonb_build_object('message', news.message)
    FROM news JOIN fluxjobs f USING (uid)
)
UPDATE fluxjobs f SET version = version + 1, notices = f.notices || (
    SELECT jsonb_agg(to_jsonb(news) - 'uid') FROM news WHERE news.uid = f.uid)
WHERE f.uid IN (SELECT uid FROM news)
