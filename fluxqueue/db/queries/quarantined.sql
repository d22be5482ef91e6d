-- name: drop_quarantined
-- Removes what can be read again.
DELETE FROM quarantined_objects s
WHERE NOT EXISTS (
    SELECT FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (kind text, key text)
    WHERE r.kind = s.kind AND r.key = s.key)

-- name: store_quarantined
-- Adds what cannot be read. What is there already keeps its time.
INSERT INTO quarantined_objects AS s (kind, key, namespace, name, reason)
SELECT kind, key, namespace, name, reason
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    kind text, key text, namespace text, name text, reason text)
ORDER BY kind, key
ON CONFLICT (kind, key) DO UPDATE SET reason = excluded.reason
WHERE s.reason IS DISTINCT FROM excluded.reason
