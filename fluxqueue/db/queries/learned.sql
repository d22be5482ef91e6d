-- name: save_learned
-- Writes what was learned. The last writer is right.
INSERT INTO learned_sizes (namespace, template, extra, learned_at)
SELECT namespace, template, extra, learned_at
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    namespace text, template text, extra jsonb, learned_at text)
ON CONFLICT (namespace, template) DO UPDATE SET
    extra = excluded.extra, learned_at = excluded.learned_at, written_at = now()

-- name: read_learned
-- What was learned last, the oldest first.
SELECT namespace, template, extra, learned_at
FROM (
    SELECT * FROM (
        SELECT namespace, template, extra, learned_at, written_at,
               row_number() OVER (PARTITION BY namespace ORDER BY written_at DESC) AS place
        FROM learned_sizes) placed
    WHERE place <= :of_each ORDER BY written_at DESC LIMIT :most) newest
ORDER BY written_at
