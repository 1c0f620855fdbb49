-- The built-in strategies' steps: pure functions, integers only, the same arithmetic as core's.
--
-- A step takes what the strategy is (`spec`), what the key remembers (`known`, null for a key never
-- seen), the instant, the action (0 check, 1 peek, 2 forecast) and the cost. It gives
--   a decision: outcome (0 admit, 1 retry after the wait, 2 never), wait, remaining, reset_at,
--               and if a check admits: idle_at and the state to keep;
--   a forecast: 0, spendable, next_replenish_at, full_at;
--   3 and zeroes, if what is remembered is not a state of this strategy.
-- 9007199254740991 is 2^53 - 1: no result lies past it.

-- gcra and token bucket. spec: 1, limit, D, unit (ticks, 1/D ticks), tolerance (ticks, 1/D ticks),
-- and the unit in 1/D ticks if D is small.
-- known: the TAT's ticks and 1/D ticks, the D they were written over, the instant of writing.
CREATE FUNCTION {name}_tat(
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
        IF cardinality(known) <> 4 THEN
            RETURN ARRAY[3, 0, 0, 0];
        END IF;
        tat := known[1];
        tat_part := known[2];
        IF known[3] <> parts AND tat_part <> 0 THEN
            -- Written over another denominator: rounded up, a changed limit makes no key lighter.
            tat_part := div(tat_part::numeric * parts + known[3] - 1, known[3]);
            IF tat_part >= parts THEN
                tat := tat + 1;
                tat_part := 0;
            END IF;
        END IF;
        IF tat < now_us THEN
            tat := now_us;
            tat_part := 0;
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
        RETURN ARRAY[0, 0, remaining, reset_at, reset_at, tat, tat_part, parts, now_us];
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

-- The number of the window that an instant lies in. Day 0 is 1 January 1970.
CREATE FUNCTION {name}_window_index(spec bigint[], now_us bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    day bigint;
    year bigint;
    month bigint;
    era bigint;
BEGIN
    IF spec[3] = 0 THEN
        RETURN (now_us + spec[4] - spec[5]) / spec[4];
    END IF;
    -- One day more, and one day back, since division rounds towards zero.
    day := (now_us + spec[4] + 86400000000) / 86400000000 - 1;
    IF spec[3] = 1 THEN
        RETURN day + 1;
    ELSIF spec[3] = 2 THEN
        RETURN (day + 14 - spec[5]) / 7;
    END IF;
    -- Counted from 1 March of year 0, so that the leap day is the last of its year.
    day := day + 719468;
    era := day / 146097;
    day := day % 146097;
    year := (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day := day - (365 * year + year / 4 - year / 100);
    month := (5 * day + 2) / 153;
    year := era * 400 + year + (month >= 10)::int;
    month := CASE WHEN month < 10 THEN month + 3 ELSE month - 9 END;
    RETURN (year - 1969) * 12 + month - 1;
END $$;

-- The first instant after a window.
CREATE FUNCTION {name}_window_end(spec bigint[], index bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    day bigint;
    year bigint;
    month bigint;
BEGIN
    IF spec[3] = 0 THEN
        RETURN least(index * spec[4] + spec[5], 9007199254740991);
    ELSIF spec[3] = 1 THEN
        day := index;
    ELSIF spec[3] = 2 THEN
        day := (index + 1) * 7 - 14 + spec[5];
    ELSE
        year := 1969 + (index + 1) / 12;
        month := (index + 1) % 12 + 1;
        year := year - (month <= 2)::int;
        month := CASE WHEN month > 2 THEN month - 3 ELSE month + 9 END;
        day := year / 400 * 146097 - 719468 + (153 * month + 2) / 5;
        year := year % 400;
        day := day + 365 * year + year / 4 - year / 100;
    END IF;
    RETURN least(greatest(day * 86400000000 - spec[4], 0), 9007199254740991);
END $$;

-- Fixed windows and calendar quotas. spec: 2, limit, cadence (0 fixed, 1 day, 2 week, 3 month),
-- period or microseconds east of UTC, phase or days from Thursday to the week's first.
-- known: the window's number, units spent in it.
CREATE FUNCTION {name}_window(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    index bigint := {name}_window_index(spec, now_us);
    spent bigint := 0;
    remaining bigint;
    ends bigint;
BEGIN
    IF known IS NOT NULL THEN
        IF cardinality(known) <> 2 THEN
            RETURN ARRAY[3, 0, 0, 0];
        END IF;
        -- The latest of now's window and the remembered one: stepping back opens nothing.
        IF known[1] >= index THEN
            index := known[1];
            spent := known[2];
        END IF;
    END IF;
    -- A limit that was lowered since may be exceeded already.
    remaining := greatest(spec[2] - spent, 0);
    ends := {name}_window_end(spec, index);
    IF action = 2 THEN
        RETURN ARRAY[0, remaining / cost, ends, ends];
    ELSIF cost > spec[2] THEN
        RETURN ARRAY[2, 0, remaining, ends];
    ELSIF cost > remaining THEN
        RETURN ARRAY[1, greatest(ends - now_us, 0), remaining, ends];
    ELSIF action = 1 THEN
        RETURN ARRAY[0, 0, remaining, ends];
    END IF;
    RETURN ARRAY[0, 0, remaining - cost, ends, ends, index, spent + cost];
END $$;

-- Units times a part of a whole, rounded up.
CREATE FUNCTION {name}_part(units bigint, part bigint, whole bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF part = 0 OR units <= 4611686018427387903 / part THEN
        RETURN (units * part + whole - 1) / whole;
    END IF;
    RETURN div(units::numeric * part + whole - 1, whole);
END $$;

-- A sliding window of S buckets. spec: 3, limit, window, S.
-- known: the latest instant admitted at, the bucket it lies in, the sum of the ring, and the ring:
-- bucket b is at place b mod (S + 1), the S + 1 newest are held.
CREATE FUNCTION {name}_sliding(
    spec bigint[], known bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    most constant bigint := spec[2];
    width constant bigint := spec[3];
    buckets constant bigint := spec[4];
    size constant bigint := buckets + 1;
    at bigint := now_us;
    place bigint;
    bucket bigint;
    newest bigint := -1;
    -- Units in the ring's buckets that the window covers, without the oldest.
    whole bigint := 0;
    oldest bigint := 0;
    remaining bigint;
    reset_at bigint;
    excess bigint;
    ring bigint[];
BEGIN
    IF known IS NOT NULL THEN
        IF cardinality(known) <> size + 3 THEN
            RETURN ARRAY[3, 0, 0, 0];
        END IF;
        at := greatest(known[1], now_us);
        newest := known[2];
        whole := known[3];
    END IF;
    place := at * buckets / width;
    IF place - newest >= size THEN
        whole := 0;
    ELSE
        -- What the window has left behind since, and then the oldest that it still touches.
        FOR age IN 1 .. (place - newest)::int LOOP
            bucket := newest - size + age;
            IF bucket >= 0 THEN
                whole := whole - known[4 + bucket % size];
            END IF;
        END LOOP;
        IF place >= buckets THEN
            oldest := known[4 + (place - buckets) % size];
            whole := whole - oldest;
        END IF;
    END IF;
    remaining := greatest(0, most - whole
        - {name}_part(oldest, width - at * buckets % width, width));
    reset_at := least(((place + size) * width + buckets - 1) / buckets, 9007199254740991);
    IF action = 2 THEN
        RETURN ARRAY[0, remaining / cost,
            least(((place + 1) * width + buckets - 1) / buckets, 9007199254740991), reset_at];
    ELSIF cost > most THEN
        RETURN ARRAY[2, 0, remaining, reset_at];
    ELSIF cost > remaining THEN
        -- Age the buckets one by one until it fits.
        WHILE whole > most - cost LOOP
            place := place + 1;
            oldest := CASE WHEN place < buckets OR place - buckets > newest THEN 0
                ELSE known[4 + (place - buckets) % size] END;
            whole := whole - oldest;
        END LOOP;
        excess := greatest(oldest - (most - cost - whole), 0);
        IF excess > 0 THEN
            excess := {name}_part(excess, width, oldest);
        END IF;
        RETURN ARRAY[1,
            greatest(0, least((place * width + excess + buckets - 1) / buckets, 9007199254740991)
                - now_us),
            remaining, reset_at];
    ELSIF action = 1 THEN
        RETURN ARRAY[0, 0, remaining, reset_at];
    END IF;
    IF place - newest >= size OR known IS NULL THEN
        ring := array_fill(0::bigint, ARRAY[size::int]);
    ELSE
        ring := known[4:];
        FOR age IN 1 .. (place - newest)::int LOOP
            ring[1 + (newest + age) % size] := 0;
        END LOOP;
    END IF;
    ring[1 + place % size] := ring[1 + place % size] + cost;
    RETURN ARRAY[0, 0, remaining - cost, reset_at, reset_at, at, place,
        whole + oldest + cost] || ring;
END $$;
