-- Budgets: the arithmetic of windows and debt, the same as core's, and one entry over several
-- accounts.
--
-- A budget is eight numbers: how many leases may be open, the limit, three of the cadence as
-- `0002_steps.sql` says, whether debt is carried (1) or forgiven (0), how many leases that have
-- ended are remembered, and 0. The limit is at least 1.
-- 9007199254740991 is 2^53 - 1: no result lies past it. 600000000 is how long a lease that has
-- ended is remembered.

-- The end of the window so many after the one with this number, or the last instant there is.
CREATE FUNCTION {name}_end_after(spec bigint[], index bigint, windows bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF windows = 0 THEN
        RETURN {name}_window_end(spec, index);
    ELSIF spec[3] = 0 THEN
        IF windows > 9007199254740991 / spec[4] THEN
            RETURN 9007199254740991;
        END IF;
        RETURN least({name}_window_end(spec, index) + windows * spec[4], 9007199254740991);
    ELSIF windows > 200000 THEN
        -- So many days already end long after everything.
        RETURN 9007199254740991;
    END IF;
    RETURN {name}_window_end(spec, index + windows);
END $$;

-- The debt that is left when a window ends with so much spent and reserved.
CREATE FUNCTION {name}_debt_after(spec bigint[], spent bigint, reserved bigint, debt bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF debt = 0 OR spec[6] = 0 THEN
        RETURN 0;
    END IF;
    RETURN greatest(debt - greatest(spec[2] - spent - reserved, 0), 0);
END $$;

-- An entry over several accounts, of either kind of table, no account twice: all are charged or
-- none, or each is settled. Gives the instant, and twelve numbers per account as
-- `0011_accounts.sql` says.
CREATE FUNCTION {name}_book(
    wanted bytea[], durable boolean[], specs bigint[], units bigint[], act int, whose bytea,
    ttl bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    -- A debit and a reservation are judged everywhere before anything is charged.
    is_judged constant boolean := act IN (1, 2);
    is_admitted boolean := true;
    at bigint;
    found bigint[];
    answers bigint[] := '{}';
BEGIN
    -- One order for everybody: the logged rows by key, then the unlogged ones by key.
    PERFORM {name}_logged_lock_accounts(ARRAY(
        SELECT w.key FROM unnest(wanted, durable) AS w (key, durable) WHERE w.durable));
    PERFORM {name}_unlogged_lock_accounts(ARRAY(
        SELECT w.key FROM unnest(wanted, durable) AS w (key, durable) WHERE NOT w.durable));
    at := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    FOR i IN 1 .. cardinality(wanted) LOOP
        found := {name}_book_one(durable[i], wanted[i], specs[i * 8 - 7 : i * 8], act, whose,
            units[i], ttl, CASE WHEN is_judged THEN 1 ELSE 2 END, at);
        answers := answers || found[2:];
        is_admitted := is_admitted AND found[2] = 0;
    END LOOP;
    IF act = 0 OR NOT is_admitted THEN
        -- What time alone has changed need not be on the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF is_judged THEN
        answers := '{}';
        FOR i IN 1 .. cardinality(wanted) LOOP
            found := {name}_book_one(durable[i], wanted[i], specs[i * 8 - 7 : i * 8], act, whose,
                units[i], ttl, 2, at);
            answers := answers || found[2:];
        END LOOP;
    END IF;
    RETURN at || answers;
END $$;

CREATE FUNCTION {name}_book_one(
    durable boolean, wanted bytea, spec bigint[], act int, whose bytea, units bigint, ttl bigint,
    part int, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    IF durable THEN
        RETURN {name}_logged_book(wanted, spec, act, whose, units, ttl, part, hook);
    END IF;
    RETURN {name}_unlogged_book(wanted, spec, act, whose, units, ttl, part, hook);
END $$;
