-- A gcra's or token bucket's state says what unit it was written under: a changed rate keeps the
-- units that were spent. The functions keep their names, so that instances of an older version
-- decide by them too while they are replaced.

-- gcra and token bucket. spec: 1, limit, D, unit (ticks, 1/D ticks), tolerance (ticks, 1/D ticks),
-- and the unit in 1/D ticks if D is small.
-- known: the TAT's ticks and 1/D ticks, the D they were written over, the instant of writing, and
-- the unit it was written under, in ticks and 1/D ticks. A state of an older version lacks the unit
-- and is read as one of this strategy.
CREATE OR REPLACE FUNCTION {name}_tat(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    most constant bigint := spec[2];
    parts constant bigint := spec[3];
    tat bigint := now_us;
    tat_part bigint := 0;
    reach constant bigint := now_us + spec[6];
    reach_part constant bigint := spec[7];
    next bigint;
    next_part bigint;
    room bigint;
    room_part bigint;
    remaining bigint := 0;
    outcome bigint := 2;
    wait bigint := 0;
    reset_at bigint;
BEGIN
    IF known IS NOT NULL THEN
        IF cardinality(known) NOT IN (4, 6) THEN
            RETURN ARRAY[3, 0, 0, 0];
        END IF;
        tat := known[1];
        tat_part := known[2];
        IF tat < now_us THEN
            tat := now_us;
            tat_part := 0;
        ELSIF known[3] <> parts OR known[5] <> spec[4] OR known[6] <> spec[5] THEN
            IF known[5] <> spec[4]
                OR known[6]::numeric * parts <> spec[5]::numeric * known[3] THEN
                RETURN {name}_tat_changed(spec, known, now_us, action, cost);
            ELSIF tat_part <> 0 THEN
                -- The same unit over another denominator: rounded up, it makes no key lighter.
                tat_part := div(tat_part::numeric * parts + known[3] - 1, known[3]);
                IF tat_part >= parts THEN
                    tat := tat + 1;
                    tat_part := 0;
                END IF;
            END IF;
        END IF;
    END IF;
    IF action < 2 AND cost <= most THEN
        -- At most the tolerance further, whose parts stay below 2^53 together.
        next_part := tat_part + spec[5] * cost;
        next := tat + spec[4] * cost + next_part / parts;
        next_part := next_part % parts;
        IF next < reach OR (next = reach AND next_part <= reach_part) THEN
            outcome := 0;
            IF action = 0 THEN
                tat := next;
                tat_part := next_part;
            END IF;
        ELSE
            outcome := 1;
            wait := next - reach + (next_part > reach_part)::int;
        END IF;
    END IF;
    -- Whole units that fit between the TAT and the reach.
    room := reach - tat;
    room_part := reach_part - tat_part;
    IF room_part < 0 THEN
        room := room - 1;
        room_part := room_part + parts;
    END IF;
    IF room >= spec[4] THEN
        IF room <= 4611686018427387903 / parts THEN
            remaining := (room * parts + room_part) / (spec[4] * parts + spec[5]);
        ELSE
            remaining := least(most, div(
                room::numeric * parts + room_part, spec[4]::numeric * parts + spec[5]));
        END IF;
        remaining := least(remaining, most);
    END IF;
    reset_at := least(tat + (tat_part > 0)::int, 9007199254740991);
    IF action = 0 AND outcome = 0 THEN
        RETURN ARRAY[0, 0, remaining, reset_at, reset_at, tat, tat_part, parts, now_us,
            spec[4], spec[5]];
    ELSIF action < 2 THEN
        RETURN ARRAY[outcome, wait, remaining, reset_at];
    ELSIF remaining = most THEN
        RETURN ARRAY[0, remaining / cost, reset_at, reset_at];
    END IF;
    next_part := tat_part + spec[5] * (remaining + 1);
    next := tat + spec[4] * (remaining + 1) + next_part / parts - spec[6];
    next_part := next_part % parts - spec[7];
    RETURN ARRAY[
        0, remaining / cost, least(next + (next_part > 0)::int, 9007199254740991), reset_at];
END $$;

-- A state that was written under another unit is judged by the units it has lent, u = (TAT - now) /
-- unit: they are kept, not the instant. An admission writes them, rounded up, and the cost at this
-- rate; a denial leaves them to come back as they were promised to. A capacity with a fraction
-- makes no difference here: a token bucket's rate is in its keys.
CREATE OR REPLACE FUNCTION {name}_tat_changed(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    most constant bigint := spec[2];
    unit constant numeric := known[5]::numeric * known[3] + known[6];
    lead constant numeric := (known[1] - now_us)::numeric * known[3] + known[2];
    lent constant numeric := div(lead + unit - 1, unit);
    remaining constant bigint := greatest(most - lent, 0);
    reset_at bigint := least(known[1] + (known[2] > 0)::int, 9007199254740991);
    -- What must come back first, in 1/D ticks of the state's D.
    beyond numeric;
    part bigint;
    tat bigint;
BEGIN
    IF lead = 0 THEN
        RETURN {name}_tat(spec, NULL, now_us, action, cost);
    ELSIF action = 2 THEN
        IF remaining = most THEN
            RETURN ARRAY[0, remaining / cost, reset_at, reset_at];
        END IF;
        beyond := greatest(lead - (most - remaining - 1) * unit, 0);
        RETURN ARRAY[0, remaining / cost, now_us + div(beyond + known[3] - 1, known[3]), reset_at]
            ::bigint[];
    ELSIF cost > most THEN
        RETURN ARRAY[2, 0, remaining, reset_at];
    END IF;
    beyond := lead - (most - cost) * unit;
    IF beyond > 0 THEN
        RETURN ARRAY[1, div(beyond + known[3] - 1, known[3]), remaining, reset_at]
            ::bigint[];
    ELSIF action = 1 THEN
        RETURN ARRAY[0, 0, remaining, reset_at];
    END IF;
    part := spec[5] * (lent + cost);
    tat := now_us + spec[4] * (lent + cost) + div(part, spec[3]);
    part := part % spec[3];
    reset_at := least(tat + (part > 0)::int, 9007199254740991);
    RETURN ARRAY[0, 0, remaining - cost, reset_at, reset_at, tat, part, spec[3], now_us,
        spec[4], spec[5]];
END $$;

-- Takes back units that were granted at an instant. Gives how many that restores, -1 if what is
-- remembered is not a state of this strategy, and if it restores any: idle_at and the state to keep.
CREATE OR REPLACE FUNCTION {name}_restore(
    spec bigint[], known bigint[], now_us bigint,
    units bigint, granted_at bigint, paid_until bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    parts constant bigint := spec[3];
    unit numeric;
    tat numeric;
    restored numeric;
    index bigint;
    ends bigint;
BEGIN
    IF known IS NULL THEN
        RETURN ARRAY[0];
    ELSIF (spec[1] = 1 AND cardinality(known) NOT IN (4, 6))
        OR (spec[1] <> 1 AND cardinality(known) <> 2)
    THEN
        RETURN ARRAY[-1];
    ELSIF spec[1] = 1 AND (known[5] <> spec[4]
        OR known[6]::numeric * parts <> spec[5]::numeric * known[3])
    THEN
        -- Another rate has counted since: what it made of the units is not known.
        RETURN ARRAY[0];
    ELSIF spec[1] = 1 THEN
        unit := spec[4]::numeric * parts + spec[5];
        -- A fraction over another denominator is rounded up, as a check reads it.
        tat := known[1]::numeric * parts
            + div(known[2]::numeric * parts + known[3] - 1, known[3]);
        -- What has come back by itself since the grant is not restored, and no more than is lent:
        -- as if it had never been granted.
        restored := least(
            least(units, spec[2])
                - div(greatest(now_us - granted_at, 0)::numeric * parts + unit - 1, unit),
            div(greatest(tat - now_us::numeric * parts, 0), unit));
        IF restored <= 0 THEN
            RETURN ARRAY[0];
        END IF;
        tat := tat - restored * unit;
        RETURN ARRAY[restored, div(tat + parts - 1, parts), div(tat, parts), mod(tat, parts),
            parts, now_us, spec[4], spec[5]]::bigint[];
    END IF;
    -- Only the window that paid takes back, and no more than it has spent.
    index := greatest(known[1], {name}_window_index(spec, now_us));
    ends := {name}_window_end(spec, index);
    restored := CASE WHEN index = known[1] AND ends = paid_until
        THEN least(units, known[2]) ELSE 0 END;
    RETURN ARRAY[restored, ends, index, known[2] - restored]::bigint[];
END $$;
