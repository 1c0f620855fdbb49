-- Limits and budgets in one decision, over both kinds of tables.
--
-- All limits must admit before an account is asked; then all accounts must. Limits are charged if
-- both do, and with `is_per_axis` also if only they do. No key occurs twice. `act` is 1 to debit and
-- 2 to reserve. Gives the instant, four numbers per limit as `{name}_several` does, and if the
-- accounts were asked twelve per account as `{name}_book` does.
CREATE FUNCTION {name}_fuse(
    is_per_axis boolean, limits bytea[], limits_durable boolean[], limit_specs bigint[],
    costs bigint[], wanted bytea[], durable boolean[], specs bigint[], units bigint[], act int,
    whose bytea, ttl bigint, hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    spec bigint[];
    step bigint[];
    found bigint[];
    answers bigint[] := '{}';
    booked bigint[] := '{}';
    is_admitted boolean := true;
    is_spent boolean := true;
    is_charged boolean;
BEGIN
    -- One order for everybody: limits, then accounts; of each the logged rows by key, then the
    -- unlogged ones by key.
    PERFORM {name}_logged_lock(ARRAY(
        SELECT w.key FROM unnest(limits, limits_durable) AS w (key, durable) WHERE w.durable));
    PERFORM {name}_unlogged_lock(ARRAY(
        SELECT w.key FROM unnest(limits, limits_durable) AS w (key, durable)
        WHERE NOT w.durable));
    PERFORM {name}_logged_lock_accounts(ARRAY(
        SELECT w.key FROM unnest(wanted, durable) AS w (key, durable) WHERE w.durable));
    PERFORM {name}_unlogged_lock_accounts(ARRAY(
        SELECT w.key FROM unnest(wanted, durable) AS w (key, durable) WHERE NOT w.durable));
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    FOR i IN 1 .. cardinality(limits) LOOP
        spec := limit_specs[i * 8 - 7 : i * 8];
        step := {name}_ask(limits_durable[i], limits[i], spec, now_us, 0, costs[i]);
        is_admitted := is_admitted AND step[1] = 0;
    END LOOP;

    IF is_admitted THEN
        FOR i IN 1 .. cardinality(wanted) LOOP
            found := {name}_book_one(durable[i], wanted[i], specs[i * 8 - 7 : i * 8], act, whose,
                units[i], ttl, 1, now_us);
            booked := booked || found[2:];
            is_spent := is_spent AND found[2] = 0;
        END LOOP;
        IF is_spent THEN
            booked := '{}';
            FOR i IN 1 .. cardinality(wanted) LOOP
                found := {name}_book_one(durable[i], wanted[i], specs[i * 8 - 7 : i * 8], act,
                    whose, units[i], ttl, 2, now_us);
                booked := booked || found[2:];
            END LOOP;
        END IF;
    END IF;

    is_charged := is_admitted AND (is_spent OR is_per_axis);
    FOR i IN 1 .. cardinality(limits) LOOP
        spec := limit_specs[i * 8 - 7 : i * 8];
        step := {name}_ask(limits_durable[i], limits[i], spec, now_us, 0, costs[i]);
        IF is_charged THEN
            PERFORM {name}_charge(limits_durable[i], limits[i], spec, step, costs[i]);
        ELSIF step[1] = 0 THEN
            step := {name}_ask(limits_durable[i], limits[i], spec, now_us, 1, 1);
        END IF;
        answers := answers || step[1:4];
    END LOOP;
    IF NOT is_charged OR (NOT is_spent AND cardinality(limits) = 0) THEN
        -- What time alone has changed need not be on the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN now_us || answers || booked;
END $$;
