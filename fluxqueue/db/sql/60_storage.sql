-- When Postgres vacuums each table. The defaults wait for a fifth of a table to be dead. For a table
-- that keeps a month of ended jobs, that is days of work. The settings are part of the schema, because
-- the server may belong to another team.

-- Rows that change several times: free space beside them, so that an update touches no index.
ALTER TABLE fluxjobs SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.01,
    autovacuum_analyze_threshold = 500);
ALTER TABLE allocations SET (autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.01);
ALTER TABLE allocation_slots SET (autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.01);

-- Small tables of what lives now. All their rows change within minutes.
ALTER TABLE pods SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE graph_changes SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE reservations SET (autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE foreign_usage SET (autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE leadership SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- Written once, and deleted once, much later.
ALTER TABLE history SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE accounting SET (autovacuum_vacuum_scale_factor = 0.02);
