-- Code with this newest revision works on the schema. So does all newer code. A revision of
-- kind "post" raises it in its own transaction (migrations/README.md).
INSERT INTO schema_floor (oldest_head) VALUES ('0002');
