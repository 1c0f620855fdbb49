-- Leases that nobody settled are not forgotten while what they cost can still be booked.
--
-- Only settled ones are forgotten early: the oldest of them, at the next settlement, while more than
-- `spec[7]` leases that have ended are remembered. The others are bounded by what may be reserved:
-- nothing while `spec[1]` + `spec[7]` leases are open, or ended without a settlement.

-- One for each kind of lease that has ended, in the place of one for both, which the server has
-- named.
DO $$
DECLARE
    named regclass;
BEGIN
    SELECT i.indexrelid INTO STRICT named FROM pg_index i
    WHERE i.indrelid = '{state}_leases'::regclass
        AND pg_get_expr(i.indpred, i.indrelid) = '(phase > 0)';
    EXECUTE 'DROP INDEX ' || named;
END $$;
CREATE INDEX ON {state}_leases (account, until, lease) WHERE phase = 1;
CREATE INDEX ON {state}_leases (account, until, lease) WHERE phase = 2;

-- Ends the leases whose time is over, and forgets those that have been remembered for long enough.
CREATE OR REPLACE FUNCTION {state}_end_leases(a {state}_accounts, spec bigint[], now_us bigint)
RETURNS {state}_accounts LANGUAGE plpgsql AS $$
DECLARE
    ends constant bigint := {name}_window_end(spec, a.in_window);
    gone bigint;
    back bigint;
BEGIN
    IF a.ends_from <= now_us THEN
        -- After the window's end there is nothing to give back to.
        SELECT count(*), coalesce(sum(l.unspent)
            FILTER (WHERE l.in_window = a.in_window AND l.until < ends), 0)
        INTO gone, back FROM {state}_leases l
        WHERE l.account = a.number AND l.phase = 0 AND l.until <= now_us;
        IF gone > 0 THEN
            UPDATE {state}_leases l SET unspent = 0, phase = 1, until = l.until + 600000000
            WHERE l.account = a.number AND l.phase = 0 AND l.until <= now_us;
            a.reserved := a.reserved - back;
            a.open := a.open - gone;
            a.ended := a.ended + gone;
            a.forget_from := least(a.forget_from, a.ends_from + 600000000);
        END IF;
        SELECT coalesce(min(l.until), 9007199254740991) INTO a.ends_from
        FROM {state}_leases l WHERE l.account = a.number AND l.phase = 0;
    END IF;
    IF a.forget_from <= now_us THEN
        -- Some at a time: the others are remembered for longer, and nobody has to wait.
        DELETE FROM {state}_leases l WHERE l.ctid = ANY (ARRAY(
            SELECT o.ctid FROM {state}_leases o
            WHERE o.account = a.number AND o.phase = 1 AND o.until <= now_us
            ORDER BY o.until, o.lease LIMIT 256));
        GET DIAGNOSTICS gone = ROW_COUNT;
        a.ended := a.ended - gone;
        DELETE FROM {state}_leases l WHERE l.ctid = ANY (ARRAY(
            SELECT o.ctid FROM {state}_leases o
            WHERE o.account = a.number AND o.phase = 2 AND o.until <= now_us
            ORDER BY o.until, o.lease LIMIT 256 - gone));
        GET DIAGNOSTICS gone = ROW_COUNT;
        a.ended := a.ended - gone;
        a.forget_from := least(
            (SELECT min(l.until) FROM {state}_leases l WHERE l.account = a.number AND l.phase = 1),
            (SELECT min(l.until) FROM {state}_leases l WHERE l.account = a.number AND l.phase = 2),
            9007199254740991);
        IF a.open = 0 AND a.ended = 0 THEN
            a.kept_until := 0;
        END IF;
    END IF;
    RETURN a;
END $$;

