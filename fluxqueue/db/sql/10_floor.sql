-- Code whose newest revision is this one works on the schema, and so does all newer code. A revision
-- of kind "post" raises it in its own transaction (migrations/README.md).
INSERT INTO schema_floor (oldest_head) VALUES ('0002');
