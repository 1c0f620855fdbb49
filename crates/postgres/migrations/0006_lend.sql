-- What a limit lends and takes back: pure functions, integers only, the same arithmetic as core's.
-- Only gcra, token bucket, fixed windows and calendar quotas are asked for leases.

-- Grants what is needed or wished, if there is as much as is enough. Gives the units granted, the
-- decision about what was needed, in four numbers, and if anything was granted: idle_at and the
-- state to keep.
CREATE FUNCTION {name}_grant(
    spec bigint[], known bigint[], now_us bigint,
    needed bigint, enough bigint, wished bigint, trip bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    step bigint[] := {name}_lent(spec, known, now_us, 1, 1);
    granted bigint := greatest(wished, needed);
    missing bigint;
    told bigint[] := ARRAY[0, 0];
BEGIN
    IF step[1] = 3 THEN
        RETURN ARRAY[0, 3, 0, 0, 0];
    END IF;
    -- What a window pays for must outlive four round trips, or there is no time to use it.
    IF spec[1] = 2 AND step[4] - now_us < 4 * trip THEN
        granted := needed;
    END IF;
    granted := least(granted, step[3]);
    IF step[3] < enough THEN
        granted := 0;
    END IF;
    IF granted > 0 THEN
        step := {name}_lent(spec, known, now_us, 0, granted);
        known := step[6:];
    END IF;
    -- Who got nothing is told when there is something again.
    missing := CASE WHEN granted = 0 THEN greatest(needed, 1) ELSE needed - granted END;
    IF missing > 0 THEN
        told := {name}_lent(spec, known, now_us, 1, missing);
    END IF;
    RETURN granted || told[1:2] || step[3:];
END $$;

-- A step of those that lend.
CREATE FUNCTION {name}_lent(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF spec[1] = 1 THEN
        RETURN {name}_tat(spec, known, now_us, action, cost);
    END IF;
    RETURN {name}_window(spec, known, now_us, action, cost);
END $$;

-- Takes back units that were granted at an instant. Gives how many that restores, -1 if what is
-- remembered is not a state of this strategy, and if it restores any: idle_at and the state to keep.
CREATE FUNCTION {name}_restore(
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
    ELSIF cardinality(known) <> (CASE WHEN spec[1] = 1 THEN 4 ELSE 2 END) THEN
        RETURN ARRAY[-1];
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
            parts, now_us]::bigint[];
    END IF;
    -- Only the window that paid takes back, and no more than it has spent.
    index := greatest(known[1], {name}_window_index(spec, now_us));
    ends := {name}_window_end(spec, index);
    restored := CASE WHEN index = known[1] AND ends = paid_until
        THEN least(units, known[2]) ELSE 0 END;
    RETURN ARRAY[restored, ends, index, known[2] - restored]::bigint[];
END $$;
