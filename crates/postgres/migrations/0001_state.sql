-- Where state lives. Run once for the logged tables and once for the unlogged ones.
--
-- A key has one row. No index covers a column that a check changes, and pages keep room for the
-- next version of their rows, so an admission is a heap-only update and leaves the index alone.
CREATE {unlogged} TABLE {state} (
    -- Prefix, policy, shape and key, joined so that two different ones never meet.
    key bytea PRIMARY KEY,
    -- What a built-in strategy remembers; null in a row that only holds a lock.
    state bigint[],
    -- What a strategy of somebody's own remembers.
    bytes bytea,
    -- Microseconds since the epoch: from here on the row decides as none does.
    idle_at bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- Keys are short and looked at by every check: compressing them costs more than it saves.
ALTER TABLE {state} ALTER COLUMN key SET STORAGE EXTERNAL;

-- A sliding log's admissions, one row each, so that an admission writes one entry and not all of
-- them. `total` counts the units up to and including this entry, which makes a sum over a stretch
-- of entries one subtraction.
CREATE {unlogged} TABLE {state}_entries (
    log bigint NOT NULL,
    at bigint NOT NULL,
    total bigint NOT NULL,
    units bigint NOT NULL,
    PRIMARY KEY (log, at, total)
);

-- Logs whose key was forgotten; the reaper deletes their entries a few at a time.
CREATE {unlogged} TABLE {state}_orphans (log bigint PRIMARY KEY);

CREATE SEQUENCE {state}_logs;
