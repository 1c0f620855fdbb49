-- Accounts of budgets, and their leases. Run once for each kind of table.
--
-- Whoever touches an account's leases holds its row. No index covers a column of it that an entry
-- changes, so a debit without a lease is one heap-only update.
CREATE {unlogged} TABLE {state}_accounts (
    -- Prefix, policy, shape and key, joined so that two different ones never meet.
    key bytea PRIMARY KEY,
    -- What its leases name it by.
    number bigint GENERATED ALWAYS AS IDENTITY,
    -- The latest window that anything happened in, and what of it is spent and reserved.
    in_window bigint NOT NULL DEFAULT 0,
    spent bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    -- What no window has paid.
    debt bigint NOT NULL DEFAULT 0,
    -- How many leases there are.
    open bigint NOT NULL DEFAULT 0,
    ended bigint NOT NULL DEFAULT 0,
    -- No open lease ends before, no ended one is forgotten before, and all are forgotten by then.
    -- Hearing of a lease or settling it leaves these as they are: then they are early or late.
    ends_from bigint NOT NULL DEFAULT 9007199254740991,
    forget_from bigint NOT NULL DEFAULT 9007199254740991,
    kept_until bigint NOT NULL DEFAULT 0,
    -- From here on the row is the same as none.
    idle_at bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

ALTER TABLE {state}_accounts ALTER COLUMN key SET STORAGE EXTERNAL;

CREATE {unlogged} TABLE {state}_leases (
    account bigint NOT NULL,
    -- Bytes, which have the order of core's numbers.
    lease bytea NOT NULL,
    -- The window that was reserved from; once that is used up, the one last charged.
    in_window bigint NOT NULL,
    unspent bigint NOT NULL,
    charged bigint NOT NULL,
    debited bigint NOT NULL,
    ttl bigint NOT NULL,
    -- 0 open, 1 not heard of in time, 2 settled.
    phase bigint NOT NULL,
    -- When an open one ends, or one that has ended is forgotten.
    until bigint NOT NULL,
    -- What its settlement did.
    returned bigint NOT NULL,
    owed bigint NOT NULL,
    PRIMARY KEY (account, lease)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

ALTER TABLE {state}_leases ALTER COLUMN lease SET STORAGE PLAIN;

CREATE INDEX ON {state}_leases (account, until, lease) WHERE phase = 0;
CREATE INDEX ON {state}_leases (account, until, lease) WHERE phase > 0;

-- Locks the rows of accounts, in their order, so that no two entries wait for each other. A row that
-- is not there is made; one that is gets no new version.
CREATE FUNCTION {state}_lock_accounts(wanted bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {state}_accounts AS a (key)
    SELECT DISTINCT w.key FROM unnest(wanted) AS w (key) ORDER BY w.key
    ON CONFLICT (key) DO UPDATE SET idle_at = a.idle_at WHERE false;
END $$;

-- Ends the leases whose time is over, and forgets those that have been remembered for long enough
-- or are too many.
CREATE FUNCTION {state}_end_leases(a {state}_accounts, spec bigint[], now_us bigint)
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
    IF a.forget_from <= now_us OR a.ended > spec[7] THEN
        -- Some at a time: the others are remembered for longer, and nobody has to wait.
        DELETE FROM {state}_leases l WHERE l.ctid = ANY (ARRAY(
            SELECT o.ctid FROM {state}_leases o
            WHERE o.account = a.number AND o.phase > 0 AND o.until <= now_us
            ORDER BY o.until, o.lease LIMIT 256));
        GET DIAGNOSTICS gone = ROW_COUNT;
        a.ended := a.ended - gone;
        gone := least(a.ended - spec[7], 256 - gone);
        IF gone > 0 THEN
            DELETE FROM {state}_leases l WHERE l.ctid = ANY (ARRAY(
                SELECT o.ctid FROM {state}_leases o WHERE o.account = a.number AND o.phase > 0
                ORDER BY o.until, o.lease LIMIT gone));
            a.ended := a.ended - gone;
        END IF;
        SELECT coalesce(min(l.until), 9007199254740991) INTO a.forget_from
        FROM {state}_leases l WHERE l.account = a.number AND l.phase > 0;
        IF a.open = 0 AND a.ended = 0 THEN
            a.kept_until := 0;
        END IF;
    END IF;
    RETURN a;
END $$;

-- What one is told who needs more than is left: the outcome (1 after the wait, 2 never) and the
-- wait until so much is left if nobody does anything.
CREATE FUNCTION {state}_wait(a {state}_accounts, spec bigint[], needed bigint, now_us bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    ends constant bigint := {name}_window_end(spec, a.in_window);
    free bigint := spec[2] - a.debt - a.spent - a.reserved;
    held bigint := a.reserved;
    place int := 0;
    lease record;
BEGIN
    IF needed > spec[2] THEN
        RETURN ARRAY[2, 0];
    END IF;
    IF a.open > 0 THEN
        FOR lease IN
            SELECT l.until, CASE WHEN l.in_window = a.in_window THEN l.unspent ELSE 0 END AS back
            FROM {state}_leases l
            WHERE l.account = a.number AND l.phase = 0 AND l.until < ends
            ORDER BY l.until, l.lease LIMIT 64
        LOOP
            place := place + 1;
            free := free + lease.back;
            held := held - lease.back;
            -- Of those that nobody looks at, nothing is known: not even when they end.
            IF free >= needed OR (place = 64 AND a.open > 64) THEN
                RETURN ARRAY[1, greatest(lease.until - now_us, 0)];
            END IF;
        END LOOP;
    END IF;
    -- The first window whose debt leaves enough room.
    held := greatest({name}_debt_after(spec, a.spent, held, a.debt) - (spec[2] - needed), 0);
    RETURN ARRAY[1, greatest(
        {name}_end_after(spec, a.in_window, (held + spec[2] - 1) / spec[2]) - now_us, 0)];
END $$;

-- Debits a lease: `own` of its reservation, `beyond` of what is left.
CREATE FUNCTION {state}_draw(
    a {state}_accounts, l {state}_leases, own bigint, beyond bigint, now_us bigint
) RETURNS {state}_leases LANGUAGE plpgsql AS $$
BEGIN
    l.unspent := l.unspent - own;
    l.charged := l.charged + own;
    IF beyond > 0 THEN
        -- What was charged to an earlier window cannot come back.
        l.charged := beyond + CASE WHEN l.in_window = a.in_window THEN l.charged ELSE 0 END;
        l.in_window := a.in_window;
    END IF;
    l.debited := least(l.debited + own + beyond, 4503599627370496);
    -- It was heard of: an open one lives on, one that has ended is remembered longer.
    l.until := greatest(l.until, now_us + CASE WHEN l.phase = 0 THEN l.ttl ELSE 600000000 END);
    UPDATE {state}_leases t SET in_window = l.in_window, unspent = l.unspent,
        charged = l.charged, debited = l.debited, until = l.until
    WHERE t.account = l.account AND t.lease = l.lease;
    RETURN l;
END $$;

-- An entry in one account: 0 look, 1 debit, 2 reserve, 3 settle with `units`, 4 settle with what was
-- debited. `part` is 0 for an entry of its own, 1 to judge only, 2 to charge; in parts the row is
-- locked and `hook` is the instant. Gives the instant, and: outcome (0 admit, 1 retry after the
-- wait, 2 never), wait, when all is replenished, what the lease has unspent, spent, reserved, debt,
-- how many leases are open, the window's end; what a settlement did (0 none asked for, 1 settled
-- now, 2 before, 3 unknown), what it returned, what became debt.
CREATE FUNCTION {state}_book(
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
    IF a.ends_from <= now_us OR a.forget_from <= now_us OR a.ended > spec[7] THEN
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

-- Deletes accounts that have been idle for a while, with their leases, as `{state}_reap` does keys.
-- An account may have more leases than one statement may delete: it goes with the last of them.
-- Gives how many accounts went, the page to go on at, and how many leases went.
CREATE FUNCTION {state}_reap_accounts(
    first bigint, blocks bigint, rows_max bigint, grace_us bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    pages constant bigint :=
        pg_relation_size('{state}_accounts') / current_setting('block_size')::bigint;
    start constant bigint := CASE WHEN first < pages THEN first ELSE 0 END;
    idle_since constant bigint := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495)) - grace_us;
    a record;
    gone_open bigint;
    gone_ended bigint;
    reaped bigint := 0;
    leases bigint := 0;
BEGIN
    FOR a IN
        SELECT t.key, t.number, t.open, t.ended FROM {state}_accounts t
        WHERE t.ctid >= format('(%s,0)', start)::tid
            AND t.ctid < format('(%s,0)', least(start + blocks, 4294967295))::tid
            AND t.idle_at <= idle_since
        LIMIT rows_max FOR UPDATE SKIP LOCKED
    LOOP
        IF a.open + a.ended > 0 THEN
            WITH gone AS (
                DELETE FROM {state}_leases l WHERE l.ctid = ANY (ARRAY(
                    SELECT o.ctid FROM {state}_leases o WHERE o.account = a.number
                    LIMIT rows_max - leases))
                RETURNING l.phase
            )
            SELECT count(*) FILTER (WHERE g.phase = 0), count(*) FILTER (WHERE g.phase > 0)
            INTO gone_open, gone_ended FROM gone g;
            leases := leases + gone_open + gone_ended;
            IF a.open + a.ended > gone_open + gone_ended THEN
                UPDATE {state}_accounts t SET open = a.open - gone_open, ended = a.ended - gone_ended
                WHERE t.key = a.key;
                EXIT;
            END IF;
        END IF;
        DELETE FROM {state}_accounts t WHERE t.key = a.key;
        reaped := reaped + 1;
        EXIT WHEN leases >= rows_max;
    END LOOP;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN ARRAY[reaped, CASE WHEN reaped >= rows_max OR leases >= rows_max THEN start
        WHEN start + blocks >= pages THEN 0 ELSE start + blocks END,
        leases];
END $$;
