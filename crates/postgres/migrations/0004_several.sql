-- Several limits in one decision, all or nothing, over both kinds of tables.
--
-- With `one_is_enough` the first limit that admits is charged; without, all of them or none. No
-- key occurs twice unless one is enough. Gives the instant, which limit was charged (from 1; 0 for
-- none, -1 for all), and four numbers per limit. A limit that would admit but is not charged
-- answers what remains.
CREATE FUNCTION {name}_several(
    one_is_enough boolean, wanted bytea[], durable boolean[], specs bigint[], costs bigint[],
    hook bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
    spec bigint[];
    step bigint[];
    answers bigint[] := '{}';
    charged bigint := 0;
BEGIN
    -- One order for everybody: the logged rows by key, then the unlogged ones by key.
    PERFORM {name}_logged_lock(ARRAY(
        SELECT w.key FROM unnest(wanted, durable) AS w (key, durable) WHERE w.durable));
    PERFORM {name}_unlogged_lock(ARRAY(
        SELECT w.key FROM unnest(wanted, durable) AS w (key, durable) WHERE NOT w.durable));
    now_us := coalesce(hook, least(
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 4503599627370495));
    IF NOT one_is_enough THEN
        charged := -1;
        FOR i IN 1 .. cardinality(wanted) LOOP
            spec := specs[i * 8 - 7 : i * 8];
            step := {name}_ask(durable[i], wanted[i], spec, now_us, 0, costs[i]);
            IF step[1] <> 0 THEN
                charged := 0;
            END IF;
        END LOOP;
    END IF;
    FOR i IN 1 .. cardinality(wanted) LOOP
        spec := specs[i * 8 - 7 : i * 8];
        step := {name}_ask(durable[i], wanted[i], spec, now_us, 0, costs[i]);
        IF step[1] = 0 AND (charged = -1 OR (one_is_enough AND charged = 0)) THEN
            PERFORM {name}_charge(durable[i], wanted[i], spec, step, costs[i]);
            IF one_is_enough THEN
                charged := i;
            END IF;
        ELSIF step[1] = 0 THEN
            step := {name}_ask(durable[i], wanted[i], spec, now_us, 1, 1);
        END IF;
        answers := answers || step[1:4];
    END LOOP;
    IF charged = 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN ARRAY[now_us, charged] || answers;
END $$;

-- What a limit says to an action.
CREATE FUNCTION {name}_ask(
    durable boolean, wanted bytea, spec bigint[], now_us bigint, action int, cost bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    known bigint[];
BEGIN
    IF durable THEN
        SELECT t.state INTO known FROM {name}_logged t WHERE t.key = wanted;
        RETURN {name}_logged_step(spec, known, now_us, action, cost);
    END IF;
    SELECT t.state INTO known FROM {name}_unlogged t WHERE t.key = wanted;
    RETURN {name}_unlogged_step(spec, known, now_us, action, cost);
END $$;

-- Writes what an admission leaves in a row that is locked.
CREATE FUNCTION {name}_charge(
    durable boolean, wanted bytea, spec bigint[], step bigint[], cost bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF durable THEN
        UPDATE {name}_logged t SET
            state = CASE WHEN spec[1] = 4 THEN {name}_logged_log_write(step, spec, cost)
                ELSE step[6:] END,
            idle_at = step[5]
        WHERE t.key = wanted;
    ELSE
        UPDATE {name}_unlogged t SET
            state = CASE WHEN spec[1] = 4 THEN {name}_unlogged_log_write(step, spec, cost)
                ELSE step[6:] END,
            idle_at = step[5]
        WHERE t.key = wanted;
    END IF;
END $$;
