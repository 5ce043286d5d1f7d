-- Once, as somebody who may create tables: holdfast schema mysql://... | mysql DATABASE
-- Then this is all that the clients' user needs.
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_claims TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_cells TO app;
GRANT SELECT ON holdfast_meta TO app;
-- For strategy=for-update, and strategy=advisory with fence=1:
GRANT SELECT, INSERT, UPDATE ON holdfast_fence TO app;
-- For strategy=for-update:
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast_rows TO app;
