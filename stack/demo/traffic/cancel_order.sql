-- An order goes with all its lines.
\set id random(1, 10000)
BEGIN;
DELETE FROM shop.order_lines WHERE order_id = :id;
DELETE FROM shop.orders WHERE id = :id;
COMMIT;
