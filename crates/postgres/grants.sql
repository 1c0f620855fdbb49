GRANT USAGE ON SCHEMA public TO service;
GRANT SELECT ON admittance_migrations TO service;
GRANT SELECT, INSERT, UPDATE, DELETE ON
    admittance_logged, admittance_logged_entries, admittance_logged_orphans,
    admittance_logged_returned,
    admittance_unlogged, admittance_unlogged_entries, admittance_unlogged_orphans,
    admittance_unlogged_returned,
    admittance_logged_accounts, admittance_logged_leases,
    admittance_unlogged_accounts, admittance_unlogged_leases,
    admittance_fleets, admittance_nodes,
    admittance_boxes, admittance_notes, admittance_ended TO service;
GRANT USAGE ON SEQUENCE admittance_logged_logs, admittance_unlogged_logs TO service;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO service;