-- An entry in one account: 0 look, 1 debit, 2 reserve, 3 settle with `units`, 4 settle with what was
-- debited. `part` is 0 for an entry of its own, 1 to judge only, 2 to charge; in parts the row is
-- locked and `hook` is the instant. Gives the instant, and: outcome (0 admit, 1 retry after the
-- wait, 2 never), wait, when all is replenished, what the lease has unspent, spent, reserved, debt,
-- how many leases are open, the window's end; what a settlement did (0 none asked for, 1 settled
-- now, 2 before, 3 unknown), what it returned, what became debt.
CREATE OR REPLACE FUNCTION {state}_book(
    wanted bytea, spec bigint[], act int, whose bytea, units bigint, ttl bigint, part int,
    hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    a {state}_accounts;
    l {state}_leases;
    at bigint;
    now_us bigint;
    index bigint;
    is_changed boolean := false;
    -- What must be left, and what comes from the own reservation or is produced beyond it.
    needed bigint := 0;
    own bigint := 0;
    beyond bigint := 0;
    answer bigint[] := '{0,0}';
    settled bigint[] := '{0,0,0}';
    -- How many leases are too many.
    excess bigint;
    reset_at bigint;
BEGIN
    FOR tries IN 1 .. 100 LOOP
        SELECT * INTO a FROM {state}_accounts t WHERE t.key = wanted FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {state}_accounts (key) VALUES (wanted) ON CONFLICT DO NOTHING;
    END LOOP;
    IF a.number IS NULL THEN
        RAISE EXCEPTION 'the row came and went a hundred times' USING ERRCODE = '40001';
    END IF;
    at := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    now_us := least(at, 4503599627370495);

    -- First the account is brought to this instant.
    IF a.ends_from <= now_us OR a.forget_from <= now_us THEN
        a := {state}_end_leases(a, spec, now_us);
        is_changed := true;
    END IF;
    index := {name}_window_index(spec, now_us);
    IF index > a.in_window THEN
        -- What the window has to spare pays debt, and so do those that passed unused.
        a.debt := {name}_debt_after(spec, a.spent, a.reserved, a.debt);
        a.debt := CASE WHEN index - a.in_window - 1 >= (a.debt + spec[2] - 1) / spec[2] THEN 0
            ELSE a.debt - (index - a.in_window - 1) * spec[2] END;
        a.in_window := index;
        a.spent := 0;
        a.reserved := 0;
        is_changed := true;
    END IF;

    IF whose IS NOT NULL AND a.open + a.ended > 0 THEN
        SELECT * INTO l FROM {state}_leases t WHERE t.account = a.number AND t.lease = whose;
    END IF;
    IF act = 0 THEN
        needed := 1;
    ELSIF act = 1 THEN
        own := least(units, coalesce(l.unspent, 0));
        beyond := units - own;
        needed := (beyond > 0)::int;
    ELSIF act = 2 AND l.phase IS NULL THEN
        needed := greatest(units, 1);
    END IF;
    IF (act = 1 AND l.phase = 2) OR (act = 2 AND l.phase > 0) THEN
        -- Its cost has been told in full, or it has had its time.
        answer := '{2,0}';
    ELSIF needed > 0 AND spec[2] - a.debt - a.spent - a.reserved < needed THEN
        answer := {state}_wait(a, spec, needed, now_us);
    END IF;
    IF act = 2 AND l.phase IS NULL AND a.open >= spec[1] AND answer[1] < 2 THEN
        -- Whichever comes later: what is left by then, or a place. A smaller bound may have left
        -- several too many.
        SELECT ARRAY[1, greatest(answer[2], t.until - now_us)] INTO answer
        FROM {state}_leases t WHERE t.account = a.number AND t.phase = 0
        ORDER BY t.until, t.lease OFFSET a.open - spec[1] LIMIT 1;
    END IF;
    IF act = 2 AND l.phase IS NULL AND a.open + a.ended >= spec[1] + spec[7] AND answer[1] < 2 THEN
        SELECT a.open + count(*) - spec[1] - spec[7] INTO excess
        FROM {state}_leases t WHERE t.account = a.number AND t.phase = 1;
        -- Whichever comes later once more: until enough of those that ended are forgotten, which is
        -- the first of them unless the bounds were lowered.
        IF excess = 0 THEN
            answer := ARRAY[1, greatest(answer[2], -now_us + least(
                (SELECT min(t.until) FROM {state}_leases t
                    WHERE t.account = a.number AND t.phase = 1),
                (SELECT min(t.until) + 600000000 FROM {state}_leases t
                    WHERE t.account = a.number AND t.phase = 0)))];
        ELSIF excess > 0 THEN
            SELECT ARRAY[1, greatest(answer[2], u.forgotten - now_us)] INTO answer
            FROM (
                SELECT t.until + CASE t.phase WHEN 0 THEN 600000000 ELSE 0 END AS forgotten
                FROM {state}_leases t WHERE t.account = a.number AND t.phase < 2) u
            ORDER BY u.forgotten OFFSET excess LIMIT 1;
        END IF;
    END IF;

    IF part = 1 OR act = 0 OR answer[1] <> 0 THEN
        NULL;
    ELSIF act = 1 THEN
        a.spent := a.spent + beyond;
        IF l.phase IS NOT NULL THEN
            IF l.in_window = a.in_window THEN
                a.reserved := a.reserved - own;
                a.spent := a.spent + own;
            END IF;
            l := {state}_draw(a, l, own, beyond, now_us);
            a.kept_until := greatest(a.kept_until,
                l.until + CASE WHEN l.phase = 0 THEN 600000000 ELSE 0 END);
        END IF;
        is_changed := true;
    ELSIF act = 2 THEN
        IF l.phase IS NULL THEN
            a.reserved := a.reserved + units;
            a.open := a.open + 1;
            l := ROW(a.number, whose, a.in_window, units, 0, 0, ttl, 0, now_us + ttl, 0, 0);
            INSERT INTO {state}_leases SELECT (l).*;
            a.ends_from := least(a.ends_from, l.until);
        ELSE
            l := {state}_draw(a, l, 0, 0, now_us);
        END IF;
        a.kept_until := greatest(a.kept_until, l.until + 600000000);
        is_changed := true;
    ELSIF l.phase IS NULL THEN
        settled := '{3,0,0}';
    ELSIF l.phase = 2 THEN
        settled := ARRAY[2, l.returned, l.owed];
    ELSE
        units := CASE WHEN act = 3 THEN units ELSE l.debited END;
        -- What was produced beyond the debits was reserved, or else it is owed.
        beyond := greatest(units - l.debited, 0);
        own := least(beyond, l.unspent);
        settled := ARRAY[1, 0, least(beyond - own, 2251799813685247 - a.debt)];
        a.debt := a.debt + settled[3];
        IF l.in_window = a.in_window THEN
            -- Debits of earlier windows were too many, as far as that can be: what comes back here
            -- was certainly not served here.
            units := greatest(l.charged - units, 0);
            a.reserved := a.reserved - l.unspent;
            a.spent := a.spent + own - units;
            settled[2] := l.unspent - own + units;
        END IF;
        IF l.phase = 0 THEN
            a.open := a.open - 1;
            a.ended := a.ended + 1;
        END IF;
        UPDATE {state}_leases t SET unspent = 0, phase = 2, until = now_us + 600000000,
            returned = settled[2], owed = settled[3]
        WHERE t.account = a.number AND t.lease = whose;
        IF a.ended > spec[7] THEN
            DELETE FROM {state}_leases t WHERE t.ctid = ANY (ARRAY(
                SELECT o.ctid FROM {state}_leases o
                WHERE o.account = a.number AND o.phase = 2 AND o.lease <> whose
                ORDER BY o.until, o.lease LIMIT least(a.ended - spec[7], 256)));
            GET DIAGNOSTICS excess = ROW_COUNT;
            a.ended := a.ended - excess;
        END IF;
        l.unspent := 0;
        a.forget_from := least(a.forget_from, now_us + 600000000);
        a.kept_until := greatest(a.kept_until, now_us + 600000000);
        is_changed := true;
    END IF;

    reset_at := {name}_debt_after(spec, a.spent, a.reserved, a.debt);
    reset_at := {name}_end_after(spec, a.in_window, (reset_at + spec[2] - 1) / spec[2]);
    IF is_changed THEN
        UPDATE {state}_accounts t SET in_window = a.in_window, spent = a.spent,
            reserved = a.reserved, debt = a.debt, open = a.open, ended = a.ended,
            ends_from = CASE WHEN a.open = 0 THEN 9007199254740991 ELSE a.ends_from END,
            forget_from = a.forget_from, kept_until = a.kept_until,
            -- Not before now: a clock that steps back after the row is gone opens no window anew.
            idle_at = greatest(now_us, a.kept_until,
                CASE WHEN a.spent + a.reserved + a.debt > 0 THEN reset_at ELSE 0 END)
        WHERE t.key = wanted;
    END IF;
    IF part = 0 AND (act = 0 OR answer[1] <> 0 OR settled[1] > 1) THEN
        -- What time alone has changed need not be on the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN at || answer || ARRAY[reset_at, coalesce(l.unspent, 0), a.spent, a.reserved, a.debt,
        a.open, {name}_window_end(spec, a.in_window)] || settled;
END $$;
