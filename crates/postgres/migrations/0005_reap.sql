-- Deletes rows that have been idle for a while. Run once for each kind of table.
--
-- Walks `blocks` pages from `first` on, so that no index on `idle_at` is needed. A row that a check
-- holds is passed over, and one that came back to life since it was read is read again before it
-- is locked: a live row is never deleted. Gives how many rows went, the page to go on at, and how
-- many entries of forgotten logs went.
CREATE FUNCTION {state}_reap(
    first bigint, blocks bigint, rows_max bigint, grace_us bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    pages constant bigint := pg_relation_size('{state}') / current_setting('block_size')::bigint;
    start constant bigint := CASE WHEN first < pages THEN first ELSE 0 END;
    idle_since constant bigint := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495)) - grace_us;
    reaped bigint;
    entries bigint;
BEGIN
    WITH idle AS MATERIALIZED (
        SELECT t.ctid FROM {state} t
        WHERE t.ctid >= format('(%s,0)', start)::tid
            AND t.ctid < format('(%s,0)', least(start + blocks, 4294967295))::tid
            AND t.idle_at <= idle_since
        LIMIT rows_max FOR UPDATE SKIP LOCKED
    ), deleted AS (
        DELETE FROM {state} t USING idle
        WHERE t.ctid = idle.ctid AND t.idle_at <= idle_since
        RETURNING t.key, t.state
    ), orphaned AS (
        -- The low half of a key's first byte says that it is a sliding log's.
        INSERT INTO {state}_orphans
        SELECT d.state[1] FROM deleted d WHERE get_byte(d.key, 0) & 15 = 4 AND d.state IS NOT NULL
    )
    SELECT count(*) INTO reaped FROM deleted;

    -- Then some entries of logs that nobody has any more, and the logs that have none left.
    WITH lost AS (
        SELECT o.log FROM {state}_orphans o ORDER BY o.log LIMIT 100 FOR UPDATE SKIP LOCKED
    ), doomed AS MATERIALIZED (
        SELECT e.ctid FROM lost JOIN {state}_entries e ON e.log = lost.log LIMIT rows_max
    ), deleted AS (
        DELETE FROM {state}_entries e USING doomed WHERE e.ctid = doomed.ctid RETURNING 1
    )
    SELECT count(*) INTO entries FROM deleted;
    WITH lost AS MATERIALIZED (
        SELECT o.ctid FROM {state}_orphans o
        WHERE NOT EXISTS (SELECT FROM {state}_entries e WHERE e.log = o.log)
        ORDER BY o.log LIMIT 100 FOR UPDATE SKIP LOCKED
    )
    DELETE FROM {state}_orphans o USING lost WHERE o.ctid = lost.ctid;
    PERFORM set_config('synchronous_commit', 'off', true);
    -- A page that had more than one run may take is gone on with.
    RETURN ARRAY[reaped, CASE WHEN reaped >= rows_max THEN start
        WHEN start + blocks >= pages THEN 0 ELSE start + blocks END,
        entries];
END $$;
