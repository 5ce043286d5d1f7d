-- Once, as who may create tables: holdfast schema postgresql://... | psql
-- Then this is all that the clients' user needs.
GRANT USAGE ON SCHEMA public TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast, holdfast_claims, holdfast_cells TO app;
GRANT SELECT ON holdfast_meta TO app;
