-- The role that may read and change nothing. Grant it: GRANT fluxqueue_reader TO a_role. Roles belong
-- to the server, so it may exist already. The migrating role may lack the right to create it.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fluxqueue_reader') THEN
        CREATE ROLE fluxqueue_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE WARNING 'role fluxqueue_reader is not there and may not be made here; docs/admin/psql.md says how';
END $$;
-- Without a login of its own, the view server logs in as the migrating role and then acts as this
-- role. From Postgres 16 on, a role that is not a superuser is no member of a role that it created.
DO $$ BEGIN
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        GRANT fluxqueue_reader TO CURRENT_USER;
    END IF;
EXCEPTION
    WHEN undefined_object OR insufficient_privilege THEN NULL;
END $$;
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'fluxqueue_reader') THEN
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO fluxqueue_reader;
    END IF;
END $$;
