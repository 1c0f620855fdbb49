-- Notes that instances of a service leave for one another. Unlogged: what a crash loses are notes
-- of leases that end by time, and an owner is here again with its next call.

-- Owners that are here.
CREATE UNLOGGED TABLE {name}_boxes (
    -- Prefix and owner, joined so that two different ones never meet.
    key bytea PRIMARY KEY,
    -- What notes name it by.
    number bigint GENERATED ALWAYS AS IDENTITY,
    secret bytea NOT NULL,
    -- Microseconds since the epoch: from here on it is not here.
    here_until bigint NOT NULL,
    -- How many there are of each.
    notes bigint NOT NULL DEFAULT 0,
    ended bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- What waits for an owner, one per lease: 0 alive, 1 finished, 2 failed.
CREATE UNLOGGED TABLE {name}_notes (
    box bigint NOT NULL,
    lease bigint NOT NULL,
    told bigint NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (box, lease)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- Leases that have ended.
CREATE UNLOGGED TABLE {name}_ended (
    box bigint NOT NULL,
    lease bigint NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (box, lease)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- The oldest are forgotten first.
CREATE INDEX ON {name}_ended (box, at, lease);

-- Forgets ends that are older than thirty seconds. Gives what the next function goes on with.
CREATE FUNCTION {name}_forget_ended(whose bigint, ended bigint, now_us bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    gone bigint;
BEGIN
    DELETE FROM {name}_ended e WHERE e.box = whose AND e.at <= now_us - 30000000;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN ARRAY[ended - gone, now_us - 30000000, 9007199254740991];
END $$;

-- Remembers an end, and forgets the oldest if there are too many. `known` is how many there are,
-- and an instant and a lease that all of them come after: whoever looks for the oldest need not
-- pass those that this transaction has deleted, which an index keeps until it is over.
CREATE FUNCTION {name}_end(whose bigint, which bigint, known bigint[], now_us bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    oldest record;
BEGIN
    IF (now_us, which) <= (known[2], known[3]) THEN
        known := ARRAY[known[1], now_us, which - 1];
    END IF;
    UPDATE {name}_ended e SET at = now_us WHERE e.box = whose AND e.lease = which;
    IF FOUND THEN
        RETURN known;
    END IF;
    INSERT INTO {name}_ended VALUES (whose, which, now_us);
    IF known[1] < 10000 THEN
        RETURN ARRAY[known[1] + 1, known[2], known[3]];
    END IF;
    SELECT e.at, e.lease INTO oldest FROM {name}_ended e
    WHERE e.box = whose AND (e.at, e.lease) > (known[2], known[3])
    ORDER BY e.at, e.lease LIMIT 1;
    DELETE FROM {name}_ended e WHERE e.box = whose AND e.lease = oldest.lease;
    RETURN ARRAY[known[1], oldest.at, oldest.lease];
END $$;

-- An owner is here, and takes its notes. Gives the instant, and for each note, in the order of the
-- leases: the lease, what was told, and how long ago.
CREATE FUNCTION {name}_collect(
    wanted bytea, signs_with bytea, ttl bigint, ended_here bigint[], hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    box record;
    lease bigint;
    now_us bigint;
    known bigint[];
    taken bigint[];
BEGIN
    FOR tries IN 1 .. 100 LOOP
        SELECT b.ctid AS place, b.* INTO box FROM {name}_boxes b
        WHERE b.key = wanted FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {name}_boxes (key, secret, here_until) VALUES (wanted, signs_with, 0)
        ON CONFLICT DO NOTHING;
    END LOOP;
    IF box.number IS NULL THEN
        RAISE EXCEPTION 'the row came and went a hundred times' USING ERRCODE = '40001';
    END IF;
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    IF box.here_until <= now_us THEN
        DELETE FROM {name}_notes n WHERE n.box = box.number;
        DELETE FROM {name}_ended e WHERE e.box = box.number;
        box.notes := 0;
        box.ended := 0;
    END IF;
    IF cardinality(ended_here) > 0 THEN
        known := {name}_forget_ended(box.number, box.ended, now_us);
        FOREACH lease IN ARRAY ended_here LOOP
            known := {name}_end(box.number, lease, known, now_us);
        END LOOP;
        box.ended := known[1];
    END IF;
    IF box.notes > 0 THEN
        WITH gone AS (
            DELETE FROM {name}_notes n WHERE n.box = box.number RETURNING n.lease, n.told, n.at
        ), each AS (
            SELECT array_agg(ARRAY[g.lease, g.told, greatest(now_us - g.at, 0)] ORDER BY g.lease)
                AS notes
            FROM gone g
        )
        SELECT ARRAY(SELECT unnest(e.notes)) INTO taken FROM each e;
    END IF;
    UPDATE {name}_boxes b SET secret = signs_with, here_until = {name}_after(now_us, ttl),
        notes = 0, ended = box.ended
    WHERE b.ctid = box.place;
    RETURN now_us || coalesce(taken, '{}');
END $$;

-- What an owner signs with; null if it is not here.
CREATE FUNCTION {name}_secret(wanted bytea, hook bigint, OUT at bigint, OUT held bytea)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    at := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    SELECT b.secret INTO held FROM {name}_boxes b WHERE b.key = wanted AND b.here_until > at;
END $$;

-- Leaves notes for an owner, in order. Gives the instant, whether the owner is here, and what came
-- of each: 0 left, 1 the lease has ended, 2 there are too many.
CREATE FUNCTION {name}_post(wanted bytea, leases bigint[], tolds bigint[], hook bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    box record;
    now_us bigint;
    known bigint[];
    posted bigint[] := '{}';
BEGIN
    SELECT b.ctid AS place, b.* INTO box FROM {name}_boxes b
    WHERE b.key = wanted FOR NO KEY UPDATE;
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    IF box.number IS NULL OR box.here_until <= now_us THEN
        RETURN ARRAY[now_us, 0];
    END IF;
    FOR i IN 1 .. cardinality(leases) LOOP
        PERFORM FROM {name}_ended e
        WHERE e.box = box.number AND e.lease = leases[i] AND e.at > now_us - 30000000;
        IF FOUND THEN
            posted := posted || 1::bigint;
            CONTINUE;
        END IF;
        UPDATE {name}_notes n SET told = tolds[i], at = now_us
        WHERE n.box = box.number AND n.lease = leases[i];
        IF NOT FOUND THEN
            IF box.notes >= 10000 THEN
                posted := posted || 2::bigint;
                CONTINUE;
            END IF;
            INSERT INTO {name}_notes VALUES (box.number, leases[i], tolds[i], now_us);
            box.notes := box.notes + 1;
        END IF;
        IF tolds[i] <> 0 THEN
            known := coalesce(known, {name}_forget_ended(box.number, box.ended, now_us));
            known := {name}_end(box.number, leases[i], known, now_us);
        END IF;
        posted := posted || 0::bigint;
    END LOOP;
    UPDATE {name}_boxes b SET notes = box.notes, ended = coalesce(known[1], b.ended)
    WHERE b.ctid = box.place;
    RETURN ARRAY[now_us, 1] || posted;
END $$;

-- Forgets owners that have not been here for so long, with what waited for them. One that is held is
-- passed over. Gives how many rows went, and two zeroes.
CREATE FUNCTION {name}_reap_boxes(rows_max bigint, grace_us bigint, hook bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    gone_since constant bigint := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495)) - grace_us;
    box record;
    gone bigint;
    reaped bigint := 0;
BEGIN
    WHILE reaped < rows_max LOOP
        SELECT b.ctid AS place, b.number INTO box FROM {name}_boxes b
        WHERE b.here_until <= gone_since LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        -- An owner has thousands at most: they go in one step.
        DELETE FROM {name}_notes n WHERE n.box = box.number;
        GET DIAGNOSTICS gone = ROW_COUNT;
        reaped := reaped + gone;
        DELETE FROM {name}_ended e WHERE e.box = box.number;
        GET DIAGNOSTICS gone = ROW_COUNT;
        reaped := reaped + gone + 1;
        DELETE FROM {name}_boxes b WHERE b.ctid = box.place;
    END LOOP;
    RETURN ARRAY[reaped, 0, 0];
END $$;
