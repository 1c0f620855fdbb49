-- Leases and what comes back of them, one function each. Run once for each kind of table.

-- Which leases have been given back, for as long as they could be given back again, and a minute
-- more. Rows are written once, and no check touches them.
CREATE {unlogged} TABLE {state}_returned (
    key bytea NOT NULL,
    -- The process that held the lease, and the lease's number there.
    incarnation bigint NOT NULL,
    number bigint NOT NULL,
    -- Microseconds since the epoch: from here on nothing of it would be taken back anyway.
    until bigint NOT NULL,
    PRIMARY KEY (key, incarnation, number)
);

ALTER TABLE {state}_returned ALTER COLUMN key SET STORAGE EXTERNAL;

-- Charges what is granted. Gives the instant, the decision in four numbers, and the units granted.
CREATE FUNCTION {state}_lease(
    wanted bytea, spec bigint[], needed bigint, enough bigint, wished bigint, trip bigint,
    hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    place tid;
    known bigint[];
    step bigint[];
    is_there boolean;
    now_us bigint;
BEGIN
    FOR tries IN 1 .. 100 LOOP
        SELECT t.ctid, t.state INTO place, known FROM {state} t
        WHERE t.key = wanted FOR NO KEY UPDATE;
        is_there := FOUND;
        now_us := coalesce(hook, least(
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
        step := {name}_grant(spec, known, now_us, needed, enough, wished, trip);
        IF step[1] = 0 THEN
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN now_us || step[2:5] || step[1];
        ELSIF is_there THEN
            UPDATE {state} t SET state = step[7:], idle_at = step[6] WHERE t.ctid = place;
            RETURN now_us || step[2:5] || step[1];
        END IF;
        INSERT INTO {state} (key, state, idle_at) VALUES (wanted, step[7:], step[6])
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN now_us || step[2:5] || step[1];
        END IF;
        -- Somebody else was faster: there is a row to lock now.
    END LOOP;
    RAISE EXCEPTION 'the row came and went a hundred times' USING ERRCODE = '40001';
END $$;

-- Takes back what a holder did not spend, from each lease once, and none that was granted more than
-- two minutes ago. Gives the instant, and how many units were restored.
--
-- The note that it was given back and the units are one transaction. If a crash loses it, the units
-- stay charged, so the disk is not waited for.
CREATE FUNCTION {state}_give_back(
    wanted bytea, spec bigint[], whose bigint, which bigint, units bigint, granted_at bigint,
    paid_until bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    place tid;
    known bigint[];
    back bigint[];
    now_us bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT t.ctid, t.state INTO place, known FROM {state} t
    WHERE t.key = wanted FOR NO KEY UPDATE;
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    back := {name}_restore(spec, known, now_us, units, granted_at, paid_until);
    IF back[1] < 0 THEN
        RETURN ARRAY[now_us, -1];
    END IF;
    INSERT INTO {state}_returned VALUES (wanted, whose, which, now_us + 180000000)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND OR now_us - granted_at > 120000000 THEN
        RETURN ARRAY[now_us, 0];
    END IF;
    IF back[1] > 0 THEN
        UPDATE {state} t SET state = back[3:], idle_at = back[2] WHERE t.ctid = place;
    END IF;
    RETURN ARRAY[now_us, back[1]];
END $$;

-- Forgets leases that were given back long enough ago, walking pages as the reaper does. Gives how
-- many, the page to go on at, and zero.
CREATE FUNCTION {state}_forget(first bigint, blocks bigint, rows_max bigint, hook bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    pages constant bigint :=
        pg_relation_size('{state}_returned') / current_setting('block_size')::bigint;
    start constant bigint := CASE WHEN first < pages THEN first ELSE 0 END;
    now_us constant bigint := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    forgotten bigint;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT r.ctid FROM {state}_returned r
        WHERE r.ctid >= format('(%s,0)', start)::tid
            AND r.ctid < format('(%s,0)', least(start + blocks, 4294967295))::tid
            AND r.until <= now_us
        LIMIT rows_max FOR UPDATE SKIP LOCKED
    ), deleted AS (
        DELETE FROM {state}_returned r USING old WHERE r.ctid = old.ctid RETURNING 1
    )
    SELECT count(*) INTO forgotten FROM deleted;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN ARRAY[forgotten, CASE WHEN forgotten >= rows_max THEN start
        WHEN start + blocks >= pages THEN 0 ELSE start + blocks END,
        0];
END $$;
