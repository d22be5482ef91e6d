-- Who may look, and change nothing: GRANT fluxqueue_reader TO somebody. It belongs to the server, not to this
-- database, so it may be there already; who migrates may not be allowed to make it.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fluxqueue_reader') THEN
        CREATE ROLE fluxqueue_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE WARNING 'role fluxqueue_reader is not there and may not be made here; docs/admin/psql.md says how';
END $$;
-- Whoever migrates is who the view server logs in as where it is given nobody else, and then acts as this role.
-- From Postgres 16 on, who made a role without being a superuser is none of it by that alone.
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
