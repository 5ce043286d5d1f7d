-- Once, as who may create tables: holdfast schema mysql://... | mysql DATABASE
-- Then this is all that the clients' user needs.
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_claims TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_cells TO app;
GRANT SELECT ON holdfast_meta TO app;
