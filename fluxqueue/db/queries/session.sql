-- name: server_settings
-- The settings of a server that would lose or garble data, and its clock.
SELECT current_setting('server_encoding') AS encoding,
       current_setting('server_version_num')::int / 10000 AS major,
       current_setting('server_version') AS version,
       current_setting('session_replication_role') AS replication_role,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('transaction_timeout', true) AS transaction_timeout,
       current_database() AS database,
       extract(epoch FROM clock_timestamp())::float8 AS clock
