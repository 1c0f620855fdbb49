-- What a store is asked, one function each. Run once for each kind of table.
--
-- `hook` is the instant to decide at, for tests; without it the server's clock decides. It is read
-- once the row is locked, so that the order of the instants on a key is the order of its decisions.
-- 4503599627370495 is 2^52 - 1, the last instant that anything is judged at.

-- A sliding log's step. spec: 4, limit, window. known: the log's number, the latest instant
-- admitted at, the units admitted in all, and up to where its expired entries were deleted: units
-- and instant. A state to keep has one number more, the units that have left the window; a new
-- log's number is 0 until it is written.
CREATE FUNCTION {state}_log(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    judged bigint := now_us;
    -- The oldest entry in the window, and the units before it.
    oldest bigint;
    gone bigint := 0;
    live bigint := 0;
    frees bigint;
    remaining bigint;
    reset_at bigint;
BEGIN
    IF known IS NOT NULL THEN
        IF cardinality(known) <> 5 THEN
            RETURN ARRAY[3, 0, 0, 0];
        END IF;
        judged := greatest(known[2], now_us);
        SELECT e.at, e.total - e.units INTO oldest, gone FROM {state}_entries e
        WHERE e.log = known[1] AND e.at > judged - spec[3] AND e.total <= known[3]
        ORDER BY e.at, e.total LIMIT 1;
        gone := coalesce(gone, known[3]);
        live := known[3] - gone;
    END IF;
    -- A limit that was lowered since may be exceeded already.
    remaining := greatest(spec[2] - live, 0);
    reset_at := coalesce(oldest, judged) + spec[3];
    IF action = 2 THEN
        IF oldest IS NULL THEN
            RETURN ARRAY[0, remaining / cost, judged, judged];
        END IF;
        RETURN ARRAY[0, remaining / cost, reset_at, known[2] + spec[3]];
    ELSIF cost > spec[2] THEN
        RETURN ARRAY[2, 0, remaining, reset_at];
    ELSIF cost > remaining THEN
        SELECT e.at INTO frees FROM {state}_entries e
        WHERE e.log = known[1] AND e.at > judged - spec[3]
            AND e.total >= gone + live + cost - spec[2]
        ORDER BY e.at, e.total LIMIT 1;
        RETURN ARRAY[
            1, greatest(coalesce(frees, judged) + spec[3] - now_us, 0), remaining, reset_at];
    ELSIF action = 1 THEN
        RETURN ARRAY[0, 0, remaining, reset_at];
    ELSIF known IS NULL THEN
        RETURN ARRAY[0, 0, remaining - cost, reset_at, judged + spec[3],
            0, judged, cost, 0, 0, 0];
    END IF;
    RETURN ARRAY[0, 0, remaining - cost, reset_at, judged + spec[3],
        known[1], judged, known[3] + cost, known[4], known[5], gone];
END $$;

CREATE FUNCTION {state}_step(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF spec[1] = 1 THEN
        RETURN {name}_tat(spec, known, now_us, action, cost);
    ELSIF spec[1] = 2 THEN
        RETURN {name}_window(spec, known, now_us, action, cost);
    ELSIF spec[1] = 3 THEN
        RETURN {name}_sliding(spec, known, now_us, action, cost);
    END IF;
    RETURN {state}_log(spec, known, now_us, action, cost);
END $$;

-- Writes a sliding log's admission, and deletes some of what has left the window: more than is
-- added, so that the expired never pile up. Gives the state to keep.
CREATE FUNCTION {state}_log_write(step bigint[], spec bigint[], cost bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint := step[9];
    pruned_at bigint := step[10];
BEGIN
    IF step[6] = 0 THEN
        step[6] := nextval('{state}_logs');
    END IF;
    INSERT INTO {state}_entries VALUES (step[6], step[7], step[8], cost);
    IF step[11] >= pruned + 32 THEN
        WITH expired AS (
            SELECT e.ctid FROM {state}_entries e
            WHERE e.log = step[6] AND e.at >= pruned_at AND e.at <= step[7] - spec[3]
            ORDER BY e.at, e.total LIMIT 64
        ), deleted AS (
            DELETE FROM {state}_entries e USING expired
            WHERE e.ctid = expired.ctid RETURNING e.total, e.at
        )
        SELECT coalesce(max(d.total), pruned), coalesce(max(d.at), pruned_at)
        INTO pruned, pruned_at FROM deleted d;
    END IF;
    RETURN ARRAY[step[6], step[7], step[8], pruned, pruned_at];
END $$;

-- One op on one key. Gives the instant and the step's first four numbers.
CREATE FUNCTION {state}_one(
    wanted bytea, spec bigint[], action int, cost bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    place tid;
    known bigint[];
    step bigint[];
    is_there boolean;
    now_us bigint;
    tries int;
BEGIN
    IF action > 0 THEN
        SELECT t.state INTO known FROM {state} t WHERE t.key = wanted;
        now_us := coalesce(hook, least(
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
        step := {state}_step(spec, known, now_us, action, cost);
        RETURN now_us || step[1:4];
    END IF;
    LOOP
        SELECT t.ctid, t.state INTO place, known FROM {state} t
        WHERE t.key = wanted FOR NO KEY UPDATE;
        is_there := FOUND;
        now_us := coalesce(hook, least(
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
        step := {state}_step(spec, known, now_us, action, cost);
        IF step[1] <> 0 THEN
            -- Nothing was written but a lock: no crash can lose it, so the disk is not waited for.
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN now_us || step[1:4];
        ELSIF is_there THEN
            UPDATE {state} t SET
                state = CASE WHEN spec[1] = 4 THEN {state}_log_write(step, spec, cost)
                    ELSE step[6:] END,
                idle_at = step[5]
            WHERE t.ctid = place;
            RETURN now_us || step[1:4];
        END IF;
        IF spec[1] = 4 THEN
            step[6] := nextval('{state}_logs');
        END IF;
        INSERT INTO {state} (key, state, idle_at)
        VALUES (wanted, CASE WHEN spec[1] = 4 THEN step[6:10] ELSE step[6:] END, step[5])
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF spec[1] = 4 THEN
                PERFORM {state}_log_write(step, spec, cost);
            END IF;
            RETURN now_us || step[1:4];
        END IF;
        -- Somebody else was faster: there is a row to lock now.
        tries := coalesce(tries, 0) + 1;
        IF tries > 100 THEN
            RAISE EXCEPTION 'the row came and went a hundred times' USING ERRCODE = '40001';
        END IF;
    END LOOP;
END $$;

-- A check by gcra or token bucket, where the TAT in 1/D ticks fits a bigint: D, what the cost moves
-- the TAT by, the tolerance and the unit in 1/D ticks, and the limit, which the cost is within.
--
-- Statements and expressions cost something once per transaction, and each op is one. So the most
-- frequent one, which admits a known key, is a single statement: it locks the row, reads the clock,
-- and writes if it admits. A new key and a denial take the way of all others.
CREATE FUNCTION {state}_quick(
    wanted bytea, parts bigint, charge bigint, tolerance bigint, unit bigint, most bigint,
    spec bigint[], cost bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    answer bigint[];
BEGIN
    INSERT INTO {state} AS t (key, idle_at) VALUES (wanted, 0)
    ON CONFLICT (key) DO UPDATE SET (state, idle_at) = (
        SELECT ARRAY[n.next / parts, n.next % parts, parts, n.now_us], (n.next + parts - 1) / parts
        FROM (
            SELECT c.now_us, charge
                + greatest(t.state[1] * parts + t.state[2], c.now_us * parts) AS next
            FROM (SELECT greatest(
                coalesce(hook, least(
                    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                    4503599627370495)),
                -- The clock was read to admit and is read again to record: the instant recorded
                -- is one that admits even if the clock stepped back in between.
                (t.state[1] * parts + t.state[2] + charge - tolerance + parts - 1) / parts
            ) AS now_us OFFSET 0) c
            OFFSET 0
        ) n
    )
    WHERE t.state[3] = parts
        AND t.state[1] * parts + t.state[2] + charge - tolerance <= parts * coalesce(hook, least(
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495))
    RETURNING ARRAY[t.state[4], 0, 0,
        least(most, ((t.state[4] - t.state[1]) * parts + tolerance - t.state[2]) / unit),
        t.idle_at]
    INTO answer;
    IF answer[1] IS NOT NULL THEN
        RETURN answer;
    END IF;
    RETURN {state}_one(wanted, spec, 0, cost, hook);
END $$;

-- Locks the rows of keys, in their order, so that no two batches wait for each other. A row that
-- is not there is made without a state, which decides as none; one that is gets no new version.
CREATE FUNCTION {state}_lock(wanted bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {state} AS t (key, idle_at)
    SELECT DISTINCT w.key, 0::bigint FROM unnest(wanted) AS w (key) ORDER BY w.key
    ON CONFLICT (key) DO UPDATE SET idle_at = t.idle_at WHERE false;
END $$;

-- Several ops at one instant, each decided after the ones before it. `specs` holds eight numbers
-- per strategy and `uses` says which one an op is decided by, from 1. `again` says that the key has
-- occurred before. Gives the instant, and four numbers per op.
CREATE FUNCTION {state}_batch(
    wanted bytea[], specs bigint[], uses int[], actions int[], costs bigint[], again boolean[],
    hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    ask record;
    now_us bigint;
    used int := 0;
    spec bigint[];
    step bigint[];
    answers bigint[] := array_fill(0::bigint, ARRAY[1 + 4 * cardinality(wanted)]);
    filled int := 1;
    charged boolean := false;
BEGIN
    PERFORM {state}_lock(ARRAY(
        SELECT w.key FROM unnest(wanted, actions) AS w (key, action) WHERE w.action = 0));
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    answers[1] := now_us;
    FOR ask IN
        SELECT w.key, w.use, w.action, w.cost, w.again, t.ctid, t.state
        FROM unnest(wanted, uses, actions, costs, again) WITH ORDINALITY
            AS w (key, use, action, cost, again, place)
        LEFT JOIN {state} t ON t.key = w.key
        ORDER BY w.place
    LOOP
        IF ask.use <> used THEN
            used := ask.use;
            spec := specs[used * 8 - 7 : used * 8];
        END IF;
        IF ask.again THEN
            SELECT t.ctid, t.state INTO ask.ctid, ask.state FROM {state} t WHERE t.key = ask.key;
        END IF;
        step := {state}_step(spec, ask.state, now_us, ask.action, ask.cost);
        answers[filled + 1] := step[1];
        answers[filled + 2] := step[2];
        answers[filled + 3] := step[3];
        answers[filled + 4] := step[4];
        filled := filled + 4;
        IF ask.action = 0 AND step[1] = 0 THEN
            charged := true;
            UPDATE {state} t SET
                state = CASE WHEN spec[1] = 4 THEN {state}_log_write(step, spec, ask.cost)
                    ELSE step[6:] END,
                idle_at = step[5]
            WHERE t.ctid = ask.ctid;
        END IF;
    END LOOP;
    IF NOT charged THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN answers;
END $$;

-- Forgets a key. Gives the instant, and whether there was anything to forget.
CREATE FUNCTION {state}_reset(wanted bytea, is_log boolean, hook bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    known bigint[];
BEGIN
    DELETE FROM {state} t WHERE t.key = wanted RETURNING t.state INTO known;
    IF is_log AND known IS NOT NULL THEN
        INSERT INTO {state}_orphans VALUES (known[1]);
    END IF;
    RETURN ARRAY[
        coalesce(hook, least(
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495)),
        (known IS NOT NULL)::int];
END $$;

-- What a cell holds.
CREATE FUNCTION {state}_load(wanted bytea, hook bigint, OUT at bigint, OUT held bytea)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT t.bytes INTO held FROM {state} t WHERE t.key = wanted;
    at := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
END $$;

-- Changes a cell if it holds what is expected; null is nothing. Otherwise gives what it holds.
CREATE FUNCTION {state}_swap(
    wanted bytea, expected bytea, new bytea, idle bigint, hook bigint,
    OUT done boolean, OUT at bigint, OUT held bytea
) LANGUAGE plpgsql AS $$
DECLARE
    is_there boolean;
BEGIN
    FOR tries IN 1 .. 100 LOOP
        SELECT t.bytes INTO held FROM {state} t WHERE t.key = wanted FOR UPDATE;
        is_there := FOUND;
        at := coalesce(hook, least(
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
        done := held IS NOT DISTINCT FROM expected;
        IF NOT done THEN
            PERFORM set_config('synchronous_commit', 'off', true);
            RETURN;
        ELSIF new IS NULL THEN
            DELETE FROM {state} t WHERE t.key = wanted;
            RETURN;
        ELSIF is_there THEN
            UPDATE {state} t SET bytes = new, idle_at = idle WHERE t.key = wanted;
            RETURN;
        END IF;
        INSERT INTO {state} (key, bytes, idle_at) VALUES (wanted, new, idle)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the row came and went a hundred times' USING ERRCODE = '40001';
END $$;
