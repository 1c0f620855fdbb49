-- What goes with states that say their unit, and with grants that a reset has forgotten. Run once
-- for each kind of table.

-- A check by gcra or token bucket, where the TAT in 1/D ticks fits a bigint: D, what the cost moves
-- the TAT by, the tolerance and the unit in 1/D ticks, and the limit, which the cost is within.
--
-- Statements and expressions cost something once per transaction, and each op is one. So the most
-- frequent one, which admits a known key, is a single statement: it locks the row, reads the clock,
-- and writes if it admits. A new key, a denial and a state
-- of another rate take the way of all others.
CREATE OR REPLACE FUNCTION {state}_quick(
    wanted bytea, parts bigint, charge bigint, tolerance bigint, unit bigint, most bigint,
    spec bigint[], cost bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    answer bigint[];
BEGIN
    INSERT INTO {state} AS t (key, idle_at) VALUES (wanted, 0)
    ON CONFLICT (key) DO UPDATE SET (state, idle_at) = (
        SELECT
            ARRAY[n.next / parts, n.next % parts, parts, n.now_us, spec[4], spec[5]],
            (n.next + parts - 1) / parts
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
    WHERE t.state[3] = parts AND t.state[5] = spec[4] AND t.state[6] = spec[5]
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

-- Forgets a key. Gives the instant, and whether there was anything to forget. A limit that can be
-- leased keeps the instant, among the leases that were given back, as one that no process has: what
-- was granted until then restores nothing.
CREATE OR REPLACE FUNCTION {state}_reset(wanted bytea, is_log boolean, hook bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    known bigint[];
    now_us bigint;
BEGIN
    DELETE FROM {state} t WHERE t.key = wanted RETURNING t.state INTO known;
    IF is_log AND known IS NOT NULL THEN
        INSERT INTO {state}_orphans VALUES (known[1]);
    END IF;
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    -- The low half of a key's first byte is 1 for gcra and token bucket, and 2 for windows.
    IF get_byte(wanted, 0) & 15 <= 2 THEN
        INSERT INTO {state}_returned AS r VALUES (wanted, 0, -1, now_us + 180000000)
        ON CONFLICT (key, incarnation, number) DO UPDATE SET
            until = greatest(r.until, excluded.until);
    END IF;
    RETURN ARRAY[now_us, (known IS NOT NULL)::int];
END $$;

-- Takes back what a holder did not spend, from each lease once, and none that was granted more than
-- two minutes ago. Gives the instant, and how many units were restored.
--
-- The note that it was given back and the units are one transaction. If a crash loses it, the units
-- stay charged, so the disk is not waited for.
CREATE OR REPLACE FUNCTION {state}_give_back(
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
    ELSIF EXISTS (
        SELECT FROM {state}_returned r
        WHERE r.key = wanted AND r.incarnation = 0 AND r.number = -1
            AND r.until - 180000000 >= granted_at)
    THEN
        -- A reset has forgotten the grant.
        RETURN ARRAY[now_us, 0];
    END IF;
    IF back[1] > 0 THEN
        UPDATE {state} t SET state = back[3:], idle_at = back[2] WHERE t.ctid = place;
    END IF;
    RETURN ARRAY[now_us, back[1]];
END $$;
