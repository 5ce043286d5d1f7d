-- Once, as somebody who may create tables: holdfast schema postgresql://... | psql
-- Then this is all that the clients' user needs.
GRANT USAGE ON SCHEMA public TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast, holdfast_claims, holdfast_cells TO app;
GRANT SELECT ON holdfast_meta TO app;
-- For strategy=advisory and strategy=for-update:
GRANT USAGE, UPDATE ON SEQUENCE holdfast_fence TO app;
-- For strategy=for-update:
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_rows TO app;
