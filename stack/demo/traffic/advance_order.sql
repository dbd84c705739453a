-- An order goes one step on.
\set back random(0, 2000)
UPDATE shop.orders
    SET status = (enum_range(status, NULL))[2], changed_at = clock_timestamp(), details = details || jsonb_build_object('step', txid_current() % 1000)
    WHERE id = (SELECT max(id) FROM shop.orders) - :back AND status < 'returned';
