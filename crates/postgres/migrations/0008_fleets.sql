-- Fleets: who has been heard, what each was granted, and the coordinator's step over it, the same
-- arithmetic as core's.
--
-- The tables are unlogged. Then a crash forgets all of a fleet or nothing: the server empties them
-- before it answers anybody, and a fleet that is not known begins anew and waits before it grants.
-- A logged table could lose its last commits and keep the rest. Replicas do not have the rows
-- either, so a promoted one begins anew too.

CREATE UNLOGGED TABLE {name}_fleets (
    -- Prefix and name, joined so that two different ones never meet.
    key bytea PRIMARY KEY,
    -- What its nodes' rows name it by.
    number bigint GENERATED ALWAYS AS IDENTITY,
    -- The life of the store that the epoch began in; empty in a row that only holds a lock.
    life text NOT NULL,
    -- Aggregate (0 median, 1 min), split (0 equal, 1 demand), handoff (0, 1), ttl, max_hold.
    rules bigint[],
    epoch bigint,
    -- The instant of the last step, in microseconds since the epoch.
    latest bigint NOT NULL,
    -- How far the clock has stepped back in all. `latest + back` never runs backwards; that is the
    -- time of every end below and of those of the nodes, so none of them changes when it does.
    back bigint NOT NULL,
    quiet_until bigint,
    generation bigint,
    most bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNLOGGED TABLE {name}_nodes (
    fleet bigint NOT NULL,
    -- Bytes, which have one order in every encoding and collation: that of core.
    id bytea NOT NULL,
    incarnation bigint NOT NULL,
    sequence bigint NOT NULL,
    vote bigint,
    in_flight bigint NOT NULL,
    share bigint NOT NULL,
    generation bigint NOT NULL,
    unacked bigint NOT NULL,
    live_until bigint NOT NULL,
    kept_until bigint NOT NULL,
    PRIMARY KEY (fleet, id, incarnation)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

ALTER TABLE {name}_nodes ALTER COLUMN id SET STORAGE PLAIN;

-- An instant after a span: never past 2^53 - 1, however long the span is.
CREATE FUNCTION {name}_after(at bigint, span bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(at + least(span, 9007199254740991), 9007199254740991)
$$;

-- The life of the store: it changes when the server may have forgotten what it answered.
--
-- The start of the postmaster catches every restart, a failover to a replica, and a copy or a
-- backup that is started elsewhere: each has a postmaster of its own. The table's number catches a
-- dump restored under a running server, if it makes the table. A crash of one backend leaves the
-- postmaster alone; what it forgets is the whole table. Not caught: rows that somebody copies back
-- into the table, a machine set back to a snapshot of its memory, and two servers that both take
-- writes.
CREATE FUNCTION {name}_life() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
        || ' ' || '{name}_fleets'::regclass::oid;
END $$;

-- How many places a node could use, which uses and has so many. The root of every number below 2^52
-- rounds down to that of core.
CREATE FUNCTION {name}_want(used bigint, has bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN used >= has THEN has + greatest(has / 4, 1)
        ELSE used + 1 + floor(sqrt(used::float8))::bigint / 2 END
$$;

-- A node reports. `said`: sequence, local limit, whether sampled, in flight, epoch, applied
-- generation, the name of a new epoch. Gives the instant, what it is, and
--   0, 1: a grant with a lifetime or without: share, generation, epoch, limit, nodes, fair, withheld;
--   2: other rules are stored: these;
--   3: too many nodes are remembered.
CREATE FUNCTION {name}_beat(
    wanted bytea, brought bigint[], who bytea, which bigint, said bigint[],
    life_hook text, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    life_now constant text := coalesce(life_hook, {name}_life());
    is_equal constant boolean := brought[2] = 0;
    is_handoff constant boolean := brought[3] = 1;
    fleet record;
    own record;
    others record;
    is_known boolean;
    is_live boolean;
    now_us bigint;
    -- The time that never runs backwards.
    judged bigint;
    lives bigint;
    voted bigint;
    middle int;
    own_want bigint;
    want bigint;
    alike bigint;
    -- What is still to be split, and among how many.
    whole bigint;
    takers bigint;
    fair bigint;
    kept bigint;
    granted bigint;
    given bigint;
    held bigint;
BEGIN
    FOR tries IN 1 .. 100 LOOP
        SELECT f.ctid AS place, f.* INTO fleet FROM {name}_fleets f
        WHERE f.key = wanted FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {name}_fleets (key, life, latest, back) VALUES (wanted, '', 0, 0)
        ON CONFLICT DO NOTHING;
    END LOOP;
    IF fleet.number IS NULL THEN
        RAISE EXCEPTION 'the row came and went a hundred times' USING ERRCODE = '40001';
    END IF;
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    IF fleet.life <> life_now THEN
        -- Whoever was granted something before may still hold to it, and nobody here knows.
        DELETE FROM {name}_nodes n WHERE n.fleet = fleet.number;
        -- It may have been by rules that last longer than these.
        fleet.quiet_until := greatest(now_us,
            CASE WHEN is_handoff
            THEN {name}_after({name}_after(now_us, brought[4]), brought[5]) END,
            CASE WHEN fleet.rules[3] = 1
            THEN {name}_after({name}_after(now_us, fleet.rules[4]), fleet.rules[5]) END);
        fleet.rules := brought;
        fleet.epoch := said[7];
        fleet.back := 0;
        -- Later than those of an epoch of the same name, which a second copy of a report founds.
        fleet.generation := now_us;
        fleet.most := coalesce(fleet.most, said[2]);
    ELSE
        fleet.back := fleet.back + greatest(fleet.latest - now_us, 0);
    END IF;
    judged := now_us + fleet.back;

    SELECT n.ctid AS place, n.* INTO own FROM {name}_nodes n
    WHERE n.fleet = fleet.number AND n.id = who AND n.incarnation = which;
    is_known := FOUND;
    IF is_known AND said[1] <= own.sequence THEN
        SELECT count(*) FILTER (WHERE n.live_until > judged) AS live,
            coalesce(sum(greatest(
                CASE WHEN fleet.rules[3] = 1 THEN n.unacked ELSE n.share END, n.in_flight))
                FILTER (WHERE n.live_until <= judged), 0)::bigint AS withheld
        INTO others FROM {name}_nodes n WHERE n.fleet = fleet.number;
        RETURN ARRAY[now_us, 1, own.share, own.generation, fleet.epoch, fleet.most, others.live,
            own.share, others.withheld];
    END IF;

    -- By other rules nobody goes on as what it was.
    IF fleet.rules <> brought AND own.kept_until <= judged THEN
        is_known := false;
    END IF;
    granted := CASE WHEN is_known THEN own.share ELSE 0 END;
    own_want := {name}_want(said[4], granted);

    -- Who takes a part is who is live, and hungry if it goes by demand.
    SELECT count(*) FILTER (WHERE n.kept_until <= judged) AS ended,
        count(*) FILTER (WHERE n.kept_until > judged) AS kept,
        count(*) FILTER (WHERE n.live_until > judged) AS live,
        array_agg(n.vote ORDER BY n.vote)
            FILTER (WHERE n.live_until > judged AND n.vote IS NOT NULL) AS votes,
        count(*) FILTER (WHERE n.live_until > judged
            AND (is_equal OR n.in_flight >= n.share)) AS takers,
        count(*) FILTER (WHERE n.live_until > judged
            AND (is_equal OR n.in_flight >= n.share)
            AND (n.id, n.incarnation) < (who, which)) AS before,
        count(*) FILTER (WHERE n.kept_until > judged
            AND (n.id, n.incarnation) < (who, which)) AS kept_before,
        array_agg({name}_want(n.in_flight, n.share))
            FILTER (WHERE NOT is_equal AND n.live_until > judged) AS wants,
        count(*) FILTER (WHERE NOT is_equal AND n.live_until > judged
            AND ({name}_want(n.in_flight, n.share), n.id, n.incarnation)
                > (own_want, who, which)) AS above,
        coalesce(sum(greatest(CASE WHEN is_handoff THEN n.unacked ELSE n.share END, n.in_flight))
            FILTER (WHERE n.kept_until > judged), 0)::bigint AS reserved,
        coalesce(sum(greatest(CASE WHEN is_handoff THEN n.unacked ELSE n.share END, n.in_flight))
            FILTER (WHERE n.kept_until > judged AND n.live_until <= judged), 0)::bigint AS withheld
    INTO others FROM {name}_nodes n
    WHERE n.fleet = fleet.number AND (n.id <> who OR n.incarnation <> which);

    IF fleet.rules <> brought THEN
        IF others.kept > 0 OR is_known THEN
            RETURN ARRAY[now_us, 2] || fleet.rules;
        END IF;
        DELETE FROM {name}_nodes n WHERE n.fleet = fleet.number;
    ELSIF NOT is_known AND others.kept >= 1024 THEN
        RETURN ARRAY[now_us, 3];
    ELSIF others.ended > 0 THEN
        DELETE FROM {name}_nodes n WHERE n.fleet = fleet.number AND n.kept_until <= judged
            AND (n.id <> who OR n.incarnation <> which);
    END IF;

    lives := {name}_after(now_us, brought[4]);
    is_live := lives > now_us;
    given := CASE WHEN is_known THEN own.generation ELSE 0 END;
    held := CASE WHEN NOT is_known THEN 0
        WHEN said[5] = fleet.epoch AND said[6] >= given THEN granted
        ELSE own.unacked END;

    -- One more among those that are sorted: there is nothing below the first or above the last.
    voted := CASE WHEN is_live AND said[3] = 1 THEN said[2] END;
    middle := (coalesce(cardinality(others.votes), 0) + (voted IS NOT NULL)::int + 1) / 2;
    fleet.most := coalesce(CASE WHEN brought[1] = 0
        THEN greatest(others.votes[middle - 1], least(others.votes[middle], voted))
        ELSE least(others.votes[1], voted) END, fleet.most);

    whole := fleet.most;
    fair := 0;
    IF NOT is_equal THEN
        -- From the least up, until one is not filled: nor are those above it, who share what is
        -- left, the remainder to the last. Where one is filled, so are all who want the same.
        takers := others.live + is_live::int;
        FOR want, alike IN SELECT w, count(*) FROM unnest(
            CASE WHEN is_live THEN others.wants || own_want ELSE others.wants END) w
            GROUP BY w ORDER BY w
        LOOP
            EXIT WHEN want > whole / takers;
            whole := whole - want * alike;
            takers := takers - alike;
        END LOOP;
        fair := CASE WHEN NOT is_live THEN 0
            WHEN others.above >= takers THEN own_want
            ELSE whole / takers + (others.above < whole % takers)::int END;
        whole := CASE WHEN takers > 0 THEN 0 ELSE whole END;
    END IF;
    IF is_equal OR said[4] >= granted THEN
        takers := greatest(others.takers + is_live::int, 1);
        fair := greatest(fair + whole / takers + (is_live AND others.before < whole % takers)::int,
            (NOT is_equal)::int);
    END IF;
    -- No more than all others leave, or than it has already of its part among all that are
    -- remembered. Nothing while nobody knows what they have, and then nothing is due.
    takers := others.kept + 1;
    kept := least(granted, fleet.most / takers + (others.kept_before < fleet.most % takers)::int);
    fair := CASE WHEN judged < fleet.quiet_until THEN 0 ELSE fair END;
    whole := least(fair, greatest(fleet.most - others.reserved, kept));
    IF whole <> granted THEN
        granted := whole;
        fleet.generation := fleet.generation + 1;
        given := fleet.generation;
    END IF;
    held := greatest(held, granted);

    voted := CASE WHEN said[3] = 1 THEN said[2] END;
    whole := {name}_after(lives, CASE WHEN is_handoff THEN brought[5] ELSE 0 END);
    IF is_known THEN
        UPDATE {name}_nodes n SET sequence = said[1], vote = voted, in_flight = said[4],
            share = granted, generation = given, unacked = held,
            live_until = lives + fleet.back, kept_until = whole + fleet.back
        WHERE n.ctid = own.place;
    ELSE
        INSERT INTO {name}_nodes VALUES (fleet.number, who, which, said[1], voted, said[4],
            granted, given, held, lives + fleet.back, whole + fleet.back);
    END IF;
    UPDATE {name}_fleets f SET life = life_now, rules = brought, epoch = fleet.epoch,
        latest = now_us, back = fleet.back, quiet_until = fleet.quiet_until,
        generation = fleet.generation, most = fleet.most
    WHERE f.ctid = fleet.place;
    RETURN ARRAY[now_us, 0, granted, given, fleet.epoch, fleet.most,
        others.live + is_live::int, fair,
        others.withheld + CASE WHEN is_live THEN 0
            ELSE greatest(CASE WHEN is_handoff THEN held ELSE granted END, said[4]) END];
END $$;

-- A node leaves. What it still has in flight is reserved for as long as one may be held. Gives the
-- instant, and whether anything changed.
CREATE FUNCTION {name}_leave(
    wanted bytea, who bytea, which bigint, said_last bigint, left_over bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    fleet record;
    own record;
    now_us bigint;
    judged bigint;
    kept bigint;
BEGIN
    SELECT f.ctid AS place, f.* INTO fleet FROM {name}_fleets f
    WHERE f.key = wanted FOR NO KEY UPDATE;
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    SELECT n.ctid AS place, n.sequence INTO own FROM {name}_nodes n
    WHERE n.fleet = fleet.number AND n.id = who AND n.incarnation = which;
    IF NOT FOUND OR said_last <= own.sequence THEN
        RETURN ARRAY[now_us, 0];
    END IF;
    fleet.back := fleet.back + greatest(fleet.latest - now_us, 0);
    judged := now_us + fleet.back;
    kept := CASE WHEN fleet.rules[3] = 1 THEN fleet.rules[5] ELSE 0 END;
    IF left_over = 0 OR kept = 0 THEN
        DELETE FROM {name}_nodes n WHERE n.ctid = own.place;
    ELSE
        -- A tick more, because the clock may have read almost a tick too little just now.
        kept := {name}_after({name}_after(now_us, kept), 1) + fleet.back;
        UPDATE {name}_nodes n SET sequence = said_last, vote = NULL, in_flight = left_over,
            share = 0, unacked = 0, live_until = judged, kept_until = kept
        WHERE n.ctid = own.place;
    END IF;
    UPDATE {name}_fleets f SET latest = now_us, back = fleet.back WHERE f.ctid = fleet.place;
    RETURN ARRAY[now_us, 1];
END $$;

-- Forgets fleets that have not been heard for so long, with their nodes: one that comes back begins
-- anew, and waits, but only for as long as the rules it comes with. So one is kept until nothing is
-- reserved any more and it need not be quiet, by its own rules. One that a node holds is passed
-- over. Gives how many rows went, and two zeroes.
CREATE FUNCTION {name}_reap_fleets(rows_max bigint, kept_us bigint, hook bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    now_us constant bigint := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    fleet record;
    gone bigint;
    reaped bigint := 0;
BEGIN
    -- A fleet has at most 1024 nodes: the last one may go a little beyond what was asked for.
    WHILE reaped < rows_max LOOP
        SELECT f.ctid AS place, f.number INTO fleet FROM {name}_fleets f
        WHERE f.latest <= now_us - kept_us
            -- A tick more for a node that has left.
            AND greatest(f.latest + f.rules[4] + f.rules[3] * f.rules[5] + 1,
                f.quiet_until - f.back, 0) <= now_us
        LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        DELETE FROM {name}_nodes n WHERE n.fleet = fleet.number;
        GET DIAGNOSTICS gone = ROW_COUNT;
        DELETE FROM {name}_fleets f WHERE f.ctid = fleet.place;
        reaped := reaped + gone + 1;
    END LOOP;
    RETURN ARRAY[reaped, 0, 0];
END $$;
